"""One optimisation by jax_privacy, with the clock beside its losses; benchmarks/peer.py runs it.

    python peer_script.py '{"kind": "dense", "n": 128, "epochs": 1, "target": 5.9, "cap": 60}'

Takes one problem as JSON and prints one JSON line, in the environment of the peer. Nothing of ours is imported here.
Its own stopping rule (for banded matrices: 100 steps) is noted when it fires, and the search goes on until the loss
reaches `target` or no longer falls, or for `cap` seconds after compiling, so that one run gives both times. Double
precision is switched on throughout, so that C comes back in it.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import time
from importlib.metadata import version

import jax
import numpy as np
import optax
from jax_privacy.matrix_factorization import banded, dense, optimization

MAX_STEPS = 100_000
BANDED_STEPS = 100  # banded.optimize takes as many by default
WARM_STEPS = 2  # the steps that compile: the second has other types
STALL_STEPS = 200  # the loss must fall by more than rounding within this many steps


class Clock:
    """The callback: notes each loss and when it came.

    Args:
        target: mean loss at which to stop.
        cap: seconds after compiling at which to stop.
        rule: the peer's own stopping rule.
    """

    def __init__(self, target, cap, rule):
        self.target, self.cap, self.rule = target, cap, rule
        self.times, self.cpu, self.losses = [], [], []
        self.default_stop, self.stalled = None, False
        self.began = time.perf_counter()

    def seconds(self):
        """Return the seconds since the steps that compile."""
        return self.times[-1] - self.times[WARM_STEPS - 1] if len(self.times) >= WARM_STEPS else 0.0

    def compiling(self):
        """Return what the steps that compile took beyond a usual step."""
        usual = statistics.median(np.diff(self.times[WARM_STEPS - 1 :])) if len(self.times) > WARM_STEPS else 0.0
        return self.times[min(WARM_STEPS, len(self.times)) - 1] - WARM_STEPS * usual

    def __call__(self, step):
        """Note a step; true ends the search."""
        loss = float(step.loss)  # waits for the step
        fired = self.default_stop is None and self.rule(step)
        now = time.perf_counter() - self.began
        self.times.append(now)
        self.cpu.append(time.process_time())
        self.losses.append(loss)
        if fired:
            self.default_stop = len(self.times) - 1
        falling = len(self.losses) <= STALL_STEPS or loss <= self.losses[-1 - STALL_STEPS] * (1 - 1e-13)
        self.stalled = not (np.isfinite(loss) and falling)
        return self.stalled or self.seconds() >= self.cap or loss <= self.target


def use_memory(memory, linesearch):
    """Let the peer's solvers use another L-BFGS than their default one."""
    search = (
        optax.scale_by_zoom_linesearch(max_linesearch_steps=20)
        if linesearch == "zoom"
        else optax.scale_by_backtracking_linesearch(128)
    )
    tuned = optax.lbfgs(memory_size=memory, linesearch=search)
    optimization.optimize = functools.partial(optimization.optimize, optimizer=tuned)


def strategy(problem, clock):
    """Run the peer's solver; returns C."""
    if problem["kind"] == "banded":
        found = banded.optimize(problem["n"], bands=problem["bands"], max_optimizer_steps=MAX_STEPS, callback=clock)
        return np.asarray(found.materialize())
    return np.asarray(
        dense.optimize(problem["n"], epochs=problem.get("epochs", 1), max_optimizer_steps=MAX_STEPS, callback=clock)
    )


def loss_of(c, epochs):
    """Return the mean loss of C recomputed by NumPy from the matrix that came back, at its sensitivity."""
    n = len(c)
    gram = c.T @ c
    inside = np.arange(n) % (n // epochs)
    shared = np.abs(gram) * (inside[:, None] == inside[None, :])
    squared = max(shared[np.ix_(members, members)].sum() for members in (inside == j for j in range(n // epochs)))
    decoder = np.linalg.solve(c.T, np.tri(n).T).T
    return float(squared * (decoder**2).sum() / n)


def main(problem):
    """Solve one problem and print what came of it."""
    jax.config.update("jax_enable_x64", True)
    if problem.get("memory"):
        use_memory(problem["memory"], problem.get("linesearch", "backtracking"))
    rules = {"dense": dense.pg_tol_termination_fn, "banded": lambda step: step.step + 1 >= BANDED_STEPS}
    clock = Clock(problem["target"], problem["cap"], rules[problem["kind"]])
    c = strategy(problem, clock)
    answer = {
        "problem": problem,
        "compile_seconds": clock.compiling(),
        "default_stop": clock.default_stop,
        "stalled": clock.stalled,
        "times": clock.times,
        "cpu": clock.cpu,
        "losses": clock.losses,
        "final_loss": loss_of(c, problem.get("epochs", 1)),
        "versions": {name: version(name) for name in ("jax_privacy", "jax", "jaxlib", "optax", "numpy")},
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
