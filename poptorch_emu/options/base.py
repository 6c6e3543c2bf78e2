"""Base classes of option objects: named, typed values that can be frozen, copied and printed.

Public names are values in one dictionary; names that start with "_" are plain attributes. The
module knows no option by name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from numbers import Integral
from typing import Any, ClassVar, TypeVar

from poptorch_emu.errors import require
from poptorch_emu.log import logger
from poptorch_emu.near_names import nearest
from poptorch_emu.options.old_names import note_old_name
from poptorch_emu.printed.terminal import html_table

Self = TypeVar("Self", bound="Freezable")
# Numbers of replicas, micro-batches, processes and the like: the engine counts with 32 bits.
COUNTS = range(1, 2**31)
# Method name -> how a program writes it, such as "options.Training.gradientAccumulation".
_WRITTEN: dict[str, str] = {}


@cache
def note_accepted(option: str) -> None:
    """Logs once in each process that `option` has no effect here."""
    logger.info("%s is accepted and recorded; it has no effect on virtual IPUs.", option)


def integer(value: Any, parameter: str, allowed: range = COUNTS) -> int:
    """Returns an integer of Python for one of Python or NumPy.

    Args:
        value: argument of a setter.
        parameter: name of the argument in messages.
        allowed: values that the setter accepts.

    Raises:
        AssertionError: `value` is no integer, or a bool.
        ValueError: `value` is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise AssertionError(
            f"{parameter} must be of type int, but {value!r} is of type {type(value).__name__}."
        )
    number = int(value)
    if number < allowed.start:
        raise ValueError(f"{parameter} must be at least {allowed.start}, not {value}.")
    if number >= allowed.stop:
        raise ValueError(f"{parameter} must be at most {allowed.stop - 1}, not {value}.")
    return number


def flag(value: Any, parameter: str) -> bool:
    """Returns a bool for a bool of Python or NumPy, or for 0 or 1.

    Raises:
        AssertionError: `value` is something else.
    """
    kind = type(value).__name__
    if not (kind in ("bool", "bool_") or (isinstance(value, Integral) and int(value) in (0, 1))):
        raise AssertionError(f"{parameter} must be of type bool, but {value!r} is of type {kind}.")
    return bool(value)


def require_type(value: object, expected: type, parameter: str) -> None:
    """Raises `AssertionError` unless `value` is an instance of `expected`."""
    if not isinstance(value, expected):
        raise AssertionError(
            f"{parameter} must be of type {expected.__name__}, but {value!r} is of type "
            f"{type(value).__name__}.{_member_meant(value, expected)}"
        )


def _member_meant(value: object, expected: type) -> str:
    """Returns a hint that names the member of an enumeration that a text stands for."""
    if not issubclass(expected, Enum):
        return ""
    name = str(value).rpartition(".")[2]
    near = nearest(name, expected.__members__) or next(iter(expected.__members__))
    return f" Write poptorch.{expected.__name__}.{near}."


