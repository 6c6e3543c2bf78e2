"""Normalisation over groups of channels."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from poptorch_emu.companions.ipu_tensorflow_addons.keras.registration import registered


@registered
class GroupNormalization(keras.layers.Layer):  # type: ignore[misc]
    """Normalises the channels of each group together (exact).

    With strided grouping, channel c is in group c mod groups; otherwise each group holds
    neighbouring channels.
    """

    def __init__(
        self,
        groups: int = 2,
        channels_axis: int = -1,
        center: bool = True,
        scale: bool = True,
        epsilon: float = 1e-3,
        beta_initializer: Any = None,
        gamma_initializer: Any = None,
        strided_channel_grouping: bool = True,
        trainable: bool = True,
        **settings: Any,
    ) -> None:
        """Stores how channels are grouped; the other arguments are as in Keras.

        Raises:
            ValueError: `channels_axis` is neither 1 nor -1.
        """
        super().__init__(trainable=trainable, **settings)
        if channels_axis not in (1, -1):
            raise ValueError(f"channels_axis must be 1 or -1, not {channels_axis!r}.")
        self.groups, self.channels_axis, self.epsilon = groups, channels_axis, epsilon
        self.center, self.scale = center, scale
        self.is_strided = strided_channel_grouping
        self._initializers = [
            keras.initializers.get(each)
            for each in (gamma_initializer or "ones", beta_initializer or "zeros")
        ]

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        gamma, beta = map(keras.initializers.serialize, self._initializers)
        return {
            **super().get_config(),
            "groups": self.groups,
            "channels_axis": self.channels_axis,
            "center": self.center,
            "scale": self.scale,
            "epsilon": self.epsilon,
            "beta_initializer": beta,
            "gamma_initializer": gamma,
            "strided_channel_grouping": self.is_strided,
        }

    def build(self, input_shape: Any) -> None:
        """Creates scale and offset of the channels.

        Raises:
            ValueError: the number of groups does not divide the number of channels.
        """
        channels = input_shape[self.channels_axis]
        if channels % self.groups:
            raise ValueError(
                f"{type(self).__name__} has {self.groups} groups, which do not divide the "
                f"{channels} channels of {tuple(input_shape)}."
            )
        gamma, beta = self._initializers
        self.gamma = self.beta = None
        if self.scale:
            self.gamma = self.add_weight(shape=(channels,), initializer=gamma, name="gamma")
        if self.center:
            self.beta = self.add_weight(shape=(channels,), initializer=beta, name="beta")

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Returns the normalised inputs, in their shape."""
        x = ops.moveaxis(inputs, self.channels_axis, -1)
        shape = ops.shape(x)
        channels = shape[-1]
        per_group = channels // self.groups
        parts = (per_group, self.groups) if self.is_strided else (self.groups, per_group)
        x = ops.reshape(x, (shape[0], -1, *parts))
        axes = (1, 2) if self.is_strided else (1, 3)
        mean, variance = ops.moments(x, axes, keepdims=True)
        x = (x - mean) * ops.rsqrt(variance + self.epsilon)
        x = ops.reshape(x, shape)
        x = x if self.gamma is None else x * self.gamma
        x = x if self.beta is None else x + self.beta
        return ops.moveaxis(x, -1, self.channels_axis)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Returns the shape of the inputs."""
        return input_shape


@registered
class InstanceNormalization(GroupNormalization):
    """Normalises each channel by itself (exact)."""

    def __init__(self, channels_axis: int = -1, **settings: Any) -> None:
        """Stores the axis of the channels: 1 or -1."""
        super().__init__(1, channels_axis, **settings)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        config = super().get_config()
        return {name: value for name, value in config.items() if name != "groups"}

    def build(self, input_shape: Any) -> None:
        """Creates the weights, with one group for each channel."""
        self.groups = input_shape[self.channels_axis]
        super().build(input_shape)


@registered
class LayerNormalization(keras.layers.LayerNormalization):  # type: ignore[misc]
    """Normalises the features of each sample, as Keras's layer does (exact)."""

    def __init__(self, axis: Any = -1, epsilon: float = 1e-3, **settings: Any) -> None:
        """Stores the axes of the features."""
        super().__init__(axis=axis, epsilon=epsilon, **settings)

    def call(self, inputs: Any) -> Any:
        """Returns the normalised inputs, in their shape.

        The layer moves the axes of the features to the end meanwhile, because Keras 3.15 with
        PyTorch normalises wrong axes if neighbouring feature axes are not the last ones.
        """
        num_axes = len(inputs.shape)
        axes = [axis % num_axes for axis in self.axis]
        last = list(range(num_axes - len(axes), num_axes))
        if axes == last:
            return super().call(inputs)
        x = ops.moveaxis(inputs, axes, last)
        x = ops.layer_normalization(x, self.gamma, self.beta, last, self.epsilon)
        return ops.cast(ops.moveaxis(x, last, axes), self.compute_dtype)


GroupNorm, InstanceNorm, LayerNorm = GroupNormalization, InstanceNormalization, LayerNormalization
