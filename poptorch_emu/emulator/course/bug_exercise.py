"""Exercise 8: find the module that computes a wrong result."""

from __future__ import annotations

import torch
from torch import nn

from poptorch_emu.emulator.course.exercise import Exercise, Findings
from poptorch_emu.emulator.course.layers import Layer, Layers

_HIDDEN, _WIDTH = (64,) * 6, 32
_FAULTY, _EPSILON = "layers.3.norm", 1e-3


def reference() -> Layers:
    """Returns the correct model of exercise 8 (exact)."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return Layers(_HIDDEN, _WIDTH)


def suspect() -> Layers:
    """Returns the same model with the same weights, but a mistake in one module (exact)."""
    model = reference()
    norm = model.get_submodule(_FAULTY)
    assert isinstance(norm, nn.LayerNorm), "the mistake is one of a LayerNorm"
    norm.eps = _EPSILON
    return model


def _assess(name: str) -> Findings:
    # Modules that contain other modules do not count.
    order = [path for path, module in reference().named_modules() if _is_single(module)]
    if name == _FAULTY:
        return Findings((), (f"{name} has a LayerNorm whose eps is {_EPSILON}, not 1e-05.",))
    if _FAULTY.startswith(f"{name}.") or name == "":
        return Findings((
            f"The mistake is in {name or 'the model'!r}, but several modules are. Which of them is "
            "the first whose result differs, although its inputs are equal?",
        ))  # fmt: skip
    if name not in order:
        return Findings((
            f"The model has no module {name!r} that computes. Its modules are {order[0]}, "
            f"{order[1]}, ... {order[-1]}.",
        ))  # fmt: skip
    if order.index(name) < order.index(_FAULTY):
        return Findings((
            f"All results of {name} have equal bits in both models. What begins to differ comes "
            "later.",
        ))  # fmt: skip
    return Findings((
        f"{name} differs only because its inputs do. emulator.compare says 'follows' there; the "
        "mistake is before it.",
    ))  # fmt: skip


def _is_single(module: nn.Module) -> bool:
    return not isinstance(module, (Layer, Layers, nn.ModuleList))


EXERCISE = Exercise("find the bug", "the path of a module, such as 'layers.0.up'", (str,), _assess)
