"""Going on from unfinished work: no step is taken twice, the certificate is as good, and a false state cannot make one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorize import __version__, solvers
from factorize.api.jobs.child import solve as solve_as_child
from factorize.errors import Cancelled
from factorize.factorization import Factorization
from factorize.solution import LoopState, Progress
from factorize.solvers import semidefinite
from factorize.spec import Spec, parse_spec
from factorize.storage.store import Store, open_store
from factorize.storage.unfinished import UnfinishedWork, state_bytes

EPOCHS = {"kind": "fixed_epochs", "epochs": 4}
BUFFERED = {"kind": "buffered_linear", "buffers": 3}
CASES: dict[str, dict[str, Any]] = {
    "dual weights": {"workload": {"kind": "prefix", "n": 130}},
    "dual weights by decompositions": {"workload": {"kind": "prefix", "n": 24}},
    "dual blocks": {"workload": {"kind": "prefix", "n": 128}, "participation": EPOCHS},
    "dual blocks by decompositions": {"workload": {"kind": "prefix", "n": 24}, "participation": EPOCHS},
    "gram descent": {"workload": {"kind": "prefix", "n": 60}, "mechanism": {"kind": "banded", "bands": 6}},
    "profiles": {"workload": {"kind": "prefix", "n": 60}, "mechanism": BUFFERED},
    "dual weights of both sides": {"workload": {"kind": "prefix", "n": 130}, "objective": {"kind": "max"}},
    "dual weights of both sides by decompositions": {
        "workload": {"kind": "window", "n": 20, "width": 4},
        "objective": {"kind": "max"},
    },
    "descents": {"workload": {"kind": "prefix", "n": 60}, "mechanism": {"kind": "blt", "buffers": 2}},
    "column": {"workload": {"kind": "momentum", "n": 60, "momentum": 0.9}, "mechanism": {"kind": "toeplitz"}},
    "monotone column": {
        "workload": {"kind": "prefix", "n": 60},
        "participation": {"kind": "min_sep", "min_sep": 15},
        "mechanism": {"kind": "toeplitz"},
    },
    "redrawn states": {
        "workload": {"kind": "prefix", "n": 24},
        "participation": {"kind": "fixed_epochs", "epochs": 3},
        "mechanism": {"kind": "buffered_linear", "buffers": 2, "redraws": 1},
        "tolerance": 0.02,
    },
    "rounds of the conic program": {
        "workload": {"kind": "prefix", "n": 8},
        "participation": {"kind": "fixed_epochs", "epochs": 2},
        "mechanism": {"kind": "semidefinite"},
        "tolerance": 1e-5,
    },
}
# The loops of the recursions of momentum and of the buffered states over epochs leave the same states as these.
STOP = 4
KILLED = f"""
import json, os, signal, sys
from factorize.api.jobs.child import solve
def tell(**progress):
    if progress["phase"] == "refine" and progress["iteration"] == {STOP + 1}:
        os.kill(os.getpid(), signal.SIGKILL)
solve(json.loads(sys.argv[1]), tell)
"""


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small conic program is solved within one round of the usual length."""
    monkeypatch.setattr(semidefinite, "_ROUND", 25)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def asked(loop: str) -> Spec:
    return solvers.choose(parse_spec(json.dumps(CASES[loop])))


def work(store: Store, spec: Spec) -> UnfinishedWork:
    return UnfinishedWork(store, spec.digest, __version__, seconds=0.0)


def cut_off(store: Store, spec: Spec, loop: str) -> LoopState:
    """The state that a solve has left which was stopped in a loop after some steps."""
    unfinished = work(store, spec)
    offered: list[int] = []
    keep = unfinished.offer

    def offer(name: str, step: int, **arrays: np.ndarray) -> None:
        if len(offered) == STOP:
            raise Cancelled("the machine is gone")
        if name != loop:
            return  # one that comes before it in the same solve
        offered.append(step)
        keep(name, step, **arrays)

    unfinished.offer = offer  # type: ignore[method-assign]
    with pytest.raises(Cancelled):
        solvers.solve(spec, unfinished=unfinished)
    state = work(store, spec).taken_up(loop)
    assert state is not None and state.step == offered[-1] > 1
    return state


