"""The Trainer with correlated noise: what it releases, LoRA, restarts, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from handmade import handmade
from held_locks import holding
from peft import LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BitsAndBytesConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    M2M100Config,
    M2M100ForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    TorchAoConfig,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from factorize.adapters.huggingface.example_losses import example_losses
from factorize.adapters.huggingface.trainer import PrivacyArguments, PrivateTrainer, PrivateTraining
from factorize.adapters.torch import NoiseGenerator
from factorize.errors import InvalidParameter
from factorize.solvers import solve
from factorize.structures.toeplitz import ToeplitzMatrix

pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries that are not ours, about one another
EXAMPLES, SIZE, EPOCHS, CLIP = 24, 8, 2, 0.5
N = EPOCHS * EXAMPLES // SIZE
FIXED = {"kind": "fixed_epochs", "epochs": EPOCHS}


def data() -> list[dict[str, torch.Tensor]]:
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(EXAMPLES):
        words = torch.from_numpy((np.arange(10) * rng.integers(1, 3) + rng.integers(0, 8)) % 16)
        labels = words.clone()
        labels[int(rng.integers(3, 10)) :] = -100  # as padding: examples have different numbers of tokens
        rows.append({"input_ids": words, "labels": labels})
    return rows


def lora(kind: torch.dtype = torch.float32, *, dora: bool = False) -> Any:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = LlamaForCausalLM(config).to(kind)
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], use_dora=dora)
    return get_peft_model(model, config, autocast_adapter_dtype=False)


def factors(n: int = N) -> Any:
    return handmade(ToeplitzMatrix(0.5 ** np.arange(n), n), FIXED, value=2.0)


def trainer(folder: Path, model: Any = None, arguments: dict[str, Any] | None = None, **privacy: Any) -> PrivateTrainer:
    settings = {"num_train_epochs": EPOCHS, "per_device_train_batch_size": SIZE, "learning_rate": 0.01}
    settings |= {"report_to": [], "save_strategy": "no", "logging_steps": 1, "use_cpu": True, "disable_tqdm": True}
    args = TrainingArguments(output_dir=str(folder), **{**settings, **(arguments or {})})
    asked = {"epsilon": 4.0, "delta": 1e-5, "spec": factors(), "clip_norm": CLIP, "seed": 11 << 64}
    given = PrivacyArguments(**{**asked, **privacy})
    return PrivateTrainer(lora() if model is None else model, args, train_dataset=data(), privacy=given)


def trained(model: Any) -> list[Any]:
    return [p for p in model.parameters() if p.requires_grad]


def flat(tensors: Any) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten().double() for tensor in tensors])


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    """Both would go on from one checkpoint, with one noise."""
    job = trainer(tmp_path)
    with holding(tmp_path / "checkpoints") as other:
        with pytest.raises(InvalidParameter, match=f"checkpoints is in use by process {other.pid}"):
            job.train()
        assert job.private is None  # nothing is spent
    job.train()


@pytest.mark.parametrize(("physical", "dora"), [(None, False), (3, False), (3, True)])
def test_what_is_released_is_the_clipped_mean_and_a_row_of_noise(
    tmp_path: Path, physical: int | None, dora: bool
) -> None:
    """One example after the other, without Opacus; adapters alone move, and padded tokens of others change nothing."""
    made = trainer(tmp_path, lora(dora=dora), physical_batch_size=physical)
    made.get_train_dataloader()
    assert made.private is not None
    released: list[torch.Tensor] = []
    made.private.optimizer.attach_step_hook(lambda o: released.append(flat(p.grad for p in o.params)))
    before = [p.clone() for p in made.model.parameters() if not p.requires_grad]
    made.train()
    model = lora(dora=dora)
    noise = NoiseGenerator(factors(), made.statement.calibration, trained(model), seed=11 << 64)
    total = torch.zeros(sum(p.numel() for p in trained(model)), dtype=torch.float64)
    for i in made.private.loader.order[0]:
        model.zero_grad()
        row = {name: value[None] for name, value in data()[i].items()}
        labels = row.pop("labels")
        example_losses(model(**row), labels).sum().backward()
        gradient = flat(p.grad for p in trained(model))
        total += gradient * min(1.0, CLIP / float(gradient.norm()))
    assert torch.allclose(released[0], (total + flat(noise.next())) / SIZE, atol=1e-6)
    assert len(released) == N == made.state.global_step
    after = [p for p in made.model.parameters() if not p.requires_grad]
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    assert not any("loss" in entry or "grad_norm" in entry for entry in made.state.log_history)


def test_users_take_turns(tmp_path: Path) -> None:
    """24 examples of 16 users are two steps an epoch."""
    made = trainer(tmp_path, spec=factors(4), options={"users": [i % 16 for i in range(EXAMPLES)]})
    made.train()
    said = made.statement
    assert (said.unit, said.users, made.state.global_step) == ("user", 16, 4)
    assert said.used == EXAMPLES  # whoever has two gives the second in the second epoch


def test_accumulated_parts_are_one_batch_and_a_run_may_end_early(tmp_path: Path) -> None:
    halves = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": SIZE // 2, "max_steps": N - 2}
    made = trainer(tmp_path / "halves", arguments=halves)
    made.train()
    assert (made.state.global_step, made.statement.steps, made.private.optimizer.noise.step) == (N - 2, N, N - 2)
    parts = trainer(tmp_path / "parts", physical_batch_size=SIZE // 2, arguments={"max_steps": N - 2})
    parts.train()
    assert torch.equal(flat(trained(made.model)), flat(trained(parts.model)))
    with pytest.raises(InvalidParameter, match="both split a batch"):
        trainer(tmp_path, physical_batch_size=2, arguments=halves)


def test_auto_asks_for_the_optimum_of_adam(tmp_path: Path) -> None:
    made = trainer(tmp_path, spec="auto", options={"solve": solve})
    made.train()
    assert made.statement.loss == "per_example"
    spec = made.private.optimizer.noise.calibration.sensitivity.participation
    assert spec == FIXED and "(4, 1e-05)-differential privacy per example" in str(made.statement)


def test_a_restart_goes_on(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", arguments={"save_strategy": "epoch"})
    whole.train()
    again = trainer(tmp_path / "again")
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{N // EPOCHS}"))
    assert again.state.global_step == N
    assert torch.equal(flat(trained(whole.model)), flat(trained(again.model)))


def test_a_restart_without_the_state_of_the_noise_is_refused(tmp_path: Path) -> None:
    """Its weights are those of a later step, to which the noise of the first ones would be added again."""
    whole = trainer(tmp_path, arguments={"save_strategy": "epoch", "save_only_model": True})
    whole.train()
    again = trainer(tmp_path, arguments={"save_only_model": True})
    with pytest.raises(InvalidParameter, match=f"after step {N // EPOCHS}, and its noise after step 0.*optimizer.pt"):
        again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{N // EPOCHS}"))
    assert again.private.optimizer.noise.step == 0


def test_a_model_of_model_init_has_one_run(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    made = trainer(tmp_path)
    made.model_init = lambda: lora()
    made.train()
    assert made.private.optimizer.noise.step == N
    assert not [each for each in recwarn if "changed no bit" in str(each.message)]
    with pytest.raises(InvalidParameter, match="a trainer has the noise of one; make a new"):
        made.train()


def test_bfloat16_adapters(tmp_path: Path) -> None:
    made = trainer(tmp_path, lora(torch.bfloat16))
    made.train()
    assert {p.dtype for p in trained(made.model)} == {torch.bfloat16}
    assert made.private.optimizer.noise.step == N


def test_classes_and_words() -> None:
    class Output:
        def __init__(self, logits: torch.Tensor) -> None:
            self.logits = logits

    logits = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([1, 4])
    found = example_losses(Output(logits), labels)
    assert torch.allclose(found, -logits.log_softmax(1)[[0, 1], labels])
    words = torch.tensor([[0, 1, 2], [3, 4, -100]])
    scores = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1))
    logs = scores.log_softmax(2)
    found = example_losses(Output(scores), words)
    assert torch.allclose(found, torch.stack([-(logs[0, 0, 1] + logs[0, 1, 2]) / 2, -logs[1, 0, 4]]))
    assert torch.equal(found, example_losses({"logits": scores}, words))
    with pytest.raises(InvalidParameter, match="not those of a classifier"):
        example_losses(Output(logits), torch.zeros(2))
    with pytest.raises(InvalidParameter, match=r"output \(tuple\) has no logits; give example_losses"):
        example_losses((logits,), labels)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_train_epochs": 1.5}, "whole number"),
        ({"max_grad_norm": 0.3}, "clip_norm"),
        ({"train_sampling_strategy": "group_by_length"}, "public permutation"),
        ({"data_seed": 3}, "order_seed"),
        ({"label_smoothing_factor": 0.1}, "example_losses"),
        ({"neftune_noise_alpha": 5.0}, "longest example"),
        ({"gradient_checkpointing": True}, "physical_batch_size"),
        ({"include_num_input_tokens_seen": "all"}, "secret"),
        ({"debug": "underflow_overflow"}, "prints activations"),
        ({"optim": "galore_adamw_layerwise"}, "raw gradients"),
        ({"optim": "lomo"}, "raw gradients"),
    ],
)
def test_settings_that_are_not_covered(tmp_path: Path, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        trainer(tmp_path, arguments=arguments)


def test_settings_are_looked_at_again_when_training_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(tmp_path)
    made.args.debug = "underflow_overflow"
    with pytest.raises(InvalidParameter, match="prints activations"):
        made.train()
    made.args.debug = ""
    monkeypatch.setenv("WANDB_WATCH", "gradients")
    with pytest.raises(InvalidParameter, match="gradients without noise"):
        made.train()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"options": {"sampleing": "fixed"}}, "options has sampleing, which is none that make_private has"),
        (
            {"options": {"epsilon": 3.0}},
            "options has epsilon, which is none that make_private has and the trainer leaves",
        ),
        ({"options": {"loss": "not_looked_at"}}, "options has loss, which"),
        ({"options": ["fixed"]}, "options is of type list; give a dictionary"),
        ({"example_losses": "mean"}, "example_losses is of type str; give a function"),
    ],
)
def test_what_is_no_option_is_refused_before_a_model_is_made(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        PrivacyArguments(epsilon=4.0, delta=1e-5, **given)
    with pytest.raises(InvalidParameter, match="privacy is of type dict; give PrivacyArguments"):
        PrivateTrainer(None, privacy={"epsilon": 4.0, **given})


def test_losses_and_data_that_the_job_would_not_cover(tmp_path: Path) -> None:
    class Own(PrivateTrainer):
        def compute_loss(self, *args: Any, **others: Any) -> Any:
            return super().compute_loss(*args, **others)

    class Mixed(PrivateTraining, Trainer):
        """A trainer of the user's own, as of another class of TRL."""

    class Named(Mixed):
        of_batches = Trainer.compute_loss

    class Balanced(PrivateTrainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.WeightedRandomSampler([1.0] * EXAMPLES, EXAMPLES)

    class Grouped(PrivateTrainer):
        def create_optimizer(self, model: object = None) -> Any:
            return torch.optim.SGD(self.model.parameters(), lr=0.1)

    args, rows = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[]), data()
    privacy = PrivacyArguments(epsilon=4.0, delta=1e-5)
    for kind, given, said in (
        (PrivateTrainer, {"compute_loss_func": lambda *_: None}, "example_losses"),
        (Own, {}, "example_losses"),
        (Mixed, {}, "Mixed names no loss of batches.*of_batches = "),
        (Balanced, {}, "_get_train_sampler of Balanced would not be used; the order"),
        (Grouped, {}, "create_optimizer of Grouped would not be used; give optimizers="),
        (PrivateTrainer, {"eval_dataset": rows}, "other data"),
    ):
        with pytest.raises(InvalidParameter, match=said):
            kind(lora(), args, train_dataset=rows, privacy=privacy, **given)
    assert Named(lora(), args, train_dataset=rows, privacy=privacy).private is None


