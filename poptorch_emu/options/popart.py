"""Options of the layer below PopTorch, which are stored unchecked until a model is compiled.

`validate_options` checks the flat dictionary of `Options.toDict()`, which also holds values that
PopTorch itself writes. `backend_table.py` lists the names and their kinds.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.log import compiler_logger
from poptorch_emu.near_names import did_you_mean
from poptorch_emu.options.backend_table import (
    ENUM_OF_OPTION,
    OPTIONS_OF_KIND,
    TENSOR_LOCATION_OPTIONS,
    TENSOR_LOCATIONS,
    Kind,
)
from poptorch_emu.options.base import Freezable, format_fields, integer, require_type

_LOCATION_PREFIX: Final = "location_"

# Options that the front end writes for itself; the backend receives their values in another way.
_UNCHECKED: Final = frozenset({"anchored_tensors", "ipuof_configs", "compilation_progress_bar_fn"})

_FLOAT32: Final = torch.finfo(torch.float32)


class _PopartOptions(Freezable):
    """Options of the layer below PopTorch by name (accepted).

    Attributes:
        options: maps a name to the value that the user set.
        by_front_end: names of options that another front end set, not the user.
    """

    options: dict[str, Any]
    by_front_end: set[str]

    def __init__(self) -> None:
        """Stores the options that PopTorch sets itself."""
        self.__dict__["_is_frozen"] = False
        self.by_front_end = set()
        self.options = {
            "instrumentWithHardwareCycleCounter": False,
            "rearrangeAnchorsOnHost": False,
        }

    def checkIsFrozen(self, option: str | None = None) -> None:
        """Raises `AttributeError` if frozen, unless only the flag `_is_frozen` changes."""
        if option != "_is_frozen":
            self._check_unfrozen()

    def set(self, key: str, value: Any) -> _PopartOptions:
        """Sets one option; name and value are checked when a model is compiled."""
        self.checkIsFrozen()
        self.options[key] = value
        return self

    def setEngineOptions(self, d: dict[str, str]) -> _PopartOptions:
        """Replaces the options of the Poplar engine (accepted; profiling reads its own)."""
        return self.set("engineOptions", d)

    def setPatterns(self, patterns: dict[str, bool], level: int = 2) -> _PopartOptions:
        """Enables and disables rewriting patterns (accepted).

        Args:
            patterns: maps the name of a pattern to whether it is enabled.
            level: set of patterns that `patterns` overrides: 0 none, 1 minimal, 2 default, 3 all.
        """
        level = integer(level, "level of setPatterns", range(4))
        require_type(patterns, dict, "patterns of setPatterns")
        self.set("patterns_level", level)
        return self.set("patterns", patterns)

    def __repr__(self) -> str:
        """Returns the class and the options as text."""
        return format_fields(type(self).__name__, self.options)


def validate_options(options: dict[str, Any]) -> None:
    """Checks the result of `Options.toDict()` as PopTorch's backend does (exact).

    Raises:
        Error: a name is unknown for the kind of its value, or a value has an unsupported type or
            is out of range.
    """
    if "patterns" in options and "patterns_level" not in options:
        raise compiler_error(
            "PopART option 'patterns' should not be set without first setting 'patterns_level'. "
            "Use poptorch.Options._Popart.setPatterns(), which sets both."
        )
    for name, value in options.items():
        if name == "available_memory_proportion":
            _check_memory_proportions(value)
        elif name.startswith(_LOCATION_PREFIX):
            _check_location(name.removeprefix(_LOCATION_PREFIX), value)
        elif name not in _UNCHECKED:
            _check_option(name, value)


def _check_option(name: str, value: Any) -> None:
    if isinstance(value, dict):
        for key, element in value.items():
            _check_known(Kind.MAP, name)
            key_text, text = _stringify(name, key), _stringify(name, element)
            compiler_logger.debug("poptorch.Options set %s[%s] to %s", name, key_text, text)
    elif isinstance(value, (list, set, tuple)):
        for element in value:
            _check_known(Kind.SET, name)
            compiler_logger.debug(
                "poptorch.Options added %s to %s", _stringify(name, element), name
            )
    else:
        _check_scalar(name, value)


def _check_scalar(name: str, value: Any) -> None:
    kind = _kind_of_scalar(value)
    if kind is None:
        raise compiler_error(
            f"Unknown value type {type(value)} for option {name}: {value!r}. "
            "Pass a bool, int, float, str, list, set, tuple or dict."
        )
    _check_known(kind, name)
    if name == "logDir":
        compiler_logger.warning(
            'Ignoring call to poptorch.Options._Popart.set("logDir",...): '
            "use poptorch.Options.logDir() instead."
        )
        return
    if name in ENUM_OF_OPTION:
        _check_enum_value(name, value)
    compiler_logger.debug("poptorch.Options set %s to value %s", name, value)


def _kind_of_scalar(value: Any) -> Kind | None:
    if isinstance(value, bool):  # Tested before int, because bool is a subclass of int.
        return Kind.BOOL
    if isinstance(value, int):
        return Kind.UINT64
    if isinstance(value, float):
        return Kind.FLOAT
    return Kind.STRING if isinstance(value, str) else None


def _check_known(kind: Kind, name: str) -> None:
    # Any name of a pattern is accepted, because only the pattern library knows them.
    if name in OPTIONS_OF_KIND[kind] or (name == "patterns" and kind is Kind.MAP):
        return
    right = [other.value for other, names in OPTIONS_OF_KIND.items() if name in names]
    hint = f"Its value must be of type {right[0]}" if right else "Check its spelling"
    near = "" if right else did_you_mean(name, sorted(OPTIONS_OF_KIND[kind]))
    raise compiler_error(f"Unknown {kind.value} option {name}. {hint}.{near}")


def _check_enum_value(name: str, value: int) -> None:
    enum_name, num_members = ENUM_OF_OPTION[name]
    if not 0 <= value < num_members:
        raise compiler_error(
            f"Value for {enum_name} out of range: option {name} is {int(value)}, but the backend "
            f"knows only 0 to {num_members - 1}."
        )


def _stringify(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(int(value))
    raise compiler_error(
        f"Don't know how to convert type {type(value)} to string: {value!r} in option {name}. "
        "Pass a string or an int."
    )


def _check_memory_proportions(proportions: dict[int, float]) -> None:
    for ipu, proportion in proportions.items():
        if proportion > _FLOAT32.max:
            raise _out_of_float_range(ipu, proportion, "high", "at most", _FLOAT32.max)
        if proportion < _FLOAT32.min:
            raise _out_of_float_range(ipu, proportion, "low", "at least", _FLOAT32.min)


def _out_of_float_range(ipu: int, proportion: float, word: str, bound: str, limit: float) -> Error:
    return compiler_error(
        f"{proportion} is too {word} for a Popart float attribute. The available memory proportion "
        f"of IPU {ipu} must be {bound} {limit}; sensible values are between 0 and 1."
    )


def _check_location(location: str, settings: dict[str, int]) -> None:
    if location not in TENSOR_LOCATIONS:
        raise compiler_error(
            f"Unknown tensor location {location}. Use one of {', '.join(sorted(TENSOR_LOCATIONS))}."
            f"{did_you_mean(location, sorted(TENSOR_LOCATIONS))}"
        )
    for option in settings:
        if option not in TENSOR_LOCATION_OPTIONS:
            raise compiler_error(
                f"Unknown option '{option}' for tensor location {location}. Build the settings "
                "with poptorch.TensorLocationSettings."
            )
