"""Names of older releases: those that work with one warning, and replacements of those removed."""

from __future__ import annotations

from functools import cache

from poptorch_emu.log import logger

_INSTEAD_OF_AUTOCAST = "model.half(), or casts where the model needs them"
# Name in an older release -> the module and the name in it, and the text of its replacement.
OLD_NAMES = {
    "AnchorMode": ("enums:OutputMode", "poptorch.OutputMode"),
    "autocast": ("options.old_autocast:autocast", _INSTEAD_OF_AUTOCAST),
    "autocasting": ("options.old_autocast", _INSTEAD_OF_AUTOCAST),
}
_INSTEAD_OF_OPTION = {
    "Options.Popart": "Options._Popart",
    "Options.anchorMode": "Options.outputMode",
    "Options.autocastEnabled": _INSTEAD_OF_AUTOCAST,
    "Options.autocastPolicy": _INSTEAD_OF_AUTOCAST,
    "Options.autocast_enabled": _INSTEAD_OF_AUTOCAST,
    "Options.autocast_policy": _INSTEAD_OF_AUTOCAST,
}
GONE = {
    "IPUContext": "Wrap a torch.nn.Module with poptorch.inferenceModel or poptorch.trainingModel.",
    "autocast_enabled": f"Write {_INSTEAD_OF_AUTOCAST}.",
    "cast": f"Write {_INSTEAD_OF_AUTOCAST}.",
    "ipu": "Pass tensors to the IPU as arguments of a wrapped model; the device has no name in "
    "PyTorch.",
}


@cache
def note_old_name(name: str) -> None:
    """Warns once in each process that a name belongs to an older release."""
    instead = _INSTEAD_OF_OPTION.get(name) or OLD_NAMES[name][1]
    logger.warning(
        "[Deprecated] poptorch.%s is a name of PopTorch 2. Use %s instead.", name, instead
    )
