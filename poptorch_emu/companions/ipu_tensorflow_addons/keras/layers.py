"""`ipu_tensorflow_addons.keras.layers`: Keras's layers with the arguments of the IPU's layers."""

from __future__ import annotations

from typing import Any, NoReturn

import keras
from keras import ops

from poptorch_emu.companions.ipu_tensorflow_addons.keras.normalization import (
    GroupNorm,
    GroupNormalization,
    InstanceNorm,
    InstanceNormalization,
    LayerNorm,
    LayerNormalization,
)
from poptorch_emu.companions.ipu_tensorflow_addons.keras.recurrent import (
    GRU,
    LSTM,
    PopnnGRU,
    PopnnLSTM,
)
from poptorch_emu.companions.ipu_tensorflow_addons.keras.registration import registered
from poptorch_emu.errors import compiler_error

__all__ = [
    "AssumeEqualAcrossReplicas",
    "CTCLoss",
    "Dropout",
    "Embedding",
    "GRU",
    "GroupNorm",
    "GroupNormalization",
    "InstanceNorm",
    "InstanceNormalization",
    "LSTM",
    "LayerNorm",
    "LayerNormalization",
    "PopnnGRU",
    "PopnnLSTM",
    "RecomputationCheckpoint",
    "SerialDense",
]


@registered
class Embedding(keras.layers.Embedding):  # type: ignore[misc]
    """Looks up rows of a table, as Keras's layer does (exact)."""

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        serialization_factor: int = 1,
        **settings: Any,
    ) -> None:
        """Creates a table of `input_dim` rows and `output_dim` columns.

        Args:
            input_dim: number of rows.
            output_dim: number of columns.
            embeddings_initializer: initializer of the table.
            serialization_factor: accepted, if it divides the number of rows.
            settings: arguments that any Keras layer takes, for example its name.

        Raises:
            NotImplementedError: `settings` holds another argument of `keras.layers.Embedding`.
            ValueError: `serialization_factor` does not divide the number of rows.
        """
        if settings.get("quantization_config", 0) is None:  # Set by Keras's `from_config`.
            del settings["quantization_config"]
        for name in settings:
            if name not in ("name", "dtype", "trainable", "weights", "input_length"):
                raise NotImplementedError(
                    f"Embedding({name}=...) is not offered. Use keras.layers.Embedding."
                )
        if input_dim % serialization_factor:
            raise ValueError(
                f"serialization_factor={serialization_factor} does not divide the {input_dim} "
                "rows of the embedding. Choose a factor that does."
            )
        settings.pop("input_length", None)
        super().__init__(
            input_dim, output_dim, embeddings_initializer=embeddings_initializer, **settings
        )
        self.serialization_factor = serialization_factor

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        of_any_layer = keras.layers.Layer.get_config(self)
        return {
            **{name: of_any_layer[name] for name in ("name", "dtype", "trainable")},
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "serialization_factor": self.serialization_factor,
        }


@registered
class Dropout(keras.layers.Dropout):  # type: ignore[misc]
    """Sets a share of the inputs to zero, as Keras's layer does (exact)."""


@registered
class SerialDense(keras.layers.Dense):  # type: ignore[misc]
    """A dense layer; dividing its product into parts changes no result (exact)."""

    def __init__(
        self,
        units: int,
        serialization_factor: int | None = None,
        serialization_dimension: str | None = None,
        *args: Any,
        **settings: Any,
    ) -> None:
        """Passes arguments to Keras's layer and stores how the product is divided (accepted)."""
        super().__init__(units, *args, **settings)
        self.serialization_factor = serialization_factor
        self.serialization_dimension = serialization_dimension

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "serialization_factor": self.serialization_factor,
            "serialization_dimension": self.serialization_dimension,
        }


class _Unchanged(keras.layers.Layer):  # type: ignore[misc]
    def call(self, inputs: Any, **kwargs: Any) -> Any:
        """Returns the inputs unchanged."""
        return keras.tree.map_structure(lambda x: x, inputs)


@registered
class RecomputationCheckpoint(_Unchanged):
    """Returns a structure unchanged; the choice of kept values changes no result (exact)."""


@registered
class AssumeEqualAcrossReplicas(_Unchanged):
    """Returns a structure unchanged (exact)."""

    def __init__(self, inplace: bool = False, **settings: Any) -> None:
        """Accepts `inplace`, which has no effect."""
        super().__init__(**settings)


@registered
class CTCLoss(keras.layers.Layer):  # type: ignore[misc]
    """Mean connectionist temporal classification (CTC) loss (exact)."""

    def __init__(self, blank_index: int = 0, from_logits: bool = False, **settings: Any) -> None:
        """Stores the index of the blank, and whether the data are logits or log-probabilities."""
        super().__init__(**settings)
        self.blank_index, self.from_logits = blank_index, from_logits

    def call(self, labels: Any, data: Any, label_length: Any, data_length: Any) -> Any:
        """Returns the mean loss, of shape (1,).

        Args:
            labels: (B, S), integers.
            data: (T, B, C), logits or log-probabilities; log-probabilities are valid logits.
            label_length: (B,), number of labels of each sample.
            data_length: (B,), number of time steps of each sample.
        """
        losses = ops.ctc_loss(
            labels,
            ops.swapaxes(data, 0, 1),
            ops.reshape(label_length, (-1,)),
            ops.reshape(data_length, (-1,)),
            mask_index=self.blank_index,
        )
        return ops.reshape(ops.mean(losses), (1,))


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)

    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise compiler_error(
            f"ipu_tensorflow_addons.keras.layers.{name} is not offered (refused): there are "
            f"{', '.join(__all__)}. Write the layer with keras.ops."
        )

    return refused