def gone_on(unfinished: UnfinishedWork, spec: Spec) -> tuple[Factorization, list[Progress], list[int]]:
    """The result, all progress, and the steps after which a state was left."""
    told: list[Progress] = []
    steps: list[int] = []
    keep = unfinished.offer

    def offer(name: str, step: int, **arrays: np.ndarray) -> None:
        steps.append(step)
        keep(name, step, **arrays)

    unfinished.offer = offer  # type: ignore[method-assign]
    return solvers.solve(spec, unfinished=unfinished, progress=told.append), told, steps


def same_worth(found: Factorization, other: Factorization, spec: Spec) -> bool:
    one, two = (result.manifest["certificate"] for result in (found, other))
    near = abs(one["loss"]["objective"] / two["loss"]["objective"] - 1) <= 2 * max(spec.tolerance, 1e-4)
    return near and one["converged"] == two["converged"]


@pytest.mark.parametrize("loop", CASES)
def test_a_solve_that_was_cut_off_goes_on_where_it_was(store: Store, loop: str) -> None:
    spec = asked(loop)
    state = cut_off(store, spec, loop)
    found, _, steps = gone_on(work(store, spec), spec)
    assert steps[0] >= state.step, "no step is taken twice"
    assert same_worth(found, solvers.solve(spec), spec)


def forged(state: LoopState, seed: int) -> LoopState:
    """Other numbers of the same names and shapes, as plausible as a forger cares to make them."""
    rng = np.random.default_rng(seed)
    arrays = {name: np.exp(8 * rng.standard_normal(array.shape)) for name, array in state.arrays.items()}
    for name in ("dual", "products"):
        if name in arrays:
            b, k, _ = arrays[name].shape
            weights = rng.dirichlet(np.full(b, 0.05)) + 1e-300
            arrays[name] = weights[:, None, None] * (np.eye(k) * 1e-6 + np.ones((k, k)) * (1 - 1e-6))
    return LoopState(state.loop, (10**9, 2)[seed % 2], arrays)


@pytest.mark.parametrize(
    "loop",
    [
        "dual weights",
        "dual blocks",
        "dual blocks by decompositions",
        "gram descent",
        "profiles",
        "dual weights of both sides",
        "descents",
        "monotone column",
        "rounds of the conic program",
    ],
)
def test_a_forged_state_costs_time_and_makes_no_false_claim(store: Store, loop: str) -> None:
    spec = asked(loop)
    state = cut_off(store, spec, loop)
    honest = solvers.solve(spec)
    for seed in range(2):
        unfinished = work(store, spec)
        unfinished._found = forged(state, seed)
        found, _, _ = gone_on(unfinished, spec)
        assert same_worth(found, honest, spec)
        found.verify()


def test_a_state_whose_bytes_were_changed_is_passed_over(store: Store) -> None:
    spec = asked("dual weights")
    state = cut_off(store, spec, "dual weights")
    (entry,) = store.objects.list("unfinished")
    path = Path(store.url.removeprefix("file://")) / entry.key
    whole = path.read_bytes()
    for at in (3, len(whole) // 2, len(whole) - 1):
        path.chmod(0o600)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert work(store, spec).step == 0
    path.write_bytes(whole[:-8])
    assert work(store, spec).step == 0
    path.write_bytes(state_bytes(spec.digest, "0.0.0", state))
    assert work(store, spec).step == 0, "another release may mean something else by it"
    path.write_bytes(state_bytes("0" * 64, __version__, state))
    assert work(store, spec).step == 0
    path.write_bytes(state_bytes(spec.digest, __version__, LoopState(state.loop, 3, {"v": np.full(130, np.nan)})))
    assert work(store, spec).step == 0
    path.write_bytes(whole)
    assert work(store, spec).step == state.step


def test_a_child_that_is_killed_leaves_what_another_goes_on_from(store: Store) -> None:
    """kill -9 at a chosen step, then the same request, as another machine gets it."""
    request = {"spec": asked("dual blocks").document(), "store": store.url, "checkpoint_seconds": 0}
    killed = subprocess.run([sys.executable, "-c", KILLED, json.dumps(request)], capture_output=True, timeout=600)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    told: list[dict[str, Any]] = []
    found = solve_as_child(request, lambda **progress: told.append(progress))
    assert next(step["iteration"] for step in told if step["phase"] == "refine") == STOP
    assert store.manifest(found["digest"])["certificate"]["converged"]
    assert not list(store.objects.list("unfinished")), "the result is stored, so its states are gone"
