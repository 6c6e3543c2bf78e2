"""Calls of Keras's layers, losses, metrics, initializers and optimizers, each argument with values.

A table gives the values of each argument. The samples of a class are its first values, each other
value by itself, and random combinations.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Table = dict[str, Sequence[Any]]


@dataclass(frozen=True)
class Sample:
    """A call of one class.

    Attributes:
        room: "layers", "losses", "metrics", "initializers" or "optimizers".
        name: name of the class.
        arguments: arguments of its constructor.
        inputs: shape of each input; "int" instead of a shape's first number means integers.
        call: arguments of the call.
    """

    room: str
    name: str
    arguments: dict[str, Any]
    inputs: tuple[tuple[Any, ...], ...] = ()
    call: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = [f"{name}={value!r}" for name, value in self.arguments.items()]
        call = "".join(f", {name}={value!r}" for name, value in self.call.items())
        return f"{self.room}.{self.name}({', '.join(given)}) of {self.inputs}{call}"

    def arrays(self) -> list[np.ndarray]:
        """Returns the inputs."""
        generator = np.random.default_rng(zlib.crc32(str(self).encode()))
        found = []
        for shape in self.inputs:
            if shape and shape[0] == "int":
                found.append(generator.integers(0, 5, shape[1:]).astype(np.int32))
            else:
                found.append(generator.normal(size=shape).astype(np.float32))
        return found


def combined(table: Table, more: int = 6, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yields the first values, each other value by itself, and random combinations."""
    first = {name: values[0] for name, values in table.items()}
    yield first
    for name, values in table.items():
        for value in values[1:]:
            yield {**first, name: value}
    generator = np.random.default_rng(seed)
    for _ in range(more if len(table) > 1 else 0):
        yield {name: values[generator.integers(len(values))] for name, values in table.items()}


ACTIVATIONS = (
    "celu", "elu", "exponential", "gelu", "glu", "hard_shrink", "hard_sigmoid", "hard_silu",
    "hard_tanh", "leaky_relu", "linear", "log_sigmoid", "log_softmax", "mish", "relu", "relu6",
    "selu", "sigmoid", "silu", "soft_shrink", "softmax", "softplus", "softsign", "sparse_plus",
    "sparse_sigmoid", "sparsemax", "squareplus", "tanh", "tanh_shrink", "threshold",
)  # fmt: skip
_FLAGS = (True, False)
_FORMATS = ("channels_last", "channels_first")
_WEIGHTS: Table = {
    "use_bias": _FLAGS,
    "activation": (None, "relu", "gelu"),
    "kernel_regularizer": (None, "l2"),
    "bias_regularizer": (None, "l1"),
    "activity_regularizer": (None, "l2"),
}
_CELL: Table = {
    "units": (3,),
    "activation": ("tanh", "relu", "linear"),
    "use_bias": _FLAGS,
    "kernel_regularizer": (None, "l2"),
}
_RNN: Table = {
    "return_sequences": (False, True),
    "return_state": (False, True),
    "go_backwards": (False, True),
    "stateful": (False, True),
    "unroll": (False, True),
}


def _sizes(rank: int) -> tuple[int, ...]:
    return (7, 6, 5)[:rank]


def _images(rank: int, channels: int = 4) -> list[tuple[int, ...]]:
    return [(2, *_sizes(rank), channels)]


def _pools(rank: int) -> Table:
    return {
        "pool_size": (2, 3, (3, 2, 2)[:rank]),
        "strides": (None, 1, 2, 3),
        "padding": ("valid", "same"),
        "data_format": _FORMATS,
    }


def _convolutions(rank: int) -> Table:
    return {
        "filters": (4, 2),
        "kernel_size": (3, 2, 1),
        "strides": (1, 2, 3),
        "padding": ("valid", "same", *(("causal",) if rank == 1 else ())),
        "data_format": _FORMATS,
        "dilation_rate": (1, 2),
        "groups": (1, 2),
        **_WEIGHTS,
    }


def _transposed(rank: int) -> Table:
    return {
        "filters": (4, 2),
        "kernel_size": (3, 2, 1, 4),
        "strides": (1, 2, 3),
        "padding": ("valid", "same"),
        "output_padding": (None, 0, 1),
        "data_format": _FORMATS,
        "dilation_rate": (1, 2),
        **_WEIGHTS,
    }


