# ruff: noqa: E501 -- tables of configurations
"""Transformers of `x_transformers`, one for each of its settings."""

from __future__ import annotations

from typing import Any

import torch
from sample import Library, Sample, first_that_runs
from small_sizes import without_chance
from x_transformers import Decoder, Encoder, TransformerWrapper, ViTransformerWrapper, XTransformer

_SETTINGS: dict[str, dict[str, Any]] = {
    name: {name: True}
    for name in (
        "attn_flash", "rotary_pos_emb", "rotary_xpos", "alibi_pos_bias", "rel_pos_bias",
        "dynamic_pos_bias", "ff_glu", "ff_swish", "ff_relu_squared", "ff_no_bias", "use_scalenorm",
        "use_rmsnorm", "use_simple_rmsnorm", "macaron", "sandwich_norm", "resi_dual", "pre_norm_has_final_norm",
        "gate_residual", "scale_residual", "residual_attn", "attn_gate_values", "attn_on_attn", "attn_qk_norm",
        "attn_qk_norm_dim_scale", "attn_one_kv_head", "attn_talking_heads", "attn_sparse_topk", "attn_value_rmsnorm",
        "shift_tokens", "zero_init_branch_output", "attn_add_zero_kv", "ff_post_act_ln", "attn_head_scale",
    )
}  # fmt: skip
_SETTINGS |= {
    "attn_sparse_topk": {"attn_sparse_topk": 2},
    "attn_num_mem_kv": {"attn_num_mem_kv": 4},
    "attn_kv_heads": {"attn_kv_heads": 2},
    "shift_tokens": {"shift_tokens": 1},
    "polar_pos_emb": {"polar_pos_emb": True},
    "plain": {},
}


def names() -> list[str]:
    """Returns the settings of decoders, and other kinds of models."""
    return [*_SETTINGS, "encoder", "vision", "encoder_decoder", "memory_tokens"]


def make(name: str) -> Sample:
    """Returns a model with tokens or images."""
    torch.manual_seed(0)
    size = {"dim": 32, "depth": 2, "heads": 4, "attn_dim_head": 8}
    tokens = torch.randint(0, 60, (2, 8))
    calls: list[Any] = [(tokens,)]
    text = {"num_tokens": 64, "max_seq_len": 16}
    model: torch.nn.Module
    if name == "vision":
        model = ViTransformerWrapper(
            image_size=32, patch_size=8, num_classes=5, attn_layers=Encoder(**size)
        )
        calls = [(torch.randn(2, 3, 32, 32),)]
    elif name == "encoder_decoder":
        parts = {
            f"{side}_{key}": value
            for side in ("enc", "dec")
            for key, value in {**text, "depth": 1, "heads": 2}.items()
        }
        model = XTransformer(dim=32, **parts)
        calls = [(tokens, tokens)]
    elif name == "encoder":
        model = TransformerWrapper(**text, attn_layers=Encoder(**size))
    else:
        more = {"num_memory_tokens": 2} if name == "memory_tokens" else {}
        layers = Decoder(**size, **_SETTINGS.get(name, {}))
        model = TransformerWrapper(**text, **more, attn_layers=layers)
    model.eval()
    without_chance(model)
    return first_that_runs(model, calls)


LIBRARY = Library(names, make)
