"""What programs of TensorFlow 1 begin with, refused where such a program asks for IPUs.

TensorFlow's own modules keep it.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any, NoReturn

from poptorch_emu.errors import compiler_error

_SESSIONS = ("InteractiveSession", "Session")
_SWITCHES = ("disable_eager_execution", "disable_v2_behavior")


def refuse() -> None:
    """Makes sessions and switches to TensorFlow 1 say the way out, if TensorFlow is loaded."""
    tf = sys.modules.get("tensorflow")
    if tf is not None:
        _refuse(tf)


@functools.cache
def _refuse(tf: Any) -> None:
    # Who imports tensorflow.compat.v1 gets another module, which also takes the place of the first.
    for old in (tf.compat.v1, importlib.import_module("tensorflow.compat.v1")):
        for name in _SESSIONS:
            # A session that was never made has nothing to close.
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