def test_a_data_set_without_examples_is_refused(tmp_path: Path) -> None:
    args = TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True)
    with pytest.raises(InvalidParameter, match="no train_dataset with a length, an index and examples"):
        PrivateTrainer(lora(), args, train_dataset=[], privacy=PrivacyArguments(epsilon=4.0, delta=1e-5, seed=11 << 64))


def test_private_examples_are_recognised_with_other_columns(tmp_path: Path) -> None:
    """As for an accuracy in training, of rows that were tokenised for evaluation."""
    args, rows = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[]), data()
    privacy = PrivacyArguments(epsilon=4.0, delta=1e-5)

    def masked(change: Any) -> Any:
        words = [change(row["input_ids"]) for row in rows]
        return [
            {**row, "input_ids": x, "attention_mask": torch.ones_like(x)} for row, x in zip(rows, words, strict=True)
        ]

    with pytest.raises(InvalidParameter, match="other data"):
        PrivateTrainer(lora(), args, train_dataset=rows, eval_dataset=masked(torch.clone), privacy=privacy)
    PrivateTrainer(lora(), args, train_dataset=rows, eval_dataset=masked(lambda x: x.flip(0)), privacy=privacy)


def test_settings_of_the_loader_are_used(tmp_path: Path) -> None:
    arguments = {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 3, "dataloader_drop_last": True}
    arguments |= {"dataloader_in_order": False, "dataloader_multiprocessing_context": "spawn"}
    made = trainer(tmp_path, arguments=arguments)
    made.get_train_dataloader()
    loader = made.private.loader
    assert (loader.num_workers, loader.prefetch_factor, loader.batch_size) == (1, 3, SIZE)
    assert (loader.in_order, loader.multiprocessing_context.get_start_method()) == (False, "spawn")
    assert "shuffle=True was replaced" in str(made.statement)
    with pytest.raises(InvalidParameter, match="drop_last"):
        trainer(tmp_path, arguments=arguments, options={"remainder": "pad"}).get_train_dataloader()


