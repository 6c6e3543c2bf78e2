"""Keras models with models inside them, and an eager loop that accumulates gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import torch
from keras import layers
from support import keras_models as models
from support.library_calls import as_library


class InTraining(layers.Layer):
    """Doubles its input in training only, as a deterministic substitute for dropout."""

    def call(self, x: Any, training: bool = False) -> Any:
        return x * 2.0 if training else x


class Block(keras.Model):
    """A model with its own `call`, which leaves `training` to its layers."""

    def __init__(self, width: int, name: str, stages: Any = None) -> None:
        super().__init__(name=name)
        self.stages = stages
        self.first = layers.Dense(width, activation="tanh", name="first")
        self.mode = InTraining(name="mode")
        self.always = InTraining(name="always")
        self.second = layers.Dense(12, name="second")
        self.scale = self.add_weight(shape=(12,), initializer="ones", name="scale")

    def call(self, x: Any, training: bool | None = None) -> Any:
        hidden = self.mode(self.first(x), training=training)
        hidden = self.always(hidden, training=True)
        return self.second(hidden) * self.scale


def dense(name: str, width: int = 12) -> layers.Layer:
    return layers.Dense(width, activation="tanh", name=name)


def functional(name: str = "inner", *names: str) -> keras.Model:
    """Returns a model with two layers, or with a layer for each name."""
    inputs = hidden = keras.Input((12,))
    for each in names or ("a", "b"):
        hidden = dense(each)(hidden)
    return keras.Model(inputs, hidden, name=name)


def sequential(name: str = "chain", *names: str) -> keras.Model:
    return keras.Sequential(
        [keras.Input((12,)), *(dense(each) for each in names or ("c", "d"))], name=name
    )


def two_outputs() -> keras.Model:
    """Returns a model with two inputs and two outputs; it computes the second output first."""
    left, right = keras.Input((12,), name="left"), keras.Input((12,), name="right")
    early = dense("early")(left)
    late = dense("late")(layers.Add(name="sum")([early, right]))
    return keras.Model({"left": left, "right": right}, [late, early], name="fork")


def _outer(*parts: Any) -> keras.Model:
    inputs = hidden = keras.Input((12,))
    for part in (*parts, layers.Dense(3, name="last")):
        hidden = part(hidden)
    return keras.Model(inputs, hidden, name="outer")


def _chain(*parts: Any) -> keras.Model:
    last = layers.Dense(3, name="last")
    return keras.Sequential([keras.Input((12,)), *parts, last], name="outer")


def _twice() -> keras.Model:
    inner = functional()
    return _outer(inner, inner)


def _several_outputs() -> keras.Model:
    inputs = keras.Input((12,))
    start = dense("start")(inputs)
    late, early = two_outputs()({"right": start, "left": inputs})
    joined = layers.Concatenate(name="join")([dense("side")(early), late])
    return keras.Model(inputs, layers.Dense(3, name="last")(joined))


def _shared() -> keras.Model:
    shared = dense("shared")
    inputs = keras.Input((12,))
    inner = keras.Model(inputs, dense("own")(shared(inputs)), name="inner")
    return _outer(shared, inner, shared)


def _stateful() -> keras.Model:
    inner = keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(8, name="a", activity_regularizer="l2", kernel_regularizer="l2"),
            layers.BatchNormalization(momentum=0.5, name="norm"),
            InTraining(name="mode"),
            layers.Dropout(0.0, name="dropout"),
            layers.Dense(12, name="b"),
        ],
        name="inner",
    )
    return _outer(inner)


def _frozen() -> keras.Model:
    inner = _stateful().get_layer("inner")
    inner.get_layer("norm").trainable = False
    inputs = keras.Input((12,))
    return keras.Model(inputs, layers.Dense(3, name="last")(inner(inputs, training=False)))


def _deep() -> keras.Model:
    inputs = keras.Input((12,))
    middle = keras.Model(inputs, dense("e")(sequential()(dense("f")(inputs))), name="middle")
    return _chain(keras.Sequential([keras.Input((12,)), middle, dense("g")], name="upper"))


class MaskKeeping(keras.Model):
    """A model that gives its result the mask of its input, although its operations have none."""

    def __init__(self) -> None:
        super().__init__(name="keeping")
        self.first, self.second = dense("a"), dense("b")
        self.supports_masking = True

    def call(self, x: Any) -> Any:
        return keras.ops.tanh(self.second(keras.ops.tanh(self.first(x))))


class MaskReading(keras.Model):
    """A model whose layer reads the mask of the model's input."""

    def __init__(self) -> None:
        super().__init__(name="reading")
        self.words, self.last = layers.LSTM(5, return_sequences=True, name="e"), layers.LSTM(5)

    def call(self, x: Any) -> Any:
        return self.last(self.words(x))


