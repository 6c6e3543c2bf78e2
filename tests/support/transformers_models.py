"""Small random models of the `transformers` package: classes, sizes and inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Batch = dict[str, Any]
VOCABULARY = 40

_TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": 20}
_STACK = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_ENCODER = {**_TEXT, **_STACK, "intermediate_size": 32}
_FACTORED = {**_ENCODER, "embedding_size": 8}
_LLAMA = {**_ENCODER, "num_key_value_heads": 1}
_DISENTANGLED = {**_ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
_GPT = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 20}
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 2,
    "decoder_start_token_id": 0,
}
_TWO_SIDED = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
_BART = {**_TWO_SIDED, "max_position_embeddings": 20}
_VISION = {**_STACK, "intermediate_size": 32, "image_size": 16, "patch_size": 4}
_SPEECH = {
    **_STACK,
    "vocab_size": VOCABULARY,
    "intermediate_size": 32,
    "conv_dim": (8, 8),
    "conv_stride": (3, 2),
    "conv_kernel": (5, 3),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 8,
    "mask_time_prob": 0.0,
    "layerdrop": 0.0,
}
_FOUR_STAGES = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
_SWIN = {
    "image_size": 16,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [2, 2],
    "window_size": 2,
    "drop_path_rate": 0.0,
}


def ids(*shape: int) -> torch.Tensor:
    """Returns words without special tokens."""
    return torch.randint(3, VOCABULARY, shape)


def classes(*shape: int) -> torch.Tensor:
    return torch.randint(2, shape)


def classified_text() -> Batch:
    return {"input_ids": ids(2, 7), "labels": classes(2)}


def text() -> Batch:
    return {"input_ids": ids(2, 7), "labels": ids(2, 7)}


def padded_text() -> Batch:
    return {**text(), "attention_mask": torch.tensor([[1] * 7, [1] * 4 + [0] * 3])}


def tagged_text() -> Batch:
    return {"input_ids": ids(2, 7), "labels": classes(2, 7)}


def answers() -> Batch:
    start = classes(2)
    return {"input_ids": ids(2, 7), "start_positions": start, "end_positions": start + 3}


def two_tasks() -> Batch:
    return {**text(), "next_sentence_label": classes(2)}


def series() -> Batch:
    """Returns past values, with three more for the lags, and the future of two series."""
    return {
        "past_values": torch.randn(2, 15),
        "past_time_features": torch.randn(2, 15, 1),
        "past_observed_mask": torch.ones(2, 15),
        "future_values": torch.randn(2, 4),
        "future_time_features": torch.randn(2, 4, 1),
    }


def layout() -> Batch:
    corners = torch.sort(torch.randint(15, (2, 7, 4)), -1).values
    return {**tagged_text(), "bbox": corners}


def images(size: int = 16) -> Batch:
    return {"pixel_values": torch.randn(4, 3, size, size), "labels": classes(4)}


def large_images() -> Batch:
    return images(32)


def segmented_images() -> Batch:
    return {"pixel_values": torch.randn(2, 3, 16, 16), "labels": classes(2, 16, 16)}


def masked_images() -> Batch:
    return {"pixel_values": torch.randn(2, 3, 16, 16), "noise": torch.rand(2, 16)}


def captioned_images() -> Batch:
    return {"input_ids": ids(2, 7), "pixel_values": torch.randn(2, 3, 16, 16), "return_loss": True}


def sound() -> Batch:
    return {"input_values": torch.randn(2, 200), "labels": classes(2)}


def spectra() -> Batch:
    return {"input_features": torch.randn(2, 8, 20), "labels": ids(2, 7)}


@dataclass(frozen=True)
class Entry:
    """A model class, the sizes of its configuration, and a function that creates its inputs.

    Attributes:
        config: name of the configuration class; by default `<Family>Config`.
    """

    model: str
    sizes: dict[str, Any]
    batch: Callable[[], Batch]
    config: str = ""

    @property
    def config_name(self) -> str:
        return self.config or f"{self.model.partition('For')[0].removesuffix('Model')}Config"


ENTRIES = (
    Entry("AlbertForSequenceClassification", _FACTORED, classified_text),
    Entry("BartForConditionalGeneration", _BART, padded_text),
    Entry("BeitForImageClassification", {**_VISION, "drop_path_rate": 0.0}, images),
    Entry("BertForMaskedLM", _ENCODER, padded_text),
    Entry("BertForPreTraining", _ENCODER, two_tasks),
    Entry("BertForQuestionAnswering", _ENCODER, answers),
    Entry("BertForSequenceClassification", _ENCODER, classified_text),
    Entry("BertForTokenClassification", _ENCODER, tagged_text),
    Entry(
        "BloomForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 16, "n_layer": 2, "n_head": 2},
        text,
    ),
    Entry(
        "CLIPModel",
        {
            "text_config": {**_ENCODER, "eos_token_id": 39, "bos_token_id": 38, "pad_token_id": 1},
            "vision_config": _VISION,
            "projection_dim": 8,
        },
        captioned_images,
    ),
    Entry(
        "ConvNextForImageClassification",
        {**_FOUR_STAGES, "image_size": 32, "patch_size": 2},
        large_images,
    ),
    Entry("DebertaForMaskedLM", _DISENTANGLED, padded_text),
    Entry(
        "DebertaV2ForMaskedLM",
        {**_DISENTANGLED, "position_buckets": 8, "share_att_key": True},
        text,
    ),
    Entry("DeiTForImageClassification", _VISION, images),
    Entry(
        "DistilBertForSequenceClassification",
        {"vocab_size": VOCABULARY, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
        classified_text,
    ),
    Entry("ElectraForPreTraining", _FACTORED, tagged_text),
    Entry("ElectraForSequenceClassification", _FACTORED, classified_text),
    Entry("GPT2LMHeadModel", _GPT, padded_text, "GPT2Config"),
    Entry("GPTJForCausalLM", {**_GPT, "rotary_dim": 4}, text),
    Entry(
        "GPTNeoForCausalLM",
        {
            **_TEXT,
            "hidden_size": 16,
            "num_layers": 2,
            "attention_types": [[["global", "local"], 1]],
            "num_heads": 2,
            "window_size": 4,
        },
        text,
    ),
    Entry("GPTNeoXForCausalLM", _ENCODER, text),
    Entry("HubertForSequenceClassification", _SPEECH, sound),
    Entry(
        "InformerForPrediction",
        {
            "prediction_length": 4,
            "context_length": 12,
            "lags_sequence": [1, 2, 3],
            "num_time_features": 1,
            "d_model": 16,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_layerdrop": 0.0,
            "decoder_layerdrop": 0.0,
        },
        series,
    ),
    Entry("LayoutLMForTokenClassification", {**_ENCODER, "max_2d_position_embeddings": 30}, layout),
    Entry("LlamaForCausalLM", _LLAMA, padded_text),
    Entry("LongformerForMaskedLM", {**_ENCODER, "attention_window": 4}, text),
    Entry(
        "LongformerForSequenceClassification",
        {**_ENCODER, "attention_window": 4},
        classified_text,
    ),
    Entry(
        "MixtralForCausalLM",
        {**_LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2},
        text,
    ),
    Entry("MistralForCausalLM", {**_LLAMA, "sliding_window": 4}, text),
    Entry("MT5ForConditionalGeneration", _T5, text),
    Entry(
        "OPTForCausalLM",
        {**_TEXT, **_STACK, "ffn_dim": 32, "word_embed_proj_dim": 16},
        padded_text,
    ),
    Entry("RobertaForMaskedLM", _ENCODER, padded_text),
    Entry("RobertaForSequenceClassification", _ENCODER, classified_text),
    Entry(
        "SegformerForSemanticSegmentation",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 8],
            "patch_sizes": [3, 3],
            "strides": [2, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 8,
            "drop_path_rate": 0.0,
        },
        segmented_images,
    ),
    Entry("SwinForImageClassification", _SWIN, images),
    Entry("Swinv2ForImageClassification", _SWIN, images),
    Entry("T5ForConditionalGeneration", _T5, padded_text),
    Entry("ViTForImageClassification", _VISION, images),
    Entry(
        "ViTMAEForPreTraining",
        {
            **_VISION,
            "decoder_hidden_size": 8,
            "decoder_num_hidden_layers": 1,
            "decoder_num_attention_heads": 2,
            "decoder_intermediate_size": 16,
        },
        masked_images,
    ),
    Entry("Wav2Vec2ForSequenceClassification", _SPEECH, sound),
    Entry(
        "WhisperForConditionalGeneration",
        {
            **_TWO_SIDED,
            "num_mel_bins": 8,
            "max_source_positions": 10,
            "max_target_positions": 10,
        },
        spectra,
    ),
    Entry(
        "XLNetForSequenceClassification",
        {"vocab_size": VOCABULARY, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32},
        classified_text,
    ),
)
