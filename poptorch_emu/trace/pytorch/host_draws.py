"""Random numbers that `forward` draws on the host, in the trace only and not in later calls.

A single uniform draw becomes an object that answers comparisons if no draw can change the result
(for example, a layer drop with probability 0), and raises otherwise. Other draws are constants,
with a warning.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from poptorch_emu.errors import compiler_error
from poptorch_emu.log import logger
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.trace.pytorch.patches import patched
from poptorch_emu.troubleshooting import Topic


class Draw:
    """An unknown uniform random number in [low, high)."""

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high

    def __lt__(self, bound: float) -> bool:
        return self._is_less(bound, can_be_equal=False)

    def __le__(self, bound: float) -> bool:
        return self._is_less(bound, can_be_equal=True)

    def __gt__(self, bound: float) -> bool:
        return not self <= bound

    def __ge__(self, bound: float) -> bool:
        return not self < bound

    def _is_less(self, bound: float, *, can_be_equal: bool) -> bool:
        if not isinstance(bound, (int, float)):
            _refuse()
        if bound >= self._high:
            return True
        if bound < self._low or (bound == self._low and not can_be_equal):
            return False
        _refuse()


def _refuse(*_: Any) -> NoReturn:
    raise compiler_error(
        "forward compares or computes with a random number that is drawn on the host, at "
        f"{user_source()}. A compiled model would use the first draw in every call. Draw with "
        "torch.rand on the device and choose with torch.where or poptorch.cond, pass the number "
        f"as an input, or set the probability to 0; {Topic.PYTHON_CONTROL_FLOW}"
    )


_OTHER_USES = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv",
    "mod", "rmod", "pow", "rpow", "neg", "abs", "round", "trunc", "floor", "ceil", "float", "int",
    "index", "complex", "bool", "format", "eq", "ne", "array",
)  # fmt: skip
for _name in _OTHER_USES:
    setattr(Draw, f"__{_name}__", _refuse)


@contextmanager
def undecided() -> Iterator[None]:
    """Replaces single draws of Python and NumPy by unknown numbers in the thread of the trace."""
    before = _states()
    with (
        patched(random, random=_unknown(random.random), uniform=_unknown(random.uniform)),
        patched(
            np.random,
            rand=_unknown(np.random.rand),
            random=_unknown(np.random.random),
            random_sample=_unknown(np.random.random_sample),
            uniform=_unknown(np.random.uniform),
        ),
    ):
        yield
    if _states() != before:
        logger.warning(
            "forward draws random numbers with Python's random or numpy.random while it is traced: "
            "every call of the compiled model uses these numbers again. Draw with torch on the "
            "device, or pass the numbers as inputs; %s",
            Topic.PYTHON_CONTROL_FLOW,
        )


class HostDraws:
    """The draws of Python and NumPy from now on, which another capture repeats."""

    def __init__(self) -> None:
        """Stores the states of the shared generators."""
        self._states = random.getstate(), np.random.get_state(legacy=True)

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Repeats the draws; afterwards the generators continue from their present states."""
        present = HostDraws()
        self.restore()
        try:
            yield
        finally:
            present.restore()

    def restore(self) -> None:
        """Puts the generators into the stored states."""
        random.setstate(self._states[0])
        np.random.set_state(self._states[1])

    def differ_from(self, other: HostDraws) -> bool:
        """Returns whether the generators have drawn between two moments."""
        return _comparable(self._states) != _comparable(other._states)


def _states() -> tuple[Any, ...]:
    """Returns the states of the shared generators of Python and NumPy."""
    return _comparable((random.getstate(), np.random.get_state(legacy=True)))


def _comparable(states: tuple[Any, Any]) -> tuple[Any, ...]:
    kind, keys, *rest = states[1]
    return states[0], kind, np.asarray(keys).tobytes(), *rest


def _unknown(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that draws an unknown number; arrays are drawn with `original`."""
    thread = threading.get_ident()
    has_bounds = original.__name__ == "uniform"

    def draw(*args: Any, **named: Any) -> Any:
        bounds = args if has_bounds else (*args, 0.0, 1.0)
        is_single = len(bounds) == 2 and all(isinstance(each, (int, float)) for each in bounds)
        if named or not is_single or threading.get_ident() != thread or bounds[0] >= bounds[1]:
            return original(*args, **named)
        return Draw(*bounds)

    return draw
