"""Names of `poptorch` that the package does not import: rarely used ones, and unlisted ones.

Unlisted names are those of older releases, and those that leak from PopTorch's files. Names that
programs for PopTorch 2 still use work as before, with one warning. Other old names raise
`AttributeError`, as in PopTorch 3; the message names the replacement.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from poptorch_emu.names.aliases import submodule
from poptorch_emu.near_names import no_attribute
from poptorch_emu.options.old_names import GONE, OLD_NAMES, note_old_name

# Undocumented names that exist in PopTorch because its files import each other's names -> module
# that has the name; "" if the name itself is a module.
_LEAKED = {
    **dict.fromkeys(
        ("abc", "atexit", "copy", "copyreg", "enum", "functools", "importlib", "json", "os"), ""
    ),
    **dict.fromkeys(("pickle", "torch"), ""),
    **dict.fromkeys(("Any", "Callable", "Dict", "Iterable", "Iterator", "List"), "typing"),
    **dict.fromkeys(("Optional", "Sequence", "Set", "Tuple", "Type", "Union"), "typing"),
    **dict.fromkeys(
        ("flattenTensorStructure", "reconstructTensorStructure"),
        "poptorch_emu.executor.args_parser",
    ),
    "ATTR_PREFIX": "poptorch_emu.ops.attribute_lists",
    "OrderedDict": "collections",
    "poptorchAtExit": "poptorch_emu.names.native_core",
}

# Modules that are loaded late, because most programs request no reports.
_LATE = {"emulator"}


def find(name: str, known: Sequence[str]) -> Any:
    """Returns the value of `poptorch.<name>`, for a name that the package has not imported.

    Args:
        name: requested name.
        known: the public names.

    Raises:
        AttributeError: the name is unknown, or old and removed; the message names a replacement.
    """
    if name in _LATE:
        return importlib.import_module(f"poptorch_emu.{name}")
    if name in OLD_NAMES:
        return _old(name)
    module = submodule(name)
    if module is not None:
        return module
    if name in _LEAKED:
        origin = _LEAKED[name]
        found = importlib.import_module(origin or name)
        return getattr(found, name) if origin else found
    if name in GONE:
        raise AttributeError(
            f"module 'poptorch' has no attribute {name!r}. It is a name of an older PopTorch. "
            f"{GONE[name]}"
        )
    raise no_attribute("poptorch", name, known)


def _old(name: str) -> Any:
    note_old_name(name)
    module, _, attribute = OLD_NAMES[name][0].partition(":")
    found = importlib.import_module(f"poptorch_emu.{module}")
    return getattr(found, attribute) if attribute else found
