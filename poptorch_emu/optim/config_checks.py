"""Checks of hyper-parameters, and of changes to an optimiser after a model was compiled with it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from poptorch_emu.errors import compiler_error
from poptorch_emu.troubleshooting import Topic
from poptorch_emu.update.formulas.optimizer_config import (
    GroupConfig,
    Hyper,
    OptimizerConfig,
    OptimizerKind,
)

# Rules with the same program on the device, so a change between them is valid.
_SAME_RULE = {OptimizerKind.ADAMW, OptimizerKind.ADAMW_NO_BIAS}

# Names of hyper-parameters in messages.
_PLURALS = {
    "lr": "learning rates",
    "weight_decay": "weight decays",
    "momentum": "momentums",
    "dampening": "dampenings",
    "velocity_scaling": "velocity scalings",
    "nesterov": "nesterov",
    "beta1": "beta1s",
    "beta2": "beta2s",
    "eps": "eps",
    "max_weight_norm": "mwn",
    "alpha": "alphas",
}


def check_values(config: OptimizerConfig) -> None:
    """Checks the hyper-parameters of all groups.

    Raises:
        Error: a hyper-parameter is out of range; the type is "popart_exception".
    """
    if not 0 < config.loss_scaling.value < math.inf:
        raise compiler_error(
            f"loss_scaling must be a finite number above 0, not {config.loss_scaling.value:g}. "
            "Change it in the optimizer.",
            type="popart_exception",
        )
    for group in config.groups:
        for fault in _value_faults(config.kind, group):
            raise compiler_error(
                f"{fault}. Change it in the optimizer or in its parameter group.",
                type="popart_exception",
            )


def check_compatible(old: OptimizerConfig, new: OptimizerConfig) -> None:
    """Checks that a model compiled with `old` can continue with `new`.

    Raises:
        Error: the rule, a constant, a dtype or the groups differ; the type is "popart_exception".
    """
    for fault in _faults(old, new):
        text = f"{fault.removesuffix('.')}; {Topic.OPTIMIZER_MISMATCH}"
        raise compiler_error(text, type="popart_exception")


def _family(kind: OptimizerKind) -> str:
    """Returns the name of PopART's class for a rule."""
    if kind.is_sgd:
        return "SGD"
    return "Adaptive" if kind.is_rmsprop else "Adam"


def _faults(old: OptimizerConfig, new: OptimizerConfig) -> Iterator[str]:
    """Yields mismatches, the most serious first; later checks may rely on earlier ones."""
    yield from _rule_faults(old.kind, new.kind)
    yield from _setting_faults(old, new)
    if old.group_of_parameter != new.group_of_parameter or len(old.groups) != len(new.groups):
        yield (
            f"The parameter groups do not match. Compiled with {len(old.groups) - 1} groups, given "
            f"{len(new.groups) - 1}, or other parameters in them: parameters are bound to groups "
            "at compilation."
        )
    yield from _hyper_faults("loss scaling", old.loss_scaling, new.loss_scaling)
    for old_group, new_group in zip(old.groups, new.groups, strict=True):
        if old.kind.is_sgd:
            yield from _velocity_faults(old_group, new_group)
        for name, hyper in old_group.hypers:
            yield from _hyper_faults(_PLURALS[name], hyper, new_group[name])


def _rule_faults(old: OptimizerKind, new: OptimizerKind) -> Iterator[str]:
    if old is new or {old, new} == _SAME_RULE:
        return
    family, new_family = _family(old), _family(new)
    compiled = f"Compiled with {old.name}, given {new.name}: compile again to change it."
    if family != new_family:
        yield (
            f"Can not replace optimizer of type {family} with optimizer of type {new_family}. "
            f"{compiled}"
        )
    if old.is_sgd:
        yield f"SGDAccumulatorAndMomentum settings do not match. {compiled}"
    if old.is_rmsprop:
        yield f"Adaptive modes do not match. {compiled}"
    decay = "Weight decay modes do not match. " if OptimizerKind.ADAM in (old, new) else ""
    yield f"Adam modes do not match. {decay}{compiled}"


def _setting_faults(old: OptimizerConfig, new: OptimizerConfig) -> Iterator[str]:
    if old.max_grad_norm != new.max_grad_norm:
        yield (
            f"Clip norm settings do not match. Compiled with max_grad_norm {old.max_grad_norm:g}, "
            f"given {new.max_grad_norm:g}: compile again to change it."
        )
    if old.uses_tf_variant != new.uses_tf_variant:
        yield (
            f"Adaptive modes do not match. Compiled with use_tf_variant={old.uses_tf_variant}, "
            f"given {new.uses_tf_variant}: compile again to change it."
        )
    subject = "SGDAccumulatorAndMomentum" if old.kind.is_sgd else "Accumulator and state"
    for name in ("accum_type", "velocity_type", "first_order_type", "second_order_type"):
        compiled, given = getattr(old, name), getattr(new, name)
        if compiled != given:
            yield (
                f"{subject} types do not match. Compiled with {name} {compiled}, given {given}: "
                "compile again to change it."
            )


def _velocity_faults(old: GroupConfig, new: GroupConfig) -> Iterator[str]:
    lacks = old.is_constant_zero("momentum")
    if lacks != new.is_constant_zero("momentum"):
        one = "compiled" if lacks else "new"
        yield (
            f"The {one} optimizer has a constant momentum of 0 and does not require a velocity "
            "tensor, but other does. Give momentum to the constructor of both, or of neither."
        )


def _hyper_faults(subject: str, old: Hyper, new: Hyper) -> Iterator[str]:
    way_out = (
        "To be able to change a value, give it to the constructor of an optimizer of "
        "poptorch.optim, or call variable_attrs.markAsVariable, before compilation."
    )
    if old.is_constant != new.is_constant:
        kinds = {True: "constant", False: "variable"}
        yield (
            f"Problem with {subject}. Can not replace a constant value with a non constant value. "
            f"Compiled as {kinds[old.is_constant]}, given as {kinds[new.is_constant]}. {way_out}"
        )
    if old.is_constant and old.value != new.value:
        yield (
            f"Problem with {subject}. Values are constant but do not match. Compiled with "
            f"{old.value:g}, given {new.value:g}. {way_out}"
        )


def _value_faults(kind: OptimizerKind, group: GroupConfig) -> Iterator[str]:
    value = {name: hyper.value for name, hyper in group.hypers}
    if kind.is_sgd:
        yield from _sgd_faults(value)
        if group.is_constant_zero("lr"):
            yield "Constant, zero learning rate in SGD"
    elif kind.is_rmsprop:
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