def masked() -> keras.Model:
    """Returns a model in which the mask of tokens passes through a model and into two others."""
    keras.utils.set_random_seed(1)
    tokens = keras.Input((6,), dtype="int32")
    hidden = layers.Embedding(20, 12, mask_zero=True, name="tokens")(tokens)
    hidden = MaskKeeping()(hidden)
    words = keras.Input((6, 12))
    inner = layers.LSTM(5, return_sequences=True, name="c")(words)
    inner = keras.Model(words, layers.LSTM(5, name="d")(inner), name="inner")
    joined = layers.Concatenate(name="join")([MaskReading()(hidden), inner(hidden)])
    return keras.Model(tokens, layers.Dense(3, name="last")(joined), name="outer")


class Network(keras.Model):
    """A subclassed model with others inside."""

    def __init__(self) -> None:
        super().__init__(name="network")
        self.base, self.block = _stateful().get_layer("inner"), Block(8, "block")
        self.last = layers.Dense(3, name="last")

    def call(self, x: Any, training: bool | None = None) -> Any:
        return self.last(self.block(self.base(x, training=False), training=training))


class WithoutMode(keras.Model):
    """A model whose `call` has no argument `training`, although an inner call receives one."""

    def __init__(self) -> None:
        super().__init__(name="network")
        inputs = keras.Input((12,))
        hidden = InTraining(name="always")(dense("a")(inputs), training=True)
        self.base = keras.Model(inputs, InTraining(name="never")(dense("b")(hidden)), name="base")
        self.last = layers.Dense(3, name="last")

    def call(self, x: Any) -> Any:
        return self.last(self.base(x))


def _built(model: keras.Model) -> keras.Model:
    model(np.zeros((1, 12), np.float32))
    model.build((None, 12))
    return model


# Function that creates each model, and stages of its entries; a list for an inner model.
NESTED: dict[str, tuple[Callable[[], keras.Model], list[Any]]] = {
    "functional in functional": (lambda: _outer(functional()), [[0, 1], 1]),
    "sequential in functional": (lambda: _outer(sequential()), [[0, 1], 2]),
    "functional in sequential": (lambda: _chain(functional(), sequential()), [[0, 1], [1, 2], 2]),
    "deep": (_deep, [[[0, [0, 1], 1], 2], 2]),
    "called twice": (_twice, [[0, 0], [1, 2], 2]),
    "several outputs": (_several_outputs, [1, [0, 1, 2], 1, 2, 2]),
    "shared layer": (_shared, [0, [0, 1], 1, 1]),
    "state and modes": (_stateful, [[0, 1, 1, 1, 2], 2]),
    "called for inference": (_frozen, [[0, 1, 1, 1, 1], 1]),
    "own call": (lambda: _outer(Block(8, "block")), [[0, 0, 1, 1, 1], 1]),
    "own call outside": (lambda: _built(Network()), [[0, 0, 0, 0, 1], [1, 1, 2, 2, 2], 2]),
    "no mode": (lambda: _built(WithoutMode()), [[0, 0, 1, 1], 1]),
}


def made(name: str) -> keras.Model:
    keras.utils.set_random_seed(1)
    return NESTED[name][0]()


def give(entries: list[Any], stages: list[Any]) -> None:
    """Sets the stages of entries."""
    for entry, stage in zip(entries, stages, strict=True):
        if isinstance(stage, list):
            give(entry.pipeline_stage_assignments, stage)
        else:
            entry.pipeline_stage = stage


def said_by(entries: list[Any]) -> list[Any]:
    """Returns the stages of entries in the form that `give` takes."""
    return [
        said_by(each.pipeline_stage_assignments)
        if hasattr(each, "nested_model")
        else each.pipeline_stage
        for each in entries
    ]


def leaves_of(entries: list[Any]) -> list[Any]:
    return [
        leaf
        for each in entries
        for leaf in (
            leaves_of(each.pipeline_stage_assignments) if hasattr(each, "nested_model") else [each]
        )
    ]


@as_library
def trained_by_hand(
    model: keras.Model, batch_size: int, window: int, shape: tuple[int, ...] = (12,)
) -> list[float]:
    """Trains by SGD in a plain loop; an update uses the mean gradient of `window` batches."""
    x, labels = models.data(shape)
    optimizer, loss_of = keras.optimizers.SGD(0.1), models.cross_entropy()
    variables, losses = model.trainable_variables, []
    mode = {"training": True} if model._call_has_training_arg else {}
    for number, start in enumerate(range(0, len(x), batch_size)):
        rows = slice(start, start + batch_size)
        y_pred = model(x[rows], **mode)
        loss = loss_of(labels[rows], y_pred) + sum(model.losses)
        losses.append(float(loss.detach()))
        (loss / window).backward()
        if (number + 1) % window == 0:
            with torch.no_grad():
                optimizer.apply([each.value.grad for each in variables], variables)
            for each in variables:
                each.value.grad = None
    return losses
