"""Loops in functions that run on the IPU, written as calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import keras
import numpy as np
import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.capture.capture_state import Capture, current
from poptorch_emu.keras.capture.device_values import is_of_device
from poptorch_emu.keras.capture.host_values import is_host_tensor
from poptorch_emu.keras.capture.symbolic_values import left
from poptorch_emu.keras.ipu.ipu_infeed_queue import IPUInfeedQueue
from poptorch_emu.torch_versions import TorchDispatchMode

__all__ = ["repeat", "while_loop"]


def repeat(
    n: int,
    body: Callable[..., Any],
    inputs: Any = None,
    infeed_queue: IPUInfeedQueue | None = None,
    use_while_v1: bool = True,
) -> Any:
    """Runs a body n times in a function that runs on the IPU (exact).

    Args:
        n: number of iterations.
        body: function of the inputs and an element of the queue; returns the inputs of the next
            iteration, and further values after them.
        inputs: a tensor, a number, or several of them.
        infeed_queue: queue with an element for each iteration.
        use_while_v1: accepted.

    Returns:
        The values of the last iteration: a list, a single value, or `None` without inputs.

    Raises:
        TypeError: the body does not accept the arguments, its results have other types, or the
            number of iterations is not a known integer.
        RuntimeError: the call is not in a function that runs on the IPU.
    """
    capture = _capture("repeat")
    return _repeated(capture, range(_known_integer(n)), body, _listed(inputs), infeed_queue)


def while_loop(
    condition: Callable[..., Any],
    body: Callable[..., Any],
    inputs: Any = None,
    infeed_queue: IPUInfeedQueue | None = None,
    maximum_iterations: int | None = None,
    use_while_v1: bool = True,
) -> Any:
    """Runs a body as long as a condition holds, which must depend on a counter (exact).

    Args:
        condition: function of the inputs; it depends on one of them only, a number on the host, to
            which the body adds the same number each time.
        body: see `repeat`.
        inputs: see `repeat`.
        infeed_queue: see `repeat`.
        maximum_iterations: largest number of iterations.
        use_while_v1: accepted.

    Raises:
        Error: the condition depends on a value that only the device has.
        TypeError: see `repeat`.
        RuntimeError: see `repeat`.
    """
    capture = _capture("while_loop")
    values = _listed(inputs)
    count = capture.known_count()
    if count is None:
        # Two trial passes show how the body changes the counter; their results are discarded.
        with capture.trial():
            first = _called(body, values, infeed_queue, capture)[: len(values)]
        with capture.trial():
            second = _called(body, first, infeed_queue, capture)[: len(values)]
            count = _count(condition, values, first, second, maximum_iterations)
    return _repeated(capture, range(count), body, values, infeed_queue)


def _repeated(
    capture: Capture,
    counter: range,
    body: Callable[..., Any],
    values: list[Any],
    infeed_queue: IPUInfeedQueue | None,
) -> Any:
    _check_arguments(body, values, infeed_queue)
    for _ in capture.run_loop(counter):
        capture.note_device_loop()
        results = _called(body, values, infeed_queue, capture)
        _check_results(values, results)
        values = results[: len(values)]
    if not values:
        return None
    return values[0] if len(values) == 1 else values


def _known_integer(n: Any) -> int:
    found = left(n)
    if is_host_tensor(found) and not isinstance(found, torch.Tensor):
        found = np.asarray(found)[()]
    if not isinstance(found, Integral) or isinstance(found, bool):
        raise TypeError(
            f"ipu.loops.repeat takes an integer that is known when the program is compiled, not "
            f"{n!r}. Pass a number of Python, in args=[...] of IPUStrategy.run for example."
        )
    return int(found)


def _capture(name: str) -> Capture:
    capture = current()
    if capture is None:
        raise RuntimeError(
            f"ipu.loops.{name} is called outside of the IPU. Call it in the function that "
            "IPUStrategy.run runs."
        )
    return capture


def _listed(inputs: Any) -> list[Any]:
    if inputs is None:
        return []
    return list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]


def _called(
    body: Callable[..., Any],
    values: Sequence[Any],
    infeed_queue: IPUInfeedQueue | None,
    capture: Capture,
) -> list[Any]:
    """Returns the results of a body as a list."""
    args, kwargs = _element(None if infeed_queue is None else infeed_queue.dequeue(capture))
    return _listed(body(*values, *args, **kwargs))


def _element(element: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns an element as (args, kwargs): a dict by name, a tuple as separate arguments."""
    if element is None:
        return (), {}
    if isinstance(element, dict):
        return (), element
    return (tuple(element) if isinstance(element, (list, tuple)) else (element,)), {}


