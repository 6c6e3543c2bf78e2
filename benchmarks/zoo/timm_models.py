"""The smallest model of each file of `timm`."""

from __future__ import annotations

import timm
import torch
from sample import Library, Sample, first_that_runs
from small_sizes import without_chance

# Words in the names of models, for the smallest models first.
_SMALL = (
    "test_",
    "zepto",
    "atto",
    "femto",
    "pico",
    "nano",
    "xxs",
    "tiny",
    "xs",
    "micro",
    "_s",
    "small",
    "18",
    "26",
    "b0",
)


def names() -> list[str]:
    """Returns one model of each module of the library."""
    return [
        min(timm.list_models(module=module), key=_rank)
        for module in timm.list_modules()
        if timm.list_models(module=module)
    ]


def make(name: str) -> Sample:
    """Returns a model for ten classes."""
    with torch.device("meta"):
        default = timm.create_model(name, num_classes=10).default_cfg
    size = 64
    arguments = {"num_classes": 10}
    fixed = default.get("fixed_input_size")
    try:
        model = timm.create_model(name, **arguments, **({"img_size": size} if fixed else {}))
    except TypeError:
        model, size = timm.create_model(name, **arguments), default["input_size"][-1]
    model.eval()
    without_chance(model)
    channels = default["input_size"][0]
    sizes = dict.fromkeys((size, 128, default["input_size"][-1]))
    return first_that_runs(model, [(torch.randn(2, channels, side, side),) for side in sizes])


def _rank(name: str) -> tuple[int, int]:
    place = next((i for i, word in enumerate(_SMALL) if word in name), len(_SMALL))
    return place, len(name)


LIBRARY = Library(names, make)
