"""A job of Hugging Face's or TRL's trainer as one process of several runs it: `torchrun trainer_job.py KIND FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from handmade import handmade
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainingArguments
from trl import SFTConfig

from factorize.adapters.huggingface.trainer import PrivacyArguments, PrivateTrainer, PrivateTraining
from factorize.adapters.huggingface.trl import PrivateSFTTrainer
from factorize.structures.toeplitz import ToeplitzMatrix

EXAMPLES, SIZE, EPOCHS = 24, 8, 2
N = EPOCHS * EXAMPLES // SIZE
WORDS = "the a cat dog sat ran on mat log fast".split()
LORA = LoraConfig(r=2, target_modules=["q_proj", "v_proj"])


def texts() -> list[dict[str, str]]:
    """Prompts of two to four words, and completions of one to five."""
    some = [[WORDS[(i * k + k) % 10] for k in range(1, 10)] for i in range(EXAMPLES)]
    return [
        {"prompt": " ".join(row[: 2 + i % 3]), "completion": " " + " ".join(row[4 : 5 + i % 5])}
        for i, row in enumerate(some)
    ]


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer for which a word is a token."""
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def llama() -> LlamaForCausalLM:
    """Return one small layer with weights of its own."""
    torch.manual_seed(1)
    sizes = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 16}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=2))


def make_trainer(kind: str, folder: Path, **arguments: Any) -> PrivateTraining:
    """Return the trainer of one process, in which each part of a batch has 4 examples."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    settings = {"num_train_epochs": EPOCHS, "per_device_train_batch_size": 4, "learning_rate": 0.01, "logging_steps": 1}
    settings |= {"gradient_accumulation_steps": SIZE // 4 // world, "report_to": [], "use_cpu": True}
    settings |= {"save_strategy": "epoch", "output_dir": str(folder), "gradient_checkpointing": False, **arguments}
    factors = handmade(ToeplitzMatrix(0.5 ** torch.arange(N).numpy(), N), {"kind": "fixed_epochs", "epochs": EPOCHS})
    privacy = PrivacyArguments(epsilon=4.0, delta=1e-5, spec=factors, clip_norm=0.5, seed=11 << 64)
    if kind == "trl":
        rows = Dataset.from_list(texts())
        given = {"train_dataset": rows, "processing_class": tokenizer(), "peft_config": LORA}
        config = SFTConfig(**{"bf16": False, **settings})
        return PrivateSFTTrainer(llama(), config, privacy=privacy, **given)
    words = [[3 + (i + k * (1 + i % 3)) % 10 for k in range(8)] for i in range(EXAMPLES)]
    labels = [[*row[: 3 + i % 5], *[-100] * (5 - i % 5)] for i, row in enumerate(words)]  # they have different lengths
    data = [{"input_ids": torch.tensor(a), "labels": torch.tensor(b)} for a, b in zip(words, labels, strict=True)]
    return PrivateTrainer(
        get_peft_model(llama(), LORA), TrainingArguments(**settings), train_dataset=data, privacy=privacy
    )


def trained(trainer: PrivateTraining) -> torch.Tensor:
    """Return what was trained, flattened."""
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad])


def main(kind: str, folder: str, checkpoint: str | None = None) -> None:
    """Train, and keep the weights."""
    torch.set_num_threads(1)
    made = make_trainer(kind, Path(folder))
    made.train(resume_from_checkpoint=checkpoint)
    if made.args.process_index == 0:
        torch.save({"weights": trained(made), "ranks": made.statement.ranks}, Path(folder) / "trained.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
