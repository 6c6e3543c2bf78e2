"""Sentences on the causes that limit a step, and on their remedies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poptorch_emu.compile.planner import Planned
from poptorch_emu.compile.remedies import Remedy
from poptorch_emu.machine.ipu import KIB
from poptorch_emu.plan.time.causes import Cause
from poptorch_emu.report.bottleneck_text import listed, place_text, spread_weight_text

# Sentences on the share of a step that each cause takes.
_CAUSES: Mapping[Cause, str] = {
    Cause.HOST_DATA: "The IPUs wait for the program on the host for {share} of a step.",
    Cause.HOST_INPUT: "{where} waits for inputs from the host for {share} of a step.",
    Cause.HOST_OUTPUT: "{where} waits for results to reach the host for {share} of a step.",
    Cause.CALLS: "Starting a call on the host takes {share} of a step.",
    Cause.STREAMING: "{where} waits for streaming memory for {share} of a step.",
    Cause.LINK: "{where} waits for data from other IPUs for {share} of a step.",
    Cause.IMBALANCE: (
        "IPU {ipu} takes {load:.2f} times the mean of the IPUs; the others wait for it, which "
        "costs {share} of a step."
    ),
    Cause.TURNS: "Only one IPU works at a time, which costs {share} of a step.",
    Cause.RAMP: "Filling and emptying the pipeline takes {share} of a step.",
    Cause.UPDATE: "Updating the weights takes {share} of a step.",
    Cause.ALL_REDUCE: "Adding up the gradients of all replicas takes {share} of a step.",
    Cause.RECOMPUTATION: "{where} recomputes activations for {share} of a step.",
    Cause.LOW_PROPORTION: (
        "Matrix products have little memory to work in, which makes them slow: it costs {share} of "
        "a step on {where}."
    ),
    Cause.SMALL_MICRO_BATCH: (
        "Micro-batches are small for the machine: starting programs and exchange between tiles "
        "take {share} of a step on {where}."
    ),
    Cause.COMPUTE: "{where} computes for {share} of a step.",
}
# Sentences about causes against which no planned change helps.
_OTHERWISE: Mapping[Cause, str] = {
    Cause.HOST_DATA: (
        "Load data in more processes (num_workers= of poptorch.DataLoader), or ahead of time "
        "(mode=poptorch.DataLoaderMode.Async)."
    ),
    Cause.HOST_INPUT: "No change that was tried helps; send shorter inputs, as in float16.",
    Cause.IMBALANCE: (
        "No change that was tried, and that fits, surely saves 5% of a step, because a split keeps "
        "each block whole: divide those of IPU {ipu} into smaller ones."
    ),
    Cause.COMPUTE: "Everything else takes little; model.half() or more replicas make it faster.",
}
_KINDS = {
    "activation": "activations",
    "weight": "weights",
    "optimizer": "the optimiser's state",
    "accumulator": "accumulators",
}
_RECOMPUTATION = {"none": "recompute nothing", "all": "recompute all activations"}
_ADVICE: Mapping[str, Callable[[Any], str]] = {
    "accumulation": lambda value: f"accumulate {value:,} micro-batches",
    "replicas": lambda value: f"use {value:,} replicas",
    "device_iterations": lambda value: f"run {value:,} device iterations in a call",
    "micro_batch": lambda value: f"use micro-batches of {value:,} row{'' if value == 1 else 's'}",
    "proportion": lambda value: f"set the available memory proportion to {value}",
    "num_ipus": lambda value: f"put the model on {value} IPUs",
    "split": lambda value: f"split the model differently over {value} IPUs",
    "schedule": lambda value: f"use the {value} schedule",
    "recomputation": lambda value: _RECOMPUTATION.get(value, f"use the recomputation mode {value}"),
    "offload": lambda value: (
        "keep all tensors on the chip"
        if value == "nothing"
        else f"keep {_kinds(value)} in streaming memory"
    ),
    "sharding": lambda value: "shard the optimiser's state over the replicas",
    "output_mode": lambda value: f"return results with OutputMode.{value}",
    "overlap": lambda value: f"transfer {value.replace('+', ' and ')} while the IPU computes",
}


def advice_text(settings: Mapping[str, Any]) -> str:
    """Returns the suggested changes in words."""
    return listed(_advice(settings))


def _advice(settings: Mapping[str, Any]) -> list[str]:
    return [_ADVICE[name](value) for name, value in settings.items()]


def remedy_text(remedy: Remedy) -> str:
    """Returns the cause, its share of a step, the change, and the predicted gain."""
    if remedy.planned is None and remedy.loss is not None:
        usual = "No change that was tried, and that fits, surely saves 5% of a step."
        otherwise = _OTHERWISE.get(remedy.loss.cause, usual).format(ipu=remedy.loss.ipu)
        if remedy.obstacle:
            otherwise = f"No change that was tried is possible. {remedy.obstacle}"
        return f"{_cause_text(remedy)} {otherwise}"
    advice = _advice_text(remedy)
    if remedy.planned is None:
        usual = "No split over the same number of IPUs was found that does so."
        return f"{_cause_text(remedy)} {advice}. {usual}"
    return (
        f"{_cause_text(remedy)} {advice[0].upper()}{advice[1:]}: the model of the machine "
        f"predicts {1 + remedy.gain:.2f} × as many rows a second."
        f"{_fit_text(remedy.planned)}{update_text(remedy.update_factor)}"
    )


def update_text(factor: float) -> str:
    """Returns a sentence if the rows of an update change, which changes the training.

    Args:
        factor: rows of an update with the change, divided by those without it.
    """
    if factor == 1:
        return ""
    change = f"{factor:g} times" if factor > 1 else f"1/{1 / factor:g} of"
    return f" Each update then has {change} the rows (the batch size), which changes the training."


def _fit_text(planned: Planned) -> str:
    return "" if planned.tiles.fits else " With this change alone the model does not fit."


def _advice_text(remedy: Remedy) -> str:
    if remedy.weight is None:
        return advice_text(remedy.settings)
    others = {name: value for name, value in remedy.settings.items() if name != "split"}
    return listed([spread_weight_text(remedy.weight), *_advice(others)])


def _cause_text(remedy: Remedy) -> str:
    loss, weight = remedy.loss, remedy.weight
    if loss is not None:
        values = {"ipu": loss.ipu, "load": loss.load, "where": place_text(loss)}
        text = _CAUSES[loss.cause].format(share=f"{loss.share:.1%}", **values)
        return f"{text[0].upper()}{text[1:]}"
    assert weight is not None, "a remedy is against a cause or for a weight"
    return (
        f"Sending the gradient of a weight to IPU {weight.ipus[0]}, "
        f"{weight.num_bytes / KIB**2:,.1f} MiB for each micro-batch, takes {weight.share:.1%} of a "
        "step."
    )


def _kinds(value: str) -> str:
    return listed([_KINDS[kind] for kind in value.split("+")])
