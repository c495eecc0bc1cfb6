"""Rounds of federated training: who is refused, what is added, and what a killed server leaves."""

from __future__ import annotations

import gc
import json
import os
import random
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from factorize import Factorization, Spec, solvers
from factorize.adapters import federated
from factorize.adapters.federated import FederatedRounds
from factorize.adapters.gradients.clipped_sums import GroupedSum, clipped
from factorize.checker.receipt import check_receipt
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.format.manifest import certified
from factorize.noise.generator import NoiseGenerator
from factorize.noise.source import source_of
from factorize.numbers.gaussian import gaussian_epsilon
from factorize.participation import read_participation
from factorize.privacy import PrivacyTarget
from factorize.training.receipt import Receipt

N, SEPARATION, TIMES, PLANNED = 12, 3, 4, 5
PARTICIPATION = {"kind": "min_sep", "min_sep": SEPARATION, "max_participations": TIMES}
FLEET = [f"phone-{i}" for i in range(20)]
MODEL = [np.zeros((2, 3), np.float32), np.zeros(4, np.float32)]
SEED = 1 << 100


def solved(n: int = N, mechanism: str = "blt", **options: Any) -> Factorization:
    about: dict[str, Any] = {"workload": {"kind": "prefix", "n": n}, "participation": PARTICIPATION}
    return solvers.solve(Spec.model_validate({**about, "mechanism": {"kind": mechanism, **options}}))


@pytest.fixture(scope="module")
def factors() -> Factorization:
    return solved(buffers=2)


def rounds_in(folder: Path, factors: Factorization, **options: Any) -> FederatedRounds:
    settings: dict[str, Any] = {"clients": len(FLEET), "clients_a_round": PLANNED, "clip_norm": 0.5, "seed": SEED}
    settings |= {"path": folder / "state", "target": PrivacyTarget(epsilon=4.0, delta=1e-5), "model": MODEL}
    return FederatedRounds(factors=factors, **{**settings, **options})


def answer(client: str, step: int) -> list[np.ndarray]:
    rng = np.random.default_rng([step, FLEET.index(client)])
    return [rng.standard_normal(part.shape).astype(np.float32) for part in MODEL]


def one_round(rounds: FederatedRounds, chosen: list[str] | None = None) -> list[np.ndarray]:
    turn = FLEET[rounds.step % 4 * PLANNED :][:PLANNED] if chosen is None else chosen
    for client in rounds.admit(turn):
        rounds.add(client, answer(client, rounds.step))
    return rounds.close()


def bits(released: list[np.ndarray]) -> bytes:
    return b"".join(part.tobytes() for part in released)


def assert_proved(folder: Path, factors: Factorization) -> Any:
    factors.save(folder / "factors.safetensors")
    text = (folder / "receipt.json").read_bytes()
    report = check_receipt(text, [(folder / "factors.safetensors").read_bytes()])
    assert report.aside == "" and any("from its own data" in sentence for sentence in report.not_checked)
    assert report.supported and not report.unseen, (report.failed, report.unseen)
    return report


def test_a_run_is_proved_and_stops_at_its_budget(tmp_path: Path, factors: Factorization) -> None:
    receipt = Receipt(tmp_path / "receipt.json")
    rounds = rounds_in(tmp_path, factors, receipt=receipt)
    for _ in range(N):
        one_round(rounds)
    assert rounds.eligible(FLEET) == []
    with pytest.raises(InvalidParticipation, match="the whole budget is spent"):
        rounds.admit(FLEET)
    with pytest.raises(InvalidParticipation, match="the whole budget is spent"):
        rounds.close()
    receipt.close()
    assert_proved(tmp_path, factors)


def test_no_client_moves_a_rounded_sum_by_more_than_the_clip_norm() -> None:
    """Exact fractions; the updates of the others are alike, so that roundings add up, over three groups."""
    others, sums = clipped([np.full(9, 0.1)], 0.7 / 3), []
    assert others is not None
    for update in (clipped([np.array([3e3, *(0.1,) * 8])], 0.7), np.zeros(9)):
        total = GroupedSum(9)
        for i in range(1100):
            total.add(others if i else update)
        sums.append(total.total.tolist())
    moved = sum((Fraction(own) - Fraction(other)) ** 2 for own, other in zip(*sums, strict=True))
    assert Fraction(0.7) ** 2 * (1 - Fraction(1, 2**18)) < moved <= Fraction(0.7) ** 2