def _depthwise(rank: int) -> Table:
    table = _convolutions(rank)
    del table["groups"], table["filters"], table["kernel_regularizer"]
    table["padding"] = ("valid", "same")
    return {**table, "depth_multiplier": (1, 2), "depthwise_regularizer": (None, "l2")}


def _separable(rank: int) -> Table:
    return {**_depthwise(rank), "filters": (4, 3), "pointwise_regularizer": (None, "l2")}


def _recurrent_convolutions(rank: int) -> Table:
    table = {k: v for k, v in _convolutions(rank).items() if k not in ("groups", "activation")}
    table["padding"] = ("valid", "same")
    table["strides"] = (1, 2)
    table |= {k: v for k, v in _RNN.items() if k not in ("unroll", "return_state")}
    return {
        **table,
        "recurrent_activation": ("sigmoid", "hard_sigmoid"),
        "unit_forget_bias": _FLAGS,
    }


# Table and shapes of the inputs of each layer; several shapes in a tuple are inputs of one call.
LAYERS: dict[str, tuple[Table, list[Any]]] = {
    "Activation": ({"activation": ACTIVATIONS}, [(3, 4), (2, 3, 4)]),
    "ActivityRegularization": ({"l1": (0.0, 0.1), "l2": (0.0, 0.2)}, [(3, 4)]),
    "Dense": ({"units": (3, 1), **_WEIGHTS}, [(2, 4), (2, 3, 4)]),
    "EinsumDense": (
        {
            "equation": ("abc,cd->abd", "abc,cd->adb"),
            "output_shape": ((None, 5),),
            "bias_axes": (None, "d"),
            "activation": (None, "relu"),
        },
        [(2, 3, 4)],
    ),
    "Embedding": (
        {"input_dim": (6,), "output_dim": (3,), "embeddings_regularizer": (None, "l2"),
         "mask_zero": (False, True)},
        [("int", 2, 4)],
    ),
    "ReversibleEmbedding": (
        {"input_dim": (6,), "output_dim": (3,), "tie_weights": _FLAGS,
         "logit_soft_cap": (None, 2.0), "mask_zero": (False, True)},
        [("int", 2, 4)],
    ),
    "ELU": ({"alpha": (1.0, 0.3)}, [(3, 4)]),
    "LeakyReLU": ({"negative_slope": (0.3, 0.0, 1.5)}, [(3, 4)]),
    "PReLU": ({"shared_axes": (None, [1]), "alpha_regularizer": (None, "l2")}, [(2, 3, 4)]),
    "ReLU": ({"max_value": (None, 0.5), "negative_slope": (0.0, 0.2), "threshold": (0.0, 0.3)},
             [(3, 4)]),
    "Softmax": ({"axis": (-1, 1, (1, 2))}, [(2, 3, 4)]),
    "UnitNormalization": ({"axis": (-1, 1, [1, 2])}, [(2, 3, 4)]),
    "LayerNormalization": (
        {"axis": (-1, 1, [1, 2]), "epsilon": (1e-3, 0.1), "center": _FLAGS, "scale": _FLAGS},
        [(2, 3, 4)],
    ),
    "RMSNormalization": ({"axis": (-1, 1, [1, 2]), "epsilon": (1e-6, 0.1)}, [(2, 3, 4)]),
    "GroupNormalization": (
        {"groups": (2, 1, 4, -1), "axis": (-1, 1), "epsilon": (1e-3, 0.1), "center": _FLAGS,
         "scale": _FLAGS},
        [(2, 4, 4), (2, 4, 3, 4)],
    ),
    "BatchNormalization": (
        {"axis": (-1, 1), "momentum": (0.99, 0.5), "epsilon": (1e-3, 0.1), "center": _FLAGS,
         "scale": _FLAGS},
        [(3, 4), (2, 4, 3, 4)],
    ),
    "SpectralNormalization": ({"power_iterations": (1, 3)}, [(2, 4)]),
    "Normalization": (
        {"axis": (-1, None, 1), "mean": (0.5,), "variance": (2.0,), "invert": (False, True)},
        [(2, 3)],
    ),
    "Rescaling": ({"scale": (2.0, 0.5), "offset": (0.0, 1.0)}, [(2, 3)]),
    "Flatten": ({"data_format": (None, *_FORMATS)}, [(2, 3, 4, 5)]),
    "Reshape": ({"target_shape": ((12,), (-1, 2), (2, 6))}, [(2, 3, 4)]),
    "Permute": ({"dims": ((2, 1), (1, 2))}, [(2, 3, 4)]),
    "RepeatVector": ({"n": (2, 3)}, [(2, 4)]),
    "Masking": ({"mask_value": (0.0, 1.0)}, [(2, 3, 4)]),
    "Identity": ({}, [(2, 3)]),
    "Concatenate": ({"axis": (-1, 1)}, [((2, 3, 4), (2, 3, 4))]),
    "Dot": ({"axes": (1, -1, (1, 2), (2, 1)), "normalize": (False, True)},
            [((2, 3, 3), (2, 3, 3))]),
    **{
        name: ({}, [((2, 3), (2, 3)), ((2, 3, 4), (2, 1, 4))])
        for name in ("Add", "Average", "Maximum", "Minimum", "Multiply", "Subtract")
    },
    "Attention": (
        {"use_scale": (False, True), "score_mode": ("dot", "concat")},
        [((2, 3, 4), (2, 5, 4)), ((2, 3, 4), (2, 5, 4), (2, 5, 4))],
    ),
    "AdditiveAttention": ({"use_scale": (True, False)}, [((2, 3, 4), (2, 5, 4))]),
    "MultiHeadAttention": (
        {"num_heads": (2, 1), "key_dim": (3,), "value_dim": (None, 2), "use_bias": _FLAGS,
         "output_shape": (None, 5), "attention_axes": (None, (1,)),
         "kernel_regularizer": (None, "l2")},
        [((2, 3, 4), (2, 5, 4)), ((2, 3, 4), (2, 5, 4), (2, 5, 4))],
    ),
    "GroupQueryAttention": (
        {"head_dim": (3,), "num_query_heads": (4,), "num_key_value_heads": (2, 4, 1),
         "use_bias": _FLAGS},
        [((2, 3, 4), (2, 5, 4))],
    ),
    "SimpleRNN": ({**_CELL, **_RNN}, [(2, 5, 4)]),
    "GRU": (
        {**_CELL, **_RNN, "recurrent_activation": ("sigmoid", "hard_sigmoid"),
         "reset_after": _FLAGS},
        [(2, 5, 4)],
    ),
    "LSTM": (
        {**_CELL, **_RNN, "recurrent_activation": ("sigmoid", "hard_sigmoid"),
         "unit_forget_bias": _FLAGS},
        [(2, 5, 4)],
    ),
    "RNN": (_RNN, [(2, 5, 4)]),
    "Bidirectional": ({"merge_mode": ("concat", "sum", "mul", "ave", None)}, [(2, 5, 4)]),
    "TimeDistributed": ({}, [(2, 5, 4)]),
    "UpSampling1D": ({"size": (2, 3)}, [(2, 3, 4)]),
    "UpSampling2D": (
        {"size": (2, (2, 3)), "data_format": _FORMATS,
         "interpolation": ("nearest", "bilinear", "bicubic", "lanczos3", "lanczos5")},
        [(2, 3, 4, 2)],
    ),
    "UpSampling3D": ({"size": (2, (1, 2, 3)), "data_format": _FORMATS}, [(2, 3, 2, 2, 2)]),
    "Resizing": (
        {"height": (4, 9), "width": (5, 3),
         "interpolation": ("bilinear", "nearest", "bicubic", "lanczos3", "lanczos5", "area"),
         "crop_to_aspect_ratio": (False, True), "pad_to_aspect_ratio": (False, True),
         "antialias": (False, True), "data_format": _FORMATS},
        [(2, 7, 6, 3)],
    ),
    "CenterCrop": ({"height": (4, 8), "width": (3, 9), "data_format": _FORMATS}, [(2, 7, 6, 3)]),
    "ZeroPadding1D": ({"padding": (1, (2, 1)), "data_format": _FORMATS}, [(2, 3, 4)]),
    "ZeroPadding2D": ({"padding": (1, (2, 1), ((1, 0), (2, 3))), "data_format": _FORMATS},
                      [(2, 3, 4, 2)]),
    "ZeroPadding3D": ({"padding": (1, (2, 1, 0)), "data_format": _FORMATS}, [(2, 3, 4, 2, 2)]),
    "Cropping1D": ({"cropping": (1, (2, 1), (0, 1))}, [(2, 6, 4)]),
    "Cropping2D": ({"cropping": (1, (2, 1), ((1, 0), (2, 1))), "data_format": _FORMATS},
                   [(2, 6, 5, 5)]),
    "Cropping3D": ({"cropping": (1, (1, 0, 1)), "data_format": _FORMATS}, [(2, 4, 4, 4, 3)]),
    "CategoryEncoding": (
        {"num_tokens": (6,), "output_mode": ("multi_hot", "one_hot", "count")},
        [("int", 2, 4), ("int", 3)],
    ),
    "Discretization": (
        {"bin_boundaries": ([-0.5, 0.0, 1.0],), "output_mode": ("int", "one_hot", "multi_hot",
                                                                "count")},
        [(2, 3)],
    ),
    "STFTSpectrogram": (
        {"mode": ("log", "magnitude", "psd", "real", "imag", "angle", "stft"),
         "frame_length": (16,), "frame_step": (8, 5), "fft_length": (None, 32),
         "window": ("hann", "hamming", None), "periodic": (False, True),
         "padding": ("valid", "same"), "scaling": ("density", "spectrum", None),
         "expand_dims": (False, True)},
        [(2, 64, 1)],
    ),
    "MelSpectrogram": (
        {"fft_length": (64,), "sequence_stride": (16, 20), "num_mel_bins": (8,),
         "power_to_db": _FLAGS, "min_power": (1e-10, 1e-3), "window": ("hann", "hamming")},
        [(2, 300)],
    ),
    "Solarization": ({"addition_factor": (0.2,), "threshold_factor": (0.0,),
                      "value_range": ((0, 1),), "seed": (1,)}, []),
    **{
        f"{kind}Pooling{rank}D": (_pools(rank), _images(rank))
        for kind in ("Max", "Average") for rank in (1, 2, 3)
    },
    **{
        f"Global{kind}Pooling{rank}D": (
            {"data_format": _FORMATS, "keepdims": (False, True)}, _images(rank)
        )
        for kind in ("Max", "Average") for rank in (1, 2, 3)
    },
    **{
        f"Adaptive{kind}Pooling{rank}D": (
            {"output_size": (2, 3), "data_format": _FORMATS}, _images(rank)
        )
        for kind in ("Max", "Average") for rank in (1, 2, 3)
    },
    **{f"Conv{rank}D": (_convolutions(rank), _images(rank)) for rank in (1, 2, 3)},
    **{f"Conv{rank}DTranspose": (_transposed(rank), _images(rank)) for rank in (1, 2, 3)},
    **{f"DepthwiseConv{rank}D": (_depthwise(rank), _images(rank)) for rank in (1, 2)},
    **{f"SeparableConv{rank}D": (_separable(rank), _images(rank)) for rank in (1, 2)},
    **{
        f"ConvLSTM{rank}D": (
            _recurrent_convolutions(rank), [(2, 2, *_sizes(rank), 2)]
        )
        for rank in (1, 2, 3)
    },
}  # fmt: skip