def test_no_loss_of_training_is_told_to_anybody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Told(TrainerCallback):
        told: ClassVar[list[str]] = []

        def on_log(self, *args: Any, logs: dict[str, Any], **others: Any) -> None:
            self.told.extend(logs)

    made = trainer(tmp_path, arguments={"save_strategy": "epoch", "logging_first_step": True, "disable_tqdm": False})
    made.add_callback(Told())
    done = made.train()
    made.save_state()
    kept = "".join(path.read_text() for path in tmp_path.rglob("trainer_state.json"))
    assert kept and Told.told and np.isnan(done.training_loss)
    for told in (kept, " ".join(Told.told), capsys.readouterr().out, json.dumps(done.metrics)):
        assert "loss" not in told and "grad_norm" not in told
    assert "learning_rate" in kept and "train_runtime" in done.metrics


def test_callbacks_see_no_gradient_without_noise(tmp_path: Path) -> None:
    """Before the step it would be the sum over a batch, by which a callback may log, stop or choose a rate."""
    seen: dict[str, list[float]] = {"before": [], "after": []}

    class Looking(TrainerCallback):
        def on_pre_optimizer_step(self, *args: Any, model: Any, **others: Any) -> None:
            seen["before"].append(float(flat(p.grad for p in trained(model)).norm()))

        def on_optimizer_step(self, *args: Any, model: Any, **others: Any) -> None:
            seen["after"].append(float(flat(p.grad for p in trained(model)).norm()))

    made = trainer(tmp_path)
    made.add_callback(Looking())
    made.train()
    assert seen["before"] == [0.0] * N and min(seen["after"]) > 0


