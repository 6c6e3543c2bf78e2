"""Results of samples with the backend of this process: `python -m keras_samples.compute FILE`.

Reads a list of samples from the file, and writes the list of their results into it.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras_samples.samples import Sample

STEPS = 5
_IS_TORCH = keras.config.backend() == "torch"


def result(sample: Sample) -> dict[str, Any]:
    """Returns the named values of a sample; under "error" the text of an error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _COMPUTED[sample.room](sample)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


_INNER = {
    "Bidirectional": [lambda: keras.layers.LSTM(3, return_sequences=True)],
    "RNN": [lambda: [keras.layers.GRUCell(3), keras.layers.LSTMCell(2)]],
    "SpectralNormalization": [lambda: keras.layers.Dense(3)],
    "TimeDistributed": [lambda: keras.layers.Dense(3)],
}


def _numbers(value: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(value))


def _layer(sample: Sample) -> dict[str, Any]:
    inputs = [keras.ops.convert_to_tensor(each) for each in sample.arrays()]
    kind = getattr(keras.layers, sample.name)
    layer = kind(*(make() for make in _INNER.get(sample.name, ())), **sample.arguments)
    call = {name: np.array(v) if name == "mask" else v for name, v in sample.call.items()}
    unpacks = sample.name in ("MultiHeadAttention", "GroupQueryAttention")

    def called(values: list[Any]) -> Any:
        return (
            layer(*values, **call)
            if unpacks
            else layer(values if len(values) > 1 else values[0], **call)
        )

    called(inputs)
    if getattr(layer, "stateful", False):
        layer.reset_states()
    generator = np.random.default_rng(1)
    for variable in layer.weights:
        values = 0.5 * generator.normal(size=variable.shape)
        is_variance = variable.name in ("moving_variance", "seed_generator_state")
        variable.assign(abs(values) + 0.1 if is_variance else values)
    floats = [each for each in inputs if "float" in keras.backend.standardize_dtype(each.dtype)]
    weights = list(layer.trainable_variables)
    outputs, gradients = _differentiated(called, inputs, floats, layer, weights)
    found = {f"output {n}": each for n, each in enumerate(outputs)}
    found |= {f"gradient {n}": each for n, each in enumerate(gradients)}
    if getattr(layer, "stateful", False):
        found["second call"] = _numbers(keras.tree.flatten(called(inputs))[0])
    found |= {
        f"state {v.name}": _numbers(v.value)
        for v in layer.non_trainable_variables
        if v.name != "seed_generator_state"
    }
    mask = getattr(keras.tree.flatten(called(inputs))[0], "_keras_mask", None)
    if mask is not None:
        found["mask"] = _numbers(mask)
    return found


def _differentiated(called: Any, inputs: Any, floats: Any, layer: Any, weights: Any) -> Any:
    """Returns the outputs, and the gradients of inputs and weights."""
    if _IS_TORCH:
        for each in floats:
            each.requires_grad_()
        outputs = keras.tree.flatten(called(inputs))
        total = _total(outputs, layer)
        sources = [*floats, *(each.value for each in weights)]
        if not getattr(total, "requires_grad", False):
            return [_numbers(each) for each in outputs], []
        import torch

        found = torch.autograd.grad(total, sources, allow_unused=True)
        for each in floats:
            each.requires_grad_(False)
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            for each in floats:
                tape.watch(each)
            outputs = keras.tree.flatten(called(inputs))
            total = _total(outputs, layer)
        sources = [*floats, *(each.value for each in weights)]
        found = tape.gradient(total, sources)
        if all(each is None for each in found):
            return [_numbers(each) for each in outputs], []
        found = [None if each is None else tf.convert_to_tensor(each) for each in found]
    zeros = [np.zeros(tuple(each.shape), np.float32) for each in sources]
    return [_numbers(each) for each in outputs], [
        zero if each is None else _numbers(each) for each, zero in zip(found, zeros, strict=True)
    ]


def _total(outputs: list[Any], layer: Any) -> Any:
    total: Any = 0.0
    for each in outputs:
        if "float" in keras.backend.standardize_dtype(each.dtype):
            count = int(np.prod(each.shape))
            factors = np.cos(np.arange(count)).reshape(each.shape).astype(np.float32)
            total = total + keras.ops.sum(each * keras.ops.convert_to_tensor(factors))
    for loss in layer.losses:
        total = total + loss
    return total


