"""The contract of doors on the transformation of optax and on `make_private` of JAX."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import numpy as np
import optax
import private_cases
import pytest
from door_contract import (
    CLIP,
    EPOCHS,
    EXAMPLES,
    REORDERED,
    REORDERED_WITHIN,
    RESTARTED,
    RULES,
    SEED,
    SIZE,
    Door,
    Mistake,
    N,
    calibrated,
    check,
    check_drawn_users,
    check_more,
    factors,
    of_sums,
    of_unseen_batches,
    refused,
    take_a_step,
)
from jax import numpy as jnp

from factorize.adapters.jax import correlated_noise, raised_sigma_of_sums
from factorize.adapters.jax_arrays.jax_sums import disclose
from factorize.adapters.jax_private import PrivateJax, make_private
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.solvers import solve
from factorize.training.auditor import ParticipationAuditor
from factorize.training.receipt import Receipt

pytestmark = pytest.mark.single_use
PARAMETERS = {"weights": jnp.zeros((3, 2)), "bias": jnp.zeros(2)}
SUMS = jax.tree.map(jnp.ones_like, PARAMETERS)
X, Y = np.random.default_rng(0).normal(size=(EXAMPLES, 3)).astype(np.float32), np.arange(EXAMPLES) % 2
FEATURES = X @ np.diag([1.0, 2.0, 3.0]).astype(np.float32)
"""Numbers that were made of all examples."""


@dataclass
class Run:
    """A transformation and its state."""

    noise: Any
    state: Any


def bits(tree: Any) -> bytes:
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree))


BUFFERED = private_cases.factors(N, EPOCHS)
"""A strategy by hand whose noise has a state, unlike that of the contract's."""


def lose_buffers(noise: Any) -> None:
    """Take a step from states that were changed as whole trees: averaged, reset, rounded, or with another step."""
    update, states = jax.jit(noise.update), [noise.init(PARAMETERS)]
    for _ in range(2):
        states.append(update(SUMS, states[-1])[1])

    def floats(change: Any) -> Any:
        return jax.tree.map(lambda a, b: change(a, b) if a.dtype == jnp.float32 else a, *states[:0:-1])

    changed = [
        floats(lambda a, b: (a + b) / 2),
        floats(lambda a, b: 0 * a),
        floats(lambda a, b: a.astype(jnp.bfloat16)),
        noise.init(PARAMETERS)._replace(step=states[-1].step),
    ]
    for state in changed[:2]:
        with pytest.raises(jax.errors.JaxRuntimeError, match="step 2 was changed: its buffers or its step"):
            jax.block_until_ready(update(SUMS, state))
    for state in changed[1:]:
        with pytest.raises(InvalidParameter, match="step 2 was changed: its buffers or its step"):
            noise.update(SUMS, state)
    own = noise.init.__self__._commitment(PARAMETERS)
    update(SUMS, states[-1]._replace(commitment=jnp.asarray(own)))  # a state of 0.1.0, which has no seal
    noise.update(SUMS, changed[0])


def ask_for_losses(noise: Any, sums: Any, state: Any) -> None:
    """Give optax a loss, which a chain passes on to all of its members, or the sums beside the noise."""
    asking = optax.chain(noise, optax.sgd(0.1), optax.scale_by_backtracking_linesearch(2))
    given = {"value": 1.0, "grad": sums, "value_fn": lambda p: 1.0}
    for name, value in {**given, "metric": 1.0, "averages": PARAMETERS}.items():
        with pytest.raises(InvalidParameter, match=f"was given {name}:"):
            noise.update(sums, state, PARAMETERS, **{name: value})
    around = optax.contrib.mechanize(optax.chain(noise, optax.sgd(0.1)))  # its rate would come from the sums
    with pytest.raises(InvalidParameter, match=r"mechanize is around the noise.*chain\(noise, mechanize\("):
        around.update(sums, around.init(PARAMETERS), PARAMETERS)
    before = optax.stateless(lambda updates, _: updates)  # a momentum would make larger sums
    for late in (optax.chain(before, noise), optax.named_chain(("first", before), ("noise", noise))):
        with pytest.raises(InvalidParameter, match="the noise is not first in optax.chain"):
            late.update(sums, late.init(PARAMETERS), PARAMETERS)

    @optax.inject_hyperparams
    def after(learning_rate: Any) -> Any:
        return optax.chain(noise, optax.contrib.mechanize(optax.sgd(learning_rate)))

    allowed = after(0.1)
    allowed.update(sums, allowed.init(PARAMETERS), PARAMETERS, key=jax.random.key(0), decay_step=3)
    asking.update(sums, asking.init(PARAMETERS), PARAMETERS, **given)


