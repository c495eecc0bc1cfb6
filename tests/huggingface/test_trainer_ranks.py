"""Trainers on two processes, started by torchrun: the bits of one process, and restarts on another number of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import trainer_job
from trainer_job import EPOCHS, N, make_trainer, trained

from factorize.errors import InvalidParameter

pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries that are not ours, about one another


def on_two(kind: str, folder: Path, *checkpoint: str) -> torch.Tensor:
    """Return what two processes trained."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    place = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, trainer_job.__file__, kind, str(folder), *checkpoint], capture_output=True, text=True, env=place
    )
    assert done.returncode == 0, done.stderr
    found = torch.load(folder / "trained.pt")
    assert found["ranks"] == 2
    weights: torch.Tensor = found["weights"]
    return weights


def test_two_processes_train_what_one_trains_and_go_on_from_one_another(tmp_path: Path) -> None:
    one = make_trainer("transformers", tmp_path / "one")
    one.train()
    both = on_two("transformers", tmp_path / "two")
    assert torch.equal(both, trained(one))
    begun = f"checkpoint-{N // EPOCHS}"
    assert torch.equal(on_two("transformers", tmp_path / "to_two", str(tmp_path / "one" / begun)), both)
    assert torch.equal(on_two("transformers", tmp_path / "again", str(tmp_path / "two" / begun)), both)
    alone = make_trainer("transformers", tmp_path / "to_one")
    alone.train(resume_from_checkpoint=str(tmp_path / "two" / begun))
    assert torch.equal(trained(alone), both)


def test_trl_trains_the_same_on_two_processes_in_parts_and_evaluates(tmp_path: Path) -> None:
    one = make_trainer("trl", tmp_path / "one")
    assert one.args.gradient_accumulation_steps == 1  # a step's parts are one item of the loader
    one.train()
    assert torch.allclose(on_two("trl", tmp_path / "two"), trained(one), atol=1e-6)  # ranks pad to lengths of their own
    assert not any({"loss", "entropy", "num_tokens", "mean_token_accuracy"} & set(e) for e in one.state.log_history)
    assert one.state.log_history[-1]["epsilon_so_far"] <= 4.0
    own = one.train_dataset.select(range(4))
    assert one.evaluate(own.map(lambda row: {"input_ids": [3] * len(row["input_ids"])}))["eval_loss"] > 0
    with pytest.raises(InvalidParameter, match="other data"):
        one.evaluate(own)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"packing": True}, "many examples"),
        ({"padding_free": True, "max_length": None}, "joins the examples of a batch"),
        ({"gradient_checkpointing": True}, "set it to False"),
        ({"loss_type": "dft"}, "example_losses"),
    ],
)
def test_what_trl_does_to_a_whole_batch_is_refused(tmp_path: Path, arguments: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        make_trainer("trl", tmp_path, **arguments)
