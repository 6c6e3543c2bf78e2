"""The first run of a function, on the host, which discovers its loops, reads and updates.

The run builds models, runs two passes of the loop, and discards assignments to variables. A tensor
of the first pass that the second pass uses is handed on from iteration to iteration, if a local
variable holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import torch

from poptorch_emu.errors import compiler_error
from poptorch_emu.keras.capture.capture_state import Capture, DeviceLoop, Pass, Update
from poptorch_emu.keras.capture.device_values import all_on_device, read_variables
from poptorch_emu.keras.capture.integers import check_integers
from poptorch_emu.keras.capture.observed_variables import ObservedVariables, observed
from poptorch_emu.keras.capture.python_state import PythonState
from poptorch_emu.keras.capture.symbolic_values import entered, in_graph, left
from poptorch_emu.keras.capture.tensorflow_variables import is_variable
from poptorch_emu.keras.capture.updates_in_program import apply, has_counterpart
from poptorch_emu.keras.tensorflow.loops.captured_calls import captured_calls, recording
from poptorch_emu.keras.tensorflow.loops.loop_variables import (
    frame_of_loop,
    local_variables,
    repeated_code,
    set_local_variables,
    unrolled,
)
from poptorch_emu.keras.tensorflow.loops.pass_tracker import PassTracker
from poptorch_emu.log import logger
from poptorch_emu.torch_versions import disable_current_modes
from poptorch_emu.troubleshooting import Topic

_CARRIED = (
    "A value of one iteration is used in another iteration, or after the loop, where only values "
    "of the last iteration exist. Keep it in a local variable that is a number or a tensor before "
    "the loop, or send it to an IPUOutfeedQueue and add it up on the host."
)
_UNEVEN = (
    "Each iteration of a loop on the IPU does the same, but here next(), enqueue() or the update "
    f"of an optimizer is reached in some iterations only. Do it in each; {Topic.UNEVEN_LOOP}"
)


# A loop is unrolled if its values are kept in a list, for example; an inner loop also if the code
# around it reads, sends or updates, or if it hands on values.
_MOST_UNROLLED = 32
_MOST_NAMED = 3


@dataclass(frozen=True)
class Discovered:
    """The result of the first run of a function.

    Attributes:
        loops: loops that become device iterations, outermost first.
        body: record of one iteration.
        result: result of the function, with tensors of the host.
        variables: variables of Keras that the function uses.
        used_counters: ordinals of loops whose variable is used.
    """

    loops: tuple[DeviceLoop, ...]
    body: Pass
    result: Any
    variables: ObservedVariables
    used_counters: frozenset[int]

    @property
    def handed_on(self) -> list[torch.Tensor]:
        """Values that one iteration hands on to the next."""
        forms = [form for loop in self.loops for _, form in loop.carried.values()]
        return keras.tree.flatten(forms)  # type: ignore[no-any-return]

    @property
    def iterations(self) -> int:
        """Number of device iterations."""
        count = 1
        for loop in self.loops:
            count *= len(loop.values)
        return count


def discover(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    replicas: int,
    python: PythonState,
) -> Discovered:
    """Runs a function once on the host.

    Args:
        function: Python function.
        args: positional arguments, with tensors of PyTorch.
        kwargs: keyword arguments.
        replicas: number of replicas among which elements are divided.
        python: objects of Python that the function can change.

    Raises:
        Error: a device cannot run the function.
        ValueError: a queue is sent two values.
    """
    unrolled: set[int] = set()
    try:
        while True:
            try:
                discovery = _Discovery(replicas, unrolled, python)
                return _discovered(function, args, kwargs, discovery, python)
            except _InnerLoopError as fault:
                if len(fault.loop.values) > _MOST_UNROLLED:
                    raise compiler_error(fault.text) from None
                unrolled.add(fault.loop.ordinal)
                python.give_up()
    finally:
        python.say_all()


def _discovered(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    discovery: _Discovery,
    python: PythonState,
) -> Discovered:
    with (
        python.watching(),
        discovery.active(),
        captured_calls(function),
        observed() as variables,
        torch.random.fork_rng(devices=[]),
        keras.device("cpu"),
        recording(),
        in_graph(),
        discovery.tracker,
    ):
        result = read_variables(function(*entered(args), **entered(kwargs)))
        discovery.end(result)
        loops, body = body_of(discovery.outermost)
        for loop in loops:
            _check_python(loop)
        body.is_in_program = (
            discovery.is_in_program
            or any(_is_changed(each, variables.assigned) for each in body.updates)
            or not all(map(has_counterpart, body.updates))
        )
        if body.is_in_program:
            for update in body.updates:
                apply(update, 1)
    return Discovered(loops, body, result, variables, frozenset(discovery.used_counters()))


def _is_changed(update: Update, assigned: Mapping[int, Any]) -> bool:
    """Returns whether the program itself assigns to a variable of an update, or has made it."""
    own = (*update.variables, *update.optimizer.variables)
    return any(id(each) in assigned or is_variable(each) for each in own)


def _check_python(loop: DeviceLoop) -> None:
    """Checks that one run of the code of a loop changes Python's objects as all iterations do.

    Raises:
        Error: it does not.
        _InnerLoopError: it does not, but the loop may be unrolled.
    """
    code = loop.code
    if code is None or len(loop.values) < 2:
        return
    if not loop.is_of_python:
        if code.handed_on:
            text = (
                f"A loop on the IPU assigns to {', '.join(code.handed_on[:_MOST_NAMED])}, whose "
                "value TensorFlow hands on to the next iteration. Only local variables are handed "
                "on here: copy it to one before the loop."
            )
            if loop.body.sent:
                raise compiler_error(text)
            raise _InnerLoopError(loop, text)
        return
    if code.changes:
        raise compiler_error(
            f"The body of a loop over range() changes {', '.join(code.changes[:_MOST_NAMED])}. In "
            "Python it does so in each iteration, but on the IPU all iterations are one program, "
            "and its code runs once. Change it outside of the function; keep values of iterations "
            "in local variables, or send them to an IPUOutfeedQueue. Code of a loop over tf.range "
            "runs once in TensorFlow, too."
        )
    if code.can_be_heard:
        logger.warning(
            "The body of a loop over range() prints, logs or draws random numbers of Python or "
            "NumPy. On the IPU all iterations are one program, so it does so once, and not in each "
            "iteration. Send values to an IPUOutfeedQueue to see them."
        )


class _InnerLoopError(Exception):
    """A loop that cannot be a loop of the device, and the error if it is too long."""

    def __init__(self, loop: DeviceLoop, text: str) -> None:
        super().__init__(text)
        self.loop, self.text = loop, text


class _Discovery(Capture):
    def __init__(self, replicas: int, unrolled: Set[int], python: PythonState) -> None:
        super().__init__(replicas, python)
        self._python = python
        self._unrolled = unrolled  # Ordinals of loops whose iterations are a part of the code.
        self.tracker = PassTracker(lambda: self._innermost)
        self._num_read: dict[int, int] = {}
        self._counters: dict[int, tuple[torch.Tensor, int]] = {}
        self._was_left = False
        self._updated: set[int] = set()
        self.is_in_program = False

    def update(self, update: Update) -> None:
        self.is_in_program |= any(each.updates for each in self._open_passes())
        super().update(update)
        self._updated |= {id(each) for each in update.variables}

    def note_read(self, variable: Any) -> None:
        is_count = variable.name == "iteration" or variable.name == "iterations"
        self.is_in_program |= id(variable) in self._updated or is_count

    def element(self, infeed: Any) -> Any:
        index = self._num_read.get(id(infeed), 0)
        self._num_read[id(infeed)] = index + 1
        with disable_current_modes():  # No pass creates the elements.
            return infeed.peek(index)

    def send(self, queue: Any, value: Any) -> None:
        self._note_uses(value)
        super().send(queue, value)

    def passes(self, ordinal: int, values: Sequence[Any], is_of_python: bool) -> Iterator[Any]:
        """Yields all values to an ordinary loop, and the first two to a loop of the device."""
        if ordinal in self._unrolled:
            yield from unrolled(self._python, values, is_of_python)
            return
        code = repeated_code(self._python, frame_of_loop())
        seen: list[tuple[Pass, dict[str, Any]]] = []
        before: dict[str, Any] = {}
        for number, value in enumerate(values):
            before = before or local_variables(frame_of_loop())
            standing_in = self._standing_in(before, seen[0][1]) if seen else {}
            set_local_variables(frame_of_loop(), standing_in)
            self._num_read.clear()
            self._updated.clear()
            is_again = bool(seen) or (number > 0 and not is_of_python and not code.counts_each_time)
            with self.one_pass() as opened, code.again() if is_again else nullcontext():
                try:
                    yield self._counter(ordinal, value) if seen else value
                except GeneratorExit:
                    self._was_left |= opened.acts
                    raise
            after = local_variables(frame_of_loop())
            opened.is_merged = True
            is_of_device = opened.is_of_device or opened.acts or opened.loop is not None
            if is_of_device != (number == 0 or bool(seen)) and (is_of_device or seen):
                raise compiler_error(_UNEVEN)
            if not is_of_device:
                continue
            seen.append((opened, after))
            if len(seen) == 2 or len(values) == 1:
                break
            opened.is_merged, opened.is_gone = False, True
        if seen:
            loop = DeviceLoop(ordinal, values, seen[-1][0])
            loop.code, loop.is_of_python = code, is_of_python
            if len(seen) == 2:
                self._compare(loop, before, standing_in, *seen)
            self._innermost.enter(loop)

    def end(self, result: Any) -> None:
        """Checks the result of the function, and the values that cross passes."""
        self._note_uses(result)
        if self._was_left:
            raise compiler_error(
                "A loop on the IPU is left by break, but it always runs all iterations of its "
                "range. Loop over a smaller range."
            )
        if self.tracker.crossing:
            loop = self.outermost.loop
            if loop is None or loop.body.sent:  # A queue takes one value in an iteration.
                raise compiler_error(_CARRIED)
            raise _InnerLoopError(loop, _CARRIED)

    def used_counters(self) -> set[int]:
        """Returns the ordinals of the loops whose variable is used."""
        return {ordinal for key, (_, ordinal) in self._counters.items() if key in self.tracker.used}

    def _standing_in(self, before: Mapping[str, Any], middle: Mapping[str, Any]) -> dict[str, Any]:
        """Returns tensors for variables that the first pass has changed, to see their uses."""
        return {
            name: keras.tree.pack_sequence_as(middle[name], list(map(_copy, _leaves(middle[name]))))
            for name in before.keys() & middle.keys()
            if _may_be_handed_on(before[name], middle[name])
        }

    def _compare(
        self,
        loop: DeviceLoop,
        before: Mapping[str, Any],
        standing_in: Mapping[str, Any],
        first: tuple[Pass, Mapping[str, Any]],
        second: tuple[Pass, Mapping[str, Any]],
    ) -> None:
        """Compares two passes of a loop, and finds the values that it hands on."""
        (one, middle), (other, after) = first, second
        if _acts_of(one) != _acts_of(other):
            raise compiler_error(_UNEVEN)
        kept = {id(leaf) for value in after.values() for leaf in _leaves(value)}
        for name, copies in standing_in.items():
            ids = set(map(id, _leaves(copies)))
            if name in after and (ids & self.tracker.used.keys() or ids & kept):
                loop.carried[name] = (before[name], copies)
        for name in (middle.keys() & after.keys()) - loop.carried.keys():
            pair = middle[name], after[name]
            if all(type(each) in _OF_PYTHON for each in pair) and pair[0] != pair[1]:
                raise compiler_error(
                    f"Local variable {name!r} is {pair[0]!r} after the first iteration of a loop "
                    f"on the IPU and {pair[1]!r} after the second, but all iterations are one "
                    "program. Set it before the loop, so that it is handed on, or loop over a "
                    "range or a data set that has these values."
                )

    def _counter(self, ordinal: int, value: Any) -> torch.Tensor:
        """Returns a tensor that stands for the variable of a loop."""
        with disable_current_modes():
            counter = as_counter(loop_values([value])[0])
        self._counters[id(counter)] = (counter, ordinal)
        return counter

    def _note_uses(self, values: Any) -> None:
        for leaf in keras.tree.flatten(values):
            if isinstance(leaf, torch.Tensor):
                self.tracker.note_use(leaf)


_OF_PYTHON = (bool, int, float, str)


def _leaves(value: Any) -> list[Any]:
    is_nested = isinstance(value, (list, tuple, dict))
    return keras.tree.flatten(value) if is_nested else [value]


def _may_be_handed_on(before: Any, middle: Any) -> bool:
    """Returns whether a variable has another value of the same form after the first pass."""
    one, other = _leaves(before), _leaves(middle)
    return (
        middle is not before
        and len(one) == len(other)
        and all(map(_is_number, (*one, *other)))
        and any(x is not y for x, y in zip(one, other, strict=True))
        and all(_fits(x, y) for x, y in zip(one, other, strict=True))
    )


def _fits(before: Any, middle: Any) -> bool:
    """Returns whether a value has the shape of the next one, or is a number of Python."""
    is_of_python = isinstance(before, (int, float))
    return is_of_python or np.shape(before) == np.shape(middle)


def _copy(value: Any) -> torch.Tensor:
    """Returns a tensor of the device with the elements of a number, array or tensor."""
    with disable_current_modes():
        found: torch.Tensor = all_on_device(value)
        found = found.detach().clone()
    return as_counter(found) if isinstance(value, (int, float)) else found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, torch.Tensor)) or hasattr(value, "__array__")


def _acts_of(each: Pass) -> list[int]:
    """Returns the ids of the objects that a pass reads, sends to or updates."""
    inner = [] if each.loop is None else [len(each.loop.values), *_acts_of(each.loop.body)]
    updated = [x for update in each.updates for x in (update.optimizer, *update.variables)]
    return [id(x) for x in (*each.reads, *(queue for queue, _ in each.sent), *updated)] + inner


def body_of(outermost: Pass) -> tuple[tuple[DeviceLoop, ...], Pass]:
    """Returns the loops of the device, and the record of the code inside all of them."""
    loops, body = [], outermost
    while body.loop is not None:
        if body.acts:
            raise _InnerLoopError(
                body.loop,
                "This function calls next(), enqueue() or an optimizer outside of its loop on the "
                "IPU, too, but they can only be called in each iteration. Move these calls into "
                "the loop.",
            )
        loops.append(body.loop)
        body = body.loop.body
    if len(loops) > 1 and any(loop.carried for loop in loops):
        raise _InnerLoopError(
            loops[-1],
            "Nested loops on the IPU cannot hand on values from one iteration to the next. Write "
            "one loop.",
        )
    return tuple(loops), body


def loop_values(values: Sequence[Any]) -> torch.Tensor:
    """Returns the values of a loop's variable as a tensor of the device."""
    if hasattr(values, "__array__"):
        found = torch.as_tensor(np.array(values))
        has_type = True
    else:
        plain = [left(value) for value in values]
        found = torch.as_tensor(np.array(plain))
        has_type = any(hasattr(each, "__array__") for each in plain)
    check_integers(found)
    if has_type and not found.is_floating_point():
        return found
    return found.float() if found.is_floating_point() else found.int()


def as_counter(value: torch.Tensor) -> torch.Tensor:
    """Marks a loop's variable as a Python number, which has no type of its own."""
    value.is_number_of_python = True  # type: ignore[attr-defined]
    return value
