"""Small values for the parameters of configurations, by their names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

# The first pattern that matches a name determines an integer; related sizes are consistent.
_SIZES: tuple[tuple[str, Callable[[int], int]], ...] = (
    (r"token_(id|index)$|_token$|^(bos|eos|pad)", lambda v: v if 0 <= v < 99 else 80 + v % 17),
    (r"feat_extract|kernel", lambda v: v),
    (r"feature_layer|select_layer", lambda v: min(v, 1)),
    (r"vocab", lambda v: min(v, 128)),
    (r"(top_k|per_tok|topk)", lambda v: min(v, 2)),
    (r"n_group", lambda v: min(v, 2)),
    (r"experts|routed", lambda v: min(v, 4)),
    (
        r"(num|n|layers).*(layer|block|depth|stage)|^depth|layers$|^n_layer|blocks$",
        lambda v: min(v, 2),
    ),
    (r"(key_value|kv).*head|num_kv", lambda v: min(v, 2)),
    (r"rotary_(n)?dim|head_dim|kv_channels|qk_.*dim|v_head", lambda v: min(v, 16)),
    (r"heads|n_head|num_attention|nhead", lambda v: 4 if v >= 4 else 2 if v > 1 else v),
    (r"group", lambda v: min(v, 4)),
    (r"rank", lambda v: min(v, 16)),
    (r"(image|img|input|sample)_(size|res)|^resolution", lambda v: min(v, 32)),
    (r"patch|stride|kernel|temporal|frames|factor|window", lambda v: v),
    (r"max_(position|seq|source|target|length)|n_positions|n_ctx", lambda v: min(v, 128)),
    (
        r"hidden|d_model|n_embd|embed|dim$|dims$|width|channels|intermediate|ffn|d_ff|d_kv|_size"
        r"|d_inner|features|planes|d_state",
        lambda v: min(v, 64),
    ),
)


def small_value(name: str, value: Any) -> Any:
    """Returns a smaller value for a parameter, or the same value."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float):
        return 0.0 if "drop" in name else min(value, 0.3) if "coefficient" in name else value
    if isinstance(value, int):
        for pattern, size in _SIZES:
            if re.search(pattern, name):
                return size(value)
        return value
    if isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value):
        if "feature_layer" in name:
            return type(value)(dict.fromkeys(small_value(name, item) for item in value))
        if re.search(r"indices|index|ids|section", name):
            return value
        if name.startswith("depth"):  # Some models number the layers of a stage from the first one.
            return type(value)(min(item, max(2, i + 1)) for i, item in enumerate(value))
        name = name if re.search(r"heads|size|dim|channels|depth|layers|blocks", name) else "kernel"
        return type(value)(small_value(name, item) for item in value)
    return value


def small_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments for each parameter of a function.

    Args:
        function: function whose defaults are made small.
        given: values by parameter name, which take precedence.

    Raises:
        LookupError: a parameter has neither a value nor a default.
    """
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in given:
            arguments[name] = given[name]
        elif parameter.default is parameter.empty:
            raise LookupError(f"No value is known for the parameter {name}.")
        elif (value := small_value(name, parameter.default)) != parameter.default:
            arguments[name] = value
    return arguments


def without_chance(module: Any) -> None:
    """Disables random dropping of values, so that two runs are equal."""
    for part in module.modules():
        if type(part).__name__.lower().startswith(("dropout", "alphadropout", "droppath")):
            for name in ("p", "drop_prob"):
                if isinstance(getattr(part, name, None), float):
                    setattr(part, name, 0.0)
        for name, value in list(vars(part).items()):
            if "drop" in name and isinstance(value, float):
                setattr(part, name, 0.0)