def _labelled(sample: Sample) -> list[Any]:
    """Returns labels, predictions and weights of a loss or a metric."""
    generator = np.random.default_rng(2)
    kind, shape = sample.call["labels"], sample.inputs[0]
    raw = generator.normal(size=shape).astype(np.float32)
    is_raw = sample.arguments.get("from_logits") or kind in ("values", "signs", "none")
    scores = raw if is_raw else 1 / (1 + np.exp(-raw))
    if kind in ("one-hot", "classes") and not is_raw:
        scores = scores / scores.sum(-1, keepdims=True)
    classes = generator.integers(0, shape[-1], shape[:-1])
    classes.reshape(-1)[0] = 1
    labels = {
        "values": lambda: generator.normal(size=shape).astype(np.float32),
        "signs": lambda: np.sign(generator.normal(size=shape)).astype(np.float32),
        "binary": lambda: generator.integers(0, 2, shape).astype(np.float32),
        "one-hot": lambda: np.eye(shape[-1], dtype=np.float32)[classes],
        "classes": lambda: classes.astype(np.int32),
        "class of a row": lambda: generator.integers(0, 2, shape[:1]).astype(np.int32),
        "none": lambda: None,
    }[kind]()
    rows = generator.uniform(0, 2, shape[:1]).astype(np.float32)
    return [labels, scores, rows if sample.call["weights"] else None]


def _loss(sample: Sample) -> dict[str, Any]:
    labels, scores, weights = _labelled(sample)
    loss = getattr(keras.losses, sample.name)(**sample.arguments)

    class Called:
        losses = ()

    def called(values: list[Any]) -> Any:
        return loss(labels, values[0], sample_weight=weights)

    predictions = [keras.ops.convert_to_tensor(scores)]
    outputs, gradients = _differentiated(called, predictions, predictions, Called, [])
    return {"loss": outputs[0], **{f"gradient {n}": g for n, g in enumerate(gradients)}}


def _metric(sample: Sample) -> dict[str, Any]:
    labels, scores, weights = _labelled(sample)
    metric = getattr(keras.metrics, sample.name)(**sample.arguments)
    found = {}
    for number, factor in enumerate((1.0, 0.7)):
        given = (labels, scores * factor) if labels is not None else (scores * factor,)
        metric.update_state(*given, sample_weight=weights)
        found[f"result {number}"] = _numbers(metric.result())
    return found


def _initializer(sample: Sample) -> dict[str, Any]:
    values = _numbers(
        getattr(keras.initializers, sample.name)(**sample.arguments)(
            sample.inputs[0], dtype="float32"
        )
    )
    if "seed" not in sample.arguments:
        return {"values": values}
    if sample.name == "Orthogonal":
        flat = values.reshape(-1, values.shape[-1])
        square = flat @ flat.T if flat.shape[0] <= flat.shape[1] else flat.T @ flat
        return {"product": square.round(4)}
    spread = float(values.std())
    is_bounded = abs(values).max() < 10 * spread
    return {
        "about mean": np.array([values.mean() / spread]),
        "about spread": np.array([spread]),
        "about largest": np.array([abs(values - values.mean()).max() / spread / 5]),
        "bounded": np.array(is_bounded),
    }


def _optimizer(sample: Sample) -> dict[str, Any]:
    optimizer = getattr(keras.optimizers, sample.name)(**sample.arguments)
    generator = np.random.default_rng(3)
    x = generator.normal(size=(4 * STEPS, 5)).astype(np.float32)
    y = generator.normal(size=(4 * STEPS, 2)).astype(np.float32)
    layers = [keras.Input((5,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(2)]
    if _IS_TORCH:
        from poptorch_emu.keras import ipu

        with ipu.ipu_strategy.IPUStrategy().scope():
            model = keras.Sequential(layers)
    else:
        model = keras.Sequential(layers)
    model.set_weights([0.5 * generator.normal(size=each.shape) for each in model.weights])
    if sample.name == "ScheduleFreeAdamW":
        # Its averages start at the weights, but at 0 if `fit` builds it in a graph of TensorFlow.
        optimizer.build(model.trainable_variables)
    model.compile(optimizer, "mse", steps_per_execution=STEPS if _IS_TORCH else 1)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    return {f"weight {n}": each for n, each in enumerate(model.get_weights())}


_COMPUTED = {
    "layers": _layer,
    "losses": _loss,
    "metrics": _metric,
    "initializers": _initializer,
    "optimizers": _optimizer,
}


def main() -> None:
    path = Path(sys.argv[1])
    if _IS_TORCH:
        from poptorch_emu.keras import ipu

        ipu.ipu_strategy.IPUStrategy()
    samples = pickle.loads(path.read_bytes())
    path.write_bytes(pickle.dumps([result(each) for each in samples]))


if __name__ == "__main__":
    main()
