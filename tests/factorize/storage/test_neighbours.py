"""A start from what the store has: found, used and named; never needed, and never trusted."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from specs import spec_of

from factorize import solvers
from factorize.api import local
from factorize.api.jobs import child
from factorize.encoding import sha256, tensor_digest
from factorize.errors import CorruptObject, Revoked, SolveFailed, StoreUnavailable
from factorize.factorization import Factorization
from factorize.solution import Outcome
from factorize.solvers import solving
from factorize.solvers.register import entry_for
from factorize.spec import Spec, parse_spec
from factorize.storage import neighbours
from factorize.storage.blobs import blob_key
from factorize.storage.neighbours import Neighbour, distance, nearest, stored_dual, worthwhile
from factorize.storage.publication import Publisher
from factorize.storage.store import Store, open_store

MOMENTUM = {"kind": "momentum", "momentum": 0.9}


def of_epochs(n: int = 512, *, workload: dict[str, Any] = MOMENTUM, epochs: int = 4, **parts: Any) -> Spec:
    return solvers.choose(spec_of(workload, "dense", epochs, n=n, **{"tolerance": 1e-6, **parts}))


@cache
def answer(n: int, **parts: Any) -> Factorization:
    return solvers.solve(of_epochs(n, **parts))


def at(folder: Path, *found: Factorization) -> Store:
    store = open_store(folder / "store")
    for one in found:
        store.put(one)
    return store


def digest_of(found: Neighbour | None) -> str | None:
    return None if found is None else found.digest


def test_the_nearest_is_taken_with_its_dual_alone(tmp_path: Path) -> None:
    store = at(tmp_path, answer(256), answer(480), answer(480, epochs=8))
    found = nearest(of_epochs(), store)
    assert found is not None
    assert (found.digest, found.spec) == (answer(480).digest, answer(480).spec)
    assert found.dual["factors"].tobytes() == answer(480).dual["factors"].tobytes()


def test_what_is_unlike_is_no_neighbour(tmp_path: Path) -> None:
    store = at(tmp_path, answer(128))
    assert nearest(of_epochs(), store) is not None
    assert nearest(of_epochs(516), store) is None  # more than four times as long
    for other in (
        of_epochs(epochs=8),
        of_epochs(workload={"kind": "momentum", "momentum": 0.5}),
        of_epochs(workload=MOMENTUM | {"nesterov": True}),
        of_epochs(workload=MOMENTUM | {"learning_rates": {"kind": "cosine", "final": 0.1}}),
        of_epochs(objective={"kind": "lambda_tau", "tau": 8}),
    ):
        assert nearest(other, store) is None


def test_a_users_matrix_has_no_neighbours(tmp_path: Path) -> None:
    """Nothing tells two of them apart but their digests, and those say nothing about the distance."""
    document = of_epochs().document() | {"workload": {"kind": "matrix", "rows": np.tril(np.ones((512, 512))).tolist()}}
    wanted = parse_spec(document)
    store = at(tmp_path, answer(480))
    found = {**store.manifest(answer(480).digest), "spec": wanted.canonical().document()}
    store.items = lambda **_filters: iter([found])  # type: ignore[method-assign]
    assert nearest(wanted, store) is None


def test_schedules_are_compared_by_their_shape(tmp_path: Path) -> None:
    cosine = MOMENTUM | {"learning_rates": {"kind": "cosine", "final": 0.5}}
    found = solvers.solve(of_epochs(480, workload=cosine))
    store = at(tmp_path, found)
    assert digest_of(nearest(of_epochs(workload=cosine), store)) == found.digest
    steeper = MOMENTUM | {"learning_rates": {"kind": "cosine", "final": 0.01}}
    assert nearest(of_epochs(workload=steeper), store) is None


def test_searches_that_are_quick_look_for_nobody(tmp_path: Path) -> None:
    store = at(tmp_path, answer(480))
    assert nearest(of_epochs(508), store) is None
    assert nearest(of_epochs(workload={"kind": "prefix"}), store) is None
    alone = spec_of(MOMENTUM | {"n": 512}, "dense")
    assert nearest(solvers.choose(alone), store) is None


@pytest.mark.parametrize(
    ("n", "epochs", "worth"),
    [(1 << 15, 4, True), ((1 << 15) - 4, 4, False), (8192, 4, False), (512, 32, True), (256, 64, False)],
)
def test_a_bidiagonal_inverse_is_worth_it_from_half_a_million_numbers(n: int, epochs: int, worth: bool) -> None:
    assert worthwhile(of_epochs(n, workload={"kind": "prefix"}, epochs=epochs)) is worth
    assert worthwhile(of_epochs(n, workload=MOMENTUM | {"nesterov": True}, epochs=epochs)) is (n >= 512)
    alone = spec_of(n, "dense")
    assert worthwhile(alone) is False


def asked(n: object = 512, **workload: object) -> dict[str, Any]:
    return {"workload": {"kind": "x", "n": n} | workload, "objective": {"kind": "mean"}}


@pytest.mark.parametrize(
    ("one", "other", "far"),
    [
        (asked(), asked(), 0.0),
        (asked(100), asked(400), math.log(4)),
        (asked(momentum=0.8), asked(momentum=0.5), 10 * 3 / 8),
        (asked(rate=-0.5), asked(rate=0.5), 20.0),
        (asked(100, rates=[1.0, 0.0]), asked(200, rates=[2.0, 1.0, 0.0]), math.log(2) + 5.0),
        (asked(rates=[0.0, 0.0]), asked(rates=[0.0, 0.0, 0.0]), 0.0),
        (asked(rates=[1.0, 1.0, 1.0]), asked(rates=[1.0, 1.0]), 0.0),
        (asked(rates=[1.0, 1.0]), asked(rates=[1.0]), math.inf),
        (asked(rates=[1.0, 2.0]), asked(rates=1.0), math.inf),
        (asked(rates=[1.0, 2.0]), asked(rates=[1.0, "2"]), math.inf),
        (asked(rate=1.0), asked(rate="1"), math.inf),
        (asked(rate=1.0), asked(rate=True), 0.0),
        (asked(rate=2.0), asked(rate=True), math.inf),
        (asked(rate=1.0), asked(), math.inf),
        (asked(512), asked("unbounded"), math.inf),
        (asked(), asked() | {"participation": {"kind": "single"}}, math.inf),
        (asked(), asked() | {"objective": {"kind": "lambda_tau", "tau": 2}}, math.inf),
    ],
)
def test_distances_are_those_of_the_numbers(one: dict[str, Any], other: dict[str, Any], far: float) -> None:
    assert distance(one, other) == pytest.approx(far, abs=1e-15)
    assert distance(other, one) == pytest.approx(far, abs=1e-15)


def crafted(folder: Path, data: bytes, *tensors: np.ndarray) -> tuple[Store, dict[str, Any]]:
    """A store with such a blob, and the part of a manifest that says what is in it."""
    store, name = open_store(folder / "store"), sha256(data)
    Publisher(store.objects).publish(blob_key(name), data, lambda: True)
    names = [f"dual.{letter}" for letter, _ in zip("ab", tensors, strict=False)]
    dual = {"tensors": names, "sha256": tensor_digest(tensors)}
    return store, {"files": [{"sha256": name, "bytes": len(data)}], "dual": dual}


def test_each_tensor_of_a_dual_is_read_from_its_place(tmp_path: Path) -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(4.0)
    store, manifest = crafted(tmp_path, save({"C": np.eye(3), "dual.a": a, "dual.b": b, "x": np.eye(2)}), a, b)
    found = stored_dual(manifest, store)
    assert list(found) == ["a", "b"]
    np.testing.assert_array_equal(found["a"], a)
    np.testing.assert_array_equal(found["b"], b)


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        bytes(8),
        b"\1" + bytes(7) + b"5",
        b"\xff" * 8,
        (1 << 26).to_bytes(8, "little") + b"{}",
    ],
)
def test_a_header_that_is_none_is_corrupt(tmp_path: Path, data: bytes) -> None:
    store, manifest = crafted(tmp_path, data, np.eye(2))
    with pytest.raises(CorruptObject, match="header .* is damaged"):
        stored_dual(manifest, store)


def test_a_header_is_read_up_to_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = save({"dual.a": np.eye(2)})
    store, manifest = crafted(tmp_path, data, np.eye(2))
    length = int.from_bytes(data[:8], "little")
    monkeypatch.setattr(neighbours, "_HEADER_BYTES", length)
    assert stored_dual(manifest, store)["a"].shape == (2, 2)
    monkeypatch.setattr(neighbours, "_HEADER_BYTES", length - 1)
    with pytest.raises(CorruptObject, match=f"it has {length} bytes"):
        stored_dual(manifest, store)


def test_a_dual_larger_than_its_file_is_not_read(tmp_path: Path) -> None:
    data = _beginning({"dual.a": {"shape": [1], "data_offsets": [0, 10**17]}})
    store, manifest = crafted(tmp_path, data, np.eye(2))
    with pytest.raises(CorruptObject, match="dual.a has 100000000000000000 bytes, more than the file"):
        stored_dual(manifest, store)


def test_a_dual_with_other_numbers_is_corrupt(tmp_path: Path) -> None:
    store, manifest = crafted(tmp_path, save({"dual.a": np.zeros((2, 2))}), np.eye(2))
    with pytest.raises(CorruptObject, match="do not hash"):
        stored_dual(manifest, store)


def test_the_dual_of_a_revoked_result_is_not_given_out(tmp_path: Path) -> None:
    store = at(tmp_path, answer(128))
    manifest = store.manifest(answer(128).digest)
    store.revoke(manifest["digest"], "a test")
    with pytest.raises(Revoked):
        stored_dual(manifest, store)


def test_damaged_and_revoked_neighbours_are_passed_over(tmp_path: Path) -> None:
    store = at(tmp_path, answer(256), answer(480))
    store.revoke(answer(480).digest, "a test")
    assert digest_of(nearest(of_epochs(), store)) == answer(256).digest
    manifest = store.manifest(answer(256).digest)
    path = tmp_path / "store" / blob_key(manifest["files"][0]["sha256"])
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    offset = start + json.loads(whole[8:start])["dual.factors"]["data_offsets"][0]
    path.chmod(0o600)
    for damaged in (
        whole[: offset + 3] + bytes([whole[offset + 3] ^ 1]) + whole[offset + 4 :],
        whole[: offset + 8],
        b"\xff" * len(whole),
        b"\0",
        b"\x08" + bytes(7) + b"[1,2,3] ",
        b"\x02" + bytes(7) + b"{}",
        _beginning({"dual.factors": {"shape": [1], "data_offsets": [0, 10**17]}}),
        _beginning({"dual.factors": {"shape": [0], "data_offsets": [8, 0]}}),
        _beginning({"dual.factors": {"shape": [0], "data_offsets": [-8, -8]}}),
    ):
        path.write_bytes(damaged)
        assert nearest(of_epochs(), store) is None
    path.write_bytes(whole)
    assert stored_dual(manifest, store)["factors"].shape == (64, 4, 4)
    path.unlink()
    assert nearest(of_epochs(), store) is None


def _beginning(header: dict[str, Any]) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def test_a_medium_that_fails_costs_the_start_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = at(tmp_path, answer(480))

    def refuse(**_filters: Any) -> None:
        raise StoreUnavailable("no")

    monkeypatch.setattr(store, "items", refuse)
    assert nearest(of_epochs(), store) is None


@pytest.mark.parametrize("way", ["child", "local"])
def test_child_and_command_line_start_from_it_and_say_so(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "SMALLEST", 128)  # larger files take seconds to be checked exactly
    cold, asked = answer(128), of_epochs(128)
    store = at(tmp_path, answer(136))
    if way == "child":
        digest = child.solve({"spec": asked.document(), "store": store.url}, lambda **said: None)["digest"]
    else:
        digest = local.obtain(local.plan(asked, store), store, progress=lambda _: None)["digest"]
    warm = store.load(digest)
    assert warm.manifest["solver"]["warm_start"] == answer(136).digest
    assert warm.manifest["solver"]["iterations"] < cold.manifest["solver"]["iterations"]
    assert warm.certificate.converged
    assert warm.spec_digest == cold.spec_digest
    assert warm.certificate.loss.objective == pytest.approx(cold.certificate.loss.objective, rel=2e-6)
    assert "warm_start" not in cold.manifest["solver"]


@pytest.mark.parametrize("failure", ["raises", "stalls"])
def test_a_start_that_leads_nowhere_is_dropped(failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = entry_for(of_epochs())
    asked: list[bool] = []
    near = Neighbour(answer(480).digest, answer(480).spec, answer(480).dual)

    def solve(problem: Any, progress: Any) -> Any:
        asked.append(problem.start is not None)
        if problem.start is None:
            return entry.solve(problem, progress)
        if failure == "raises":
            raise SolveFailed("lost")
        cold = entry.solve(problem.__class__(problem.spec), progress)
        return cold.__class__(cold.strategy, Outcome.ROUNDING_LIMIT, cold.iterations, cold.dual)

    monkeypatch.setattr(solving, "entry_for", lambda _spec: solvers.Entry(solve, entry.supports, entry.estimate))
    found = solvers.solve(of_epochs(), warm_start=near)
    assert asked == [True, False]
    assert "warm_start" not in found.manifest["solver"]
    assert found.certificate.converged