_MASKED = ("SimpleRNN", "GRU", "LSTM", "RNN", "Bidirectional", "TimeDistributed")
_WITH_TRAINING = ("BatchNormalization", "SpectralNormalization")
_POOLED = ("GlobalAveragePooling1D", "Softmax", "BatchNormalization")
_CAUSAL = ("MultiHeadAttention", "GroupQueryAttention", "Attention", "AdditiveAttention")


def _layers() -> Iterator[Sample]:
    for name, (table, shapes) in LAYERS.items():
        for number, shape in enumerate(shapes):
            inputs = shape if shape and isinstance(shape[0], tuple) else (shape,)
            for index, arguments in enumerate(combined(table, seed=number)):
                calls: list[dict[str, Any]] = [{}]
                if name in _MASKED:
                    calls.append({"mask": ((True, True, True, False, False), (True,) * 5)})
                if name in _WITH_TRAINING:
                    calls.append({"training": True})
                if name in _CAUSAL and index < 6:
                    calls.append({"use_causal_mask": True})
                for call in calls:
                    yield Sample("layers", name, arguments, tuple(inputs), call)


_REDUCTIONS = ("sum_over_batch_size", "sum", "mean", "mean_with_sample_weight", "none", None)
# Table, kind of the labels, and shape of the predictions of each loss.
LOSSES: dict[str, tuple[Table, str, tuple[int, ...]]] = {
    "BinaryCrossentropy": (
        {"from_logits": (False, True), "label_smoothing": (0.0, 0.2), "axis": (-1, 1)},
        "binary", (3, 4),
    ),
    "BinaryFocalCrossentropy": (
        {"apply_class_balancing": (False, True), "alpha": (0.25, 0.6), "gamma": (2.0, 1.0),
         "from_logits": (False, True), "label_smoothing": (0.0, 0.2), "axis": (-1, 1)},
        "binary", (3, 4),
    ),
    "CategoricalCrossentropy": (
        {"from_logits": (False, True), "label_smoothing": (0.0, 0.2), "axis": (-1, 1)},
        "one-hot", (3, 4, 4),
    ),
    "CategoricalFocalCrossentropy": (
        {"alpha": (0.25, 0.6), "gamma": (2.0, 1.0), "from_logits": (False, True),
         "label_smoothing": (0.0, 0.2), "axis": (-1, 1)},
        "one-hot", (3, 4, 4),
    ),
    "SparseCategoricalCrossentropy": (
        {"from_logits": (False, True), "ignore_class": (None, 1, -1), "axis": (-1,)},
        "classes", (3, 2, 4),
    ),
    "CategoricalGeneralizedCrossEntropy": ({"q": (0.5, 0.9)}, "classes", (3, 4)),
    "CategoricalHinge": ({}, "one-hot", (3, 4)),
    "Circle": ({"gamma": (80.0, 2.0), "margin": (0.4, 0.1)}, "class of a row", (4, 3)),
    "CosineSimilarity": ({"axis": (-1, 1)}, "values", (3, 4, 2)),
    "Dice": ({"axis": (None, (1,))}, "binary", (3, 4, 2)),
    "Hinge": ({}, "binary", (3, 4)),
    "SquaredHinge": ({}, "signs", (3, 4)),
    "Huber": ({"delta": (1.0, 0.3)}, "values", (3, 4)),
    "KLDivergence": ({}, "one-hot", (3, 4)),
    "LogCosh": ({}, "values", (3, 4)),
    "MeanAbsoluteError": ({}, "values", (3, 4)),
    "MeanAbsolutePercentageError": ({}, "values", (3, 4)),
    "MeanSquaredError": ({}, "values", (3, 4)),
    "MeanSquaredLogarithmicError": ({}, "values", (3, 4)),
    "Poisson": ({}, "binary", (3, 4)),
    "Tversky": ({"alpha": (0.5, 0.2), "beta": (0.5, 0.9), "axis": (None, (1,))},
                "binary", (3, 4, 2)),
}  # fmt: skip


