"""The smallest model of each family of `torchvision`."""

from __future__ import annotations

import itertools
import re
from typing import Any

import torch
import torchvision
from sample import Library, Sample, first_that_runs
from small_sizes import without_chance


def names() -> list[str]:
    """Returns one model of each family; a family is the part of a name before its size."""
    families = itertools.groupby(sorted(torchvision.models.list_models(), key=_family), key=_family)
    return [min(members, key=lambda name: (len(name), name)) for _, members in families]


def make(name: str) -> Sample:
    """Returns a model with images, a video, or two images for optical flow."""
    own: dict[str, Any] = {"weights": None}
    if "rcnn" in name or "retinanet" in name or "fcos" in name or "ssd" in name or "lraspp" in name:
        own["weights_backbone"] = None
    if "deeplab" in name or "fcn_" in name:
        own["weights_backbone"] = None
    model = torchvision.models.get_model(name, **own)
    model.eval()
    without_chance(model)
    detection: list[Any] = [([torch.rand(3, 64, 64)],)]
    pictures: list[Any] = [(torch.randn(2, 3, side, side),) for side in (64, 128, 224, 299)]
    videos: list[Any] = [(torch.randn(1, 3, 16, side, side),) for side in (64, 112, 224)]
    flow: list[Any] = [(torch.randn(1, 3, 128, 128), torch.randn(1, 3, 128, 128))]
    return first_that_runs(model, [*pictures, *videos, *flow, *detection])


def _family(name: str) -> str:
    return re.split(r"\d|_[a-z]$|_(tiny|small|large|base)", name)[0]


LIBRARY = Library(names, make)