def _check_arguments(
    body: Callable[..., Any], values: Sequence[Any], infeed_queue: IPUInfeedQueue | None
) -> None:
    args, kwargs = _element(None if infeed_queue is None else infeed_queue.spec)
    signature = inspect.signature(body)
    try:
        signature.bind(*values, *args, **kwargs)
    except TypeError as error:
        raise TypeError(
            f"Supplied loop body function cannot be called with the given inputs: it takes "
            f"{signature}, but gets {len(values)} inputs"
            + (f" and {len(args)} tensors of the queue" if args else "")
            + (f" and {sorted(kwargs)} of the queue" if kwargs else "")
            + f": {error}."
        ) from None


def _check_results(values: Sequence[Any], results: Sequence[Any]) -> None:
    if len(results) < len(values):
        raise TypeError(
            f"The loop body returns {len(results)} values, but takes {len(values)} inputs. Return "
            "one for each."
        )
    for number, (one, other) in enumerate(zip(values, results, strict=False)):
        kinds = [_kind(one), _kind(other)]
        if kinds[0] is not None and kinds[0] != kinds[1]:
            raise TypeError(
                f"Mismatch of input {number} of a loop: the body takes {kinds[0]}, but returns "
                f"{kinds[1]}. Cast it."
            )


def _kind(value: Any) -> str | None:
    """Returns the type of a tensor; `None` for a number, which takes the first result's type."""
    if isinstance(value, (bool, int, float)) or not hasattr(value, "dtype"):
        return None
    return str(keras.backend.standardize_dtype(value.dtype))


def _count(
    condition: Callable[..., Any],
    values: Sequence[Any],
    first: Sequence[Any],
    second: Sequence[Any],
    most: int | None,
) -> int:
    """Returns the number of iterations, from the values before, after one and after two passes."""
    steps = [_step(*each) for each in zip(values, first, second, strict=True)]
    count = 0
    with _HostAlone():  # type: ignore[no-untyped-call]
        while most is None or count < most:
            now = [
                value if step is None else _number(value) + count * step
                for value, step in zip(values, steps, strict=True)
            ]
            if not bool(left(condition(*now))):
                break
            count += 1
            if count > _MOST_ITERATIONS:
                raise compiler_error(
                    "The condition of ipu.loops.while_loop never becomes false, as far as the "
                    "host can tell: it must depend on a counter that the body raises or lowers by "
                    "the same number each time. Use ipu.loops.repeat, or set maximum_iterations."
                )
    return count


_MOST_ITERATIONS = 10**6


def _step(*values: Any) -> Any:
    """Returns the growth of a number in each iteration; `None` if it is not a counter."""
    numbers = [_number(value) for value in values]
    if any(number is None for number in numbers):
        return None
    step = numbers[1] - numbers[0]
    return step if step and numbers[2] - numbers[1] == step else None


def _number(value: Any) -> Any:
    """Returns the value of a scalar on the host; `None` for all other values."""
    value = left(value)
    if isinstance(value, (bool, int, float)):
        return value
    if is_of_device(value) or not is_host_tensor(value) or tuple(value.shape) != ():
        return None
    return np.asarray(value).item()


class _HostAlone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises an error for reading a device value, which may differ in the next run."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs an operation unless it reads a value of the device."""
        if func is torch.ops.aten._local_scalar_dense.default:
            raise compiler_error(
                "The condition of ipu.loops.while_loop depends on a value of the IPU: an argument "
                "of the function, an element, a variable, or a value computed from them. But the "
                "number of iterations must be known before the loop runs. Count with a number of "
                "Python, or use ipu.loops.repeat and keep values by keras.ops.where once they are "
                "done."
            )
        return func(*args, **(kwargs or {}))