def test_a_round_of_too_many_clients_is_refused(tmp_path: Path, factors: Factorization) -> None:
    rounds = rounds_in(tmp_path, factors, clients=10**7)
    with pytest.raises(InvalidParameter, match="1000000 clients .* admit fewer clients to a round"):
        rounds.admit(range(10**6))
    assert rounds.known == []


def test_each_round_adds_the_noise_of_its_step_to_the_mean_of_the_planned_number(
    tmp_path: Path, factors: Factorization
) -> None:
    """Two clients answer in the first round, and nobody after it."""
    rounds = rounds_in(tmp_path, factors)
    source = source_of(certified(factors))
    noise = NoiseGenerator(source, rounds.calibration, 10, seed=SEED, precision="float64")
    chosen = rounds.admit(FLEET[:PLANNED])
    total = np.zeros(10)
    for client in chosen[:2]:
        assert rounds.add(client, answer(client, 0))
        total += clipped(answer(client, 0), 0.5)
    for step in range(N):
        mean = np.concatenate([part.ravel() for part in rounds.close()])
        assert np.allclose(mean, (total + noise.next()) / PLANNED, rtol=0, atol=1e-6)
        assert step or rounds.eligible(FLEET) == sorted(FLEET[PLANNED:]), "who was admitted waits, answer or not"
        total = np.zeros(10)


def test_what_is_wrong_is_refused_and_the_round_goes_on(
    tmp_path: Path, factors: Factorization, caplog: pytest.LogCaptureFixture
) -> None:
    receipt = Receipt(tmp_path / "receipt.json")
    rounds = rounds_in(tmp_path, factors, receipt=receipt)
    one_round(rounds)
    assert rounds.admit(["phone-0", "phone-7", "phone-8", "phone-9", "phone-10", "phone-11"]) == [
        *("phone-7", "phone-8", "phone-9", "phone-10", "phone-11"),
    ]
    good = answer("phone-7", 1)
    assert rounds.add("phone-7", good) and not rounds.add("phone-7", good)
    assert not rounds.add("phone-0", good) and not rounds.add("nobody", good)
    assert not rounds.add("phone-8", [np.full((2, 3), np.nan), MODEL[1]])
    assert not rounds.add("phone-9", [np.full((2, 3), -np.inf), MODEL[1]])
    assert not rounds.add("phone-10", [MODEL[0].T, MODEL[1]])
    assert not rounds.add("phone-11", [MODEL[0].astype(np.int64), MODEL[1]])
    assert not rounds.add("phone-8", good), "a second try is a second contribution"
    alone = bits(rounds.close())
    reasons = {"too early": 1, "twice": 2, "not admitted": 2, "not finite": 2, "shape": 1, "type": 1}
    assert rounds.refused == reasons
    assert all(f"'{name}'" in caplog.text for name in ("phone-0", "nobody", "phone-8", "phone-10"))
    receipt.close()
    assert json.loads((tmp_path / "receipt.json").read_bytes())["steps"]["refused"] == reasons
    assert sum("were refused" in sentence for sentence in assert_proved(tmp_path, factors).not_checked) == 6
    other = tmp_path / "other"
    other.mkdir()
    again = rounds_in(other, factors)
    one_round(again)
    assert again.admit(["phone-7"]) and again.add("phone-7", good) and bits(again.close()) == alone


