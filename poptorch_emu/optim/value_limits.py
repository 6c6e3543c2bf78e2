"""The values that a rule can compute with, checked when a model is compiled."""

from __future__ import annotations

from collections.abc import Iterator

from poptorch_emu.errors import compiler_error
from poptorch_emu.update.formulas.optimizer_config import (
    GroupConfig,
    OptimizerConfig,
    OptimizerKind,
)


def check_values(config: OptimizerConfig) -> None:
    """Checks the hyper-parameters of all groups.

    Raises:
        Error: one is out of range, of type "popart_exception".
    """
    for group in config.groups:
        for fault in _faults(config.kind, group):
            raise compiler_error(
                f"{fault}. Change it in the optimizer or in its parameter group.",
                type="popart_exception",
            )


def _faults(kind: OptimizerKind, group: GroupConfig) -> Iterator[str]:
    value = {name: hyper.value for name, hyper in group.hypers}
    if kind in (OptimizerKind.SGD1, OptimizerKind.SGD2):
        yield from _sgd_faults(value)
        if group.is_constant_zero("lr"):
            yield "Constant, zero learning rate in SGD"
    elif kind in (OptimizerKind.RMSPROP, OptimizerKind.RMSPROP_CENTERED):
        if value["alpha"] < 0:
            yield f"Negative alpha ({value['alpha']:g}) in Adaptive"
        if value["eps"] <= 0:
            yield f"Non-positive eps ({value['eps']:g}) in Adaptive is not supported"
    else:
        if value["lr"] < 0:
            yield f"Negative learning rate ({value['lr']:g}) in Adam"
        if value["beta2"] < 0:
            yield f"Negative beta2 ({value['beta2']:g}) in Adam"
        if value["eps"] <= 0:
            yield f"Non-positive eps ({value['eps']:g}) in Adam is not supported"


def _sgd_faults(value: dict[str, float]) -> Iterator[str]:
    if value["lr"] < 0:
        yield f"Negative learning rate ({value['lr']:g}) in SGD"
    if value["weight_decay"] < 0:
        yield f"Negative weight decay ({value['weight_decay']:g}) in SGD"
    scaling = value.get("velocity_scaling", 1.0)
    if scaling <= 0:
        yield f"Non-positive velocity scaling ({scaling:g}) in SGD is not supported"
    if value["nesterov"] and value["dampening"] != 0:
        yield f"Dampening ({value['dampening']:g}) in SGD with nesterov is not supported"
