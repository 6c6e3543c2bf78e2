"""All setters of `Options` and its groups refuse values of a wrong kind and keep the old ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from poptorch_emu import enums
from poptorch_emu.options import Options, PipelinedExecution, TensorLocationSettings

pytestmark = pytest.mark.feature("Options", fidelity="exact")

# The groups of options by the expression that a program writes.
GROUPS: dict[str, Callable[[Options], Any]] = {
    "options": lambda options: options,
    "options.Training": lambda options: options.Training,
    "options.Precision": lambda options: options.Precision,
    "options.Distributed": lambda options: options.Distributed,
    "options.TensorLocations": lambda options: options.TensorLocations,
    "TensorLocationSettings": lambda _: TensorLocationSettings(),
    "Stage": lambda _: PipelinedExecution("a").stage("a"),
}
# Valid arguments of the setters that have more than one, or that do not accept 1 and True.
VALID: dict[str, dict[str, Any]] = {
    "anchorTensor": {
        "short_name": "a",
        "long_name": "b",
        "output_mode": enums.OutputMode.EveryN,
        "output_return_period": 1,
    },
    "configureProcessId": {"process_id": 1, "num_processes": 1},
    "inputReplicaGrouping": {
        "input_group_size": 1,
        "input_group_type": enums.CommGroupType.Consecutive,
    },
    "numIOTiles": {"num_tiles": 32},
    "outputMode": {"output_mode": enums.OutputMode.EveryN, "output_return_period": 1},
}
NO_INTEGERS = (True, 1.0, "1", None, 1 + 0j, np.float32(1), [1])
NO_FLAGS = (2, -1, 1.0, "True", [True])
MAY_BE_NONE = ("max_lines", "use")  # No limit of repeats; a storage that is not chosen.
MAY_BE_NEGATIVE = ("random_seed",)


def parameters(kind: str) -> Iterator[tuple[str, str, str]]:
    """Yields (group, setter, parameter) for the parameters that are annotated with a type."""
    for group, get in GROUPS.items():
        for name, method in inspect.getmembers(get(Options()), inspect.ismethod):
            if name.startswith("_") or name in ("traceModel", "runningStatisticsAlwaysFloat"):
                continue
            for parameter in inspect.signature(method).parameters.values():
                if str(parameter.annotation).partition(" | ")[0] == kind:
                    yield group, name, parameter.name


INTEGERS, FLAGS = [*parameters("int")], [*parameters("bool")]


def set_value(options: Options, group: str, setter: str, parameter: str, value: Any) -> None:
    valid = VALID.get(setter, {})
    getattr(GROUPS[group](options), setter)(**{**valid, parameter: value})


def test_generator_then_finds_the_counts_and_the_flags() -> None:
    assert ("options.Training", "gradientAccumulation", "gradient_accumulation") in INTEGERS
    assert ("options.Precision", "enableStochasticRounding", "enabled") in FLAGS
    assert len(INTEGERS) >= 14 and len(FLAGS) >= 15


@pytest.mark.parametrize(("group", "setter", "parameter"), INTEGERS)
def test_integer_when_the_value_is_of_another_kind_or_too_large_then_refused_and_unchanged(
    group: str, setter: str, parameter: str
) -> None:
    wrong = [*NO_INTEGERS, 2**70, -(2**70)]
    wrong += [] if parameter in MAY_BE_NEGATIVE else [-1]
    for value in wrong:
        if value is None and parameter in MAY_BE_NONE:
            continue
        options = Options()
        before = repr(options)
        with pytest.raises((AssertionError, ValueError)) as caught:
            set_value(options, group, setter, parameter, value)
        assert repr(value) in str(caught.value)
        assert repr(options) == before


@pytest.mark.parametrize(("group", "setter", "parameter"), INTEGERS)
def test_integer_of_numpy_then_stored_as_one_of_python(
    group: str, setter: str, parameter: str
) -> None:
    number = VALID.get(setter, {}).get(parameter, 1)
    ours, theirs = Options(), Options()
    set_value(ours, group, setter, parameter, number)
    set_value(theirs, group, setter, parameter, np.int64(number))
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize(("group", "setter", "parameter"), FLAGS)
def test_flag_when_the_value_is_of_another_kind_then_refused_and_unchanged(
    group: str, setter: str, parameter: str
) -> None:
    for value in (*NO_FLAGS, None):
        if value is None and parameter in MAY_BE_NONE:
            continue
        options = Options()
        before = repr(options)
        with pytest.raises(AssertionError) as caught:
            set_value(options, group, setter, parameter, value)
        assert repr(value) in str(caught.value)
        assert repr(options) == before