def test_positions_that_are_looked_up_once_for_all_examples_train(tmp_path: Path) -> None:
    """GPT-2 looks them up by ids of shape (1, tokens)."""
    config = GPT2Config(vocab_size=16, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(1)
    model = GPT2LMHeadModel(config)
    before = model.transformer.wpe.weight.detach().clone()
    made = trainer(tmp_path, model)
    made.train()
    assert made.private.optimizer.noise.step == N and not torch.equal(model.transformer.wpe.weight, before)


def test_places_that_two_tokens_look_up_are_refused_by_name_and_train_frozen(tmp_path: Path) -> None:
    """T5 has a table of relative positions, which it looks up by ids of shape (tokens, tokens)."""
    config = T5Config(vocab_size=16, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    made = trainer(tmp_path, model)
    with pytest.raises(InvalidParameter, match=r"relative_attention_bias.weight has .* gradients.*freeze the layer"):
        made.train()
    assert made.private.optimizer.noise.step == 0
    model = T5ForConditionalGeneration(config)
    for name, p in model.named_parameters():
        p.requires_grad_("relative_attention_bias" not in name)
    made = trainer(tmp_path / "frozen", model)
    made.train()
    assert made.private.optimizer.noise.step == N


@pytest.mark.parametrize("physical", [None, 3])
def test_losses_that_compare_examples_are_refused(tmp_path: Path, physical: int | None) -> None:
    def compared(output: Any, labels: torch.Tensor) -> torch.Tensor:
        losses = example_losses(output, labels)
        return losses * losses.softmax(0) * len(losses)  # of the right shape

    made = trainer(tmp_path, example_losses=compared, physical_batch_size=physical)
    with pytest.raises(InvalidParameter, match="mixes the examples of a batch"):
        made.train()
    assert made.private.optimizer.noise.step == 0


TINY = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
T5 = {
    "vocab_size": 16,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 16,
    "num_layers": 1,
    "num_heads": 2,
    "decoder_start_token_id": 0,
}
GPT2 = {"vocab_size": 16, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
DROPLESS = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
M2M = {"vocab_size": 16, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 16}
M2M |= {f"{part}_{size}": n for part in ("encoder", "decoder") for size, n in (("ffn_dim", 16), ("attention_heads", 2))}
MODELS = {
    "m2m": lambda: M2M100ForConditionalGeneration(M2M100Config(**M2M, dropout=0.0)),  # it shifts labels by itself
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**TINY)),
    "bert": lambda: BertForMaskedLM(BertConfig(**TINY, **DROPLESS)),
    "t5": lambda: T5ForConditionalGeneration(T5Config(**T5, dropout_rate=0.0)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)),
}
LORA = {
    "llama": ["q_proj", "v_proj"],
    "m2m": ["q_proj", "v_proj"],
    "bert": ["query", "value"],
    "t5": ["q", "v"],
    "gpt2": ["c_attn"],
}