def _losses() -> Iterator[Sample]:
    for name, (table, kind, shape) in LOSSES.items():
        table = {**table, "reduction": _REDUCTIONS, "dtype": (None, "float32")}
        for arguments in combined(table, 10):
            for weights in ("", "rows"):
                yield Sample(
                    "losses", name, arguments, (shape,), {"labels": kind, "weights": weights}
                )


_LEVELS = {"thresholds": (None, 0.3, (0.2, 0.6))}
_AT: Table = {"num_thresholds": (200, 20), "class_id": (None, 1)}
METRICS: dict[str, tuple[Table, str, tuple[int, ...]]] = {
    "AUC": (
        {"curve": ("ROC", "PR"), "num_thresholds": (200, 10),
         "summation_method": ("interpolation", "minoring", "majoring"),
         "multi_label": (False, True), "from_logits": (False, True)},
        "binary", (6, 4),
    ),
    "Accuracy": ({}, "binary", (3, 4)),
    "BinaryAccuracy": ({"threshold": (0.5, 0.2)}, "binary", (3, 4)),
    "BinaryCrossentropy": ({"from_logits": (False, True), "label_smoothing": (0, 0.2)},
                           "binary", (3, 4)),
    "BinaryIoU": ({"target_class_ids": ((0, 1), (1,)), "threshold": (0.5, 0.2)},
                  "binary", (3, 4)),
    "CategoricalAccuracy": ({}, "one-hot", (6, 4)),
    "CategoricalCrossentropy": ({"from_logits": (False, True), "label_smoothing": (0, 0.2),
                                 "axis": (-1, 1)}, "one-hot", (3, 4, 4)),
    "CategoricalHinge": ({}, "one-hot", (3, 4)),
    "ConcordanceCorrelation": ({"axis": (-1, 0)}, "values", (4, 3)),
    "CosineSimilarity": ({"axis": (-1, 1)}, "values", (3, 4, 2)),
    "F1Score": ({"average": (None, "micro", "macro", "weighted"), "threshold": (None, 0.4)},
                "one-hot", (6, 4)),
    "FBetaScore": ({"average": (None, "micro", "macro", "weighted"), "beta": (1.0, 2.0),
                    "threshold": (None, 0.4)}, "one-hot", (6, 4)),
    **{name: (_LEVELS, "binary", (6, 4))
       for name in ("FalseNegatives", "FalsePositives", "TrueNegatives", "TruePositives")},
    "Hinge": ({}, "binary", (3, 4)),
    "IoU": ({"num_classes": (4,), "target_class_ids": ((0, 1), (2,)), "ignore_class": (None, 1),
             "sparse_y_pred": (False,)}, "classes", (6, 4)),
    "KLDivergence": ({}, "one-hot", (3, 4)),
    "LogCoshError": ({}, "values", (3, 4)),
    "Mean": ({}, "none", (3, 4)),
    "Sum": ({}, "none", (3, 4)),
    **{name: ({}, "values", (3, 4))
       for name in ("MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError",
                    "MeanSquaredLogarithmicError", "RootMeanSquaredError")},
    "MeanIoU": ({"num_classes": (4,), "ignore_class": (None, 1), "sparse_y_pred": (False,)},
                "classes", (6, 4)),
    "OneHotIoU": ({"num_classes": (4,), "target_class_ids": ((0, 1), (2,)),
                   "sparse_y_pred": (False,)}, "one-hot", (6, 4)),
    "OneHotMeanIoU": ({"num_classes": (4,), "sparse_y_pred": (False,)}, "one-hot", (6, 4)),
    "PearsonCorrelation": ({"axis": (-1, 0)}, "values", (4, 3)),
    "Poisson": ({}, "binary", (3, 4)),
    **{name: ({**_LEVELS, "top_k": (None, 2), "class_id": (None, 1)}, "binary", (6, 4))
       for name in ("Precision", "Recall")},
    "PrecisionAtRecall": ({"recall": (0.5, 0.9), **_AT}, "binary", (6, 4)),
    "RecallAtPrecision": ({"precision": (0.5, 0.9), **_AT}, "binary", (6, 4)),
    "SensitivityAtSpecificity": ({"specificity": (0.5, 0.9), **_AT}, "binary", (6, 4)),
    "SpecificityAtSensitivity": ({"sensitivity": (0.5, 0.9), **_AT}, "binary", (6, 4)),
    "R2Score": ({"class_aggregation": ("uniform_average", "variance_weighted_average", None),
                 "num_regressors": (0, 1)}, "values", (6, 3)),
    "SparseCategoricalAccuracy": ({}, "classes", (6, 4)),
    "SparseCategoricalCrossentropy": ({"from_logits": (False, True), "axis": (-1,)},
                                      "classes", (3, 4)),
    "SparseTopKCategoricalAccuracy": ({"k": (2, 1, 3), "from_sorted_ids": (False,)},
                                      "classes", (6, 4)),
    "SquaredHinge": ({}, "signs", (3, 4)),
    "TopKCategoricalAccuracy": ({"k": (2, 1, 3)}, "one-hot", (6, 4)),
}  # fmt: skip


