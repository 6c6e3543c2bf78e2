"""Empty stand-ins for libraries of operators that need an IPU's SDK or were never built.

Programs load such a library only to register its operators; they call no function in it. The
operators that programs use are built in here (`ops/named`). So a load that fails only because the
SDK or the file is missing gives an empty library and one warning. An operator that is not built in
raises an error when a model uses it. Every other failing load still fails.
"""

from __future__ import annotations

import ctypes
import os
import re
from enum import Enum
from typing import Any

from poptorch_emu.environment import choice_of
from poptorch_emu.log import logger
from poptorch_emu.ops.named.named_table import named_operators
from poptorch_emu.troubleshooting import Topic

_VARIABLE = "POPTORCH_EMU_FOREIGN_LIBRARIES"
# The loader's error for a library that needs Poplar: a missing library or a missing symbol of it.
_NEEDS_POPLAR = re.compile(
    r"^lib(pop|gcl|poplar)\w*\.so[.\d]*: cannot open|undefined symbol: \S*(popart|poplar|popops)"
)
_LIKE_OPERATORS = re.compile(
    r"custom_?op|remap|^lib.*_op(s|erators?)?(?![a-z])|^libpoptorch_|flash_?attention"
)
_SHORTEST_NAME = 6


class _Choice(Enum):
    WARN = "warn"
    ERROR = "error"


_load = ctypes.CDLL.__init__
_warned: set[str] = set()
_expected: set[str] = set()


def install() -> None:
    """Lets `ctypes`, which `torch.ops.load_library` calls, load libraries that need an IPU's
    SDK."""
    if ctypes.CDLL.__init__ is _load:
        ctypes.CDLL.__init__ = _load_or_stand_in  # type: ignore[assignment, method-assign]


def expect(path: str, cause: str) -> None:
    """Records that a library will be loaded that was not built, and warns about it."""
    _expected.add(os.path.realpath(path))
    _warn(path, cause)


def _load_or_stand_in(library: ctypes.CDLL, name: Any, *args: Any, **kwargs: Any) -> None:
    try:
        _load(library, name, *args, **kwargs)
    except OSError as cause:
        path = _path_of(name)
        if path is None or not _is_foreign(path, str(cause)):
            raise
        if choice_of(_VARIABLE, _Choice, _Choice.WARN) is _Choice.ERROR:
            raise
        library.__class__ = _StandIn
        vars(library).update(_name=path, _handle=0)
        _warn(path, cause)


def _warn(path: str, cause: OSError | str) -> None:
    if os.path.realpath(path) in _warned:
        return
    _warned.add(os.path.realpath(path))
    logger.warning(
        "%s was not loaded (%s). poptorch_emu has its own implementations of some custom "
        "operators, found by their names; any other operator of the library is an error when a "
        "model uses it; %s",
        path,
        cause,
        Topic.FOREIGN_LIBRARY,
    )


def _path_of(name: Any) -> str | None:
    try:
        return os.fsdecode(name)
    except TypeError:  # `None` stands for the program itself.
        return None


def _is_foreign(path: str, message: str) -> bool:
    file = os.path.basename(path)
    if not re.search(r"\.so[.\d]*$", file):
        return False
    if os.path.exists(path):
        return _NEEDS_POPLAR.search(_without(path, message)) is not None
    return os.path.realpath(path) in _expected or is_like_operators(file)


def _without(path: str, message: str) -> str:
    """Returns the loader's error about a library, without the library's own path."""
    return message.removeprefix(path).removeprefix(os.path.realpath(path)).removeprefix(": ")


def is_like_operators(file: str) -> bool:
    """Returns whether a file's name looks like that of a library of operators."""
    if _LIKE_OPERATORS.search(file.lower()):
        return True
    letters = _letters(file)
    return any(
        len(name) >= _SHORTEST_NAME and _letters(name) in letters for _, name in named_operators()
    )


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


class _StandIn(ctypes.CDLL):
    """A stand-in for a library, which has no functions."""

    def __getattr__(self, name: str) -> Any:
        """Raises, because a stand-in has no functions.

        Raises:
            AttributeError: always.
        """
        raise AttributeError(
            f"{self._name} was not loaded, so its function {name!r} cannot be called; "
            "poptorch_emu only implements some custom operators of such libraries, found by their "
            "names."
        )
