"""What limits a step and what to do against it, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from poptorch_emu.compile.remedies import Remedy
from poptorch_emu.machine.ipu import KIB
from poptorch_emu.plan.time.losses import Cause, Loss
from poptorch_emu.report.bottleneck_text import listed, spread_weight_text

# What takes which share of a step.
_CAUSES: Mapping[Cause, str] = {
    Cause.HOST_INPUT: "IPU {ipu} waits for inputs from the host for {share} of a step.",
    Cause.HOST_OUTPUT: "IPU {ipu} waits for results to reach the host for {share} of a step.",
    Cause.CALLS: "Starting a call on the host takes {share} of a step.",
    Cause.STREAMING: "IPU {ipu} waits for streaming memory for {share} of a step.",
    Cause.SLOW_STAGE: (
        "IPU {ipu} takes {load:.2f} times the mean of the IPUs; the others wait for it, which "
        "costs {share} of a step."
    ),
    Cause.NO_OVERLAP: "Only one IPU works at a time, which costs {share} of a step.",
    Cause.RAMP: "Filling and emptying the pipeline takes {share} of a step.",
    Cause.UPDATE: "Updating the weights takes {share} of a step.",
    Cause.ALL_REDUCE: "Adding up the gradients of all replicas takes {share} of a step.",
    Cause.RECOMPUTATION: "IPU {ipu} recomputes activations for {share} of a step.",
    Cause.SMALL_PROPORTION: (
        "Matrix products have little memory to work in, which makes them slow: operations take "
        "{share} of a step on IPU {ipu}."
    ),
    Cause.SMALL_MICRO_BATCH: (
        "Micro-batches are small for the machine: starting programs and exchange between tiles "
        "take {share} of a step on IPU {ipu}."
    ),
}
_NAMES: Mapping[Cause, str] = {
    Cause.HOST_INPUT: "inputs from the host",
    Cause.HOST_OUTPUT: "results to the host",
    Cause.CALLS: "starting calls",
    Cause.STREAMING: "streaming memory",
    Cause.SLOW_STAGE: "one slow stage",
    Cause.NO_OVERLAP: "one IPU working at a time",
    Cause.RAMP: "filling and emptying the pipeline",
    Cause.UPDATE: "the update",
    Cause.ALL_REDUCE: "the all-reduce",
    Cause.RECOMPUTATION: "recomputation",
    Cause.SMALL_PROPORTION: "a low memory proportion",
    Cause.SMALL_MICRO_BATCH: "small micro-batches",
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
    "num_ipus": lambda value: f"split the model differently over {value} IPUs",
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
    """Returns what to do, in words."""
    return listed(_advice(settings))


def _advice(settings: Mapping[str, Any]) -> list[str]:
    return [_ADVICE[name](value) for name, value in settings.items()]


def headline(remedy: Remedy) -> str:
    """Returns what limits a step in few words."""
    loss = remedy.loss
    if loss.weight is not None:
        return f"the gradient of a weight ({loss.share:.0%} of a step): {_advice_text(remedy)}"
    advice = f": {_advice_text(remedy)}" if remedy.settings else ""
    return f"{_NAMES[loss.cause]} ({loss.share:.0%} of a step){advice}"


def remedy_text(remedy: Remedy) -> str:
    """Returns what takes the time, how much of it, what to do, and what that gives."""
    loss, advice = remedy.loss, _advice_text(remedy)
    if not remedy.settings:
        told = f" {advice}." if loss.weight is not None else ""
        return f"{_cause_text(loss)}{told} No split over as many IPUs was found that avoids it."
    return (
        f"{_cause_text(loss)} {advice[0].upper()}{advice[1:]}: the model of the machine "
        f"predicts {1 + remedy.gain:.2f} × as many rows a second."
    )


def _advice_text(remedy: Remedy) -> str:
    weight = remedy.loss.weight
    if weight is None:
        return advice_text(remedy.settings)
    others = {name: value for name, value in remedy.settings.items() if name != "num_ipus"}
    return listed([spread_weight_text(weight), *_advice(others)])


def _cause_text(loss: Loss) -> str:
    share, weight = f"{loss.share:.1%}", loss.weight
    if weight is None:
        return _CAUSES[loss.cause].format(ipu=loss.ipu, load=loss.load, share=share)
    return (
        f"Sending the gradient of a weight to IPU {weight.ipus[0]}, "
        f"{weight.num_bytes / KIB**2:,.1f} MiB for each micro-batch, takes {share} of a step."
    )


def _kinds(value: str) -> str:
    return listed([_KINDS[kind] for kind in value.split("+")])
