"""Rejects the first calls of TensorFlow 1 programs that ask for IPUs.

TensorFlow's own modules keep these functions.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, NoReturn

from poptorch_emu.errors import compiler_error

_SESSIONS = ("InteractiveSession", "Session")
_SWITCHES = ("disable_eager_execution", "disable_v2_behavior")


@functools.cache
def refuse(tf: Any) -> None:
    """Makes sessions and switches to TensorFlow 1 raise an error."""
    # The attribute and the imported module differ, and importing replaces the attribute.
    for old in (tf.compat.v1, importlib.import_module("tensorflow.compat.v1")):
        for name in _SESSIONS:
            # A class whose __new__ raises an error creates no session that would need closing.
            setattr(old, name, type(name, (getattr(old, name),), {"__new__": _refusing(name)}))
        for name in _SWITCHES:
            setattr(old, name, _refusing(name))


def _refusing(name: str) -> Any:
    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise compiler_error(
            f"tf.compat.v1.{name} is of TensorFlow 1, whose graphs do not run on IPUs here "
            "(refused). Write the program in the style of TensorFlow 2: IPUStrategy.run or fit."
        )

    return refused
