"""A tiny model of each type in `transformers`."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import transformers
from sample import Library, NoSampleError, Sample, first_that_runs
from small_sizes import without_chance
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING, MODEL_MAPPING_NAMES
from transformers_configurations import small_config

transformers.logging.set_verbosity_error()

_BATCH, _TOKENS = 2, 8
_MAX_ELEMENTS = 20_000_000


def names() -> list[str]:
    """Returns each model type that has a model."""
    return sorted(MODEL_MAPPING_NAMES)


def make(name: str) -> Sample:
    """Returns a model of a type with the arguments that its forward requires."""
    config_class = CONFIG_MAPPING[name]
    config = small_config(config_class)
    model_class = MODEL_MAPPING[config_class]
    model_class = model_class[0] if isinstance(model_class, (tuple, list)) else model_class
    if (size := _size(model_class, config)) > _MAX_ELEMENTS:
        raise NoSampleError(f"The smallest configuration has {size} parameters.")
    torch.manual_seed(0)
    model = model_class(config)
    without_chance(model)
    return first_that_runs(model, list(calls(model, config)))


def _size(model_class: Any, config: Any) -> int:
    """Returns the number of parameters; 0 if the constructor needs values."""
    try:
        with torch.device("meta"):
            return sum(value.numel() for value in model_class(config).parameters())
    except (NotImplementedError, RuntimeError):
        return 0


def calls(model: Any, config: Any) -> list[dict[str, Any]]:
    """Returns sets of arguments, the most likely ones first."""
    accepted = inspect.signature(model.forward).parameters
    text = text_inputs(config)
    text_config = getattr(config, "text_config", config)
    main = getattr(model, "main_input_name", "input_ids")
    found: list[dict[str, Any]] = []
    image_inputs = images(config)
    sound = [
        {"input_values": torch.randn(_BATCH, 4000)},
        {"input_features": torch.randn(_BATCH, _bins(config), _frames(config))},
        {"input_features": torch.randn(_BATCH, _frames(config), _bins(config))},
        {"input_values": torch.randn(_BATCH, _frames(config), _bins(config))},
        {"input_values": torch.randn(_BATCH, 1, 4000)},
    ]
    decoder = {"decoder_input_ids": text["input_ids"]}
    found += grids(config)
    if "grid_thw" in accepted:
        found += patched(config)
    if main in ("pixel_values", "pixel_values_videos") or "input_ids" not in accepted:
        found += [{**each, **extra} for extra in ({}, decoder) for each in image_inputs]
        found += [{**each, **extra} for extra in ({}, decoder) for each in sound]
    for extra in ({}, decoder):
        found.append({**text, **extra})
        found.append({"input_ids": text["input_ids"], **extra})
        found += [{**text, **each, **extra} for each in (*image_inputs, *sound)]
    hidden = getattr(text_config, "hidden_size", 64)
    found += [
        {"inputs_embeds": torch.randn(_BATCH, _TOKENS, hidden)},
        {"hidden_states": torch.randn(_BATCH, _TOKENS, hidden)},
        {
            "past_values": torch.randn(
                _BATCH,
                getattr(config, "context_length", 32) or 32,
                getattr(config, "num_input_channels", 1) or 1,
            )
        },
        {"inputs": torch.randint(0, 200, (_BATCH, 32))},
    ]
    required = [k for k, p in accepted.items() if p.default is p.empty]
    own = {k: text["input_ids"] for k in required if k.endswith("_input_ids")}
    own |= {k: text["attention_mask"] for k in required if k.endswith("_attention_mask")}
    found = [{**own, **call} for call in found]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    kept = [{k: v for k, v in call.items() if takes_all or k in accepted} for call in found]
    return [call for call in kept if call]


def text_inputs(config: Any) -> dict[str, torch.Tensor]:
    """Returns tokens, and a mask whose second row ends early, as a tokenizer creates it."""
    text = getattr(config, "text_config", config)
    size = getattr(text, "vocab_size", 99) or 99
    tokens = torch.randint(5, max(min(size, 79), 6), (_BATCH, _TOKENS))
    mask = torch.ones(_BATCH, _TOKENS, dtype=torch.int64)
    mask[1, -2:] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def images(config: Any) -> list[dict[str, Any]]:
    """Returns images, and videos, of the size that a configuration names."""
    vision = (
        getattr(config, "vision_config", None) or getattr(config, "backbone_config", None) or config
    )
    size = getattr(vision, "image_size", None) or 64
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    channels = getattr(vision, "num_channels", None) or 3
    channels = channels if isinstance(channels, int) else 3
    frames = getattr(vision, "num_frames", None) or 4

    def still(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(_BATCH, channels, rows, columns)

    return [
        {"pixel_values": still(height, width)},
        {"pixel_values": still(64, 64)},
        {"pixel_values": torch.randn(_BATCH, frames, channels, height, width)},
        {"pixel_values_videos": torch.randn(_BATCH, frames, channels, height, width)},
        {"pixel_values": still(224, 224)},
    ]


def grids(config: Any) -> list[dict[str, Any]]:
    """Returns text with two images that are cut into patches, with their grids (Qwen-VL)."""
    vision, token = getattr(config, "vision_config", None), getattr(config, "image_token_id", None)
    if not hasattr(vision, "spatial_merge_size") or token is None:
        return []
    patches, grid = _patches(vision)
    tokens = torch.randint(5, 79, (2, _TOKENS))
    tokens[:, 2:6] = token
    call = {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": patches,
        "image_grid_thw": grid,
    }
    return [{**call, "mm_token_type_ids": (tokens == token).int()}, call]


def _patches(vision: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the patches of two images, and their grids."""
    channels = getattr(vision, "in_channels", None) or getattr(vision, "num_channels", 3)
    size = channels * getattr(vision, "temporal_patch_size", 1) * vision.patch_size**2
    side = 2 * (getattr(vision, "spatial_merge_size", None) or 1)
    return torch.randn(2 * side * side, size), torch.tensor([[1, side, side]] * 2)


def patched(config: Any) -> list[dict[str, Any]]:
    """Returns the patches of two images with their grids, for vision models alone."""
    if not isinstance(getattr(config, "patch_size", None), int):
        return []
    patches, grid = _patches(config)
    squares = patches.reshape(len(patches), -1, config.patch_size, config.patch_size)
    return [
        {name: each, "grid_thw": grid}
        for name in ("hidden_states", "pixel_values")
        for each in (patches, squares, squares[None], patches.repeat(1, 2))
    ]


def _bins(config: Any) -> int:
    for source in (
        config,
        getattr(config, "audio_config", None),
        getattr(config, "encoder_config", None),
    ):
        for key in (
            "num_mel_bins",
            "feature_size",
            "input_feat_per_channel",
            "feature_projection_input_dim",
            "input_dim",
        ):
            value = getattr(source, key, None)
            if isinstance(value, int):
                return value
    return 80


def _frames(config: Any) -> int:
    positions = getattr(config, "max_source_positions", None)
    return 2 * positions if isinstance(positions, int) and positions <= 200 else 64


LIBRARY = Library(names, make)
