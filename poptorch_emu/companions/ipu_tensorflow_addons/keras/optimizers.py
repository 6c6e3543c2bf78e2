"""`ipu_tensorflow_addons.keras.optimizers`: Keras's optimisers with the IPU's arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from poptorch_emu.companions.ipu_tensorflow_addons.keras.registration import registered
from poptorch_emu.options.base import note_accepted

__all__ = ["AdamIpuOptimizer", "LAMBIpuOptimizer", "SGDIpuOptimizer"]

_ACCEPTED = (
    "m_dtype",
    "momentum_accum_dtype",
    "optimizer_compute_precisions",
    "outline_apply_gradients",
    "outline_apply_gradients_kwargs",
    "v_dtype",
    "vhat_dtype",
)


def _of_keras(kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of Keras's optimiser; the other ones change no result in float32."""
    for name in _ACCEPTED:
        if settings.get(name) is not None:
            note_accepted(f"{kind}({name}=...)")
    return {name: value for name, value in settings.items() if name not in _ACCEPTED}


@registered
class AdamIpuOptimizer(keras.optimizers.Adam):  # type: ignore[misc]
    """Adam by Keras's formula; data types of the states are accepted (exact)."""

    counterpart = "Adam"

    def __init__(self, *args: Any, debiasing: bool = True, **settings: Any) -> None:
        """Passes the arguments to Keras's optimiser.

        Raises:
            ValueError: `debiasing` is `False`, so moments would keep the bias of their start at 0.
        """
        if not debiasing:
            raise ValueError(
                "AdamIpuOptimizer(debiasing=False) is not offered. Use LAMBIpuOptimizer, or leave "
                "it out: the moments are then corrected for their start at 0."
            )
        super().__init__(*args, **_of_keras("AdamIpuOptimizer", settings))


@registered
class SGDIpuOptimizer(keras.optimizers.SGD):  # type: ignore[misc]
    """SGD by Keras's formula; the data type of the momentum is accepted (exact)."""

    counterpart = "SGD"

    def __init__(self, *args: Any, **settings: Any) -> None:
        """Passes the arguments to Keras's optimiser."""
        super().__init__(*args, **_of_keras("SGDIpuOptimizer", settings))


@registered
class LAMBIpuOptimizer(keras.optimizers.Lamb):  # type: ignore[misc]
    """LAMB whose trust ratio includes the weight decay (exact).

    The step is lr · r · u with u = m / (sqrt(v) + epsilon) + decay · w and r = |w| / |u|, or 1 if
    one of the norms is 0.
    """

    counterpart = "LAMB"

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay_rate: float = 0.0,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        name: str = "LAMB",
        debiasing: bool = True,
        weight_norm_clip: float | None = None,
        **settings: Any,
    ) -> None:
        """Stores the hyper-parameters.

        Args:
            learning_rate: a number or a schedule.
            beta_1: decay of the first moment.
            beta_2: decay of the second moment.
            epsilon: constant added to the root of the second moment.
            weight_decay_rate: factor of the weights in the direction of the step.
            exclude_from_weight_decay: regular expressions for the paths of weights without decay.
            exclude_from_layer_adaptation: not offered.
            name: name of the optimiser.
            debiasing: whether moments are corrected for their start at 0.
            weight_norm_clip: upper limit of the norm of a weight in the trust ratio.
            settings: further arguments of `keras.optimizers.Lamb`; data types are accepted.

        Raises:
            ValueError: `exclude_from_layer_adaptation` names weights.
        """
        if exclude_from_layer_adaptation:
            raise ValueError(
                "LAMBIpuOptimizer(exclude_from_layer_adaptation=...) is not offered: each weight "
                "has its ratio. Leave it out, or train those weights by Adam."
            )
        super().__init__(
            learning_rate, beta_1, beta_2, epsilon, name=name, **_of_keras("LAMB", settings)
        )
        self.weight_decay_rate = weight_decay_rate
        self.patterns = list(exclude_from_weight_decay or ())
        self.debiasing, self.weight_norm_clip = debiasing, weight_norm_clip

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "weight_decay_rate": self.weight_decay_rate,
            "exclude_from_weight_decay": self.patterns,
            "debiasing": self.debiasing,
            "weight_norm_clip": self.weight_norm_clip,
        }

    def decay_of(self, variable: Any) -> float:
        """Returns the weight decay of a variable; 0 if a pattern excludes it."""
        is_excluded = any(re.search(pattern, variable.path) for pattern in self.patterns)
        return 0.0 if is_excluded else float(self.weight_decay_rate)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates a variable on the host."""
        index = self._get_variable_index(variable)
        first, second = self._momentums[index], self._velocities[index]
        self.assign_add(first, (gradient - first) * (1 - self.beta_1))
        self.assign_add(second, (gradient * gradient - second) * (1 - self.beta_2))
        step = ops.cast(self.iterations + 1, variable.dtype)
        mean, square = first * 1.0, second * 1.0
        if self.debiasing:
            mean = mean / (1 - self.beta_1**step)
            square = square / (1 - self.beta_2**step)
        direction = mean / (ops.sqrt(square) + self.epsilon) + self.decay_of(variable) * variable
        norm, of_direction = (ops.sqrt(ops.sum(x * x)) for x in (variable * 1.0, direction))
        if self.weight_norm_clip is not None:
            norm = ops.minimum(norm, self.weight_norm_clip)
        has_ratio = ops.logical_and(norm > 0, of_direction > 0)
        safe = ops.where(has_ratio, of_direction, 1.0)
        ratio = ops.where(has_ratio, norm / safe, 1.0)
        self.assign_sub(variable, learning_rate * ratio * direction)
