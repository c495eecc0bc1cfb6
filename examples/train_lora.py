"""A decoder with LoRA adapters, tuned in private by transformers' Trainer: independent beside correlated noise.

The decoder starts from random weights and learns public sentences first, without privacy; nothing is downloaded. Each
kind of noise has its own learning rate, the best of five. Needs `pip install 'factorize[huggingface,solve]'`:

    python examples/train_lora.py --epsilon 4 --epochs 8
"""

from __future__ import annotations

import argparse
import sys
import tempfile

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from factorize.adapters.huggingface.example_losses import example_losses
from factorize.adapters.huggingface.trainer import PrivacyArguments, PrivateTrainer
from factorize.errors import FactorizeError
from factorize.solvers import solve

WORDS, LENGTH, EXAMPLES, SIZE = 32, 16, 1024, 64


PUBLIC, PRIVATE = (1, 2), (3, 5)


def sentences(count: int, kinds: tuple[int, ...], seed: int) -> list[dict[str, torch.Tensor]]:
    """Return arithmetic progressions with steps of some kinds: after two words the others are known."""
    rng = np.random.default_rng(seed)
    starts, steps = rng.integers(0, WORDS, count), rng.choice(kinds, count)
    rows = torch.from_numpy((starts[:, None] + steps[:, None] * np.arange(LENGTH)) % WORDS)
    return [{"input_ids": row, "labels": row} for row in rows]


def model(seed: int) -> torch.nn.Module:
    """Return a decoder that knows public sentences, and adapters on all of its linear layers."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    decoder = LlamaForCausalLM(config)
    words = torch.stack([row["input_ids"] for row in sentences(EXAMPLES, PUBLIC, seed)])
    optimizer = torch.optim.Adam(decoder.parameters(), lr=3e-3)
    for step in range(150):
        batch = words[torch.arange(step * SIZE, (step + 1) * SIZE) % EXAMPLES]
        example_losses(decoder(input_ids=batch), batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return get_peft_model(decoder, LoraConfig(r=4, lora_alpha=16, target_modules="all-linear"))


def main() -> None:
    """Train twice, and print what each learned."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if asked.seed < 0:
        parser.error(f"--seed {asked.seed} is below 0")
    steps = asked.epochs * EXAMPLES // SIZE
    independent = {
        "workload": {"kind": "prefix", "n": steps},
        "participation": {"kind": "fixed_epochs", "epochs": asked.epochs},
        "mechanism": {"kind": "identity"},
    }
    for name, spec, rate in (("independent noise", independent, 5e-3), ("correlated noise", "auto", 2e-2)):
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=SIZE,
                num_train_epochs=asked.epochs,
                learning_rate=rate,
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
                lr_scheduler_type="constant",
            )
            privacy = PrivacyArguments(
                epsilon=asked.epsilon, delta=1e-5, spec=spec, seed=(1 << 64) + asked.seed, options={"solve": solve}
            )
            trainer = PrivateTrainer(
                model(asked.seed), arguments, train_dataset=sentences(EXAMPLES, PRIVATE, asked.seed), privacy=privacy
            )
            trainer.train()
        words = torch.stack([row["input_ids"] for row in sentences(512, PRIVATE, asked.seed + 1)])
        trainer.model.eval()
        with torch.no_grad():
            loss = example_losses(trainer.model(input_ids=words.to(trainer.args.device)), words.to(trainer.args.device))
        print(f"{name}: test loss {float(loss.mean()):.3f}")
        print(trainer.statement)


if __name__ == "__main__":
    try:
        main()
    except FactorizeError as reason:
        sys.exit(f"error: {reason}")
