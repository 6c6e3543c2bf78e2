"""Names that `poptorch` does not list: those of older releases, and those that leak from its files.

What programs of PopTorch 2 still use works as it did, with one warning; other old names stay an
`AttributeError`, as in PopTorch 3, which here says what has taken their place.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from poptorch_emu.aliases import submodule
from poptorch_emu.log import logger

_INSTEAD_OF_AUTOCAST = "model.half(), or casts where the model needs them"
# Name in an older release -> the object that it is, and what to write instead.
_OLD_NAMES = {
    "AnchorMode": ("enums.OutputMode", "poptorch.OutputMode"),
    "autocast": ("old_autocast.autocast", _INSTEAD_OF_AUTOCAST),
    "autocasting": ("old_autocast", _INSTEAD_OF_AUTOCAST),
}
_INSTEAD_OF_OPTION = {
    "Options.Popart": "Options._Popart",
    "Options.anchorMode": "Options.outputMode",
    "Options.autocastEnabled": _INSTEAD_OF_AUTOCAST,
    "Options.autocastPolicy": _INSTEAD_OF_AUTOCAST,
}
_GONE = {
    "IPUContext": "Wrap a torch.nn.Module with poptorch.inferenceModel or poptorch.trainingModel.",
    "autocast_enabled": f"Write {_INSTEAD_OF_AUTOCAST}.",
    "cast": f"Write {_INSTEAD_OF_AUTOCAST}.",
    "ipu": "Tensors get to the IPU as arguments of a wrapped model; no name stands for the device.",
}

# Undocumented, and there in PopTorch because its files import each other's names: the module that
# has the name; "" where the name is a module itself.
_LEAKED = {
    **dict.fromkeys(
        ("abc", "atexit", "copy", "copyreg", "enum", "functools", "importlib", "json", "os"), ""
    ),
    **dict.fromkeys(("pickle", "torch"), ""),
    **dict.fromkeys(("Any", "Callable", "Dict", "Iterable", "Iterator", "List"), "typing"),
    **dict.fromkeys(("Optional", "Sequence", "Set", "Tuple", "Type", "Union"), "typing"),
    **dict.fromkeys(
        ("flattenTensorStructure", "reconstructTensorStructure"), "poptorch_emu.args_parser"
    ),
    "ATTR_PREFIX": "poptorch_emu.attributes",
    "OrderedDict": "collections",
    "poptorchAtExit": "poptorch_emu.native_core",
}


def find(name: str) -> Any:
    """Returns what `poptorch.<name>` is, for a name that the package has not imported.

    Raises:
        AttributeError: there is no such name; the text of an old one says what to use.
    """
    if name in _OLD_NAMES:
        return _old(name)
    module = submodule(name)
    if module is not None:
        return module
    if name in _LEAKED:
        origin = _LEAKED[name]
        found = importlib.import_module(origin or name)
        return getattr(found, name) if origin else found
    message = f"module 'poptorch' has no attribute {name!r}"
    if name in _GONE:
        message += f". It is a name of an older PopTorch. {_GONE[name]}"
    raise AttributeError(message)


@cache
def note_old_name(name: str) -> None:
    """Warns once in a process that a name belongs to an older release."""
    instead = _INSTEAD_OF_OPTION.get(name) or _OLD_NAMES[name][1]
    logger.warning(
        "[Deprecated] poptorch.%s is a name of PopTorch 2. Use %s instead.", name, instead
    )


def _old(name: str) -> Any:
    note_old_name(name)
    module, _, attribute = _OLD_NAMES[name][0].partition(".")
    found = importlib.import_module(f"poptorch_emu.{module}")
    return getattr(found, attribute) if attribute else found
