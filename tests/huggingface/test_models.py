"""Which families of models train in a plain loop as they are, and which need to be told of a shared table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from handmade import handmade
from torch.utils.data import Dataset

from factorize.adapters.private import make_private
from factorize.errors import InvalidParameter
from factorize.structures.toeplitz import ToeplitzMatrix

pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries that are not ours, about one another
EXAMPLES, SIZE, WORDS = 24, 8, 40
STEPS = EXAMPLES // SIZE
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
ENCODER = {"vocab_size": WORDS, "max_position_embeddings": 32, **SMALL}
DECODER = {**ENCODER, "num_key_value_heads": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WINDOWS = {"image_size": 16, "patch_size": 4, "window_size": 2, "embed_dim": 8, "depths": [2], "num_heads": [1]}
IMAGES = {**SMALL, "image_size": 16, "patch_size": 8}
BOTH = {"d_model": 16, "vocab_size": WORDS, "decoder_start_token_id": 1, "pad_token_id": 0, "eos_token_id": 2}
LAYERS = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
WIDTHS = {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
SPEECH = {**SMALL, "conv_dim": [8], "conv_stride": [5], "conv_kernel": [10], "num_feat_extract_layers": 1}
SPEECH |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer"}
SPEECH |= {"apply_spec_augment": False, "layerdrop": 0.0, "classifier_proj_size": 8}
VIDEOS = {**IMAGES, "num_frames": 2}
Model = tuple[str, str, dict[str, Any], str]
"""A class, its configuration's, that one's settings, and the kind of the data."""
WHOLE: list[Model] = [
    ("BertForSequenceClassification", "BertConfig", ENCODER, "texts"),
    ("BertForMaskedLM", "BertConfig", ENCODER, "words"),
    ("RobertaForSequenceClassification", "RobertaConfig", ENCODER, "texts"),
    ("AlbertForSequenceClassification", "AlbertConfig", {"embedding_size": 8, **ENCODER}, "texts"),
    ("ElectraForSequenceClassification", "ElectraConfig", {"embedding_size": 8, **ENCODER}, "texts"),
    ("DebertaV2ForSequenceClassification", "DebertaV2Config", ENCODER, "texts"),
    ("GPT2LMHeadModel", "GPT2Config", {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2}, "words"),
    ("GPTNeoXForCausalLM", "GPTNeoXConfig", ENCODER, "words"),
    ("BloomForCausalLM", "BloomConfig", {"vocab_size": WORDS, "hidden_size": 16, "n_layer": 2, "n_head": 2}, "words"),
    ("LlamaForCausalLM", "LlamaConfig", DECODER, "words"),
    ("MistralForCausalLM", "MistralConfig", DECODER, "words"),
    ("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 8, **DECODER}, "words"),
    ("Gemma2ForCausalLM", "Gemma2Config", {"head_dim": 8, **DECODER}, "words"),
    ("Phi3ForCausalLM", "Phi3Config", DECODER, "words"),
    ("BartForConditionalGeneration", "BartConfig", {**BOTH, **LAYERS, **WIDTHS, "bos_token_id": 1}, "pairs"),
    (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {**BOTH, **LAYERS, **WIDTHS, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 20},
        "sounds",
    ),
    ("ViTForImageClassification", "ViTConfig", IMAGES, "images"),
    ("Dinov2ForImageClassification", "Dinov2Config", IMAGES, "images"),
    (
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"num_stages": 1, "hidden_sizes": [8], "depths": [1]},
        "images",
    ),
    ("OPTForCausalLM", "OPTConfig", {**DECODER, "ffn_dim": 32, "word_embed_proj_dim": 16}, "words"),
    (
        "XLNetForSequenceClassification",
        "XLNetConfig",
        {"vocab_size": WORDS, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32},
        "texts",
    ),
    ("MixtralForCausalLM", "MixtralConfig", {"num_local_experts": 2, **DECODER}, "words"),
    ("MambaForCausalLM", "MambaConfig", {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 1}, "words"),
    ("BeitForImageClassification", "BeitConfig", IMAGES, "images"),
    ("Swinv2ForImageClassification", "Swinv2Config", WINDOWS, "images"),
    ("VivitForVideoClassification", "VivitConfig", {**VIDEOS, "tubelet_size": [1, 8, 8]}, "videos"),
    ("TimesformerForVideoClassification", "TimesformerConfig", VIDEOS, "videos"),
    ("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", SPEECH, "waves"),
]
T5 = {**BOTH, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
RELATIVE = {**ENCODER, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
SHARED: list[tuple[Model, str, list[str]]] = [
    (("T5ForConditionalGeneration", "T5Config", T5, "pairs"), "relative_attention_bias", ["encoder", "decoder"]),
    (
        ("MPNetForSequenceClassification", "MPNetConfig", ENCODER, "texts"),
        "relative_attention_bias",
        ["mpnet.encoder"],
    ),
    (("SwinForImageClassification", "SwinConfig", WINDOWS, "images"), "relative_position_bias_table", ["swin.encoder"]),
]
"""Families with a table that all examples share, its name, and modules around it."""


class Data(Dataset[Any]):
    """Examples as Hugging Face's models take them, by the names of their inputs."""

    def __init__(self, kind: str) -> None:
        made = torch.Generator().manual_seed(0)
        words = torch.randint(3, WORDS, (EXAMPLES, 10), generator=made)
        labels = words[:, 0] % 2
        self.columns = {
            "texts": {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": labels},
            "words": {"input_ids": words, "labels": words},
            "pairs": {"input_ids": words, "labels": words[:, :6]},
            "images": {"pixel_values": torch.randn(EXAMPLES, 3, 16, 16, generator=made), "labels": labels},
            "sounds": {"input_features": torch.randn(EXAMPLES, 8, 40, generator=made), "labels": words[:, :6]},
            "videos": {"pixel_values": torch.randn(EXAMPLES, 2, 3, 16, 16, generator=made), "labels": labels},
            "waves": {"input_values": torch.randn(EXAMPLES, 200, generator=made), "labels": labels},
        }[kind]

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {name: each[i] for name, each in self.columns.items()}


def train(model: Model, frozen: Callable[[str], bool] = lambda _: False, whole: Sequence[str] = ()) -> Iterable[str]:
    """Train in a plain loop, and return the trained parameters that have not moved."""
    name, configuration, settings, kind = model
    torch.manual_seed(0)
    net = getattr(transformers, name)(getattr(transformers, configuration)(**settings)).train()
    for key, p in net.named_parameters():
        p.requires_grad_(p.requires_grad and not frozen(key))
    before = {key: p.detach().clone() for key, p in net.named_parameters() if p.requires_grad}
    factors = handmade(ToeplitzMatrix(0.5 ** np.arange(STEPS), STEPS), {"kind": "single"}, value=2.0)
    sgd, asked = (
        torch.optim.SGD(net.parameters(), lr=0.1),
        {"epsilon": 8.0, "delta": 1e-5, "epochs": 1, "clip_norm": 1.0, "whole": whole},
    )
    private, optimizer, loader, _ = make_private(net, sgd, Data(kind), factors, batch_size=SIZE, **asked)
    try:
        for batch in loader:
            private(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert optimizer.noise.step == STEPS
    finally:
        optimizer.close()
    now = dict(net.named_parameters())
    return [key for key, value in before.items() if torch.equal(now[key], value)]


@pytest.mark.parametrize("model", WHOLE, ids=lambda model: model[0])
def test_families_that_train_whole(model: Model) -> None:
    assert not train(model)


@pytest.mark.parametrize(("model", "table", "modules"), SHARED, ids=[each[0][0] for each in SHARED])
def test_families_with_a_shared_table(model: Model, table: str, modules: list[str]) -> None:
    with pytest.raises(InvalidParameter, match=f"{table}.*whole="):
        train(model)
    assert not train(model, lambda key: table in key)
    assert not train(model, whole=modules)


def test_a_table_that_is_read_outside_of_its_layer() -> None:
    model = ("DebertaV2ForSequenceClassification", "DebertaV2Config", RELATIVE, "texts")
    with pytest.raises(InvalidParameter, match="rel_embeddings.weight has no per-example gradient: .*whole="):
        train(model)
    assert not train(model, whole=["deberta.encoder"])
