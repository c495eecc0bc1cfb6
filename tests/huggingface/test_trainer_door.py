"""The contract of doors on the Trainer of Hugging Face, whose loop is taken here one step at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
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
    check,
    check_drawn_users,
    check_more,
    factors,
    of_going_back,
    of_looks,
    take_a_step,
)
from transformers import TrainerCallback, TrainingArguments

from factorize.adapters.huggingface.trainer import PrivacyArguments, PrivateTrainer
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.training.receipt import Receipt

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.single_use]  # of libraries about one another
X = torch.randn(EXAMPLES, 3, generator=torch.Generator().manual_seed(0))
DATA = [{"x": X[i], "labels": torch.tensor(i % 2)} for i in range(EXAMPLES)]


class Classifier(torch.nn.Module):
    """Two layers, and what a test puts between them."""

    def __init__(self, between: torch.nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.last, self.between = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2), between

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        hidden = torch.tanh(self.first(x))
        return SimpleNamespace(logits=self.last(hidden if self.between is None else self.between(hidden)))


class Positions(torch.nn.Module):
    """A position that is looked up without a batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.places = torch.nn.Embedding(1, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.places(torch.arange(1))


class Phase(torch.nn.Module):
    """A complex parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = torch.nn.Parameter(torch.ones(4, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.phase).abs()


@dataclass
class Run:
    """A trainer and its batches."""

    trainer: PrivateTrainer
    items: Iterator[Any]

    @property
    def optimizer(self) -> Any:
        assert self.trainer.private is not None
        return self.trainer.private.optimizer


def stepping_in_backward() -> Classifier:
    """Return a model whose parameters have hooks that an optimizer of their own steps in."""
    model = Classifier()
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: torch.optim.SGD([p], lr=1.0).step())
    return model


def mixed(output: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return one loss for each example, divided by a number that all labels make."""
    return torch.nn.functional.cross_entropy(output.logits, labels, reduction="none") / (1 + labels.sum())


class HuggingFace(Door):
    """`PrivateTrainer`."""

    name = "Hugging Face"
    goes_on = False
    not_here = {
        "narrow": "right: gradients may be in half precision, since they are clipped and summed in float64",
        "early": "right: the loader yields every batch in the order that the participation is for",
    }

    def begin(self, folder: Path, *, seed: int = SEED, name: str = "one", clip: float = CLIP, state: Any = None) -> Run:
        run = self.made(folder, seed=seed, spec=factors(name), clip_norm=clip)
        if state is not None:
            run.optimizer.load_state_dict(state)
        return run

    def made(
        self,
        folder: Path,
        model: torch.nn.Module | None = None,
        optimizer: Any = None,
        arguments: dict[str, Any] | None = None,
        data: Any = None,
        **privacy: Any,
    ) -> Run:
        args = TrainingArguments(
            **{"num_train_epochs": EPOCHS, **(arguments or {})},
            output_dir=str(folder),
            per_device_train_batch_size=SIZE,
            learning_rate=0.0,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        asked = {"epsilon": 2.0, "delta": 1e-5, "spec": factors(), "clip_norm": CLIP, "seed": SEED, **privacy}
        model = Classifier() if model is None else model
        given = PrivacyArguments(**asked)
        trainer = PrivateTrainer(
            model, args, train_dataset=DATA if data is None else data, privacy=given, optimizers=(optimizer, None)
        )
        trainer.get_train_dataloader()
        return Run(trainer, self.items(trainer))

    def items(self, trainer: PrivateTrainer) -> Iterator[Any]:
        while True:
            yield from trainer.get_train_dataloader()

    def step(self, run: Run) -> bytes:
        before = self.taken(run)
        while self.taken(run) == before:
            item = next(run.items)
            run.trainer.training_step(run.trainer.model, item)
            run.optimizer.step()
        return b"".join(p.grad.numpy().tobytes() for p in run.optimizer.params)

    def taken(self, run: Run) -> int:
        return int(run.optimizer.noise.step)

    def saved(self, run: Run) -> Any:
        return run.optimizer.state_dict()

    def secrets(self, run: Run) -> list[Any]:
        return [run.optimizer, run.optimizer.noise]

    def end(self, run: Run) -> None:
        run.optimizer.noise.close()

    def not_real(self, run: Run) -> None:
        self.made(Path(run.trainer.args.output_dir), Classifier(Phase()), seed=SEED + 1)

    def wrong_rows(self, run: Run) -> None:
        self.step(self.made(Path(run.trainer.args.output_dir), Classifier(Positions()), seed=SEED + 1))

    def mixing_loss(self, run: Run) -> None:
        self.made(Path(run.trainer.args.output_dir), seed=SEED + 2, example_losses=mixed).trainer.train()

    def partial_optimizer(self, run: Run) -> None:
        model = Classifier()
        optimizer = torch.optim.SGD(model.first.parameters(), lr=0.0)
        self.made(Path(run.trainer.args.output_dir), model, optimizer, seed=SEED + 3)

    def more(self) -> dict[str, Mistake]:
        def refused(words: str, *given: Any, **privacy: Any) -> Mistake:
            return Mistake("refused", lambda folder: self.made(folder, *given, **privacy), words)

        return {
            "a factorization for another participation than the order's": refused(
                "n=6", None, None, {"num_train_epochs": 3}
            ),
            "users with several examples, in secret batches": Mistake("right", self._drawn_users),
            "batch norm": refused("keeps running statistics", Classifier(torch.nn.BatchNorm1d(4))),
            "an optimizer that steps in the backward pass": refused("backward pass", stepping_in_backward()),
            "LBFGS, or another optimizer that asks for losses": Mistake("refused", self._losses, "LBFGS"),
            "a clip norm, divisor or noise multiplier that is changed on the way": Mistake(
                "refused", self._changed, "changed"
            ),
            "`step()` of the optimizer that was made private, in place of the private one's": Mistake(
                "refused",
                lambda folder: self.begin(folder).optimizer.original_optimizer.step(),
                "no noise of this",
            ),
            "`step()` of another optimizer, by gradients that have no noise yet": Mistake(
                "refused", self._other_step, "gradients that have no noise"
            ),
            "weights of another checkpoint than the optimizer's": Mistake(
                "refused", self._other_weights, "same checkpoint"
            ),
            **of_going_back(self, lambda run, state: run.optimizer.load_state_dict(state)),
            **of_looks(self),
            "a data set that names examples more than once": Mistake("refused", self._repeated, "users="),
            REORDERED: Mistake("refused", self._reordered, "order of the data set has changed"),
            REORDERED_WITHIN: Mistake("believed", lambda folder: self._reordered(folder, 1)),
            RESTARTED: Mistake("refused", self._restarted, "names another example"),
            "a loop that trains on a batch that it keeps": Mistake("refused", self._kept, "as it comes"),
            "a data set or a collation that makes an item of several examples": Mistake(
                "refused", self._mixed, "from one example alone"
            ),
            "evaluation on the data that are trained on": Mistake("refused", self._evaluated, "private train_dataset"),
            "gradients of the step before that nobody has cleared": Mistake("right", self._two_steps),
            "an example whose gradient is not finite": Mistake("right", self._infinite),
            "fp16, and parts of epochs": Mistake("refused", self._settings, "not supported"),
            "losses that are not one number for each example": Mistake("refused", self._mean, "one per example"),
            "training losses in the logs": Mistake("right", self._logged),
            "an epsilon above 20, or a delta above 1/examples": Mistake("said", self._weak),
            "a receipt of another run": Mistake("refused", self._receipt, "receipt of another run"),
        }

    def _repeated(self, folder: Path) -> None:
        rows = Dataset.from_dict({"x": X.tolist(), "labels": [i % 2 for i in range(EXAMPLES)]}).with_format("torch")
        self.end(self.made(folder, data=rows.shuffle(seed=1)))
        part = rows.select(range(3))
        for data in (
            rows.select([0, 1, 2, 3, 4, 4]),
            part.repeat(2),
            torch.utils.data.Subset(DATA, [0, 1, 2, 3, 4, 4]),
        ):
            with pytest.raises(InvalidParticipation, match="more than once"):
                self.made(folder, data=data)
        self.made(folder, data=torch.utils.data.Subset(rows.select([0] * EXAMPLES), range(EXAMPLES)))

    def _reordered(self, folder: Path, steps: int = EXAMPLES // SIZE) -> None:
        run = self.begin(folder)
        for _ in range(steps):
            self.step(run)
        DATA.reverse()
        try:
            self.step(run)
        finally:
            DATA.reverse()
        self.end(run)

    def _restarted(self, folder: Path) -> None:
        run = self.begin(folder)
        self.step(run)
        state = self.saved(run)
        self.end(run)
        self.made(folder, data=DATA[::-1]).optimizer.load_state_dict(state)

    def _drawn_users(self, folder: Path) -> None:
        def make(spec: Any, options: dict[str, Any]) -> tuple[Any, Any]:
            private = self.made(folder, spec=spec, options=options).trainer.private
            assert private is not None
            return private.statement, private.loader.order

        check_drawn_users(make)

    def _other_step(self, folder: Path) -> None:
        """A callback that puts an optimizer of its own into the Trainer."""
        trainer = self.begin(folder).trainer

        class Swap(TrainerCallback):
            def on_step_begin(self, *_: Any, **about: Any) -> None:
                trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=1.0)

        trainer.add_callback(Swap())
        trainer.train()

    def _losses(self, folder: Path) -> None:
        model = Classifier()
        self.made(folder, model, torch.optim.LBFGS(model.parameters()))

    def _changed(self, folder: Path) -> None:
        run = self.begin(folder)
        run.optimizer.max_grad_norm = 2 * CLIP
        self.step(run)

    def _other_weights(self, folder: Path) -> None:
        run = self.begin(folder)
        self.step(run)
        state = self.saved(run)
        self.end(run)
        run = self.begin(folder, state=state)
        with torch.no_grad():
            run.optimizer.params[0].add_(1)
        self.step(run)

    def _kept(self, folder: Path) -> None:
        run = self.begin(folder)
        self.step(run)
        item = {"parts": list(next(run.items)["parts"])}
        for _ in range(2):
            run.trainer.training_step(run.trainer.model, item)
            run.optimizer.step()
            list(next(run.items)["parts"])

    def _mixed(self, folder: Path) -> None:
        run = self.made(folder, seed=SEED + 1)
        collate = run.trainer.private.loader.collate_fn  # type: ignore[union-attr]

        def half(items: Any) -> Any:
            batch = collate(items)
            return {**batch, "x": batch["x"] + batch["x"].flip(0)} if torch.rand(()) < 0.5 else batch

        run.trainer.private.loader.collate_fn = half  # type: ignore[union-attr]
        self.step(run)

    def _evaluated(self, folder: Path) -> None:
        """A part of the data, in the trainer, and when it is asked."""
        run = self.begin(folder)
        with pytest.raises(InvalidParameter, match="private train_dataset"):
            run.trainer.predict(DATA)
        run.trainer.get_eval_dataloader([{"x": X[i] + 1, "labels": DATA[i]["labels"]} for i in range(EXAMPLES)])
        run.trainer.evaluate(torch.utils.data.Subset(DATA, [1, 4]))

    def _two_steps(self, folder: Path) -> None:
        """The Trainer of this door clears what it has to; `step` does not."""
        run = self.begin(folder)
        assert self.step(run) != self.step(run)
        self.end(run)

    def _infinite(self, folder: Path) -> None:
        run = self.begin(folder)
        kept = X.clone()
        X[:] = float("inf")
        try:
            found = self.step(run)
        finally:
            X.copy_(kept)
        self.end(run)
        assert torch.frombuffer(bytearray(found), dtype=torch.float32).isfinite().all()

    def _settings(self, folder: Path) -> None:
        with pytest.raises(InvalidParameter):
            self.made(folder, None, None, {"num_train_epochs": 1.5})
        self.made(folder, None, None, {"fp16": True})

    def _mean(self, folder: Path) -> None:
        def mean(output: Any, labels: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(output.logits, labels)

        self.step(self.made(folder, example_losses=mean))

    def _logged(self, folder: Path) -> None:
        run = self.begin(folder)
        run.trainer.log({"loss": 1.0, "grad_norm": 1.0, "learning_rate": 0.5})
        assert set(run.trainer.state.log_history[-1]) <= {"learning_rate", "epoch", "step", "epsilon_so_far"}

    def _weak(self, folder: Path) -> None:
        told = str(self.made(folder, epsilon=30.0, delta=0.5).trainer.statement)
        assert "epsilon 30 is above 20" in told and "delta 0.5 is above" in told

    def _receipt(self, folder: Path) -> None:
        receipts = [{"receipt": Receipt(folder / "receipt.json")} for _ in range(2)]
        self.end(self.made(folder, options=receipts[0]))
        take_a_step(folder / "receipt.json")
        self.made(folder, options=receipts[1], clip_norm=2 * CLIP)


def test_the_table_is_true_of_the_trainer(tmp_path: Path) -> None:
    check_more(HuggingFace(), tmp_path)


@pytest.mark.parametrize("rule", RULES)
def test_the_trainer_keeps_the_contract(rule: str, tmp_path: Path) -> None:
    check(HuggingFace(), rule, tmp_path)