CHANGED = "a state of the noise that was averaged, reset or rounded with the rest of its tree"
LOSSES = "LBFGS, or another optimizer that asks for losses"
ALONE = "a job of one process in a process group of several ranks"


def train_alone(noise: Any) -> None:
    """Begin with parameters on this process's devices, where there is another process."""
    with mock.patch.object(jax, "process_count", return_value=2):
        noise.init(PARAMETERS)


ENDED = "right: a state is a value, and a step that was ended on the way has returned none"


class Jax(Door):
    """`correlated_noise` of JAX in a loop of the caller's own."""

    name = "JAX"
    not_here = {
        "mixing_loss": "sums of clipped gradients come from outside; there is no loss to look at",
        "early": "it sees sums and no examples; a ParticipationAuditor beside it does",
        "ended": ENDED,
    }

    def begin(self, folder: Path, *, seed: int = SEED, name: str = "one", clip: float = CLIP, state: Any = None) -> Run:
        held = factors(name)
        noise = correlated_noise(held, calibrated(held, SIZE, clip), seed=seed)
        return Run(noise, noise.init(PARAMETERS) if state is None else jax.tree.map(jnp.asarray, state))

    def step(self, run: Run) -> bytes:
        released, run.state = run.noise.update(SUMS, run.state)
        return bits(released)

    def taken(self, run: Run) -> int:
        return int(run.state.step)

    def saved(self, run: Run) -> Any:
        return jax.tree.map(np.asarray, run.state)

    def secrets(self, run: Run) -> list[Any]:
        return [run.noise]

    def end(self, run: Run) -> None:
        run.noise.close()

    def not_real(self, run: Run) -> None:
        run.noise.update(jax.tree.map(lambda leaf: leaf + 1j, SUMS), run.state)

    def more(self) -> dict[str, Mistake]:
        larger = factors("another")
        larger = replace(larger, sensitivity=replace(larger.sensitivity, value=3.0))
        bare: Any = 1.0
        return {
            "a bare number for the scale of the noise": Mistake(
                "refused", lambda folder: correlated_noise(factors(), bare, seed=SEED), "bare float|Calibration"
            ),
            "a calibration of another factorization": Mistake(
                "refused",
                lambda folder: correlated_noise(factors(), calibrated(larger), seed=SEED),
                "this factorization has",
            ),
            **of_unseen_batches(partial(correlated_noise, factors(), seed=SEED)),
            "one state of the noise used twice": Mistake("refused", self._used_twice, "before"),
            CHANGED: Mistake("refused", self._changed, "average or reset only what comes after"),
            ALONE: Mistake("refused", lambda folder: train_alone(self.begin(folder).noise), "2 processes train"),
            LOSSES: Mistake("refused", self._losses, "noisy gradient alone"),
            **of_sums(self._release),
            "`vmap` over members": Mistake("refused", self._members, "vmap"),
            "`pmap`, and `shard_map` without specs": Mistake("refused", self._devices, "same noise for its own shard"),
            "float64 where JAX has float32": Mistake(
                "refused",
                lambda folder: correlated_noise(factors(), calibrated(factors()), seed=SEED, dtype="float64"),
                "jax_enable_x64",
            ),
        }

    def _changed(self, folder: Path) -> None:
        lose_buffers(correlated_noise(BUFFERED, calibrated(BUFFERED, SIZE), seed=SEED))

    def _losses(self, folder: Path) -> None:
        run = self.begin(folder)
        several = optax.MultiSteps(optax.chain(run.noise, optax.sgd(0.1)), 2)  # it would drop every second row
        with pytest.raises(InvalidParameter, match=r"MultiSteps is around the noise.*chain\(noise, MultiSteps\("):
            several.update(SUMS, several.init(PARAMETERS), PARAMETERS)
        ask_for_losses(run.noise, SUMS, run.state)

    @staticmethod
    def _release(held: Any, calibration: Any, **options: Any) -> Any:
        noise = correlated_noise(held, calibration, seed=SEED, **options)
        states = [noise.init(PARAMETERS)]

        def release(value: float, *, mean: bool = False) -> None:
            states.append(noise.update(jax.tree.map(lambda leaf: jnp.full_like(leaf, value), SUMS), states[-1])[1])

        return release

    def _used_twice(self, folder: Path) -> None:
        run = self.begin(folder)
        for _ in range(2):
            run.noise.update(SUMS, run.state)

    def _members(self, folder: Path) -> None:
        run = self.begin(folder)
        members = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), SUMS)
        jax.vmap(lambda sums: run.noise.update(sums, run.state)[0])(members)

    def _devices(self, folder: Path) -> None:
        run = self.begin(folder)
        try:
            jax.pmap(lambda sums: run.noise.update(sums, run.state)[0])(jax.tree.map(lambda leaf: leaf[None], SUMS))
        finally:
            self.end(run)  # the program that pmap keeps holds it

    def narrow(self, run: Run) -> None:
        run.noise.update(jax.tree.map(lambda leaf: leaf.astype(jnp.float16), SUMS), run.state)

    def wrong_rows(self, run: Run) -> None:
        """A leading axis of examples, which nobody has summed over."""
        run.noise.update(jax.tree.map(lambda leaf: leaf[None], SUMS), run.state)

    def partial_optimizer(self, run: Run) -> None:
        masked = optax.masked(run.noise, {"weights": True, "bias": False})
        masked.update(SUMS, masked.init(PARAMETERS))


