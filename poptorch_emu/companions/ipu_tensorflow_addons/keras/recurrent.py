"""Recurrent layers with the restrictions of the IPU's layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from poptorch_emu.companions.ipu_tensorflow_addons.keras.registration import registered

_ACTIVATIONS = ("tanh", "relu", "softmax", "sigmoid", "hard_sigmoid")
_REFUSED = {
    "activity_regularizer": None,
    "bias_constraint": None,
    "bias_regularizer": None,
    "go_backwards": False,
    "kernel_constraint": None,
    "kernel_regularizer": None,
    "recurrent_constraint": None,
    "recurrent_dropout": 0.0,
    "recurrent_regularizer": None,
    "unroll": False,
    "use_bias": True,
}


def _checked(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments that Keras's layer takes.

    Raises:
        ValueError: an argument has a value that the IPU's layer does not offer.
    """
    for name, only in _REFUSED.items():
        if settings.get(name, only) != only:
            raise ValueError(
                f"{kind}({name}={settings[name]!r}) is not offered: it must be {only!r}. Use "
                f"keras.layers.{kind}, which has it."
            )
    for name in ("activation", "recurrent_activation"):
        if name in settings and _name_of(settings[name]) not in _ACTIVATIONS:
            raise ValueError(
                f"{kind}({name}={settings[name]!r}) is not offered: it must be one of "
                f"{', '.join(_ACTIVATIONS)}. Use keras.layers.{kind}."
            )
    return {name: value for name, value in settings.items() if name not in _REFUSED}


def _name_of(activation: Any) -> Any:
    return getattr(activation, "__name__", activation)


class _OfIpu:
    """Arguments and methods that the two layers share."""

    _is_time_major: bool

    def __init__(
        self,
        units: int,
        *,
        dropout_seed: Any = None,
        partials_dtype: Any = None,
        seed: Any = None,
        time_major: bool = False,
        options: Any = None,
        options_bwd: Any = None,
        **settings: Any,
    ) -> None:
        """Passes the arguments to Keras's layer.

        Args:
            units: size of the output.
            dropout_seed: seed of the dropout if `seed` is not given.
            partials_dtype: accepted.
            seed: seed of the dropout.
            time_major: whether the first axis of inputs and outputs is the time.
            options: accepted.
            options_bwd: accepted.
            settings: further arguments of Keras's layer.

        Raises:
            ValueError: a setting has a value that the IPU's layer does not offer.
        """
        seed = dropout_seed if seed is None and isinstance(dropout_seed, int) else seed
        super().__init__(  # type: ignore[call-arg]
            units, seed=seed, **_checked(type(self).__name__.removeprefix("Popnn"), settings)
        )
        self._is_time_major = time_major

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "time_major": self._is_time_major}  # type: ignore[misc]

    @property
    def kernel(self) -> Any:
        """The weights of the inputs."""
        return self.cell.kernel  # type: ignore[attr-defined]

    @property
    def recurrent_kernel(self) -> Any:
        """The weights of the state."""
        return self.cell.recurrent_kernel  # type: ignore[attr-defined]

    @property
    def biases(self) -> Any:
        """The biases of all gates."""
        return self.cell.bias  # type: ignore[attr-defined]

    def call(
        self, sequences: Any, initial_state: Any = None, mask: Any = None, training: Any = False
    ) -> Any:
        """Runs the layer over all time steps.

        Raises:
            NotImplementedError: `mask` is given.
        """
        if mask is not None:
            raise NotImplementedError(
                f"{type(self).__name__} does not support a mask. Use the layer of the same name "
                "in keras.layers, or pad all sequences to one length without a mask."
            )
        if not self._is_time_major:
            return super().call(  # type: ignore[misc]
                sequences, initial_state=initial_state, training=training
            )
        found = super().call(  # type: ignore[misc]
            keras.ops.swapaxes(sequences, 0, 1), initial_state=initial_state, training=training
        )
        if not self.return_sequences:  # type: ignore[attr-defined]
            return found
        if isinstance(found, (list, tuple)):
            return [keras.ops.swapaxes(found[0], 0, 1), *found[1:]]
        return keras.ops.swapaxes(found, 0, 1)

    def compute_output_shape(self, sequences_shape: Any, initial_state_shape: Any = None) -> Any:
        """Returns the shape of the result of `call`."""
        shape = tuple(sequences_shape)
        if self._is_time_major:
            shape = (shape[1], shape[0], *shape[2:])
        found = super().compute_output_shape(shape)  # type: ignore[misc]
        if not (self._is_time_major and self.return_sequences):  # type: ignore[attr-defined]
            return found
        has_state = self.return_state  # type: ignore[attr-defined]
        first, rest = (found[0], list(found[1:])) if has_state else (found, [])
        first = (first[1], first[0], *first[2:])
        return [first, *rest] if has_state else first


@registered
class LSTM(_OfIpu, keras.layers.LSTM):  # type: ignore[misc]
    """Long short-term memory, computed by Keras's layer (exact)."""


@registered
class GRU(_OfIpu, keras.layers.GRU):  # type: ignore[misc]
    """Gated recurrent units, computed by Keras's layer (exact)."""


PopnnLSTM, PopnnGRU = LSTM, GRU
