"""Evaluates expressions where programs call Keras: `python -m keras_samples.answer_places FILE`.

The places are the host, a layer that is called on the host, a function that the device runs, and
what `fit` and `evaluate` call. The file has the names of places and of functions; the answers are
written into it.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_samples.answer_evaluation import (
    FORMS,
    Expressions,
    chosen,
    evaluated,
    host_names,
    spy,
    tensors_with,
)
from keras_samples.answer_objects import objects
from keras_samples.answer_questions import answers

IS_TORCH = keras.config.backend() == "torch"
# Places with all expressions; others have every eighth.
_WITH_ALL = ("host", "layer_on_host", "device_function", "fit_call")
_EAGER = ("host", "layer_on_host", "initializer", "callback")
_IN_ONE_RUN = 400  # Longer programs take longer for each expression.
Answers = dict[tuple[str, str, str], dict[str, Any]]


class Places:
    """The places, and what was answered there."""

    def __init__(self, expressions: Expressions, strategy: Any) -> None:
        self.answers: Answers = {}
        self.expressions = expressions
        self.strategy = strategy
        self._active = ""
        self._asked: list[tuple[str, str]] = []
        self._has_stopped = False
        with self.scope():
            self._names = {form: host_names(form) for form in FORMS}
            self._objects = objects(self._names["tensor"], spy)

    def scope(self) -> Any:
        return self.strategy.scope() if self.strategy else contextlib.nullcontext()

    def ask(self, place: str, x: Any, **others: Any) -> None:
        """Evaluates all expressions, with tensors that depend on one of the place."""
        if place != self._active:
            return
        for name, value in {"x": x, **others}.items():
            self.answers[place, "given", name] = answers(value)
        self.answers[place, "given", "functions of TensorFlow"] = evaluated(
            "tf.nn.relu(x) + tf.reduce_sum(x)", {"tf": tf, "x": x}
        )
        tensors = {**self._names["tensor"], **tensors_with(x)}
        self._evaluate({**self._names, "tensor": tensors})
        if not IS_TORCH and not tf.executing_eagerly():
            self._has_stopped = True
            raise StopIteration("a graph of TensorFlow with all expressions need not run")

    def _evaluate(self, bound: dict[str, dict[str, Any]]) -> None:
        spaces = {form: {**bound[form], **self._objects} for form in FORMS}
        for form, text in self._asked:
            self.answers[self._active, form, text] = evaluated(text, spaces[form])

    def visit(self, place: str) -> None:
        """Makes programs run to a place, each with some of the expressions."""
        start = time.monotonic()
        calls = self._calls(place)
        count = 1 if place in _EAGER else 1 + len(calls) // _IN_ONE_RUN
        for number in range(count):
            self._active, self._asked, self._has_stopped = place, calls[number::count], False
            self.answers[place, "end", f"of run {number}"] = self._ended(place)
        self._active = ""
        print(f"{place}: {time.monotonic() - start:.0f} s", file=sys.stderr)

    def _calls(self, place: str) -> list[tuple[str, str]]:
        """Returns the forms and texts of the expressions for a place."""
        general, few, host = self.expressions
        number, every = list(PLACES).index(place), 1 if place in _WITH_ALL else 8
        found = []
        for form in FORMS:
            some = [*general, *few] if form in ("tensor", "array") else general
            found += [(form, text) for text in some[number % every :: every]]
        return found + [("tensor", text) for text in (host if place == "host" else [])]

    def _ended(self, place: str) -> dict[str, Any]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                PLACES[place](self)
        except Exception as error:
            if not self._has_stopped:
                text = " ".join(str(error).split())
                return {"error": f"{type(error).__name__}: {text[:300]}", "text": text}
        return answers("done")

    # Each method is one place.

    def host(self) -> None:
        self._evaluate(self._names)

    def layer_on_host(self) -> None:
        with self.scope():
            layer = _asking(self, "layer_on_host")
        layer(tf.ones((3, 4)))

    def device_function(self) -> None:
        def step(x: Any) -> Any:
            self.ask("device_function", x)
            return x * 2

        if self.strategy:
            self.strategy.run(step, args=[tf.ones((3, 4))])
        else:
            tf.function(step)(tf.ones((3, 4)))

    def fit_call(self) -> None:
        self._fit([_asking(self, "fit_call")])

    def fit_super_call(self) -> None:
        """A layer of the program that extends one of Keras."""

        ask = self.ask

        class Extended(keras.layers.Dense):
            def call(self, x: Any) -> Any:
                found = super().call(x)
                ask("fit_super_call", x, result=found)
                return found

        self._fit([Extended(3)])

    def predict_call(self) -> None:
        model = self._model([_asking(self, "predict_call")])
        model.predict(_data(labels=False), steps=1, verbose=0)

    def fit_loss(self) -> None:
        def loss(y_true: Any, y_pred: Any) -> Any:
            self.ask("fit_loss", y_pred, y_true=y_true)
            return keras.ops.mean(keras.ops.square(y_true - y_pred), -1)

        self._fit(loss=loss)

    def fit_loss_object(self) -> None:
        ask = self.ask

        class Loss(keras.losses.Loss):
            def call(self, y_true: Any, y_pred: Any) -> Any:
                ask("fit_loss_object", y_pred, y_true=y_true)
                return keras.ops.mean(keras.ops.square(y_true - y_pred), -1)

        self._fit(loss=Loss())

    def fit_metric(self) -> None:
        def metric(y_true: Any, y_pred: Any) -> Any:
            self.ask("fit_metric", y_pred, y_true=y_true)
            return keras.ops.mean(y_true - y_pred, -1)

        self._fit(metrics=[metric])

    def fit_metric_object(self) -> None:
        ask = self.ask

        class Metric(keras.metrics.Metric):
            def __init__(self) -> None:
                super().__init__()
                self.total = self.add_variable((), "zeros", name="total")

            def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
                self.total.assign(self.total + keras.ops.sum(y_pred))
                ask("fit_metric_object", y_pred, y_true=y_true, total=self.total)

            def result(self) -> Any:
                return self.total / 2

        self._fit(metrics=[Metric()])

    def fit_regularizer(self) -> None:
        ask = self.ask

        class Own(keras.regularizers.Regularizer):
            def __call__(self, x: Any) -> Any:
                ask("fit_regularizer", x)
                return 0.01 * keras.ops.sum(keras.ops.square(x))

        self._fit(kernel_regularizer=Own())

    def fit_constraint(self) -> None:
        ask = self.ask

        class Own(keras.constraints.Constraint):
            def __call__(self, w: Any) -> Any:
                ask("fit_constraint", w)
                return keras.ops.maximum(w, 0.0)

        self._fit(kernel_constraint=Own())

    def initializer(self) -> None:
        ask = self.ask

        class Own(keras.initializers.Initializer):
            def __call__(self, shape: Any, dtype: Any = None) -> Any:
                ask("initializer", tf.ones((3, 4)), shape=shape, dtype=dtype)
                return keras.ops.ones(shape, dtype)

        self._fit(kernel_initializer=Own())

    def callback(self) -> None:
        ask, answered = self.ask, self.answers

        class Own(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: Any, logs: Any = None) -> None:
                answered["callback", "given", "logs of a batch"] = answers(logs)

            def on_epoch_end(self, epoch: Any, logs: Any = None) -> None:
                weights = self.model.trainable_variables
                ask("callback", tf.ones((3, 4)), logs=logs, weight=weights[0].value)

        self._fit(callbacks=[Own()])

    def train_step(self) -> None:
        ask, answered = self.ask, self.answers

        class Model(keras.Model):
            def train_step(self, data: Any) -> Any:
                ask("train_step", data[0], y=data[1])
                logs = super().train_step(data)
                answered["train_step", "given", "logs"] = answers(logs)
                return logs

        self._fit(model=Model)

    def test_step(self) -> None:
        ask, answered = self.ask, self.answers

        class Model(keras.Model):
            def test_step(self, data: Any) -> Any:
                ask("test_step", data[0], y=data[1])
                logs = super().test_step(data)
                answered["test_step", "given", "logs"] = answers(logs)
                return logs

        self._model(model=Model).evaluate(_data(), steps=1, verbose=0)

    def compute_loss(self) -> None:
        ask = self.ask

        class Model(keras.Model):
            def compute_loss(
                self, x=None, y=None, y_pred=None, sample_weight=None, training=True
            ) -> Any:
                found = super().compute_loss(x, y, y_pred, sample_weight)
                ask("compute_loss", y_pred, y=y, result=found, losses=self.losses)
                return found

        self._fit(model=Model)

    def _model(
        self,
        layers: Sequence[Any] = (),
        loss: Any = "mse",
        metrics: Sequence[Any] = (),
        model: Any = keras.Model,
        **more: Any,
    ) -> Any:
        with self.scope():
            first = keras.Input(batch_shape=(3, 4))
            x = first
            for each in (*layers, keras.layers.Dense(2, **{"kernel_initializer": "ones", **more})):
                x = each(x)
            made = model(first, x)
            made.compile("sgd", loss, metrics=list(metrics), **({} if IS_TORCH else _PLAIN))
        return made

    def _fit(self, layers: Sequence[Any] = (), callbacks: Any = None, **more: Any) -> None:
        model = self._model(layers, **more)
        model.fit(_data(), steps_per_epoch=1, verbose=0, callbacks=callbacks)


_PLAIN = {"jit_compile": False}


def _data(labels: bool = True) -> Any:
    x, y = np.ones((3, 4), np.float32), np.ones((3, 2), np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, y) if labels else x)
    return data.repeat().batch(3, drop_remainder=True)


def _asking(places: Places, place: str) -> Any:
    class Asking(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            places.ask(place, x)
            return x * 2

    return Asking()


PLACES: dict[str, Callable[[Places], None]] = {
    name: method
    for name, method in vars(Places).items()
    if callable(method) and not name.startswith("_") and name not in ("scope", "ask", "visit")
}


def all_answers(where: Sequence[str], expressions: Expressions, strategy: Any = None) -> Answers:
    """Returns the answers at places, by place, form and expression."""
    keras.utils.set_random_seed(1)
    places = Places(expressions, strategy)
    for place in where:
        places.visit(place)
    return places.answers


def _wanted(only: Sequence[str], every: int) -> Callable[[str], bool]:
    counted: Iterator[int] = iter(range(10**9))
    return lambda text: (not only or any(x in text for x in only)) and next(counted) % every == 0


def main() -> None:
    path = Path(sys.argv[1])
    where, only, every = pickle.loads(path.read_bytes())
    expressions = chosen(_wanted(only, every))
    path.write_bytes(pickle.dumps((expressions, all_answers(where, expressions))))


if __name__ == "__main__":
    main()
