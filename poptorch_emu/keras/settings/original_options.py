"""Options of models in the IPU's original front end; most of them have no effect here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from poptorch_emu.near_names import did_you_mean
from poptorch_emu.options.base import note_accepted

# Lists with options of each stage.
_OF_STAGES = (
    "forward_propagation_stages_poplar_options",
    "backward_propagation_stages_poplar_options",
)
_PROPORTION = "availableMemoryProportion"
_REDUCTIONS = dict.fromkeys(
    ("experimental_normalize_gradients", "reduction_method"),
    "is not an option. Set gradient_accumulation_reduction_method to 'sum', 'mean' or "
    "'running_mean'.",
)
_DECIDED = "is not an option: Keras decides it."
# Further options of the methods of a model, which have no effect.
_ACCEPTED = {
    "set_pipelining_options": (
        "accumulate_outfeed_dtype",
        "continuous_weight_updates",
        "gradient_accumulation_dtype",
        "gradient_accumulation_for_captured_grads",
        "name",
        "replicated_weight_sharding",
        "weight_update_poplar_options",
        *_OF_STAGES,
    ),
    "set_gradient_accumulation_options": ("dtype",),
    "set_infeed_queue_options": ("prefetch_depth", "optimise_latency", "device_ordinal"),
    "set_outfeed_queue_options": ("buffer_depth", "optimise_latency", "device_ordinal"),
}
# Options of the original that the model itself or another argument determines, with the error.
_REFUSED: dict[str, dict[str, str]] = {
    "set_pipelining_options": _REDUCTIONS
    | dict.fromkeys(
        (
            "batch_serialization_iterations",
            "computational_stages",
            "gradient_accumulation_count",
            "infeed_queue",
            "inputs",
            "optimizer_function",
            "outfeed_loss",
            "outfeed_mask",
            "outfeed_queue",
            "repeat_count",
        ),
        "is not an option: the model, fit and compile decide it. Leave it out.",
    ),
    "set_gradient_accumulation_options": _REDUCTIONS
    | dict.fromkeys(
        ("opt", "num_mini_batches"),
        "is not an option: compile takes the optimizer, and "
        "gradient_accumulation_steps_per_replica the number of batches.",
    ),
    "set_infeed_queue_options": dict.fromkeys(("dataset", "infeed_spec", "element_spec"), _DECIDED),
    "set_outfeed_queue_options": dict.fromkeys(("outfeed_mode", "device_ordinal"), _DECIDED),
}


def check_options(method: str, options: Mapping[str, Any]) -> None:
    """Checks further keywords of a method of a model, and notes them as accepted.

    Raises:
        ValueError: the model or another argument determines an option, or a number is out of range.
        NotImplementedError: weights would change within a batch.
        TypeError: an option does not exist, or is not a bool.
    """
    refused, accepted = _REFUSED[method], _ACCEPTED[method]
    for name, value in options.items():
        if name in refused:
            raise ValueError(f"{method}({name}=...) {refused[name]}")
        if name not in accepted:
            raise TypeError(f"{method} has no argument {name!r}.{did_you_mean(name, accepted)}")
        if name == "continuous_weight_updates" and value:
            raise NotImplementedError(
                f"{method}(continuous_weight_updates=True): weights are updated when all batches "
                "of an update are complete. Leave it out."
            )
        if name in ("prefetch_depth", "buffer_depth"):
            checked_depth(name, value)
        elif name == "optimise_latency":
            check_flag(name, value)
        if value is not None and name not in _OF_STAGES:
            note_accepted(f"{method}({name}=...)")


def stage_proportions(options: Mapping[str, Any]) -> tuple[float | None, ...]:
    """Returns the part of its IPU's memory that products of each stage may take.

    If the options of forward and backward differ, the lower part applies to both directions.

    Args:
        options: keywords of `set_pipelining_options`.

    Raises:
        TypeError: a list has other items than `PipelineStageOptions`.
        ValueError: two lists are not of the same length.
    """
    given = [options[name] for name in _OF_STAGES if options.get(name) is not None]
    for stages in given:
        if not isinstance(stages, (list, tuple)):
            raise TypeError(f"Options of stages are a list with one entry each, not {stages!r}.")
    for one in (one for stages in given for one in stages):
        if not hasattr(one, "matmul_options"):
            raise TypeError(f"Options of a stage are PipelineStageOptions(...), not {one!r}.")
    if len({len(stages) for stages in given}) > 1:
        lengths = " and ".join(str(len(stages)) for stages in given)
        raise ValueError(f"{' and '.join(_OF_STAGES)} list {lengths} stages. List each stage once.")
    return tuple(
        least_proportion(
            *(each for one in stages for each in (one.convolution_options, one.matmul_options))
        )
        for stages in zip(*given, strict=True)
    )


def least_proportion(*options: Mapping[str, Any] | None) -> float | None:
    """Returns the least proportion of an IPU's memory that options of Poplar name (modelled).

    All other options are accepted, unless a name looks like a misspelt proportion.

    Raises:
        ValueError: a proportion is not a number above 0 and at most 1, or its name is misspelt.
    """
    given = [each for each in options if each is not None]
    for name in sorted({name for each in given for name in each if name != _PROPORTION}):
        hint = did_you_mean(name, (_PROPORTION,))
        if hint:
            raise ValueError(f"poplar_options has no {name!r}.{hint}")
        note_accepted(f"poplar_options[{name!r}]")
    found = [
        checked_proportion(_PROPORTION, each[_PROPORTION]) for each in given if _PROPORTION in each
    ]
    return min(found, default=None)


def checked_proportion(name: str, value: Any) -> float:
    """Returns a part of an IPU's memory, which may be given as a text.

    Raises:
        ValueError: it is not a number above 0 and at most 1.
    """
    try:
        proportion = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        proportion = math.nan
    if not 0 < proportion <= 1:
        raise ValueError(
            f"{name} is {value!r}, but is a part of an IPU's memory. Give a number above 0, and at "
            "most 1."
        )
    return proportion


def checked_depth(name: str, value: Any) -> int:
    """Returns the number of elements that a queue holds (accepted).

    Raises:
        ValueError: it is not an integer from 1 to 255.
    """
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or not 1 <= int(value) <= 255:
        raise ValueError(f"{name} must be an integer from 1 to 255, not {value!r}.")
    return int(value)


def check_flag(name: str, value: Any) -> None:
    """Checks a flag; `None` is the default.

    Raises:
        TypeError: the value is neither a bool nor `None`.
    """
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}.")