def loaded(folder: Path, config: Any) -> Any:
    """Return a decoder that is quantised as it is read."""
    LlamaForCausalLM(LlamaConfig(**WIDE)).save_pretrained(folder / "base")
    return LlamaForCausalLM.from_pretrained(folder / "base", quantization_config=config, device_map={"": "cpu"})


WIDE = {**TINY, "hidden_size": 64, "intermediate_size": 64}  # a block of quantised weights is 64
TIED = LlamaConfig(**TINY, tie_word_embeddings=True)
FOUR_BITS = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
EIGHT_BITS = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0)
BASES: dict[str, tuple[Any, dict[str, Any]]] = {
    **{name: (lambda _, make=make: make(), {"target_modules": LORA[name]}) for name, make in MODELS.items()},
    "tied": (lambda _: LlamaForCausalLM(TIED), {"target_modules": ["lm_head", "q_proj"]}),
    "tied, and a copy is trained": (
        lambda _: LlamaForCausalLM(TIED),
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    ),
    "words": (lambda _: LlamaForCausalLM(TIED), {"target_modules": ["embed_tokens"]}),
    "some words": (lambda _: MODELS["llama"](), {"target_modules": ["q_proj"], "trainable_token_indices": [1, 2, 3]}),
    "some tied words": (
        lambda _: LlamaForCausalLM(TIED),
        {"target_modules": ["q_proj"], "trainable_token_indices": [1, 2, 3]},
    ),
    "4 bits": (lambda folder: loaded(folder, FOUR_BITS), {"target_modules": "all-linear"}),
    "8 bits": (lambda folder: loaded(folder, EIGHT_BITS), {"target_modules": "all-linear"}),
    "int8 weights": (
        lambda folder: loaded(folder, TorchAoConfig(Int8WeightOnlyConfig())),
        {"target_modules": "all-linear"},
    ),
}


