"""Declares two operators of `torchvision` whose C++ part needs another build of PyTorch.

Importing `torchvision` registers rules for them, which fails if the C++ part cannot be loaded. This
module must be imported before `torchvision`, and before libraries that import it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_library = torch.library.Library("torchvision", "FRAGMENT")


def declare() -> None:
    """Declares the operators of the C++ part, unless that can be loaded."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return
    try:
        for path in Path(found.origin).parent.glob("_C*.so"):
            torch.ops.load_library(path)
            return
    except OSError:
        pass
    for name in ("nms", "qnms"):
        _library.define(name + _SCHEMA)


declare()
