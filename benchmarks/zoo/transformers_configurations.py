"""Small configurations of `transformers`, whose sizes stay consistent."""

from __future__ import annotations

import re
from typing import Any

import transformers
from small_sizes import small_value

_FIXED = ("model_type", "transformers_version", "architectures")
# Backbone for models whose default is one of another library.
_BACKBONE = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 8, 16, 16],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}


def small_config(config_class: Any) -> Any:
    """Returns a configuration with small sizes, also in nested configurations."""
    return config_class(**_small_values(config_class()))


def _small_values(config: Any) -> dict[str, Any]:
    kept = _kept_layers(config)
    values: dict[str, Any] = {}
    for key, value in vars(config).items():
        if key.startswith("_") or key in _FIXED:
            continue
        if (
            getattr(value, "model_type", "") == "timm_backbone"
            or key == "backbone_config"
            and not value
        ):
            values |= {key: _BACKBONE, "use_timm_backbone": False, "backbone": None}
        elif isinstance(value, transformers.PretrainedConfig):
            values[key] = {**_small_values(value), "model_type": value.model_type}
        elif kept and _is_per_layer(config, value):
            values[key] = _of_layers(key, value, kept)
        elif kept and "layers" in key and value == _num_layers(config):
            values[key] = len(kept)
        elif (small := small_value(key, value)) != value:
            values[key] = small
    values |= _missing(config, values)
    return values | _equal_heads(config, values) | _sections(config, values)


def _missing(config: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Returns sizes that have no default, or that others determine."""
    found: dict[str, Any] = {}
    size = values.get("hidden_size", getattr(config, "hidden_size", None))
    heads = values.get("num_attention_heads", getattr(config, "num_attention_heads", None))
    if getattr(config, "head_dim", 0) is None and isinstance(size, int) and isinstance(heads, int):
        found["head_dim"] = size // heads
    if getattr(config, "vocab_size", 0) is None:
        found["vocab_size"] = 99
    if getattr(config, "num_key_value_heads", 0) is None and isinstance(heads, int):
        found["num_key_value_heads"] = heads
    if "expand" in vars(config) and "num_heads" in vars(config) and isinstance(size, int):
        found["num_heads"] = int(size * config.expand) // values.get("head_dim", config.head_dim)
    return found


def _num_layers(config: Any) -> int:
    found = getattr(config, "num_hidden_layers", None)
    return found if isinstance(found, int) else 0


def _is_per_layer(config: Any, value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == _num_layers(config) > 2


def _kept_layers(config: Any) -> list[int]:
    """Returns the first layer of each kind, and at least two; none if all layers are alike."""
    lists = [value for value in vars(config).values() if _is_per_layer(config, value)]
    if not lists:
        return []
    kinds = zip(*(value for value in lists if not isinstance(value[0], int)), strict=True)
    first: dict[str, int] = {}
    for index, kind in enumerate(kinds):
        first.setdefault(str(kind), index)
    found = list(first.values())[:4]
    return sorted({*found, *range(2)} if len(found) < 2 else found)


def _of_layers(key: str, value: Any, kept: list[int]) -> Any:
    if list(value) == list(range(len(value))):
        return list(range(len(kept)))
    return small_value(key, type(value)(value[index] for index in kept))


def _equal_heads(config: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Returns as many heads of keys as of queries where the defaults are equal."""
    found = {}
    for key in values:
        of_queries = re.sub("key_value|kv", "attention", key)
        if of_queries != key and getattr(config, of_queries, None) == getattr(config, key):
            found[key] = values.get(of_queries, getattr(config, of_queries))
    return found


def _sections(config: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Returns rotary parameters whose sections fill a small head."""
    has_sections = "mrope_section" in getattr(config, "ignore_keys_at_rope_validation", ())
    found = {}
    for key in ("rope_parameters", "rope_scaling"):
        value = getattr(config, key, None)
        if (
            isinstance(value, dict)
            and "rope_type" in value
            and (has_sections or "mrope_section" in value)
        ):
            heads = values.get("num_attention_heads") or config.num_attention_heads
            hidden = values.get("hidden_size", config.hidden_size)
            size = values.get("head_dim", getattr(config, "head_dim", None)) or hidden // heads
            half = int(size * value.get("partial_rotary_factor", 1.0)) // 2
            part = half * 3 // 8
            found[key] = {**value, "mrope_section": [half - 2 * part, part, part]}
    return found
