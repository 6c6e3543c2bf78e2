# ruff: noqa: E501 -- tables of configurations
"""Models of `diffusers` with small configurations."""

from __future__ import annotations

import inspect
from typing import Any

import diffusers
import torch
from diffusers import models
from sample import Library, Sample, first_that_runs
from small_sizes import small_arguments, without_chance

# Configurations whose sizes must be consistent.
_BLOCKS_2D: dict[str, Any] = {
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "norm_num_groups": 8,
}
_OWN: dict[str, dict[str, Any]] = {
    "UNet2DModel": {**_BLOCKS_2D, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D"), "attention_head_dim": 8, "sample_size": 32},
    "UNet2DConditionModel": {**_BLOCKS_2D, "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"), "cross_attention_dim": 32, "attention_head_dim": 8, "sample_size": 32},
    "UNet3DConditionModel": {**_BLOCKS_2D, "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"), "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"), "cross_attention_dim": 32, "attention_head_dim": 8},
    "ControlNetModel": {**_BLOCKS_2D, "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "cross_attention_dim": 32, "conditioning_embedding_out_channels": (16, 32)},
    "AutoencoderKL": {**_BLOCKS_2D, "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
    "AsymmetricAutoencoderKL": {"down_block_out_channels": (32, 64), "up_block_out_channels": (32, 64), "layers_per_down_block": 1, "layers_per_up_block": 1, "norm_num_groups": 8, "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
    "AutoencoderKLTemporalDecoder": {**{k: v for k, v in _BLOCKS_2D.items() if k != "norm_num_groups"}, "down_block_types": ("DownEncoderBlock2D",) * 2},
    "VQModel": {**_BLOCKS_2D, "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2, "latent_channels": 3, "num_vq_embeddings": 32},
    "AutoencoderTiny": {"encoder_block_out_channels": (16, 16), "decoder_block_out_channels": (16, 16), "num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)},
    "Transformer2DModel": {"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "num_layers": 1, "sample_size": 16, "patch_size": 2, "norm_type": "ada_norm_zero", "num_embeds_ada_norm": 10, "norm_num_groups": 4},
    "DiTTransformer2DModel": {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1, "sample_size": 16, "num_embeds_ada_norm": 10},
    "PixArtTransformer2DModel": {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1, "sample_size": 16, "cross_attention_dim": 32, "caption_channels": 32},
    "UNet1DModel": {"block_out_channels": (32, 32, 64), "sample_size": 64},
    "UNetMotionModel": {**_BLOCKS_2D, "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"), "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"), "cross_attention_dim": 32, "num_attention_heads": 2, "motion_num_attention_heads": 2},
    "Kandinsky3UNet": {"block_out_channels": (32, 64), "layers_per_block": 1, "cross_attention_dim": 32, "time_embedding_dim": 32, "attention_head_dim": 16, "encoder_hid_dim": 32, "groups": 8},
    "PriorTransformer": {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1, "embedding_dim": 16, "num_embeddings": 7, "additional_embeddings": 4},
    "SD3Transformer2DModel": {"sample_size": 16, "patch_size": 2, "in_channels": 4, "num_layers": 1, "attention_head_dim": 8, "num_attention_heads": 4, "caption_projection_dim": 32, "joint_attention_dim": 32, "pooled_projection_dim": 64, "out_channels": 4},
    "FluxTransformer2DModel": {"in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8)},
    "AuraFlowTransformer2DModel": {"sample_size": 16, "num_mmdit_layers": 1, "num_single_dit_layers": 1, "attention_head_dim": 8, "num_attention_heads": 4, "joint_attention_dim": 32, "caption_projection_dim": 32, "pos_embed_max_size": 64},
}  # fmt: skip
_CLASSES = sorted({*_OWN, "T5FilmDecoder", "UVit2DModel", "AutoencoderDC", "AutoencoderOobleck", "LuminaNextDiT2DModel", "SanaTransformer2DModel", "StableAudioDiTModel", "T2IAdapter", "AutoencoderKLWan", "AutoencoderKLMagvit", "LatteTransformer3DModel", "WanTransformer3DModel", "CogVideoXTransformer3DModel", "Lumina2Transformer2DModel", "HunyuanDiT2DModel"})  # fmt: skip


def names() -> list[str]:
    """Returns the classes that this version of the library has."""
    return [name for name in _CLASSES if hasattr(models, name) or hasattr(diffusers, name)]


def make(name: str) -> Sample:
    """Returns a model with noise, a time step and an encoded text."""
    kind = getattr(diffusers, name, None) or getattr(models, name)
    arguments = _OWN.get(name)
    model = kind(**(small_arguments(kind.__init__, {}) if arguments is None else arguments))
    model.eval()
    without_chance(model)
    return first_that_runs(model, list(_calls(model)))


def _calls(model: Any) -> list[dict[str, Any]]:
    accepted = inspect.signature(model.forward).parameters
    config = model.config
    channels = getattr(config, "in_channels", 3) or 3
    width = next(
        (v for k in ("cross_attention_dim", "joint_attention_dim", "caption_channels", "encoder_hid_dim", "text_embed_dim", "text_dim") if isinstance(v := getattr(config, k, None), int)),
        32,
    )  # fmt: skip
    values: dict[str, Any] = {
        "timestep": torch.tensor([3, 5]), "encoder_hidden_states": torch.randn(2, 7, width), "class_labels": torch.tensor([1, 2]),
        "controlnet_cond": torch.rand(2, 3, 256, 256), "pooled_projections": torch.randn(2, getattr(config, "pooled_projection_dim", None) or 32),
        "proj_embedding": torch.randn(2, 16), "img_ids": torch.zeros(64, 3), "txt_ids": torch.zeros(7, 3), "guidance": torch.ones(2), "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}, "conditioning_scale": 1.0,
        "encoder_attention_mask": torch.ones(2, 7), "attention_mask": torch.ones(2, 7),
    }  # fmt: skip
    pixels: dict[str, list[torch.Tensor]] = {
        "4 axes": [torch.randn(2, channels, side, side) for side in (16, 32, 64)],
        "5 axes": [torch.randn(2, channels, 4, 16, 16), torch.randn(1, channels, 5, 16, 16), torch.randn(2, 4, channels, 16, 16)],
        "3 axes": [torch.randn(2, 64, channels), torch.randn(2, channels, 64), torch.randn(2, 2, 64)],
        "2 axes": [torch.randn(2, 16)],
    }  # fmt: skip
    found = []
    for main in ("sample", "hidden_states", "x", "decoder_input_tokens"):
        if main not in accepted:
            continue
        for tensor in (t for group in pixels.values() for t in group):
            for optional in ((), ("class_labels",), ("added_cond_kwargs",), ("guidance",)):
                call = {main: tensor}
                call |= {k: v for k, v in values.items() if k in accepted and (accepted[k].default is accepted[k].empty or k in optional or k in ("timestep", "encoder_hidden_states", "pooled_projections", "img_ids", "txt_ids"))}  # fmt: skip
                if "controlnet_cond" in call:
                    call["controlnet_cond"] = torch.rand(
                        2, 3, 8 * tensor.shape[-1], 8 * tensor.shape[-1]
                    )
                found.append(call)
    return found


LIBRARY = Library(names, make)