def test_an_update_with_masked_entries_counts_as_zeros(
    tmp_path: Path, factors: Factorization, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = rounds_in(tmp_path, factors)
    rounds.admit(FLEET[:PLANNED])
    assert not rounds.add(FLEET[0], [np.ma.masked_less(MODEL[0], np.inf), MODEL[1]])
    assert rounds.refused == {"shape": 1} and "has masked entries" in caplog.text


class Killed(Exception):
    """The process ends here."""


def test_no_round_is_released_after_the_receipt_was_closed(tmp_path: Path, factors: Factorization) -> None:
    receipt = Receipt(tmp_path / "receipt.json")
    rounds = rounds_in(tmp_path, factors, receipt=receipt)
    one_round(rounds)
    receipt.close()
    with pytest.raises(InvalidParameter, match="ended after 1 steps, but step 1 is about to be released"):
        one_round(rounds)
    assert_proved(tmp_path, factors)
    assert json.loads(receipt.path.read_bytes())["steps"]["processes"] == [[0, 1]]


def test_the_path_of_a_receipt_is_none(tmp_path: Path, factors: Factorization) -> None:
    with pytest.raises(InvalidParameter, match=r"receipt is of type PosixPath; give .*Receipt\(path\)"):
        rounds_in(tmp_path, factors, receipt=tmp_path / "receipt.json")


@pytest.mark.parametrize("killed", range(0, 4 * N, 5))
def test_a_killed_server_goes_on_with_the_same_bits(
    tmp_path: Path, factors: Factorization, killed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever replacement of a file is the last, before or after it."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir(), broken.mkdir()
    rounds = rounds_in(whole, factors)
    expected = [bits(one_round(rounds)) for _ in range(N)]
    replace, left = os.replace, [killed // 2]

    def dying(*paths: Any) -> None:
        left[0] -= 1
        if left[0] == -1 and killed % 2:
            raise Killed
        replace(*paths)
        if left[0] == -1:
            raise Killed

    receipt = Receipt(broken / "receipt.json")
    released: dict[int, bytes] = {}
    rounds = None
    monkeypatch.setattr(os, "replace", dying)
    try:
        rounds = rounds_in(broken, factors, receipt=receipt)
        while True:
            released[rounds.step - 1] = bits(one_round(rounds))
    except Killed:
        pass
    monkeypatch.setattr(os, "replace", replace)
    receipt = rounds = None
    gc.collect()  # the lock goes with the process
    receipt = Receipt(broken / "receipt.json")
    rounds = rounds_in(broken, factors, receipt=receipt)
    if rounds.last is not None:
        assert released.setdefault(rounds.step - 1, bits(rounds.last[1])) == bits(rounds.last[1])
    while rounds.step < N:
        released[rounds.step - 1] = bits(one_round(rounds))
    assert [released[step] for step in sorted(released) if step >= 0] == expected
    receipt.close()
    assert_proved(broken, factors)


@pytest.mark.single_use
def test_a_round_that_was_not_written_is_not_gone_on_with(
    tmp_path: Path, factors: Factorization, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = rounds_in(tmp_path, factors)
    one_round(rounds)

    def full(*_: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="the disk is full"):
        patched.setattr(os, "fsync", full)
        rounds.close()
    for act in (lambda: rounds.admit(FLEET), rounds.close):
        with pytest.raises(InvalidParticipation, match="start again from the file"):
            act()
    rounds.stop()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(InvalidParameter, match="noise"):  # the round before stays released
        rounds_in(elsewhere, factors)
    rounds = rounds_in(tmp_path, factors)
    assert rounds.step == 1
    one_round(rounds)


def test_another_run_is_refused(tmp_path: Path, factors: Factorization) -> None:
    receipt = Receipt(tmp_path / "receipt.json")
    rounds = rounds_in(tmp_path, factors, receipt=receipt)
    one_round(rounds)
    old = (tmp_path / "state").read_bytes()
    one_round(rounds)
    with pytest.raises(InvalidParameter, match="this process already continues"):
        rounds_in(tmp_path, factors)
    rounds.stop()
    with pytest.raises(InvalidParticipation, match="start again"):
        rounds.close()
    for change, told in (
        ({"model": MODEL[:1]}, "state of a model with arrays"),
        ({"model": [part.astype(np.float64) for part in MODEL]}, "state of a model with arrays"),
        ({"seed": 5 << 64}, "seed"),
        ({"seed": 5}, "seed"),
        ({"clip_norm": 1.0}, "sigma"),
    ):
        with pytest.raises(InvalidParameter, match=told):
            rounds_in(tmp_path, factors, **change)
    newest = (tmp_path / "state").read_bytes()
    (tmp_path / "state").write_bytes(old)
    with pytest.raises(InvalidParameter, match="2 rounds but the state 1, so .* noise twice; restore the newest state"):
        rounds_in(tmp_path, factors, receipt=Receipt(tmp_path / "receipt.json"))
    (tmp_path / "state").write_bytes(newest)
    with pytest.raises(
        InvalidParameter, match="0 rounds but the state 2, so no receipt .*; restore the newest receipt"
    ):
        rounds_in(tmp_path, factors, receipt=Receipt(tmp_path / "other.json"))
    (tmp_path / "state").write_bytes(old[:-1])
    with pytest.raises(InvalidParameter, match="is damaged"):
        rounds_in(tmp_path, factors)


@pytest.mark.parametrize(
    "change",
    [
        {"clients_a_round": 0},
        {"clients_a_round": 21},
        {"model": []},
        {"model": [np.zeros(2, int)]},
        {"model": {"weights": np.zeros(2)}},
        {"model": [None]},
    ],
)
def test_settings_that_make_no_run(tmp_path: Path, factors: Factorization, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        rounds_in(tmp_path, factors, **change)
    assert not (tmp_path / "state").exists()


def test_adversarial_check_ins_never_break_the_participation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fleets that come all at once, too early, twice, at random, and servers that restart: 250 rounds each.

    FLEETS=40 makes it 10,000 rounds.
    """
    fleets = int(os.environ.get("FLEETS", "5"))
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # thousands of them are not what is tested
    monkeypatch.setattr(federated._log, "disabled", True)
    steps, taken, solutions = 250, 0, {}
    for apart, most in [(1, 3), (2, 125), (7, 5), (50, 5), (249, 2)]:
        participation = {"kind": "min_sep", "min_sep": apart, "max_participations": most}
        about = {"workload": {"kind": "prefix", "n": steps}, "participation": participation}
        spec = Spec.model_validate({**about, "mechanism": {"kind": "identity"}})
        solutions[apart] = solvers.solve(spec, evidence=False)
    for case in range(fleets):
        rng = random.Random(case)
        apart = list(solutions)[case % len(solutions)]
        factors = solutions[apart]
        participation = factors.spec.participation.document()
        folder = tmp_path / str(case)
        folder.mkdir()
        rounds = rounds_in(folder, factors, model=[np.zeros(1)])
        seen: dict[str, list[int]] = {}
        while rounds.step < steps:
            coming = FLEET if rng.random() < 0.3 else rng.choices(FLEET, k=rng.randrange(12))
            admitted = [*rounds.choose(coming), *(rounds.admit(coming) if rng.random() < 0.5 else [])]
            if rng.random() < 0.02:  # killed after it has asked
                rounds.stop()
                rounds = rounds_in(folder, factors, model=[np.zeros(1)])
                admitted += rounds.choose(coming)
            for client in [*admitted, *rng.choices(FLEET, k=2)]:
                if rounds.add(client, [np.ones(1)]):
                    seen.setdefault(client, []).append(rounds.step)
            rounds.close()
        allowed, taken = read_participation(participation), taken + steps
        for turns in seen.values():
            assert allowed.violation(steps, np.diff(turns), len(turns)) is None
        assert apart > 100 or max(map(len, seen.values())) > 1
    assert taken == 250 * fleets


def test_a_run_that_stops_early_states_the_epsilon_of_its_rounds(tmp_path: Path, factors: Factorization) -> None:
    rounds = rounds_in(tmp_path, factors)
    stated = [rounds.epsilon_so_far()]
    for _ in range(N):
        one_round(rounds)
        stated.append(rounds.epsilon_so_far())
    assert stated[0] == 0.0 < stated[1] < stated[4] and stated == sorted(stated)
    assert stated[-1] == pytest.approx(4.0, rel=1e-9)
    single = factors.matrix.dense()[0, 0] / rounds.calibration.sensitivity.value
    assert stated[1] == pytest.approx(gaussian_epsilon(1e-5, rounds.calibration.mu * single), rel=1e-9)
    assert rounds.epsilon_so_far(1e-9) > stated[-1]


@pytest.mark.parametrize("scale", [5e-324, 1e-200, 1e-3, 1.0, 1e30, 1e200, 1.7e308])
def test_clipping_bounds_the_norm_of_all_arrays_together(scale: float) -> None:
    update = [np.full(3, scale), np.full((2, 2), -scale)]
    vector = clipped(update, 0.75)
    assert vector is not None and vector.shape == (7,)
    assert float(np.linalg.norm(vector)) <= 0.75
    if scale < 0.2:
        assert np.array_equal(vector, np.concatenate([part.ravel() for part in update]))
    elif scale < 1e200:
        assert float(np.linalg.norm(vector)) == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        ([MODEL[0] + 1j, MODEL[1]], "type"),
        ([MODEL[0].astype(object), MODEL[1]], "type"),
        ([MODEL[0].astype(bool), MODEL[1]], "type"),
        ([MODEL[0].astype(str), MODEL[1]], "type"),
        ([[[1.0], [1.0, 2.0]], MODEL[1]], "shape"),
        (None, "shape"),
        ([*MODEL, MODEL[1]], "shape"),
        ([MODEL[0], np.full(4, 1e400, np.longdouble)], "not finite"),
        (map({}.__getitem__, range(2)), "shape"),
    ],
)
def test_an_update_that_is_none_counts_as_zeros(
    tmp_path: Path, factors: Factorization, update: Any, reason: str
) -> None:
    rounds = rounds_in(tmp_path, factors)
    rounds.admit(["phone-1"])
    assert not rounds.add("phone-1", update) and rounds.refused == {reason: 1}
    empty = tmp_path / "empty"
    empty.mkdir()
    assert bits(rounds.close()) == bits(rounds_in(empty, factors).close())


def test_a_narrow_update_is_clipped_in_float64(tmp_path: Path, factors: Factorization) -> None:
    """60,000 entries of 1 in float16: torch and numpy would find an infinite norm of their squares in it."""
    rounds = rounds_in(tmp_path, factors, model=[np.zeros(90_000, np.float16)])
    rounds.admit(["phone-1"])
    assert rounds.add("phone-1", [np.ones(90_000, np.float16)])
    assert np.linalg.norm(rounds._open.total) == pytest.approx(0.5)
    with pytest.raises(InvalidParameter, match="complex64; send floating-point numbers"):
        clipped([np.ones(2, np.complex64)], 1.0)


def test_the_first_name_past_the_fleet_is_refused(
    tmp_path: Path, factors: Factorization, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten phones under new names in every round: twelve names are admitted, those known go on under their timers."""
    rounds = rounds_in(tmp_path, factors, clients=12)
    names = iter(f"node-{i}" for i in range(100))
    for _ in range(4):
        rounds.choose([next(names) for _ in range(10)])
        rounds.close()
    assert len(rounds.known) == 12 and rounds.step == 4
    assert rounds.refused == {"fleet is full": 3 + 10}, "in round 2 two of the five chosen had room"
    told = r"refuses client 'node-\d+': clients=12, and as many ids were admitted: .* \(client_id=\)"
    assert re.search(told, caplog.text)
    rounds.stop()
    rounds = rounds_in(tmp_path, factors, clients=12)
    assert rounds.admit(["somebody else"]) == [] and rounds.choose(rounds.known), "the names survive the server"
    with pytest.raises(InvalidParameter, match="clients"):
        rounds.stop()
        rounds_in(tmp_path, factors, clients=13)
    with pytest.raises(InvalidParameter, match="clients_a_round"):
        rounds_in(tmp_path, factors, clients=12, clients_a_round=6)


def test_an_id_has_one_form(tmp_path: Path, factors: Factorization) -> None:
    """The same name, composed and decomposed, is one client; 7 and "7" are not."""
    composed, decomposed = "t\u00e9l\u00e9phone", "te\u0301le\u0301phone"
    rounds = rounds_in(tmp_path, factors)
    assert rounds.admit([decomposed, composed]) == [composed, composed] == 2 * rounds.known
    assert rounds.add(decomposed, MODEL) and not rounds.add(composed, MODEL)
    assert rounds.refused == {"twice": 1}
    rounds.close()
    rounds.stop()
    rounds = rounds_in(tmp_path, factors)
    assert rounds.admit([decomposed]) == [] and rounds.refused == {"twice": 1, "too early": 1}
    odd = [None, "", " phone", "phone\n", "pho\u200bne", "\ud800", "x" * 257, True, 7.0, b"7", ("7",), np.bool_(True)]
    assert rounds.admit(odd) == rounds.choose(odd) == rounds.eligible(odd) == []
    assert rounds.refused["no client id"] == 2 * len(odd)
    assert rounds.admit([7]) == rounds.choose([7]) == [] and rounds.refused["another type of id"] == 2
    assert rounds.admit(np.array(["phone-2"])) == ["phone-2"]
    numbers = tmp_path / "numbers"
    numbers.mkdir()
    rounds = rounds_in(numbers, factors)
    assert rounds.admit([7, np.int32(7), "7", 8]) == [7, 7, 8] and rounds.refused == {"another type of id": 1}
    rounds.stop()
    rounds = rounds_in(numbers, factors)
    assert rounds.known == [7, 8] and not rounds.add("7", MODEL) and rounds.add(7, MODEL)


def test_a_round_is_not_spent_on_clients_that_a_killed_server_asked_and_that_are_gone(
    tmp_path: Path, factors: Factorization
) -> None:
    rounds = rounds_in(tmp_path, factors)
    first = rounds.choose(FLEET[:8])
    assert rounds.choose(FLEET) == sorted(first), "one that answers late or not at all keeps its place"
    rounds.stop()
    rounds = rounds_in(tmp_path, factors)
    there = [first[0], *FLEET[8:]]
    again = rounds.choose(there)
    assert len(again) == PLANNED and first[0] in again and set(again) <= set(there)
    assert sorted(rounds.choose(there)) == sorted(again)
    rounds.close()
    assert rounds.admit(first) == [], "who was asked waits"


def test_a_model_of_other_shapes_releases_nothing(tmp_path: Path, factors: Factorization) -> None:
    rounds = rounds_in(tmp_path, factors)
    with pytest.raises(
        InvalidParameter, match=r"other shapes \(\[\(2, 3\)\]\) .* created with \(\[\(2, 3\), \(4,\)\]\); give the"
    ):
        rounds.close(MODEL[:1])
    assert rounds.step == 0 and len(rounds.close(MODEL)) == 2


def test_a_model_with_counters_is_refused_by_the_array(factors: Factorization, tmp_path: Path) -> None:
    for model, said in (([*MODEL, np.zeros((), np.int64)], f"array {len(MODEL)} has int64"), ([], "it has none")):
        with pytest.raises(InvalidParameter, match=rf"{said}\); leave counters, such as num_batches_tracked"):
            rounds_in(tmp_path, factors, model=model)


def test_named_arrays_and_a_single_client_are_told_apart_from_lists(factors: Factorization, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match=r"model is of type dict; give a list .*list\(model.values\(\)\)"):
        rounds_in(tmp_path, factors, model={"weights": MODEL[0], "bias": MODEL[1]})
    with pytest.raises(InvalidParameter, match="model is of type int; give a list"):
        rounds_in(tmp_path, factors, model=5)
    rounds = rounds_in(tmp_path, factors)
    with pytest.raises(InvalidParameter, match="rounds='two' is not an integer"):
        rounds.check_ahead("two")  # type: ignore[arg-type]
    for call in (rounds.choose, rounds.admit, rounds.eligible):
        with pytest.raises(InvalidParameter, match="'5' is one int; give a list of client ids"):
            call(5)  # type: ignore[arg-type]


def test_an_update_that_is_read_while_another_thread_closes_counts_in_its_own_round(
    tmp_path: Path, factors: Factorization
) -> None:
    """A server's handlers run in threads; a client that was counted in round 0 must not be in the sum of round 1."""
    means = []
    for late in (False, True):
        (tmp_path / str(late)).mkdir()
        rounds = rounds_in(tmp_path / str(late), factors)
        closing = Thread(target=rounds.close)

        def arrays(closing: Thread = closing, late: bool = late) -> Iterator[np.ndarray]:
            if late:
                closing.start()
                closing.join(0.5)
            yield from answer(FLEET[0], 0)

        rounds.admit(FLEET[:1])
        assert rounds.add(FLEET[0], arrays())
        if not late:
            closing.start()
        closing.join()
        assert rounds.last is not None
        means.append((rounds.last[1], rounds.close()))
        rounds.stop()
    for one, other in zip(*means, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.single_use
def test_a_mistake_that_is_mended_does_not_refuse_the_rounds_after_it(tmp_path: Path, factors: Factorization) -> None:
    """As in a notebook, which keeps the frames of the call that failed."""
    kept = []
    (tmp_path / "odd.json").write_text("no receipt")
    for mistake, said in [
        ({"receipt": Receipt(tmp_path / "odd.json")}, "is not a receipt, or is damaged"),
        ({"receipt": Receipt(tmp_path / "state")}, "is the state; give the receipt a file of its own"),
        ({"target": 4.0}, "the target is a bare float; give a PrivacyTarget"),
        ({"path": "\0"}, "is not a path: it is empty, an address, or has a NUL"),
    ]:
        with pytest.raises(InvalidParameter, match=said) as refusal:
            rounds_in(tmp_path, factors, **mistake)
        kept.append(refusal)
    rounds = rounds_in(tmp_path, factors, receipt=Receipt(tmp_path / "receipt.json"))
    one_round(rounds)
    rounds.stop()


@pytest.mark.single_use
@pytest.mark.parametrize("end", [FederatedRounds.stop, lambda rounds: None])
def test_the_trials_of_a_search_do_not_release_one_noise_twice(
    tmp_path: Path, factors: Factorization, end: Any
) -> None:
    """A trial for each clip norm, in a folder of its own, with the seed of the first."""

    def trial(clip_norm: float, seed: int = SEED) -> None:
        folder = tmp_path / f"{clip_norm} {seed}"
        folder.mkdir()
        rounds = rounds_in(folder, factors, clip_norm=clip_norm, seed=seed, receipt=Receipt(folder / "receipt.json"))
        one_round(rounds)
        end(rounds)

    trial(0.5)
    with pytest.raises(InvalidParameter, match=r"steps 0 to 0 have used their noise.*its own seed, secrets.randbits"):
        trial(0.25)
    trial(0.25, seed=SEED + 1)


@pytest.mark.single_use
def test_a_backup_of_state_and_receipt_is_refused_in_the_process_that_went_on(
    tmp_path: Path, factors: Factorization
) -> None:
    paths = [tmp_path / "state", tmp_path / "receipt.json"]
    rounds = rounds_in(tmp_path, factors, receipt=Receipt(tmp_path / "receipt.json"))
    one_round(rounds)
    backup = [path.read_bytes() for path in paths]
    one_round(rounds)
    rounds.stop()
    newest = [path.read_bytes() for path in paths]
    for path, data in zip(paths, backup, strict=True):
        path.write_bytes(data)
    with pytest.raises(InvalidParameter, match="steps 1 to 1 have used their noise"):
        rounds_in(tmp_path, factors, receipt=Receipt(tmp_path / "receipt.json"))
    for path, data in zip(paths, newest, strict=True):
        path.write_bytes(data)
    rounds = rounds_in(tmp_path, factors, receipt=Receipt(tmp_path / "receipt.json"))
    one_round(rounds)
    assert rounds.step == 3


@pytest.mark.single_use
def test_a_cell_that_runs_again_is_told_to_stop_the_rounds_and_not_to_close_one(
    tmp_path: Path, factors: Factorization
) -> None:
    rounds = rounds_in(tmp_path, factors)
    with pytest.raises(InvalidParameter, match="this process already continues .*state; stop that run first"):
        rounds_in(tmp_path, factors)
    rounds.stop()
    with pytest.raises(InvalidParticipation, match="these rounds were stopped, or the last was not written"):
        rounds.choose(FLEET)
    rounds_in(tmp_path, factors)