def loss(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    logits = x @ weights["weights"] + weights["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def mixed(weights: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """Divide by a number that all labels make."""
    return loss(weights, x, y) / (1 + y.sum())


@dataclass
class Job:
    """A job made private, and where it is."""

    made: PrivateJax
    gradients: Any
    state: Any


class Made(Door):
    """`make_private` of JAX."""

    name = "JAX make_private"
    not_here = {
        "narrow": "right: gradients may be in half precision, since they are clipped and summed in float32 at least",
        "early": "right: the batches come in the order that the participation is for",
        "ended": ENDED,
    }

    def begin(self, folder: Path, *, seed: int = SEED, name: str = "one", clip: float = CLIP, state: Any = None) -> Job:
        made = self.made(seed=seed, name=name, clip_norm=clip)
        if state is None:
            return Job(made, made.gradients, made.noise.init(PARAMETERS))
        made.batches.load_state_dict(state[1])
        return Job(made, made.gradients, jax.tree.map(jnp.asarray, state[0]))

    def made(self, *, name: str = "one", **options: Any) -> PrivateJax:
        settings = {"loss": loss, "examples": EXAMPLES, "epsilon": 2.0, "delta": 1e-5, "epochs": EPOCHS, "seed": SEED}
        return make_private(**{"spec": factors(name), **settings, "batch_size": SIZE, **options})

    def step(self, run: Job) -> bytes:
        left, first = run.made.batches, (run.made.batches.order[0][None], np.ones((1, SIZE), bool))
        indices, mask = next(iter(left)) if left.step < len(left) else first  # after the last batch a loop would end
        total = run.gradients(PARAMETERS, (X, Y), indices, mask)
        released, run.state = run.made.noise.update(total, run.state)
        return bits(released)

    def taken(self, run: Job) -> int:
        return int(run.state.step)

    def saved(self, run: Job) -> Any:
        return jax.tree.map(np.asarray, run.state), run.made.batches.state_dict()

    def secrets(self, run: Job) -> list[Any]:
        return [run.made.noise]

    def end(self, run: Job) -> None:
        run.made.noise.close()

    def not_real(self, run: Job) -> None:
        indices, mask = run.made.batches.order[0][None], np.ones((1, SIZE), bool)
        run.made.gradients(jax.tree.map(lambda leaf: leaf + 1j, PARAMETERS), (X, Y), indices, mask)

    def wrong_rows(self, run: Job) -> None:
        """A leading axis of examples, which nobody has summed over."""
        run.made.noise.update(jax.tree.map(lambda leaf: leaf[None], SUMS), run.state)

    def mixing_loss(self, run: Job) -> None:
        indices, mask = run.made.batches.order[0][None], np.ones((1, SIZE), bool)
        self.made(loss=mixed, seed=SEED + 1).gradients(PARAMETERS, (X, Y), indices, mask)

    def partial_optimizer(self, run: Job) -> None:
        masked = optax.masked(run.made.noise, {"weights": True, "bias": False})
        masked.update(SUMS, masked.init(PARAMETERS))

    def more(self) -> dict[str, Mistake]:
        return {
            "a factorization for another participation than the order's": Mistake(
                "refused", lambda folder: self.made(epochs=3), "n=6"
            ),
            "users with several examples, in secret batches": Mistake("right", self._drawn_users),
            "losses that are not one number for each example": Mistake("refused", self._losses, "not one number"),
            "one state of the noise used twice": Mistake("refused", self._used_twice, "newest state"),
            CHANGED: Mistake("refused", self._changed, "its buffers or its step were averaged"),
            LOSSES: Mistake("refused", self._asks, "noisy gradient alone"),
            ALONE: Mistake("refused", lambda folder: train_alone(self.made().noise), "2 processes train"),
            "a loop that trains on a batch that it keeps": Mistake("refused", self._kept, "did not sum the examples"),
            "sums of a step that the noise does not take, as under a condition": Mistake(
                "refused", self._left_out, "did not sum the examples of step 1; .*under no condition"
            ),
            "a look at gradients before they have noise, such as a norm that sets the rate": Mistake(
                "refused", self._used_without_noise, "sums without noise: only the noise .* takes them", TypeError
            ),
            **{
                row: Mistake("refused", self._reordered, "in another order than in the last step")
                for row in (REORDERED, REORDERED_WITHIN)
            },
            RESTARTED: Mistake("refused", self._restarted, "names another example"),
            "a loss that closes over the data": Mistake("refused", self._closure, "closes over"),
            "a data set that names examples more than once": Mistake("refused", self._repeated, "users="),
            "an example whose gradient is not finite": Mistake("right", self._infinite),
            "an epsilon above 20, or a delta above 1/examples": Mistake("said", self._weak),
            "a receipt of another run": Mistake("refused", self._receipt, "receipt of another run"),
        }

    def _changed(self, folder: Path) -> None:
        made = self.made(spec=BUFFERED)
        run = Job(made, made.gradients, made.noise.init(PARAMETERS))
        self.step(run)
        run.state = jax.tree.map(lambda a: 0 * a if a.dtype == jnp.float32 else a, run.state)
        self.step(run)

    def _asks(self, folder: Path) -> None:
        run = self.begin(folder)
        total = run.gradients(PARAMETERS, (X, Y), *next(iter(run.made.batches)))
        ask_for_losses(run.made.noise, total, run.state)

    def _reordered(self, folder: Path) -> None:
        run = self.begin(folder)
        self.step(run)
        total = run.gradients(PARAMETERS, (X[::-1], Y[::-1]), *next(iter(run.made.batches)))
        run.made.noise.update(total, run.state)

    def _restarted(self, folder: Path) -> None:
        run = self.begin(folder)
        self.step(run)
        state = self.saved(run)
        self.end(run)
        run = self.begin(folder, state=state)
        total = run.gradients(PARAMETERS, (X[::-1], Y[::-1]), *next(iter(run.made.batches)))
        run.made.noise.update(total, run.state)

    def _drawn_users(self, folder: Path) -> None:
        def make(spec: Any, options: dict[str, Any]) -> tuple[Any, Any]:
            made = self.made(spec=spec, **options)
            return made.statement, made.batches.order

        check_drawn_users(make)

    def _losses(self, folder: Path) -> None:
        indices, mask = np.arange(SIZE)[None], np.ones((1, SIZE), bool)
        self.made(loss=lambda w, x, y: x @ w["weights"]).gradients(PARAMETERS, (X, Y), indices, mask)

    def _used_twice(self, folder: Path) -> None:
        run = self.begin(folder)
        before = run.state
        self.step(run)
        run.state = before
        self.step(run)

    def _kept(self, folder: Path) -> None:
        run = self.begin(folder)
        self.step(run)
        next(iter(run.made.batches))
        kept = run.made.batches.order[0][None]
        run.made.noise.update(run.gradients(PARAMETERS, (X, Y), kept, np.ones((1, SIZE), bool)), run.state)

    def _left_out(self, folder: Path) -> None:
        made = self.made(seed=SEED + 10)
        state = made.noise.init(PARAMETERS)
        for step, batch in enumerate(made.batches):
            total = made.gradients(PARAMETERS, (X, Y), *batch)
            if step != 1:
                _, state = made.noise.update(total, state)

    def _used_without_noise(self, folder: Path) -> None:
        made = self.made(seed=SEED + 11)
        total = made.gradients(PARAMETERS, (X, Y), *next(iter(made.batches)))
        with pytest.raises(TypeError, match="sums without noise"):
            jax.jit(optax.apply_updates)(PARAMETERS, total)
        noise = optax.conditionally_transform(made.noise, lambda step: step != 1)
        noise.update(total, noise.init(PARAMETERS))

    def _infinite(self, folder: Path) -> None:
        made, x = self.made(), X.copy()
        first = made.batches.order[0]
        x[first[0]] = np.inf
        indices, mask = first[None], np.ones((1, SIZE), bool)
        alone = disclose(made.gradients(PARAMETERS, (X, Y), indices, mask & (indices != first[0])))
        assert bits(disclose(jax.jit(made.gradients)(PARAMETERS, (x, Y), indices, mask))) == bits(alone)

    def _repeated(self, folder: Path) -> None:
        x, y = np.arange(10 * 3.0).reshape(10, 3) / 9, np.arange(10) % 2
        made = self.made(spec="auto", solve=solve, examples=20, epochs=1)
        made.gradients(PARAMETERS, (np.tile(x, (2, 1)), np.tile(y, 2)), *next(iter(made.batches)))

    def _closure(self, folder: Path) -> None:
        indices, mask = np.arange(SIZE)[None], np.ones((1, SIZE), bool)
        some = self.made(loss=lambda w, x, y: loss(w, x, y) + loss(w, X[1:3], Y[1:3]))
        with pytest.raises(InvalidParameter, match="looks like the data"):
            some.gradients(PARAMETERS, (X, Y), indices, mask)
        some.noise.close()
        some = self.made(loss=jax.jit(lambda w, x, y: loss(w, x, y) + loss(w, X, Y)))
        with pytest.raises(InvalidParameter, match="looks like the data"):
            some.gradients(PARAMETERS, (X, Y), indices, mask)
        some.noise.close()
        for hidden in (
            lambda w, x, y: loss(w, x - jnp.mean(X, axis=0), y),
            lambda w, x, y: loss(w, x, y) + jnp.mean(x @ FEATURES.T),
            lambda w, x, y: loss(w, x - jax.pure_callback(lambda: X[0], jax.ShapeDtypeStruct((3,), X.dtype)), y),
        ):
            some = self.made(loss=hidden)
            with pytest.raises(InvalidParameter, match="closes over|function on the host"):
                some.gradients(PARAMETERS, (X, Y), indices, mask)
            some.noise.close()
        public = jnp.asarray(FEATURES[:-1])
        made = self.made(loss=lambda w, x, y: loss(w, x, y) + jnp.mean(x @ public.T))
        jax.jit(made.gradients)(PARAMETERS, (X, Y), indices, mask)
        made.noise.close()
        made = self.made(loss=lambda w, x, y: loss(w, x, y) + loss(w, X, Y))
        jax.jit(made.gradients)(PARAMETERS, (X, Y), indices, mask)

    def _weak(self, folder: Path) -> None:
        told = str(self.made(epsilon=30.0, delta=0.5).statement)
        assert "epsilon 30 is above 20" in told and "delta 0.5 is above" in told

    def _receipt(self, folder: Path) -> None:
        self.made(receipt=Receipt(folder / "receipt.json")).noise.close()
        take_a_step(folder / "receipt.json")
        self.made(receipt=Receipt(folder / "receipt.json"), clip_norm=2 * CLIP)


DOORS = [Jax(), Made()]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_the_table_is_true_of_jax(door: Door, tmp_path: Path) -> None:
    check_more(door, tmp_path)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
@pytest.mark.parametrize("rule", RULES)
def test_jax_keeps_the_contract(door: Door, rule: str, tmp_path: Path) -> None:
    check(door, rule, tmp_path)


def test_a_scale_for_the_noise_of_another_library_follows_the_rule_of_noise(tmp_path: Path) -> None:
    def make(*arguments: Any, **options: Any) -> Any:
        assert raised_sigma_of_sums(factors(), *arguments, dtype="float32", **options) > 0
        return SimpleNamespace(close=lambda: None)

    for mistake in of_unseen_batches(make).values():
        refused(lambda mistake=mistake: mistake.act(tmp_path), mistake.words)


def test_a_donated_state_is_not_copied_to_be_read() -> None:
    noise = correlated_noise(BUFFERED, calibrated(BUFFERED, SIZE), seed=SEED)
    sums = jnp.zeros((48, 80))
    program = jax.jit(noise.update, donate_argnums=1).lower(sums, noise.init(sums)).compile().as_text()
    assert "48,80]" in program and not re.search(r"= f32\[\d+,48,80\]\S* copy\(", program)


@pytest.mark.parametrize("jit", [False, True])
def test_an_auditor_beside_the_noise_has_seen_the_batch_of_each_step(jit: bool) -> None:
    held = factors()
    auditor = ParticipationAuditor.of(calibrated(held, SIZE), held.steps)
    noise = correlated_noise(held, calibrated(held, SIZE), seed=SEED, auditor=auditor)
    state = noise.init(PARAMETERS)
    update = jax.jit(noise.update) if jit else noise.update
    for step in range(2):
        auditor.record(range(SIZE * step, SIZE * (step + 1)))
        _, state = jax.block_until_ready(update(jax.tree.map(lambda leaf: leaf / 2, SUMS), state))
    with pytest.raises((InvalidParticipation, jax.errors.JaxRuntimeError), match="has recorded 2 steps"):
        jax.block_until_ready(update(SUMS, state))
    auditor.record(range(SIZE * 2, SIZE * 3))
    with pytest.raises((InvalidParticipation, jax.errors.JaxRuntimeError), match="step 2 has a larger norm"):
        jax.block_until_ready(update(SUMS, state))


def test_outside_of_jit_no_batch_is_left_without_noise() -> None:
    held = factors()
    auditor = ParticipationAuditor.of(calibrated(held, SIZE), held.steps)
    noise = correlated_noise(held, calibrated(held, SIZE), seed=SEED, auditor=auditor)
    for step in range(2):
        auditor.record(range(SIZE * step, SIZE * (step + 1)))
    with pytest.raises(InvalidParticipation, match="noise is at step 0.*has recorded 2 steps"):
        noise.update(SUMS, noise.init(PARAMETERS))