def merge(into: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Adds `values` to `into` and returns `into`.

    Raises:
        AssertionError: a key is in both dictionaries.
    """
    common = sorted(into.keys() & values.keys())
    require(
        not common,
        "Can't merge dictionaries, they have some keys in common: "
        f"{', '.join(common)}. Set each of them in one place only.",
    )
    into.update(values)
    return into


class Freezable:
    """An object that refuses to change from `_freeze()` to `_unfreeze()`; copies are unfrozen."""

    _is_frozen: bool

    def __setattr__(self, name: str, value: object) -> None:
        """Sets an attribute unless frozen."""
        self._check_unfrozen()
        super().__setattr__(name, value)

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        """Returns a deep copy that can be changed, even if the original is frozen."""
        duplicate = self.__class__.__new__(self.__class__)
        memo[id(self)] = duplicate
        duplicate.__dict__.update(copy.deepcopy(self.__dict__, memo))
        duplicate.__dict__["_is_frozen"] = False
        return duplicate

    def _freeze(self) -> None:
        self.__dict__["_is_frozen"] = True

    def _unfreeze(self) -> None:
        self.__dict__["_is_frozen"] = False

    def _check_unfrozen(self) -> None:
        if self.__dict__.get("_is_frozen", False):
            raise AttributeError(
                "Can't modify frozen Options: they belong to a model or a DataLoader by now. "
                "Change a clone() instead."
            )


class _WithOldNames(type):
    """Metaclass that finds names of an older release on a class, without listing them."""

    _old_names: Mapping[str, str]

    def __getattr__(cls, name: str) -> Any:
        if name in cls._old_names:
            return getattr(cls, cls._old_names[name])
        raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")


class OptionsDict(Freezable, metaclass=_WithOldNames):
    """Named values that are read and set as attributes, with a check of their type (exact).

    A subclass creates its private attributes *before* it calls this constructor; new private
    attributes are rejected afterwards.
    """

    _values: dict[str, Any]
    _chosen: set[str]  # Options that the user set, even if to their defaults.

    # Name in an older release -> attribute that replaces it.
    _old_names: ClassVar[Mapping[str, str]] = {}
    # Option that is a count -> how a program writes it, and its values.
    _counts: ClassVar[Mapping[str, tuple[str, range]]] = {}
    # Expression for this group in a program; "" if the class is not a group of options.
    _path: ClassVar[str] = ""

    def __init_subclass__(cls, path: str = "", **rest: Any) -> None:
        """Registers how a program writes each method of a group of options.

        Args:
            path: expression for the group, such as "options.Training".
            rest: arguments of other base classes.
        """
        super().__init_subclass__(**rest)
        cls._path = path or cls._path
        if path:
            _WRITTEN.update((name, f"{path}.{name}") for name in _public(cls, OptionsDict))

    def __init__(self, **default_values: Any) -> None:
        """Stores `default_values`; each option accepts only values of its default's type."""
        self.__dict__["_is_frozen"] = False
        self.__dict__["_values"] = default_values
        self.__dict__["_chosen"] = set()

    def set(self, **values: Any) -> None:
        """Sets existing options (exact).

        Raises:
            AttributeError: the options are frozen.
            AssertionError: an option is unknown, or a value has another type than the option.
            ValueError: a count is out of range.
        """
        self._check_unfrozen()
        self._values.update({name: self._checked(name, value) for name, value in values.items()})
        self._chosen.update(values)

    def _checked(self, name: str, value: Any) -> Any:
        """Returns a value of the option's type; integers of NumPy become those of Python."""
        if name not in self._values:
            raise AssertionError(
                f"Invalid option {name}, valid options are {list(self._values)}."
                f"{self._meant(name, self._values)}"
            )
        expected = type(self._values[name])
        if expected is int and isinstance(value, Integral) and not isinstance(value, bool):
            value = int(value)
        require(
            isinstance(value, expected),
            f"Unexpected type {type(value)} for option {name}. Expected {expected}: "
            f"{value!r} cannot replace {self._values[name]!r}.",
        )
        return integer(value, *self._counts[name]) if name in self._counts else value

    def createOrSet(self, **values: Any) -> None:
        """Sets options (exact). Options that do not exist yet are created with any type."""
        for name, value in values.items():
            if self.exists(name):
                self.set(**{name: value})
            else:
                self._check_unfrozen()
                self._values[name] = value

    def exists(self, key: str) -> bool:
        """Returns whether the option `key` exists (exact)."""
        return key in self._values

    def deleteIfExists(self, key: str) -> None:
        """Removes the option `key` if it exists (exact)."""
        self._values.pop(key, None)

    def update(self, other: dict[str, Any]) -> dict[str, Any]:
        """Adds all options to `other` and returns it (exact); raises if a key is in both."""
        return merge(other, self._values)

    def toDict(self) -> dict[str, Any]:
        """Returns all values in a new dictionary (exact)."""
        return self.update({})

    def clone(self: Self) -> Self:
        """Returns a deep copy that is not frozen (exact)."""
        return copy.deepcopy(self)

    def __call__(self, option: str) -> Any:
        """Returns the value of `option`."""
        return self.__getattr__(option)

    def __getattr__(self, name: str) -> Any:
        """Returns the value of the option `name`; called only for names that Python cannot find."""
        values = self.__dict__.get("_values", {})
        if name in self._old_names:
            note_old_name(f"Options.{name}")
            return getattr(self, self._old_names[name])
        if name not in values:
            raise AttributeError(
                f"Invalid attribute {name}. Valid options are {list(values)}."
                f"{self._meant(name, values)}"
            )
        return values[name]

    def _meant(self, name: str, values: Mapping[str, Any]) -> str:
        """Returns a sentence that names the option that was probably meant; "" if none is near.

        The option may belong to another group.
        """
        own = dict.fromkeys([*_public(type(self), Freezable), *values])
        written = {each: f"{self._path}.{each}".lstrip(".") for each in own}
        found = nearest(name, {**written, **_WRITTEN})
        if name.startswith("_") or found is None:
            return ""
        text = written.get(found) or _WRITTEN[found]
        if name == found:
            return f" To set it, call {text}(...)."
        return f" Did you mean {text}?"

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an option, or an existing private attribute."""
        self._check_unfrozen()
        is_under_construction = "_values" not in self.__dict__
        if not name.startswith("_"):
            self.set(**{name: value})
        elif is_under_construction or name in self.__dict__:
            self.__dict__[name] = value
        else:
            private = [known for known in self.__dict__ if known.startswith("_")]
            raise AttributeError(
                f"Invalid private attribute {name}. Valid attributes: {private}. "
                "A subclass creates its own before it calls super().__init__()."
            )

    def __repr__(self) -> str:
        """Returns the class, the values, then the private attributes."""
        return format_fields(type(self).__name__, self._shown())

    def _repr_html_(self) -> str:
        """Returns a row for each option, also of groups, for a notebook."""
        return html_table([[type(self).__name__, ""], *self._rows("")], 2)

    def _shown(self) -> dict[str, Any]:
        """Returns the values, then the private attributes, by name."""
        hidden = ("_values", "_chosen", "_is_frozen")
        private = {name: value for name, value in self.__dict__.items() if name not in hidden}
        return {**self._values, **private}

    def _rows(self, prefix: str) -> Iterator[list[str]]:
        for name, value in self._shown().items():
            if isinstance(value, OptionsDict):
                yield from value._rows(f"{prefix}{name}.")
            elif name != "_popart":  # `Options` itself shows it, as `_Popart`.
                yield [f"{prefix}{name}", repr(value)]


def format_fields(type_name: str, fields: dict[str, Any]) -> str:
    """Returns `type_name(key=value, ...)`."""
    inner = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    return f"{type_name}({inner})"


def _public(cls: type, base: type) -> list[str]:
    """Returns the public names of a class that `base` does not define."""
    return [name for name in dir(cls) if not name.startswith("_") and not hasattr(base, name)]
