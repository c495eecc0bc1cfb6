"""A JAX job in one call: what is released, shapes that show no size, restarts to the same bits, and refusals."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp
from private_cases import BINS, CLIP, EPOCHS, EXAMPLES, SECRET, SIZE, N, bins_noise, factors

from factorize.accounting import BinsCalibration
from factorize.adapters.gradients.clipped_sums import CLIP_FACTOR
from factorize.adapters.jax import correlated_noise
from factorize.adapters.jax_arrays.jax_gradients import ClippedGradients
from factorize.adapters.jax_arrays.jax_orders import are_moved, order_of
from factorize.adapters.jax_arrays.jax_sums import disclose
from factorize.adapters.jax_private import PrivateJax, make_private
from factorize.errors import InvalidParameter, InvalidParticipation, UnsupportedAdjacency
from factorize.privacy import PrivacyTarget, calibrate
from factorize.solvers import solve

X = np.random.default_rng(0).normal(size=(EXAMPLES, 6)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 3, EXAMPLES)


def job(**options: Any) -> PrivateJax:
    settings = {
        "loss": loss,
        "examples": EXAMPLES,
        "epsilon": 4.0,
        "delta": 1e-5,
        "epochs": EPOCHS,
        "batch_size": SIZE,
        "clip_norm": CLIP,
        "seed": SECRET,
        "sampling": "balls_in_bins",
        "calibration": bins_noise(),
        "spec": factors(),
    }
    return make_private(**{**settings, **options})


def fixed(**options: Any) -> PrivateJax:
    return job(sampling="fixed", calibration=None, **options)


def loss(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(x @ weights, y).mean()


class Training:
    """A job as users write it."""

    def __init__(self, made: PrivateJax) -> None:
        self.made = made
        self.optimizer = optax.chain(made.noise, optax.sgd(0.1))
        self.weights = jnp.zeros((6, 3))
        self.state = self.optimizer.init(self.weights)
        self.shapes: set[tuple[int, ...]] = set()

        @jax.jit
        def step(weights, state, indices, mask):
            total = made.gradients(weights, (jnp.asarray(X), jnp.asarray(Y)), indices, mask)
            updates, state = self.optimizer.update(total, state)
            return optax.apply_updates(weights, updates), state

        self.step = step

    def run(self, steps: int = N) -> Training:
        for indices, mask in self.made.batches:
            self.shapes.add(indices.shape)
            self.weights, self.state = self.step(self.weights, self.state, indices, mask)
            if self.made.batches.step == steps:
                break
        return self


def class_weighted(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """A mean over the weights of a batch's classes, as torch's cross entropy takes."""
    each = jnp.asarray([1.0, 4.0, 9.0])[y]
    return (each * optax.softmax_cross_entropy_with_integer_labels(x @ weights, y)).sum() / each.sum()


MIXING: dict[str, Any] = {
    "centred": lambda weights, x, y: loss(weights, x - x.mean(axis=0), y),
    "contrastive": lambda weights, x, y: (jnp.tanh(x @ weights) @ jnp.tanh(x @ weights).T).mean(),
    "class weights": class_weighted,
    "largest": lambda weights, x, y: ((x @ weights) ** 2).sum(axis=1).max(),
}


def one_by_one(weights: jax.Array, batch: np.ndarray) -> np.ndarray:
    """Clipped gradients without jax_privacy."""
    total = np.zeros((6, 3))
    for i in batch:
        own = np.asarray(jax.grad(loss)(weights, X[i : i + 1], Y[i : i + 1]), dtype=np.float64)
        total += own * min(1.0, CLIP / np.linalg.norm(own))
    return total


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss": "mean"}, "loss is of type str; give a function"),
        ({"workload": lambda n: {"kind": "prefix", "n": n}}, "is for 'auto', but a factorization or a spec was given"),
        ({"remainder": "keep"}, "remainder='keep' is not one of drop, pad"),
        ({"users": 3}, "a list with one string, number or tuple for each example"),
    ],
)
def test_settings_that_would_mean_nothing(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        fixed(**settings)


class TestGradients:
    indices, mask = np.arange(6).reshape(2, 3), np.array([[True] * 3, [True, True, False]])

    @pytest.mark.parametrize(("kind", "close"), [(jnp.float32, 1e-6), (jnp.bfloat16, 0.02)])
    @pytest.mark.parametrize("jit", [False, True])
    def test_clipped_sums_in_float32_whatever_the_parameters_are_in(self, kind: Any, close: float, jit: bool) -> None:
        weights, summed = jnp.full((6, 3), 0.1, kind), fixed().gradients
        total = disclose((jax.jit(summed) if jit else summed)(weights, (X, Y), self.indices, self.mask))
        assert total.dtype == jnp.float32
        assert np.allclose(total, one_by_one(weights, np.arange(5)), atol=close)

    @pytest.mark.parametrize("parts", [1, 7])
    def test_no_example_moves_a_rounded_sum_by_more_than_the_clip_norm(self, parts: int) -> None:
        """Exact fractions; the sum of all others is large, and their roundings to float32 with it."""
        rows = np.concatenate([np.tile([3.0, *(0.1,) * 8], (272, 1)), [[0.3, 0.4, *(0.1,) * 7]]]) * 1e3
        indices, mask = np.resize(np.arange(273), (parts, -(-273 // parts))), np.ones((parts, 273 // parts), dtype=bool)
        gradients = ClippedGradients(lambda weights, x: (x @ weights).mean(), CLIP)
        sums = []
        for lost in (True, False):
            mask[-1, -1] = lost
            sums.append(gradients(jnp.zeros(9), (np.float32(rows),), indices, mask))
        moved = sum((Fraction(float(own)) - Fraction(float(other))) ** 2 for own, other in zip(*sums, strict=True))
        assert Fraction(CLIP) ** 2 * (1 - Fraction(1, 2**10)) < moved <= Fraction(CLIP) ** 2

    def test_norms_of_many_entries(self) -> None:
        x = np.exp(np.random.default_rng(1).normal(size=(1, 1 << 22))).astype(np.float32) * np.float32(1e-3)
        gradients = ClippedGradients(lambda weights, x: (x @ weights).mean(), 1.0)
        total = gradients(jnp.zeros(x.shape[1]), (x,), np.zeros((1, 1), int), np.ones((1, 1), bool))
        assert 1 - 2e-6 < np.linalg.norm(np.asarray(total, dtype=np.float64)) <= 1

    def test_refuses_sums_whose_roundings_are_not_paid_for(self) -> None:
        for shape, says in (
            ((64, 1025), "65600 examples .padding included.*jax_enable_x64"),
            ((1, 50_000), "parts of"),
        ):
            rows = np.zeros(shape, dtype=int)
            with pytest.raises(InvalidParameter, match=says):
                fixed().gradients(jnp.full((6, 3), 0.1), (X, Y), rows, rows == 0)

    def test_parameters_in_float64_are_summed_in_it_whatever_the_number_of_examples(self) -> None:
        """The way out that the refusal names."""
        rows = np.arange(64 * 1025).reshape(64, 1025) % 3
        gradients = ClippedGradients(lambda weights, x: (x @ weights).mean(), CLIP)
        with jax.enable_x64(True):
            total = gradients(jnp.zeros(2, jnp.float64), (np.array([[3e3, 4e3]] * 3),), rows, rows >= 0)
            assert total.dtype == jnp.float64
            assert np.allclose(total, rows.size * CLIP * CLIP_FACTOR * np.array([0.6, 0.8]), rtol=1e-12)

    @pytest.mark.parametrize("jit", [False, True])
    @pytest.mark.parametrize("given", ["closed over", "an argument"])
    @pytest.mark.parametrize("name", MIXING)
    def test_a_loss_that_mixes_examples_is_refused(self, name: str, given: str, jit: bool) -> None:
        summed = fixed(loss=MIXING[name]).gradients

        def total(weights: jax.Array, x: Any, y: Any) -> jax.Array:
            return summed(weights, (X, Y) if given == "closed over" else (x, y), self.indices, self.mask)

        with pytest.raises(InvalidParameter, match="mixes examples: its gradient over 4 of them is neither"):
            (jax.jit(total) if jit else total)(jnp.full((6, 3), 0.1), X, Y)

    def test_a_row_that_is_not_its_examples_gradient_is_refused(self) -> None:
        """Rows count right and mix: a rule of its own under vmap, as a layer over the batch has."""

        @jax.custom_batching.custom_vmap
        def centred(x: jax.Array) -> jax.Array:
            return x

        @centred.def_vmap
        def over_the_batch(size: int, batched: Any, x: jax.Array) -> Any:
            return x - x.mean(axis=0), True

        summed = fixed(loss=lambda weights, x, y: loss(weights, centred(x), y)).gradients
        with pytest.raises(InvalidParameter, match="or not by its own gradient"):
            summed(jnp.full((6, 3), 0.1), (X, Y), self.indices, self.mask)

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [
            (lambda w, x, y: optax.softmax_cross_entropy_with_integer_labels(x @ w, y), r"is \(1,\), not one number"),
            (lambda w, x, y: (0.0, loss(w, x, y)), "is tuple, not one number"),
            (lambda w, x, y: loss(w, x, y) * jnp.nan, "not finite.*outside of jit"),
            (lambda w, x, y: loss(w, (x - x.mean(0)) / x.std(0), y), "a deviation over the batch, which would mix"),
        ],
    )
    def test_what_is_no_loss_of_one_example(self, wrong: Any, says: str) -> None:
        with pytest.raises(InvalidParameter, match=says):
            fixed(loss=wrong).gradients(jnp.full((6, 3), 0.1), (X, Y), self.indices, self.mask)

    @pytest.mark.parametrize(
        ("leaf", "says"),
        [
            (jax.nn.relu, r"\['f'\] is a custom_jvp, not an array.*eqx.partition"),
            (
                SimpleNamespace(dtype="float32", shape=(3,)),
                "SimpleNamespace, not an array.* the value of each variable",
            ),
        ],
    )
    def test_a_model_that_holds_other_things_is_told_how_to_leave_them_out(self, leaf: object, says: str) -> None:
        """A variable of Keras has a text for its type."""
        with pytest.raises(InvalidParameter, match=says):
            fixed().gradients({"w": jnp.ones((6, 3)), "f": leaf}, (X, Y), self.indices, self.mask)

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [
            ({"params": {"w": jnp.ones((6, 3)), "i": jnp.arange(3)}}, r"\['i'\] is int32.*take other types out"),
            ({"params": {"w": jnp.ones((6, 3)), "key": jax.random.key(0)}}, r"\['key'\] is key"),
            ({"params": {}}, "no leaf; give all that are trained"),
            ({"data": {"x": X, "y": Y}}, r"the data are dict \(\); give a tuple"),
            ({"data": X}, r"the data are ndarray \(\); give a tuple"),
            ({"data": (X, None)}, "float32, NoneType.; give a tuple"),
            ({"indices": np.arange(3), "mask": np.ones(3, bool)}, "indices have shape .3,.*parts, physical"),
            ({"mask": np.ones((3, 2), bool)}, "the mask .3, 2.*parts, physical"),
        ],
    )
    @pytest.mark.parametrize("jit", [False, True])
    def test_arguments_of_another_form_are_refused_by_name(self, wrong: dict[str, Any], says: str, jit: bool) -> None:
        given = {"params": jnp.ones((6, 3)), "data": (X, Y), "indices": self.indices, "mask": self.mask, **wrong}
        summed = fixed().gradients

        def total(params: Any) -> Any:
            return summed(params, given["data"], given["indices"], given["mask"])

        with pytest.raises(InvalidParameter, match=says):
            (jax.jit(total) if jit else total)(given["params"])

    @pytest.mark.parametrize("jit", [False, True])
    def test_a_parameter_may_be_one_number(self, jit: bool) -> None:
        def scaled(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
            return loss(params["weights"] * params["scale"], x, y)

        made = fixed(loss=scaled)
        params = {"weights": jnp.full((6, 3), 0.1), "scale": 2.0}
        summed = jax.jit(made.gradients) if jit else made.gradients
        total = summed(params, (X, Y), *next(iter(made.batches)))
        released, _ = made.noise.update(total, made.noise.init(params))
        assert total["scale"].shape == released["scale"].shape == () and np.isfinite(released["scale"])
        made.noise.close()

    def test_a_loss_for_one_example_alone_and_one_that_drawn_parameters_break(self) -> None:
        def single(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
            return loss(jnp.log(weights), x.reshape(1, 6), y)

        weights = jnp.full((6, 3), 0.1)
        total = jax.jit(fixed(loss=single).gradients)(weights, (X, Y), self.indices, self.mask)
        assert np.isfinite(disclose(total)).all()

    def test_parameters_that_begin_at_examples_are_refused(self) -> None:
        def near(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
            return loss(params["w"], jnp.exp(-jnp.square(x[:, None] - params["centres"]).sum(-1)), y)

        summed, w = fixed(loss=near).gradients, jnp.full((5, 3), 0.1)
        with pytest.raises(InvalidParameter, match="a parameter has examples of the data among its rows"):
            summed({"centres": jnp.asarray(X[:5]), "w": w}, (X, Y), self.indices, self.mask)
        total = summed({"centres": jnp.asarray(-X[:5]), "w": w}, (X, Y), self.indices, self.mask)
        assert np.isfinite(disclose(total["w"])).all()

    @pytest.mark.parametrize("jit", [False, True])
    def test_first_examples_that_are_not_finite_stop_no_job_and_hide_no_mixing(self, jit: bool) -> None:
        """The check would otherwise tell that an example is not finite, and refuse the loss for it."""
        x = X.copy()
        x[:2] = np.nan

        def total(summed: Any) -> Any:
            def call(weights: jax.Array) -> Any:
                return summed(weights, (x, Y), self.indices, self.mask)

            return disclose((jax.jit(call) if jit else call)(jnp.full((6, 3), 0.1)))

        assert np.allclose(total(fixed().gradients), one_by_one(np.full((6, 3), 0.1), np.arange(2, 5)), atol=1e-6)
        with pytest.raises(InvalidParameter, match="mixes examples"):
            total(fixed(loss=MIXING["centred"]).gradients)

    @pytest.mark.parametrize("jit", [False, True])
    @pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
    def test_examples_in_a_loss_are_found_by_their_values(self, kind: Any, jit: bool) -> None:
        """The memory of a loss, and the support of a kernel, among data of numpy that a jitted loop closes over."""
        some = kind(X[3:8])
        memory = fixed(loss=lambda w, x, y: loss(w, x + jnp.asarray(some).sum(axis=0), y)).gradients
        kernel = fixed(loss=lambda w, x, y: loss(w[:5], jnp.tanh(x @ some.T), y)).gradients
        for summed in (memory, kernel):

            def total(weights: jax.Array, summed: Any = summed) -> Any:
                return summed(weights, (X, Y), self.indices, self.mask)

            with pytest.raises(InvalidParameter, match=r"closes over an array of shape .*looks like the data"):
                (jax.jit(total) if jit else total)(jnp.full((6, 3), 0.1))

    def test_a_public_array_that_is_no_part_of_the_data_may_be_closed_over(self) -> None:
        """Under jit an array of numpy has values, too."""
        public = np.random.default_rng(7).normal(size=(5, 6)).astype(np.float32)
        summed = fixed(loss=lambda w, x, y: loss(w, x, y) + (jnp.asarray(public) @ w).mean()).gradients
        total = jax.jit(lambda w: summed(w, (X, Y), self.indices, self.mask))(jnp.full((6, 3), 0.1))
        assert np.isfinite(disclose(total)).all()

    def test_without_jit_the_loss_is_traced_for_the_first_batch_alone(self) -> None:
        traced = []

        def counted(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
            traced.append(x.shape)
            return loss(weights, x, y)

        made = fixed(loss=counted)
        weights, mask = jnp.full((6, 3), 0.1), np.ones((1, SIZE), bool)
        for step in range(3):
            made.gradients(weights * step, (X, Y), made.batches.order[step][None], mask)
            assert len(traced) > 1 if step == 0 else len(traced) == 1  # a look at what it reads beside its arguments
            traced.clear()

    def test_what_the_loss_reads_beside_its_arguments_may_change(self) -> None:
        """A weight that rises over the epochs, a teacher that follows; a jitted loop is jitted anew, as JAX asks for."""
        beside = SimpleNamespace(weight=1.0, teacher=np.ones(3, np.float32))

        def weighted(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
            return loss(weights, x, y) + beside.weight * jnp.sum(weights @ jnp.asarray(beside.teacher))

        gradients = ClippedGradients(weighted, 100.0)
        given = jnp.full((6, 3), 0.1), (X, Y), self.indices, self.mask
        first = gradients(*given)
        beside.weight = 3.0
        second = gradients(*given)
        beside.teacher[:] = 4
        third = jax.jit(lambda *given: gradients(*given))(*given)
        assert np.allclose(second - first, 2 * self.mask.sum(), atol=1e-3)
        assert np.allclose(third - first, 11 * self.mask.sum(), atol=1e-3)

    @pytest.mark.parametrize("typed", [False, True])
    def test_a_loss_may_draw_from_keys_among_the_data(self, typed: bool) -> None:
        """The bits are those that it draws for the example alone, with the caller's setting of x64."""
        keys = jax.vmap(jax.random.key if typed else jax.random.PRNGKey)(np.arange(EXAMPLES))

        def dropped(weights: jax.Array, x: jax.Array, y: jax.Array, own: jax.Array) -> jax.Array:
            return loss(weights, x * jax.vmap(lambda key: jax.random.bernoulli(key, 0.7, (6,)))(own), y)

        made = fixed(loss=dropped)
        weights, batch = jnp.full((6, 3), 0.1), made.batches.order[0]
        total = made.gradients(weights, (X, Y, keys), batch[None], np.ones((1, SIZE), bool))
        alone = np.zeros((6, 3))
        for i in batch:
            own = np.asarray(jax.grad(dropped)(weights, X[i : i + 1], Y[i : i + 1], keys[i : i + 1]))
            alone += own * min(1.0, CLIP / np.linalg.norm(own))
        assert np.allclose(disclose(total), alone, atol=1e-6)
        first = fixed(loss=lambda weights, x, y, own: dropped(weights, x, y, own[:1].repeat(len(x), 0)))
        with pytest.raises(InvalidParameter, match=r"not the first of them by all \(keys\[0\]\)"):
            first.gradients(weights, (X, Y, keys), batch[None], np.ones((1, SIZE), bool))

    def test_it_looks_once_for_each_shape(self) -> None:
        calls = []

        def counted(weights: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
            calls.append(len(x))
            return loss(weights, x, y)

        summed = fixed(loss=counted).gradients
        for rows in (3, 3, 6):
            before = len(calls)
            summed(jnp.full((6, 3), 0.1), (X[:, :], Y), np.arange(rows)[None], np.ones((1, rows), bool))
            assert (4 in calls[before:]) == (before == 0)


class TestBallsInBins:
    @pytest.mark.parametrize("physical", [None, 3])
    def test_clipped_gradients_of_the_bins_and_the_rows_of_noise(self, physical):
        made = job(physical_batch_size=physical)
        assert len({len(batch) for batch in made.batches.order}) > 1
        training = Training(made).run()
        assert len(training.shapes) == 1 and made.batches.step == N
        made.noise.close()  # and once more, by hand
        noise = correlated_noise(factors(), made.statement.calibration, seed=SECRET, auditor="not_looked_at")
        weights, state = jnp.zeros((6, 3)), noise.init(jnp.zeros((6, 3)))
        for step in range(N):
            gradient = jnp.asarray(one_by_one(weights, made.batches.order[step]), dtype=jnp.float32)
            noisy, state = noise.update(gradient, state)
            weights = weights - 0.1 * noisy
        assert np.allclose(weights, training.weights, atol=1e-5)

    @pytest.mark.parametrize("physical", [None, 3])
    def test_goes_on_with_the_same_bits(self, physical):
        whole = Training(job(physical_batch_size=physical)).run()
        part = Training(job(physical_batch_size=physical)).run(steps=4)
        kept = jax.tree.map(np.asarray, (part.weights, part.state)), part.made.batches.state_dict()
        resumed = Training(job(physical_batch_size=physical))
        (resumed.weights, resumed.state), batches = jax.tree.map(jnp.asarray, kept[0]), kept[1]
        resumed.made.batches.load_state_dict(batches)
        assert np.array_equal(resumed.run().weights, whole.weights)

    def test_states_what_the_capacity_costs_and_shows_no_bin(self):
        made = job()
        assert 0 < made.statement.overflow_delta < 1e-5 / 1024 and made.statement.sampling == "balls_in_bins"
        state = made.batches.state_dict()
        assert set(state) == {"version", "step", "divisor", "sampling", "examples", "bins", "epochs", "commitment"}
        with pytest.raises(InvalidParameter, match="another secret key"):
            job(seed=SECRET + 1).batches.load_state_dict(state)

    @pytest.mark.parametrize("sampling", ["balls_in_bins", "random_allocation"])
    def test_computes_its_own_calibration(self, sampling):
        made = job(spec="auto", solve=solve, calibration=None, sampling=sampling)
        c = made.statement.calibration
        assert c.document()["sampling"] == made.statement.sampling == made.batches.auditor.sampling == sampling
        assert isinstance(c, BinsCalibration) and (c.bins, c.epochs, c.divisor, c.clip_norm) == (
            BINS,
            EPOCHS,
            SIZE,
            CLIP,
        )
        assert made.statement.delta <= 1e-5 and Training(made).run().made.batches.step == N

    @pytest.mark.parametrize(
        ("wrong", "error"),
        [
            ({"calibration": bins_noise(bins=BINS + 1)}, InvalidParameter),
            ({"adjacency": "replace_one"}, UnsupportedAdjacency),
            ({"physical_batch_size": 0}, InvalidParameter),
            ({"sampling": "fixed"}, InvalidParameter),
            ({"sampling": "cyclic_poisson"}, InvalidParameter),
            ({"users": [1] * EXAMPLES}, InvalidParameter),
            ({"users": [1]}, InvalidParameter),
            ({"betas": (0.9, 0.99)}, InvalidParameter),
        ],
    )
    def test_refusals(self, wrong, error):
        with pytest.raises(error):
            job(**wrong)


def alone(weights: jax.Array, indices: np.ndarray, _: Any, total: Any) -> Any:
    return jax.grad(lambda w: loss(w, jnp.asarray(X)[indices[0]], jnp.asarray(Y)[indices[0]]))(weights)


MISTAKES: dict[str, tuple[str, Any]] = {
    "gradients that were never clipped": ("float32, not the sums over examples", alone),
    "no padding": ("sum the examples of step 0", lambda w, indices, mask, total: total(indices, jnp.ones_like(mask))),
    "other examples": ("sum the examples of step 0", lambda w, indices, mask, total: total(indices + 1, mask)),
    "sums before the last ones": (
        "that gradients.* returned last",
        lambda w, indices, mask, total: (total(indices, mask), total(indices + 1, mask))[0],
    ),
    "sums in another order": (
        "returned last; give update all of .*nnx.state",
        lambda w, indices, mask, total: total(indices, mask)[::-1],
    ),
}

COMPUTATIONS: dict[str, Any] = {
    "scaled": lambda total, weights: total * 0.5,
    "added up": lambda total, weights: total + total,
    "an update without noise": optax.apply_updates,
    "an update without noise, weights first": lambda total, weights: optax.apply_updates(weights, total),
    "a norm by hand": lambda total, weights: jnp.sum(total**2),
    "a sign": lambda total, weights: jnp.sign(total),
    "the largest entry": lambda total, weights: jnp.max(total),
    "read as bits": lambda total, weights: jax.lax.bitcast_convert_type(total, jnp.float32),
    "keys of random numbers": lambda total, weights: jax.random.normal(total[0, 0]),
    "moved weights, as in SAM": lambda total, weights: weights + 0.1 * total,
    "added over devices": lambda total, weights: jax.vmap(lambda own: jax.lax.psum(own, "i"), axis_name="i")(total),
}
WITHOUT_A_NAME: dict[str, Any] = {
    "converted": lambda total, weights: total.astype(jnp.float32),
    "a norm that sets the rate": lambda total, weights: optax.global_norm({"weights": total}),
    "numbers of numpy": lambda total, weights: np.asarray(total),
    "a number of Python": lambda total, weights: float(total[0, 0]),
    "clipped by norm": lambda total, weights: optax.clip_by_global_norm(1.0).update(total, optax.EmptyState()),
}
"""What JAX refuses, too, outside of jit without naming the type."""


class TestSumsOfTheBatch:
    """The noise takes the sums of the next batch, and nothing else that has their shape."""

    def test_nothing_computes_with_sums_before_the_noise(self) -> None:
        made, weights = fixed(), jnp.full((6, 3), 0.1)
        total = made.gradients(weights, (X, Y), np.arange(SIZE)[None], np.ones((1, SIZE), bool))
        for compute in COMPUTATIONS.values():
            for own in (compute, jax.jit(compute)):
                with pytest.raises((TypeError, ValueError), match="sums without noise"):
                    own(total, weights)
        for compute in WITHOUT_A_NAME.values():
            with pytest.raises((TypeError, NotImplementedError)):
                compute(total, weights)
            with pytest.raises((TypeError, ValueError), match="sums without noise"):
                jax.jit(compute)(total, weights)

    def test_no_comparison_finds_the_sums_that_are_zero(self) -> None:
        """They show which words a batch has. JAX compares keys, as which it sees the sums."""
        x = X * np.array([0, 1, 1, 0, 1, 1], np.float32)
        total = fixed().gradients(jnp.zeros((6, 3)), (x, Y), np.arange(SIZE)[None], np.ones((1, SIZE), bool))
        assert [bool(row.any()) for row in disclose(total)] == [False, True, True, False, True, True]
        for equal in (jnp.equal, jax.jit(jnp.equal)):
            assert not equal(total, jnp.zeros_like(total)).any()

    @pytest.mark.parametrize(
        ("name", "jit"),
        [*((name, False) for name in MISTAKES), ("sums in another order", True), ("other examples", True)],
    )
    def test_other_sums_are_refused(self, name: str, jit: bool) -> None:
        says, mistake = MISTAKES[name]
        made, weights = job(physical_batch_size=7), jnp.zeros((6, 3))
        state = made.noise.init(weights)

        def step(indices: Any, mask: Any) -> Any:
            def total(*batch: Any) -> Any:
                return made.gradients(weights, (X, Y), *batch)

            return made.noise.update(mistake(weights, indices, mask, total), state)

        with pytest.raises(Exception, match=says):
            jax.block_until_ready((jax.jit(step) if jit else step)(*next(iter(made.batches))))
        made.noise.close()

    def test_a_batch_whose_noise_was_not_taken_comes_again(self) -> None:
        """As after a look at the first one, or a loop that Ctrl-C has ended after some were drawn ahead."""
        plain, looking = Training(job()).run(), Training(job())
        first = next(iter(looking.made.batches))
        assert all(map(np.array_equal, first, next(iter(looking.made.batches))))
        looking.run(2)
        left = looking.made.batches.state_dict()
        ahead = iter(looking.made.batches)
        next(ahead), next(ahead)
        looking.made.gradients(looking.weights, (X, Y), *first)
        looking.run()
        assert np.array_equal(looking.weights, plain.weights)
        with pytest.warns(UserWarning, match=f"all {len(looking.made.batches)} steps of this run were taken"):
            looking.run()
        looking.made.batches.load_state_dict(left)
        assert looking.made.batches.step == 2
        next(iter(looking.made.batches))
        assert looking.made.batches.step == 3
        plain.made.noise.close()
        looking.made.noise.close()

    @pytest.mark.parametrize("make", [job, fixed])
    @pytest.mark.parametrize("ahead", [1, 2])
    def test_a_checkpoint_is_that_of_the_noise_where_batches_are_drawn_ahead(self, make: Any, ahead: int) -> None:
        """A loop saves before its step, or draws batches early; the checkpoint of it has to be one to go on from."""
        plain, first, kept = Training(make()).run(), Training(make()), None
        batches = iter(first.made.batches)
        waiting = [next(batches) for _ in range(ahead)]
        for step in range(N // 2):
            if step in (1, N // 2 - 1):
                kept = first.weights, first.state, first.made.batches.state_dict()
            first.weights, first.state = first.step(first.weights, first.state, *waiting.pop(0))
            waiting.append(next(batches))
        first.made.noise.close()
        again = Training(make())
        again.weights, again.state, saved = kept  # type: ignore[misc]
        again.made.batches.load_state_dict(saved)
        again.run()
        assert np.array_equal(again.weights, plain.weights)
        plain.made.noise.close()
        again.made.noise.close()

    def test_a_batch_that_is_left_out_and_a_state_of_another_step_are_refused(self) -> None:
        made, weights = job(), jnp.zeros((6, 3))
        batches, state = list(made.batches), made.noise.init(weights)
        with pytest.raises(InvalidParticipation, match="sum the examples of step 0"):
            made.noise.update(made.gradients(weights, (X, Y), *batches[1]), state)
        _, later = made.noise.update(made.gradients(weights, (X, Y), *batches[0]), state)
        made.noise.update(made.gradients(weights, (X, Y), *batches[1]), later)
        with pytest.raises(InvalidParticipation, match=r"at step 1, but the next batch is that of step 2"):
            made.noise.update(made.gradients(weights, (X, Y), *batches[2]), later)
        made.noise.close()

    def test_updates_may_be_held_back_after_the_noise(self) -> None:
        """`MultiSteps` around the noise would compute means of sums; after it, it averages what is released."""
        made, weights = fixed(), jnp.full((6, 3), 0.1)
        optimizer = optax.chain(made.noise, optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation())
        batches, state, moved = iter(made.batches), optimizer.init(weights), []
        for _ in range(2):
            updates, state = optimizer.update(made.gradients(weights, (X, Y), *next(batches)), state, weights)
            moved.append(bool(jnp.any(updates)))
        assert moved == [False, True]
        made.noise.close()

    def test_a_state_without_its_type_is_refused(self) -> None:
        made, weights = fixed(), jnp.full((6, 3), 0.1)
        with pytest.raises(InvalidParameter, match="is a dict, not a NoiseState; restore it into the state"):
            made.noise.update(weights, made.noise.init(weights)._asdict())

    def test_data_with_another_number_of_examples_are_refused(self) -> None:
        with pytest.raises(InvalidParameter, match=f"shape .20,., but the job was made for examples={EXAMPLES}"):
            job().gradients(jnp.zeros((6, 3)), (X, Y[:20]), *next(iter(job(seed=SECRET + 1).batches)))


class TestOrders:
    """Data that a loop changes between two steps: in their order, or each example by itself."""

    def steps(self, changes: Any, jit: bool = True, most: int = N, kept: Any = None) -> Any:
        """Take steps, from a checkpoint on if there is one, and return a checkpoint."""
        made = fixed(loss=lambda w, x, y, key: loss(w, x, y))
        weights = jnp.full((6, 3), 0.1)
        state = made.noise.init(weights)
        if kept is not None:
            state = kept[0]
            made.batches.load_state_dict(kept[1])

        def step(state: Any, data: Any, *batch: Any) -> Any:
            return made.noise.update(made.gradients(weights, data, *batch), state)

        step = jax.jit(step) if jit else step
        for number, batch in zip(range(made.batches.step, most), made.batches, strict=False):
            data = changes(number, X, Y)
            keys = jax.random.split(jax.random.key(number), EXAMPLES)
            _, state = jax.block_until_ready(step(state, (*data, keys), *batch))
        kept = state, made.batches.state_dict()
        made.noise.close()
        return kept

    @pytest.mark.parametrize("jit", [False, True])
    def test_a_shuffle_of_each_epoch_is_refused(self, jit: bool) -> None:
        def shuffled(number: int, *data: Any) -> Any:
            order = np.random.default_rng(number // BINS).permutation(EXAMPLES)
            return [each[order] for each in data]

        with pytest.raises(Exception, match="in another order than in the last step, as after a shuffle"):
            self.steps(shuffled, jit)

    @pytest.mark.parametrize("jit", [False, True])
    def test_another_order_after_a_restart_is_refused(self, jit: bool) -> None:
        kept = self.steps(lambda _, *data: data, jit, most=2)
        with pytest.raises(Exception, match="names another example than when the checkpoint was made"):
            self.steps(lambda _, x, y: (x[::-1], y[::-1]), jit, kept=kept)
        self.steps(lambda _, *data: data, jit, kept=kept)

    def test_examples_may_change_by_themselves(self) -> None:
        """Noise on features, and flips of a few columns; labels stay where they are."""

        def noisy(number: int, x: Any, y: Any) -> Any:
            rng = np.random.default_rng(number)
            return np.where(rng.random((EXAMPLES, 1)) < 0.5, x, x[:, ::-1]) + rng.normal(size=x.shape) / 9, y

        self.steps(noisy, kept=self.steps(noisy, most=2))


class TestCopies:
    """Data that hold their examples several times, for example to have more of them."""

    @pytest.mark.parametrize("jit", [False, True])
    @pytest.mark.parametrize(
        "copied",
        [lambda x: np.concatenate([x, x]), lambda x: np.repeat(x, 2, axis=0), lambda x: jnp.tile(x.T, 2).T],
    )
    def test_are_refused(self, copied: Any, jit: bool) -> None:
        half = EXAMPLES // 2
        made = fixed(loss=lambda w, x, y, key: loss(w, x, y))
        data = copied(X[:half]), copied(Y[:half]), jax.random.split(jax.random.key(0), EXAMPLES)

        def total(weights: jax.Array) -> Any:
            return made.gradients(weights, data, *next(iter(made.batches)))

        with pytest.raises(InvalidParticipation, match=rf"the {EXAMPLES} examples are 2 copies of {half}.*users="):
            (jax.jit(total) if jit else total)(jnp.full((6, 3), 0.1))

    def test_of_one_user_take_turns(self) -> None:
        twice, users = np.concatenate([X, X]), [*range(EXAMPLES)] * 2
        made = fixed(examples=2 * EXAMPLES, users=users)
        total = made.gradients(jnp.full((6, 3), 0.1), (twice, np.tile(Y, 2)), *next(iter(made.batches)))
        assert np.isfinite(disclose(total)).all()

    def test_rows_that_are_alike_by_chance_are_no_copies(self) -> None:
        """Such as images that are black, or people of whom little is known."""
        few = np.resize(X[:3], X.shape)
        made = fixed()
        total = made.gradients(jnp.full((6, 3), 0.1), (few, np.zeros_like(Y)), *next(iter(made.batches)))
        assert np.isfinite(disclose(total)).all()


class TestFixedOrder:
    @pytest.mark.parametrize("physical", [None, 3])
    def test_the_same_batches_in_every_epoch(self, physical):
        made = fixed(physical_batch_size=physical)
        training = Training(made).run()
        assert training.shapes == {(1, SIZE) if physical is None else (3, 3)}
        assert made.statement.used == BINS * SIZE and "fixed order" in str(made.statement)
        assert made.statement.loss == "per_example"
        c = made.statement.calibration
        target = PrivacyTarget(epsilon=4.0, delta=1e-5)
        assert c == calibrate(factors().sensitivity, target, clip_norm=CLIP, divisor=SIZE)

    def test_users_take_turns(self):
        users = [*range(EXAMPLES)] * 2
        made = fixed(examples=2 * EXAMPLES, users=users)
        seen = [indices[mask] for indices, mask in made.batches]
        assert len(seen) == N and all(len(np.unique(batch % EXAMPLES)) == SIZE for batch in seen)
        assert len(np.unique(np.concatenate(seen))) == made.statement.used > EXAMPLES
        assert (made.statement.unit, made.statement.users) == ("user", EXAMPLES)

    def test_auto_solves_running_sums(self):
        made = fixed(spec="auto", solve=solve)
        assert made.statement.steps == N
        with pytest.raises(InvalidParticipation):
            made.batches.auditor.record(made.batches.order[0])
            made.batches.auditor.record(made.batches.order[0])


@pytest.mark.parametrize("examples", [3, 100, 40_000])
def test_moved_examples_are_told_from_other_data(examples: int) -> None:
    rng = np.random.default_rng(0)
    x, other = rng.random((2, examples, 5), dtype=np.float32)
    labels, order = rng.integers(0, 2, examples), np.roll(np.arange(examples), 1)
    own = np.asarray(order_of([jnp.asarray(x), jnp.asarray(labels)]))
    assert are_moved(own, np.asarray(order_of([jnp.asarray(x[order]), jnp.asarray(labels[order])])))
    assert not are_moved(own, own) and not are_moved(
        own, np.asarray(order_of([jnp.asarray(other), jnp.asarray(labels)]))
    )
    same = np.asarray(order_of([jnp.asarray(labels)]))
    assert not are_moved(same, same[::-1])  # equal labels are not told apart
