"""Receipts of jobs that the adapters made private: written while they train, and proved from the files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from private_cases import EPOCHS, EXAMPLES, SECRET, SIZE, N
from rank_jobs import on_ranks, refused
from safetensors.torch import save_file, save_model

from factorize.adapters.jax_private import make_private as make_private_jax
from factorize.adapters.private import make_private
from factorize.checker.receipt import MODEL, check_receipt
from factorize.checker.report import Status
from factorize.encoding import read_json
from factorize.errors import InvalidParameter, UnsupportedProblem
from factorize.format.weights import TENSORS, digest_of_path
from factorize.solvers import solve
from factorize.spec import parse_spec
from factorize.training.receipt import Receipt
from factorize.training.released_weights import model_digest

COMMON: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-5, "epochs": EPOCHS, "batch_size": SIZE, "seed": SECRET}


class Solving:
    """Solves for a job, and keeps what it found."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, list[Path]()

    def __call__(self, spec: Any) -> Any:
        factors = solve(spec)
        self.files.append(self.folder / f"{len(self.files)}.safetensors")
        factors.save(self.files[-1])
        return factors


def torch_job(receipt: Receipt, solving: Solving, adam: bool = False, **options: Any) -> Any:
    torch.manual_seed(4)
    model = torch.nn.Linear(6, 3)
    made = torch.optim.Adam(model.parameters()) if adam else torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(EXAMPLES, 6), torch.randint(0, 3, (EXAMPLES,)))
    return make_private(model, made, data, "auto", solve=solving, receipt=receipt, **{**COMMON, **options})