@pytest.mark.parametrize("name", BASES)
def test_an_example_moves_the_sum_by_at_most_the_clip_norm(tmp_path: Path, name: str) -> None:
    """An example without labels has no gradient; adapters on a frozen base: each family of models, tied, quantised."""
    released = []
    for silent in (False, True):
        torch.manual_seed(1)
        base, options = BASES[name]
        model = get_peft_model(base(tmp_path), LoraConfig(r=2, init_lora_weights=False, **options))
        made = trainer(tmp_path, model, {"max_steps": 1})
        made.get_train_dataloader()
        row = made.train_dataset[int(made.private.loader.order[0][0])]
        row["labels"] = torch.full_like(row["labels"], -100) if silent else row["labels"]
        made.private.optimizer.attach_step_hook(lambda o: released.append(flat(p.grad for p in o.params)))
        made.train()
        made.private.optimizer.close()
    moved = float((released[0] - released[1]).norm()) * SIZE
    assert 0 < moved <= CLIP * (1 + 1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_is_that_of_the_model_for_one_example(tmp_path: Path, name: str) -> None:
    """Models of transformers say themselves what their loss is; in a batch it is a mean over all tokens."""
    model = MODELS[name]().eval()
    made = trainer(tmp_path, model)
    for row in data()[:3]:
        one = {key: value[None] for key, value in row.items()}
        assert torch.allclose(made.example_losses(model, dict(one))[0], model(**one).loss)


def test_targets_of_another_name_are_given_as_labels(tmp_path: Path) -> None:
    """A model that answers questions takes two numbers, and no labels: the Trainer would leave their column out."""

    def losses(output: Any, ends: torch.Tensor) -> torch.Tensor:
        both = zip((output.start_logits, output.end_logits), ends.T, strict=True)
        return sum(torch.nn.functional.cross_entropy(logits, at, reduction="none") for logits, at in both)

    for kept in (False, True):
        base = BertForQuestionAnswering(BertConfig(**TINY, **DROPLESS))
        model = get_peft_model(base, LoraConfig(r=2, target_modules=["query"]))
        made = trainer(tmp_path, model, {"max_steps": 1, "remove_unused_columns": not kept}, example_losses=losses)
        made.train_dataset = [{**row, "labels": torch.tensor([1, 3])} for row in data()]
        if kept:
            made.train()
        else:
            with pytest.raises(InvalidParameter, match="no labels.*start_positions.*remove_unused_columns=False"):
                made.train()
            made.private.optimizer.close()


def test_a_decoder_without_a_first_word_is_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path, MODELS["m2m"]())
    made.model.config.decoder_start_token_id = None
    with pytest.raises(InvalidParameter, match="decoder_start_token_id=None.*let the data collator return"):
        made.train()


def test_a_model_that_does_not_say_where_its_labels_are_needs_a_loss(tmp_path: Path) -> None:
    class Other(LlamaForCausalLM):
        pass

    with pytest.raises(InvalidParameter, match="give example_losses"):
        trainer(tmp_path, Other(LlamaConfig(**TINY))).train()


def test_training_that_changes_nothing_is_told(tmp_path: Path) -> None:
    """The other two begin at 0, which noise always moves."""
    with pytest.warns(UserWarning, match="changed no bit of 2 of 4 parameters .*lora_A"):
        trainer(tmp_path, lora(torch.bfloat16), {"learning_rate": 1e-12}).train()


def test_a_loss_of_the_whole_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="one per example"):
        trainer(tmp_path, example_losses=lambda output, labels: output.logits.mean()).train()


def test_adapters_that_get_no_gradient_are_refused_by_name(tmp_path: Path) -> None:
    merged = lora()
    merged.merge_adapter()
    outliers = loaded(tmp_path, BitsAndBytesConfig(load_in_8bit=True))
    eight = get_peft_model(outliers, LoraConfig(r=2, target_modules=["q_proj"]))
    prompt = get_peft_model(MODELS["llama"](), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    for model, said in (
        (merged, "unmerge_adapter"),
        (prompt, "computes once for all examples.*PrefixTuningConfig"),
        (eight, "llm_int8_threshold=0.0"),
    ):
        job = trainer(tmp_path, model)
        with pytest.raises(InvalidParameter, match=said):
            job.train()
        assert job.private is None  # nothing is spent
    prefix = get_peft_model(MODELS["llama"](), PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    trainer(tmp_path, prefix, {"max_steps": 1}).train()


def test_a_base_that_passes_no_gradient_on_is_refused_before_a_row_of_noise(tmp_path: Path) -> None:
    base = loaded(tmp_path, TorchAoConfig(Int8DynamicActivationInt8WeightConfig()))
    job = trainer(tmp_path, get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"])))
    with pytest.raises(InvalidParameter, match="quantise only weights"):
        job.train()
    assert job.private is not None and job.private.optimizer.noise.step == 0
