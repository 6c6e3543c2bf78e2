"""Makes a captured function change Python's objects as often as TensorFlow's tracing does: once.

A capture runs the same code several times. Only the first run counts. The others are *repetitions*:
they start with the objects and random generators of the first run, which are put back afterwards.
Their printed text, log entries and new files are dropped.
"""

from __future__ import annotations

import builtins
import functools
import io
import logging
import os
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import CellType, FunctionType, MethodType
from typing import Any

import keras

from poptorch_emu.errors import compiler_error
from poptorch_emu.trace.model_state.number_search import (
    Values,
    is_own_module,
    is_plain,
    values_used_by,
)
from poptorch_emu.trace.pytorch.host_draws import HostDraws
from poptorch_emu.trace.pytorch.patches import patched


@dataclass(frozen=True)
class StoredInLoop:
    """Attributes and elements that the code of a loop assigns to.

    Attributes:
        attributes: names of the attributes.
        has_elements: whether it assigns to elements of containers or arrays.
    """

    attributes: Collection[str] = ()
    has_elements: bool = False


class Moment:
    """Objects of Python, and random generators, as they are at a moment."""

    def __init__(self, values: Values) -> None:
        """Takes the present values, and notes the states of the shared generators."""
        self._values = values
        self._draws = HostDraws()

    def restore(self, apart: Collection[str] = ()) -> None:
        """Puts the objects and generators into this state, but no variables of these names."""
        self._values.restore(apart)
        self._draws.restore()

    def has_objects_since(self, before: Moment) -> bool:
        """Returns whether there are new variables, layers or optimizers since a moment."""
        return not self._values.objects.keys() <= before._values.objects.keys()

    def keeps_tensors_since(self, before: Moment) -> bool:
        """Returns whether objects hold other tensors than at an earlier moment."""
        changes = self._values.changes_since(before._values)
        return any(not is_plain(each.location.value) for each in changes)

    def changes_since(self, before: Moment) -> list[str]:
        """Returns the names of changed values; tensors count only if they are in a container."""
        changes = self._values.changes_since(before._values)
        named = [
            each.location.path
            for each in changes
            if is_plain(each.location.value) or isinstance(each.location.holder, (list, dict, set))
        ]
        return named + [path for path, _ in self._values.inner_changes_since(before._values)]

    def draws_since(self, before: Moment) -> bool:
        """Returns whether a shared generator has drawn since an earlier moment."""
        return self._draws.differ_from(before._draws)

    def stored_since(self, before: Moment, stored: StoredInLoop) -> list[str]:
        """Returns the names of attributes and elements that the code of a loop itself assigns."""
        changes = self._values.changes_since(before._values)
        named = [
            each.location.path
            for each in changes
            if (
                stored.has_elements
                if isinstance(each.location.holder, (list, dict))
                else each.location.key in stored.attributes
            )
        ]
        arrays = [path for path, _ in self._values.inner_changes_since(before._values)]
        return named + arrays * stored.has_elements

    def check_iterators(self, before: Moment) -> None:
        """Checks that no iterator was advanced, because it cannot be put back.

        Raises:
            Error: one was.
        """
        advanced = self._values.advanced_since(before._values)
        if advanced:
            raise compiler_error(
                f"The function advances the iterator {', '.join(advanced)}, but it runs several "
                "times while it is captured. Pass the next value to the function as an argument."
            )


