"""Public functions and methods of Keras, as programs of TensorFlow see them.

A program gets tensors of TensorFlow from each of them. Libraries, Keras itself among them, get
tensors of PyTorch from the same functions.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, FunctionType, ModuleType
from typing import Any

import keras

# TensorFlow calls Keras only where the program asks it to, for example in tf.map_fn(layer, x).
_LIBRARIES = {"keras", "poptorch_emu", "torch"}
# Modules that only pass calls on. Their callers decide whether a program or a library calls.
_PASSING_ON = (
    f"{__name__}.", "keras.src.legacy.backend.", "keras.src.tree.", "optree.",
    "keras.src.utils.traceback_utils.",
    "poptorch_emu.keras.capture.observed_variables.", "poptorch_emu.keras.replacement.",
    "torch.utils._cxx_pytree.", "torch.utils._pytree.",
)  # fmt: skip
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
_OTHERS = ("call", "eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert", "round")
_SPECIAL = {f"__{name}__" for name in (*_BINARY, *(f"r{name}" for name in _BINARY), *_OTHERS)}

Answer = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def is_called_by_program(frame: FrameType | None) -> bool:
    """Returns whether the code of a frame is of a program; code that passes calls on is skipped."""
    while frame is not None:
        answer = _is_program(frame.f_globals.get("__name__", ""))
        if answer is not None:
            return answer
        frame = frame.f_back
    return False


@functools.cache
def _is_program(module: str) -> bool | None:
    """Returns whether a module is of a program; `None` if it only passes calls on."""
    return None if f"{module}.".startswith(_PASSING_ON) else not is_library(module)


def is_library(module: str) -> bool:
    """Returns whether a module is one of Keras, PyTorch or this package."""
    return module.partition(".")[0] in _LIBRARIES


def answer_programs(answer: Answer, more: Iterable[ModuleType]) -> None:
    """Replaces the public functions of Keras and of other modules, and methods of Keras's classes.

    Keras stores and compares functions such as activations, so it gets the same replacements.

    Args:
        answer: is called, in place of a function that a program calls, with the function and its
            arguments.
        more: the other modules.
    """
    functions: dict[int, tuple[Any, Any]] = {}  # Replaced functions and replacements, by ids.
    classes: set[type] = set()
    for module in (*_public_modules(keras, set()), *more):
        for name, value in vars(module).items():
            place = getattr(value, "__module__", None) or ""
            is_imported = not place.startswith(("keras.", module.__name__))
            # Functions of trees call what the program gives them with the program's own values.
            if is_imported or name.startswith("_") or place.startswith("keras.src.tree."):
                continue
            if isinstance(value, FunctionType) and id(value) not in functions:
                functions[id(value)] = value, _for_programs(value, answer)
            elif isinstance(value, type):
                classes.update(x for x in value.__mro__ if x.__module__.startswith("keras."))
    for kind in classes.union(*map(_with_subclasses, classes)) - {keras.KerasTensor}:
        _replace_methods(kind, answer)
    for name, module in list(sys.modules.items()):
        if not name.startswith(("tensorflow.", "torch.")):  # The program's modules are among them.
            _replace_values(vars(module), functions)


def _for_programs(original: Callable[..., Any], answer: Answer) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_called_by_program(sys._getframe(1)):
            return answer(original, args, kwargs)
        return original(*args, **kwargs)

    return call


def _with_subclasses(kind: type) -> set[type]:
    """Returns a class with its subclasses that are Keras's own."""
    own: list[type] = type.__subclasses__(kind)
    of_keras = [x for x in own if x.__module__.startswith("keras.")]
    return {kind}.union(*map(_with_subclasses, of_keras))


def _replace_methods(kind: type, answer: Answer) -> None:
    for name, value in list(vars(kind).items()):
        if name.startswith("_") and name not in _SPECIAL:
            continue
        if isinstance(value, FunctionType):
            setattr(kind, name, _for_programs(value, answer))
        elif isinstance(value, property) and value.fget is not None:
            setattr(kind, name, value.getter(_for_programs(value.fget, answer)))


def _replace_values(names: dict[Any, Any], functions: dict[int, tuple[Any, Any]]) -> None:
    """Replaces functions among the names of a module, and in its constants.

    Keras has such constants: `ALL_OBJECTS` is a set of activations, `ALL_OBJECTS_DICT` a dictionary
    of names, and `REGISTERED_OBJS_TO_NAMES` a dictionary with functions as keys.
    """
    for name, value in list(names.items()):
        if id(value) in functions:
            names[name] = functions[id(value)][1]
        elif isinstance(value, dict) and value is not names and isinstance(name, str):
            if name.isupper():
                _replace_values(value, functions)
        elif isinstance(value, set) and isinstance(name, str) and name.isupper():
            found = {functions[id(x)] for x in value if id(x) in functions}
            value.difference_update(original for original, _ in found)
            value.update(replacement for _, replacement in found)
        if id(name) in functions:
            names[functions[id(name)][1]] = names.pop(name)


def _public_modules(module: ModuleType, seen: set[str]) -> Iterator[ModuleType]:
    """Yields a public module of Keras and those below it."""
    if module.__name__ in seen:
        return
    seen.add(module.__name__)
    yield module
    for name, value in list(vars(module).items()):
        is_public = isinstance(value, ModuleType) and not name.startswith("_")
        if is_public and value.__name__.startswith("keras.") and ".src" not in value.__name__:
            yield from _public_modules(value, seen)