def _metrics() -> Iterator[Sample]:
    for name, (table, kind, shape) in METRICS.items():
        for arguments in combined(table, 4):
            for weights in ("", "rows"):
                yield Sample(
                    "metrics", name, arguments, (shape,), {"labels": kind, "weights": weights}
                )


_SCALES: Table = {
    "scale": (1.0, 0.5),
    "mode": ("fan_in", "fan_out", "fan_avg"),
    "distribution": ("truncated_normal", "untruncated_normal", "uniform"),
}
INITIALIZERS: dict[str, Table] = {
    "Constant": {"value": (0.0, 2.5)},
    "Identity": {"gain": (1.0, 2.0)},
    "Ones": {},
    "Zeros": {},
    "STFT": {"side": ("real", "imag"), "window": ("hann", "hamming"), "periodic": _FLAGS,
             "scaling": (None, "density", "spectrum")},
    "Orthogonal": {"gain": (1.0, 2.0), "seed": (3,)},
    "RandomNormal": {"mean": (0.0, 1.0), "stddev": (0.05, 2.0), "seed": (3,)},
    "RandomUniform": {"minval": (-0.05, -1.0), "maxval": (0.05, 3.0), "seed": (3,)},
    "TruncatedNormal": {"mean": (0.0, 1.0), "stddev": (0.05, 2.0), "seed": (3,)},
    "VarianceScaling": {**_SCALES, "seed": (3,)},
    **{f"{name}{kind}": {"seed": (3,)} for name in ("Glorot", "He", "Lecun")
       for kind in ("Normal", "Uniform")},
}  # fmt: skip