def torch_steps(job: Any, epochs: int = EPOCHS) -> None:
    for _ in range(epochs):
        for x, y in job.loader:
            torch.nn.functional.cross_entropy(job.model(x), y).backward()
            job.optimizer.step()
            job.optimizer.zero_grad()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"adam": True, "adaptive": "joint"},
        {"sampling": "balls_in_bins"},
        {"sampling": "random_allocation"},
        {"users": list(range(EXAMPLES)), "adjacency": "replace_one"},
    ],
    ids=["fixed", "joint", "bins", "allocation", "users"],
)
def test_a_torch_job(tmp_path: Path, options: dict[str, Any]) -> None:
    receipt, solving = Receipt(tmp_path / "receipt.json"), Solving(tmp_path)
    job = torch_job(receipt, solving, **options)
    torch_steps(job, epochs=1)
    assert_open(tmp_path, solving, steps=N // EPOCHS)
    if job.statement.moments is None:
        so_far = job.statement.epsilon_so_far(N // EPOCHS)
        assert 0 < so_far == job.optimizer.epsilon_so_far() == receipt.epsilon_so_far() < COMMON["epsilon"]
    else:
        with pytest.raises(UnsupportedProblem, match="squares are released together"):
            job.optimizer.epsilon_so_far()
    torch_steps(job, epochs=EPOCHS - 1)
    receipt.close(model=job.model)
    document = assert_proved(tmp_path, solving)
    save_file(job.model._module.state_dict(), tmp_path / "released.safetensors")
    text = (tmp_path / "receipt.json").read_bytes()
    files = [path.read_bytes() for path in solving.files]
    assert check_receipt(text, files, model=tmp_path / "released.safetensors").status(MODEL) is Status.PROVED
    released = job.model._module.state_dict() | {"narrow": torch.ones(2, dtype=torch.bfloat16)[0]}
    save_file(released, tmp_path / "narrow.safetensors")
    assert model_digest(released)["sha256"] == digest_of_path(tmp_path / "narrow.safetensors", TENSORS)
    assert document["unit"] == job.statement.unit and document["delta"] >= job.statement.delta


def test_noise_for_float64_parameters_has_the_digits_of_float32(tmp_path: Path) -> None:
    torch.manual_seed(4)
    model = torch.nn.Linear(6, 3).double()
    data = torch.utils.data.TensorDataset(torch.randn(EXAMPLES, 6).double(), torch.randint(0, 3, (EXAMPLES,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    receipt = Receipt(tmp_path / "receipt.json")
    job = make_private(model, optimizer, data, "auto", solve=Solving(tmp_path), receipt=receipt, **COMMON)
    drawn = job.optimizer.noise.next()
    assert all(part.dtype == torch.float64 and torch.equal(part, part.float().double()) for part in drawn)
    assert json.loads((tmp_path / "receipt.json").read_text())["noise"]["dtype"] == "float32"


def test_a_torch_job_that_was_killed_between_two_steps(tmp_path: Path) -> None:
    solving = Solving(tmp_path)
    job = torch_job(Receipt(tmp_path / "receipt.json"), solving)
    torch_steps(job, epochs=1)
    kept = {"model": job.model.state_dict(), "optimizer": job.optimizer.state_dict()}
    again = Receipt(tmp_path / "receipt.json")
    job = torch_job(again, Solving(tmp_path))
    job.model.load_state_dict(kept["model"])
    job.optimizer.load_state_dict(kept["optimizer"])
    torch_steps(job, epochs=EPOCHS - 1)
    again.close()
    assert assert_proved(tmp_path, solving)["steps"]["processes"] == [[0, N // EPOCHS], [N // EPOCHS, N]]
    with pytest.raises(InvalidParameter, match="of a finished run"):
        torch_job(Receipt(tmp_path / "receipt.json"), Solving(tmp_path))


def test_tied_weights_are_named_by_their_file(tmp_path: Path) -> None:
    """A safetensors file keeps one of their names, so no file has the digest of both."""
    model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(5, 3), "head": torch.nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["embed"].weight
    with pytest.raises(InvalidParameter, match="'embed.weight' and 'head.weight' are one tensor"):
        model_digest(model)
    save_model(model, str(tmp_path / "model.safetensors"))
    assert model_digest(tmp_path / "model.safetensors")["of"] == "file"
    rows = torch.arange(6.0).reshape(2, 3)  # parts of one memory, and empty tensors, are no tied ones
    assert model_digest({"first": rows[0], "second": rows[1], "none": rows[:0], "nothing": rows[:0]})
    with pytest.raises(InvalidParameter, match="not a whole tensor of numbers"):
        model_digest({"sparse": rows.to_sparse()})


def closed_on(rank: int, path: str) -> list[str]:
    """Train on a rank and close the receipt, as the script of all ranks does."""
    receipt = Receipt(path)
    model = DifferentiallyPrivateDistributedDataParallel(torch.nn.Linear(6, 3))
    data = torch.utils.data.TensorDataset(torch.ones(EXAMPLES, 6), torch.zeros(EXAMPLES, dtype=torch.int64))
    made = torch.optim.SGD(model.parameters(), lr=0.1)
    job = make_private(model, made, data, "auto", solve=solve, receipt=receipt, **COMMON)
    torch_steps(job)
    return [refused(receipt.epsilon_so_far), refused(lambda: receipt.close(model=job.model))]


def test_every_rank_may_close_the_receipt_that_the_first_one_writes(tmp_path: Path) -> None:
    first, second = on_ranks(2, tmp_path, closed_on, str(tmp_path / "receipt.json"))
    assert first == ["not refused"] * 2 and second[1] == "not refused"
    assert "the first process alone writes" in second[0] and "statement.epsilon_so_far(steps)" in second[0]
    document = json.loads((tmp_path / "receipt.json").read_text())
    assert document["steps"]["ended"] and document["steps"]["processes"] == [[0, N]] and document["noise"]["ranks"] == 2


@pytest.mark.parametrize("sampling", ["fixed", "balls_in_bins"])
def test_a_jax_job(tmp_path: Path, sampling: str) -> None:
    receipt, solving = Receipt(tmp_path / "receipt.json"), Solving(tmp_path)
    settings: dict[str, Any] = {**COMMON, "sampling": sampling, "physical_batch_size": 4, "receipt": receipt}
    x = np.random.default_rng(0).standard_normal((EXAMPLES, 6)).astype(np.float32)

    def loss(weights: Any, x: Any) -> Any:
        return ((x @ weights) ** 2).mean()

    noise, batches, _, gradients = make_private_jax("auto", loss=loss, examples=EXAMPLES, solve=solving, **settings)
    optimizer = optax.chain(noise, optax.sgd(0.1))
    weights = jax.numpy.ones(6)
    state = optimizer.init(weights)
    for indices, mask in batches:
        total = gradients(weights, (jax.numpy.asarray(x),), indices, mask)
        updates, state = optimizer.update(total, state)
        weights = optax.apply_updates(weights, updates)
    receipt.close(model={"weights": weights})
    document = assert_proved(tmp_path, solving)
    assert document["noise"]["generator"] == "threefry2x32"
    assert document["model"] == model_digest({"weights": np.asarray(weights)})


@pytest.mark.parametrize("sampling", ["balls_in_bins", "random_allocation"])
def test_jobs_of_other_generators_and_one_seed_share_no_secret_order(tmp_path: Path, sampling: str) -> None:
    """Their noises differ, so that no receipt tells that both drew the same batches."""
    about = {"participation": {"kind": "fixed_epochs", "epochs": EPOCHS}, "mechanism": {"kind": "identity"}}
    factors = solve(parse_spec({"workload": {"kind": "prefix", "n": N}, **about}))
    settings: dict[str, Any] = {**COMMON, "sampling": sampling, "physical_batch_size": 4}
    ours = torch_job(Receipt(tmp_path / "torch.json"), lambda spec: factors, **settings)
    job = {"loss": lambda w, x: (w * x).sum(), "examples": EXAMPLES, "receipt": Receipt(tmp_path / "jax.json")}
    theirs = make_private_jax("auto", solve=lambda spec: factors, **job, **settings)
    shake = torch_job(Receipt(tmp_path / "shake.json"), lambda spec: factors, generator="shake128", **settings)
    orders = [ours.loader.order, theirs.batches.order, shake.loader.order]
    first, second, third = (set(np.asarray(order[0]).tolist()) for order in orders)
    assert all((first, second, third)) and len({frozenset(batch) for batch in (first, second, third)}) == 3


def test_a_jax_job_of_numpy_numbers(tmp_path: Path) -> None:
    receipt, solving = Receipt(tmp_path / "receipt.json"), Solving(tmp_path)
    sizes = {"examples": np.int64(EXAMPLES), "epochs": np.int32(EPOCHS), "batch_size": np.int64(SIZE)}
    settings: dict[str, Any] = {**COMMON, **sizes, "memory": np.int64(2), "receipt": receipt}
    job = make_private_jax("auto", loss=lambda w, x: (w * x).sum(), solve=solving, **settings)
    list(job.batches)
    receipt.close()
    assert assert_proved(tmp_path, solving)["data"]["examples"] == EXAMPLES


@pytest.mark.single_use
@pytest.mark.parametrize("door", ["torch", "joint", "jax"])
def test_a_receipt_that_is_mended_does_not_refuse_the_job_after_it(tmp_path: Path, door: str) -> None:
    """As in a notebook, which keeps the frames of the call that failed, and with them a noise that nobody can close."""
    (tmp_path / "odd.json").write_text("no receipt")
    kept, solving = [], Solving(tmp_path)

    def make(name: str) -> None:
        receipt = Receipt(tmp_path / name)
        if door == "jax":
            job = {"loss": lambda w, x: (w * x).sum(), "examples": EXAMPLES, "receipt": receipt}
            make_private_jax("auto", solve=solving, **job, **COMMON)
        else:
            torch_job(receipt, solving, **({"adam": True, "adaptive": "joint"} if door == "joint" else {}))

    with pytest.raises(InvalidParameter, match="is not a receipt, or is damaged") as refusal:
        make("odd.json")
    kept.append(refusal)
    make("receipt.json")


def assert_open(folder: Path, solving: Solving, steps: int) -> None:
    text = (folder / "receipt.json").read_bytes()
    report = check_receipt(text, [path.read_bytes() for path in solving.files])
    assert report.supported and json.loads(text)["steps"]["processes"] == [[0, steps]]
    assert any("has not ended" in sentence for sentence in report.not_checked)


def assert_proved(folder: Path, solving: Solving) -> dict[str, Any]:
    text = (folder / "receipt.json").read_bytes()
    report = check_receipt(text, [path.read_bytes() for path in solving.files])
    assert report.supported and not report.unseen, (report.failed, report.unseen)
    document = dict(read_json(text))
    assert len(document["noise"]["commitments"]) == len(document["factors"])
    return document
