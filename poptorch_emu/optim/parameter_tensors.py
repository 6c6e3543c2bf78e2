"""Variable hyper-parameters as the tensors that `state_dict()["ipu_param"]` shows.

The names are PopART's, for people who inspect them. The values are the hyper-parameters that the
user set. PopART combines several into one tensor, but nothing depends on that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from poptorch_emu.update.formulas.optimizer_config import (
    GroupConfig,
    OptimizerConfig,
    OptimizerKind,
)

_PLAIN_SGD = {"lr": "scaledLearningRate0", "weight_decay": "weightDecayScaleFactor0"}
_COMBINED_SGD = {
    "lr": "scaledLearningRate1",
    "weight_decay": "scaledWeightDecay1",
    "dampening": "dampeningScaleFactor1",
    "momentum": "scaledMomentum1",
}
_SEPARATE_SGD = {
    "lr": "scaledLearningRate2",
    "weight_decay": "sgdWeightDecay",
    "dampening": "dampeningScaleFactor2",
    "momentum": "scaledMomentum2",
}
_ADAM = {
    "lr": "learningRate",
    "weight_decay": "weightDecay",
    "beta1": "adamBeta1",
    "beta2": "adamBeta2",
    "eps": "adamEps",
    "max_weight_norm": "maxWeightNorm",
}
_RMSPROP = {
    "lr": "learningRate",
    "weight_decay": "weightDecay",
    "alpha": "adaptiveAlpha",
    "momentum": "adaptiveMomentum",
    "eps": "adaptiveEps",
}


def parameter_tensors(config: OptimizerConfig, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Returns a 0-d float32 tensor for each variable hyper-parameter of each parameter.

    Args:
        config: configuration of the optimiser.
        names: names of the model's parameters, in the order of `config.group_of_parameter`.
    """
    tensors = {}
    for parameter, index in zip(names, config.group_of_parameter, strict=True):
        group = config.groups[index]
        origin = "default" if index == 0 else "specific"
        for hyper_name, tensor_name in _tensor_names(config.kind, group).items():
            hyper = dict(group.hypers).get(hyper_name)
            if hyper is not None and not hyper.is_constant:
                tensors[f"{tensor_name}___{origin}___{parameter}"] = torch.tensor(hyper.value)
    if not config.loss_scaling.is_constant:
        tensors["lossScaling_FLOAT"] = torch.tensor(config.loss_scaling.value)
    return tensors


def _tensor_names(kind: OptimizerKind, group: GroupConfig) -> Mapping[str, str]:
    if kind.is_sgd:
        if group.is_constant_zero("momentum"):
            return _PLAIN_SGD
        return _COMBINED_SGD if kind is OptimizerKind.SGD1 else _SEPARATE_SGD
    return _RMSPROP if kind.is_rmsprop else _ADAM