def _initializers() -> Iterator[Sample]:
    for name, table in INITIALIZERS.items():
        shapes = {"STFT": [(16, 1, 20)], "Identity": [(4, 4), (3, 5)]}
        for shape in shapes.get(name, [(60, 80), (3, 3, 20, 30)]):
            for arguments in combined(table, 4):
                yield Sample("initializers", name, arguments, (shape,))


_COMMON: Table = {
    "weight_decay": (None, 0.05),
    "clipnorm": (None, 0.05),
    "clipvalue": (None, 0.01),
    "global_clipnorm": (None, 0.05),
    "use_ema": (False, True),
    "ema_overwrite_frequency": (None, 2),
    "loss_scale_factor": (None, 64.0),
    "gradient_accumulation_steps": (None, 2),
}
_BETAS: Table = {"beta_1": (0.9, 0.5), "beta_2": (0.999, 0.9), "epsilon": (1e-7, 1e-2)}
OPTIMIZERS: dict[str, Table] = {
    "SGD": {"momentum": (0.0, 0.9), "nesterov": (False, True)},
    "Adam": {**_BETAS, "amsgrad": (False, True)},
    "AdamW": {**_BETAS, "amsgrad": (False, True)},
    "Nadam": _BETAS,
    "Adamax": _BETAS,
    "Lamb": _BETAS,
    "Lion": {"beta_1": (0.9, 0.5), "beta_2": (0.99, 0.5)},
    "Adagrad": {"initial_accumulator_value": (0.1, 0.5), "epsilon": (1e-7, 1e-2)},
    "Adadelta": {"rho": (0.95, 0.5), "epsilon": (1e-7, 1e-2)},
    "Adafactor": {"beta_2_decay": (-0.8, -0.5), "clip_threshold": (1.0, 0.1),
                  "relative_step": _FLAGS},
    "Ftrl": {"learning_rate_power": (-0.5, -1.0), "l1_regularization_strength": (0.0, 0.01),
             "l2_regularization_strength": (0.0, 0.01), "beta": (0.0, 0.1),
             "l2_shrinkage_regularization_strength": (0.0, 0.01)},
    "RMSprop": {"rho": (0.9, 0.5), "momentum": (0.9, 0.0), "centered": (False, True),
                "epsilon": (1e-7, 1e-2)},
    "ScheduleFreeAdamW": {"warmup_steps": (0, 3), **_BETAS},
    "Muon": {"nesterov": _FLAGS, "ns_steps": (5, 2)},
}  # fmt: skip


def _optimizers() -> Iterator[Sample]:
    for name, table in OPTIMIZERS.items():
        own = combined({"learning_rate": (0.02,), **table}, 2)
        common = list(combined(_COMMON, 0))[1:] if name in ("SGD", "Adam", "Adafactor") else []
        for arguments in (*own, *({"learning_rate": 0.02, **each} for each in common)):
            yield Sample("optimizers", name, arguments)


ROOMS = {
    "layers": _layers,
    "losses": _losses,
    "metrics": _metrics,
    "initializers": _initializers,
    "optimizers": _optimizers,
}


def all_samples(rooms: Sequence[str] = tuple(ROOMS)) -> list[Sample]:
    """Returns the samples of some rooms, each once."""
    found = {str(each): each for room in rooms for each in ROOMS[room]()}
    return list(found.values())
