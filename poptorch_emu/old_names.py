"""Names that `poptorch` does not list: those of older releases, and those that leak from its files.

An old name stays an `AttributeError`, as in PopTorch, which here says what has taken its place.
"""

from __future__ import annotations

import importlib
from typing import Any

from poptorch_emu.aliases import submodule

_NO_AUTOCAST = (
    "PopTorch 3 casts nothing by itself: call model.half() or cast where the model needs it, and "
    "choose partials with Options.Precision.setPartialsType."
)
_OLD_NAMES = {
    "AnchorMode": "It is poptorch.OutputMode now, for Options.outputMode.",
    "IPUContext": "Wrap a torch.nn.Module with poptorch.inferenceModel or poptorch.trainingModel.",
    "autocast": _NO_AUTOCAST,
    "autocast_enabled": _NO_AUTOCAST,
    "autocasting": _NO_AUTOCAST,
    "cast": _NO_AUTOCAST,
    "ipu": "Tensors get to the IPU as arguments of a wrapped model; no name stands for the device.",
}
_OLD_OPTIONS = {
    "Popart": "It is Options._Popart now.",
    "anchorMode": "It is Options.outputMode(poptorch.OutputMode...) now.",
    "autocastEnabled": _NO_AUTOCAST,
    "autocastPolicy": _NO_AUTOCAST,
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
    module = submodule(name)
    if module is not None:
        return module
    if name in _LEAKED:
        origin = _LEAKED[name]
        found = importlib.import_module(origin or name)
        return getattr(found, name) if origin else found
    raise AttributeError(_missing(f"module 'poptorch' has no attribute {name!r}", name, _OLD_NAMES))


def missing_option(name: str, known: list[str]) -> str:
    """Returns the message about an option that does not exist."""
    if name in _OLD_OPTIONS:
        return _missing(f"Invalid attribute {name}", name, _OLD_OPTIONS)
    return f"Invalid attribute {name}. Valid options are {known}."


def _missing(message: str, name: str, hints: dict[str, str]) -> str:
    return (
        f"{message}. It is a name of an older PopTorch. {hints[name]}" if name in hints else message
    )
