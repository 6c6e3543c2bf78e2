"""What may change between the optimiser a model was compiled with and the next one."""

from __future__ import annotations

from collections.abc import Iterator

from poptorch_emu.errors import compiler_error
from poptorch_emu.troubleshooting import Topic
from poptorch_emu.update.formulas.optimizer_config import (
    GroupConfig,
    Hyper,
    OptimizerConfig,
    OptimizerKind,
)

# PopART's class for each rule.
_FAMILIES = {
    OptimizerKind.SGD1: "SGD",
    OptimizerKind.SGD2: "SGD",
    OptimizerKind.ADAM: "Adam",
    OptimizerKind.ADAMW: "Adam",
    OptimizerKind.ADAMW_NO_BIAS: "Adam",
    OptimizerKind.RMSPROP: "Adaptive",
    OptimizerKind.RMSPROP_CENTERED: "Adaptive",
    OptimizerKind.LAMB: "Adam",
    OptimizerKind.LAMB_NO_BIAS: "Adam",
}
# The rules that are one and the same on the device.
_SAME_RULE = {OptimizerKind.ADAMW, OptimizerKind.ADAMW_NO_BIAS}

# How the messages call a hyper-parameter.
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


def check_compatible(old: OptimizerConfig, new: OptimizerConfig) -> None:
    """Checks that a model compiled with `old` can go on with `new`.

    Raises:
        Error: the rule, a constant, a type or the groups differ, of type "popart_exception".
    """
    for fault in _faults(old, new):
        text = f"{fault.removesuffix('.')}; {Topic.OPTIMIZER_MISMATCH}"
        raise compiler_error(text, type="popart_exception")


def _faults(old: OptimizerConfig, new: OptimizerConfig) -> Iterator[str]:
    """Yields what does not match, the gravest first; what follows may rely on what came before."""
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
        if _FAMILIES[old.kind] == "SGD":
            yield from _velocity_faults(old_group, new_group)
        for name, hyper in old_group.hypers:
            yield from _hyper_faults(_PLURALS[name], hyper, new_group[name])


def _rule_faults(old: OptimizerKind, new: OptimizerKind) -> Iterator[str]:
    if old is new or {old, new} == _SAME_RULE:
        return
    family, new_family = _FAMILIES[old], _FAMILIES[new]
    compiled = f"Compiled with {old.name}, given {new.name}: compile again to change it."
    if family != new_family:
        yield (
            f"Can not replace optimizer of type {family} with optimizer of type {new_family}. "
            f"{compiled}"
        )
    if family == "SGD":
        yield f"SGDAccumulatorAndMomentum settings do not match. {compiled}"
    if family == "Adaptive":
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
    what = "SGDAccumulatorAndMomentum" if _FAMILIES[old.kind] == "SGD" else "Accumulator and state"
    for name in ("accum_type", "velocity_type", "first_order_type", "second_order_type"):
        compiled, given = getattr(old, name), getattr(new, name)
        if compiled != given:
            yield (
                f"{what} types do not match. Compiled with {name} {compiled}, given {given}: "
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


def _hyper_faults(what: str, old: Hyper, new: Hyper) -> Iterator[str]:
    way_out = (
        "To be able to change a value, give it to the constructor of an optimizer of "
        "poptorch.optim, or call variable_attrs.markAsVariable, before compilation."
    )
    if old.is_constant != new.is_constant:
        kinds = {True: "constant", False: "variable"}
        yield (
            f"Problem with {what}. Can not replace a constant value with a non constant value. "
            f"Compiled as {kinds[old.is_constant]}, given as {kinds[new.is_constant]}. {way_out}"
        )
    if old.is_constant and old.value != new.value:
        yield (
            f"Problem with {what}. Values are constant but do not match. Compiled with "
            f"{old.value:g}, given {new.value:g}. {way_out}"
        )
