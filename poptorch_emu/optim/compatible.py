"""What may change between the optimiser a model was compiled with and the next one."""

from __future__ import annotations

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.update.config import Hyper, OptimizerConfig, OptimizerKind

_ADAMS = {OptimizerKind.ADAM, OptimizerKind.ADAMW, OptimizerKind.ADAMW_NO_BIAS}
_RMSPROPS = {OptimizerKind.RMSPROP, OptimizerKind.RMSPROP_CENTERED}
_SGDS = {OptimizerKind.SGD1, OptimizerKind.SGD2}
_PLURALS = {
    "lr": "learning rates",
    "weight_decay": "weight decays",
    "momentum": "momentums",
    "dampening": "dampenings",
    "velocity_scaling": "velocity scalings",
    "beta1": "beta1s",
    "beta2": "beta2s",
    "max_weight_norm": "mwn",
    "alpha": "alphas",
}


def check_compatible(old: OptimizerConfig, new: OptimizerConfig) -> None:
    """Checks that a program compiled with `old` can go on with `new`.

    Raises:
        Error: a constant, the rule, or the groups differ.
    """
    _check_kind(old.kind, new.kind)
    if old.max_grad_norm != new.max_grad_norm:
        raise _refused(
            f"Clip norm settings do not match. Compiled with {old.max_grad_norm}, given "
            f"{new.max_grad_norm}."
        )
    if old.accum_type != new.accum_type or old.velocity_type != new.velocity_type:
        raise _refused("SGDAccumulatorAndMomentum: the types of the accumulators do not match.")
    if old.group_of_parameter != new.group_of_parameter or len(old.groups) != len(new.groups):
        raise _refused("The parameter groups of the optimizer do not match those compiled.")
    _check_hyper("loss scaling", old.loss_scaling, new.loss_scaling)
    for old_group, new_group in zip(old.groups, new.groups, strict=True):
        for name, hyper in old_group.hypers:
            _check_hyper(_PLURALS.get(name, name), hyper, new_group[name])


def _check_kind(old: OptimizerKind, new: OptimizerKind) -> None:
    if old is new:
        return
    pair = {old, new}
    if pair <= _ADAMS:
        raise _refused(f"Adam modes do not match: compiled with {old.name}, given {new.name}.")
    if pair <= _RMSPROPS:
        raise _refused(f"Adaptive modes do not match: compiled with {old.name}, given {new.name}.")
    if pair <= _SGDS:
        raise _refused(
            f"SGDAccumulatorAndMomentum differs: compiled with {old.name}, given {new.name}."
        )
    raise _refused(f"Can not replace optimizer of type {old.name} with one of type {new.name}.")


def _check_hyper(what: str, old: Hyper, new: Hyper) -> None:
    if old.is_constant and not new.is_constant:
        raise _refused(
            f"Problem with {what}. Can not replace a constant value with a non constant value."
        )
    if not old.is_constant and new.is_constant:
        raise _refused(
            f"Problem with {what}. Can not replace a non constant value with a constant value."
        )
    if old.is_constant and old.value != new.value:
        raise _refused(
            f"Problem with {what}. Values are constant but do not match. Compiled with {old.value},"
            f" given {new.value}. Pass the value to the optimizer's constructor, or mark it with "
            "variable_attrs.markAsVariable, before compiling."
        )


def _refused(message: str) -> Error:
    return compiler_error(message, type="popart_exception")