class PythonState:
    """The objects, output and files that the code of a function can change in Python.

    Attributes:
        start: the moment at which the first run begins.
        num_said: number of texts that were printed or logged, without repetitions.
    """

    start: Moment

    def __init__(self, function: Callable[..., Any], arguments: Any) -> None:
        """Takes a function and its arguments."""
        name = getattr(function, "__name__", "function")
        self._named = {name: function, "arguments": list(keras.tree.flatten(arguments))}
        self._said: list[Callable[[], object]] = []
        self._written: list[str] = []
        self._open: list[_Repetition] = []
        self.num_said = 0
        self.start = self.now()

    def now(self) -> Moment:
        """Returns the present moment."""
        return Moment(values_used_by(self._named, _parts_of))

    def repetition(self, start: Moment | None, apart: Collection[str] = ()) -> _Repetition:
        """Returns a context for code that runs again.

        Args:
            start: moment at which it began for the first time; `None` if it changes nothing.
            apart: names of variables that the caller sets itself.
        """
        return _Repetition(self, self._open, start, apart)

    def give_up(self) -> None:
        """Undoes an attempt to capture the function, which another one follows.

        Raises:
            Error: the attempt has written a file.
        """
        if self._written:
            raise compiler_error(
                f"The function writes to the file {self._written[0]!r}, but it runs several times "
                "while it is captured. Write it outside of the function."
            )
        self._said.clear()
        now = self.now()
        if not now.has_objects_since(self.start):
            self.start.restore()

    def say_all(self) -> None:
        """Prints and logs what the function has said."""
        said, self._said = self._said, []
        for each in said:
            each()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keeps what this thread prints and logs for `say_all`, and drops that of repetitions."""
        with ExitStack() as stack:
            stack.enter_context(patched(builtins, print=self._print(builtins.print)))
            stack.enter_context(patched(logging.Logger, handle=self._log(logging.Logger.handle)))
            for owner in (builtins, io):
                stack.enter_context(patched(owner, open=self._opening(owner.open)))
            stack.callback(self._close)
            yield

    def _close(self) -> None:
        """Ends repetitions that an error has left, with the loops whose iterations they were."""
        for each in self._open[::-1]:
            each.close()

    def _print(self, original: Callable[..., None]) -> Callable[..., None]:
        def show(*values: Any, file: Any = None, **kwargs: Any) -> None:
            if self._open:
                return
            self.num_said += 1
            if file not in (None, sys.stdout, sys.stderr):
                original(*values, file=file, **kwargs)
                return
            text = io.StringIO()
            original(*values, file=text, **kwargs)
            self._said.append(
                functools.partial(original, text.getvalue(), end="", file=file, flush=True)
            )

        return show

    def _log(self, original: Callable[..., None]) -> Callable[..., None]:
        def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
            if logger.name.startswith("poptorch"):
                original(logger, record)
            elif not self._open:
                self.num_said += 1
                self._said.append(functools.partial(original, logger, record))

        return handle

    def _opening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if isinstance(mode, str) and set(mode) & set("wax+"):
                if self._open:
                    return original(os.devnull, mode.replace("x", "w"), *args, **kwargs)
                self._written.append(str(file))
            return original(file, mode, *args, **kwargs)

        return opened


class _Repetition:
    """A context for code that runs again; it may also be left by closing it."""

    def __init__(
        self,
        state: PythonState,
        opened: list[_Repetition],
        start: Moment | None,
        apart: Collection[str],
    ) -> None:
        self._state, self._opened, self._start, self._apart = state, opened, start, apart
        self._end: Moment | None = None

    def __enter__(self) -> None:
        if self._start is not None:
            now = self._state.now()
            now.check_iterators(self._start)
            if not now.has_objects_since(self._start):  # New objects exist in repetitions, too.
                self._start.restore(self._apart)
            self._end = now
        self._opened.append(self)

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        """Puts the objects back, once."""
        if self not in self._opened:
            return
        self._opened.remove(self)
        if self._end is not None:
            self._end.restore(self._apart)


class RepeatedCode:
    """The code of a loop, whose first iteration counts."""

    def __init__(
        self,
        state: PythonState,
        apart: Collection[str] = (),
        stored: StoredInLoop = StoredInLoop(),
    ) -> None:
        """Notes the moment before the first iteration.

        Args:
            state: objects that the code can change.
            apart: names of variables that the caller sets itself.
            stored: what the code assigns to.
        """
        self._state, self._apart, self._stored = state, apart, stored
        self._start = state.now()
        self._num_said = state.num_said

    def again(self) -> _Repetition:
        """Returns a context for another iteration."""
        start = self._start if self._is_changing else None
        return self._state.repetition(start, self._apart)

    @cached_property
    def after_first(self) -> Moment:
        """The moment after the first iteration, at which this property must first be read."""
        return self._state.now()

    @cached_property
    def changes(self) -> list[str]:
        """Names of the values that the first iteration has changed."""
        return self.after_first.changes_since(self._start)

    @cached_property
    def handed_on(self) -> list[str]:
        """Names of attributes and elements that TensorFlow hands on to the next iteration."""
        return self.after_first.stored_since(self._start, self._stored)

    @cached_property
    def counts_each_time(self) -> bool:
        """Whether all iterations count, because they hand on values or keep tensors."""
        return bool(self.handed_on) or self.after_first.keeps_tensors_since(self._start)

    @cached_property
    def can_be_heard(self) -> bool:
        """Whether the first iteration has printed, logged or drawn random numbers."""
        has_drawn = self.after_first.draws_since(self._start)
        return has_drawn or self._state.num_said > self._num_said

    @cached_property
    def _is_changing(self) -> bool:
        return bool(self.changes) or self.counts_each_time or self.can_be_heard


def _parts_of(value: Any) -> Iterable[tuple[str, Any, Mapping[Any, Any]]]:
    """Yields the parts of methods, of TensorFlow's functions and of layers, for the search."""
    if isinstance(value, MethodType):
        yield "", value, {"self": value.__self__}
    elif isinstance(value, weakref.ref):  # TensorFlow's methods refer to their object so.
        yield "", value, {"self": value()}
    elif isinstance(value, FunctionType):
        defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        yield "", value, {"defaults": [each for each in defaults if not is_plain(each)]}
        if not is_own_module(value.__module__):
            yield "", value, {"inner": [_content_of(cell) for cell in value.__closure__ or ()]}
    elif isinstance(value, (staticmethod, classmethod)):
        yield "", value, {"function": value.__func__}
    elif isinstance(value, property):
        yield "", value, {"getter": value.fget}
    elif isinstance(value, functools.partial):
        yield "", value, {"func": value.func, "args": list(value.args), **value.keywords}
    elif hasattr(type(value), "python_function"):
        yield "", value, {"python_function": value.python_function}
    elif isinstance(value, keras.layers.Layer):
        inner = value._flatten_layers(include_self=False)
        yield "", value, {each.name: each for each in _own(inner)}
        for each in _own([value]):
            yield "", each, {k: v for k, v in vars(each).items() if k not in _keys_of_keras()}


def _content_of(cell: CellType) -> Any:
    """Returns a function, method or reference in a cell; `None` for anything else."""
    try:
        value = cell.cell_contents
    except ValueError:  # The variable has no value yet.
        return None
    return value if isinstance(value, (FunctionType, MethodType, weakref.ref)) else None


def _own(layers: Sequence[Any]) -> list[Any]:
    return [each for each in layers if is_own_module(type(each).__module__)]


@functools.cache
def _keys_of_keras() -> frozenset[str]:
    """Returns the attributes of every layer and model; a name keeps Keras from counting them."""
    instances = keras.layers.Layer(name="any"), keras.Sequential(name="any")
    return frozenset(key for each in instances for key in vars(each))
