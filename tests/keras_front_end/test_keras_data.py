"""All kinds of data for Keras, with batches that are recognisable: none is lost or repeated."""

from __future__ import annotations

import gc
import itertools
import multiprocessing

import numpy as np
import pytest
import torch

keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402

pytestmark = [
    pytest.mark.feature("Keras: data", fidelity="exact"),
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]

NUM_BATCHES = 24
ROWS = 4


@pytest.fixture(autouse=True)
def _one_ipu():
    models.use_ipus(1)


def batch(number: int):
    """Returns a batch that, in training, changes only the weight with the batch's number."""
    x = np.zeros((ROWS, NUM_BATCHES), "float32")
    x[:, number] = 1
    return x, np.ones((ROWS, 1), "float32")


class Recorder(keras.Model):
    """A user's own model class, which is not built before it sees data."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")

    def call(self, x):
        return self.layer(x)


def built():
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    return keras.Sequential([keras.Input((NUM_BATCHES,)), dense])


def unbuilt():
    return keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])


def model_of(make=built, *, steps: int):
    with models.scope(True):
        model = make()
    model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=steps)
    return model


def times_trained(model) -> list[int]:
    """Returns how often the model was trained with each batch."""
    weights = model.get_weights()[0][:, 0]
    return np.round(np.log(1 - weights) / np.log(0.8)).astype(int).tolist()


def once(numbers) -> list[int]:
    return [int(number in numbers) for number in range(NUM_BATCHES)]


# Each function returns data with the batches 0 to count - 1.


def arrays(count):
    x, y = zip(*map(batch, range(count)), strict=True)
    return np.concatenate(x), np.concatenate(y)


def generator(count):
    yield from map(batch, range(count))


class Indexed(keras.utils.PyDataset):
    def __init__(self, count, **workers):
        super().__init__(**workers)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return batch(index)


class Endless(Indexed):
    @property
    def num_batches(self):
        return None

    def __getitem__(self, index):
        return batch(index % NUM_BATCHES)


def tensors(count):
    return torch.utils.data.TensorDataset(*map(torch.from_numpy, arrays(count)))


class Stream(torch.utils.data.IterableDataset):
    """Data that can be read only once: a second iterator continues where the first one stopped."""

    def __init__(self, count):
        self.rest = generator(count)

    def __iter__(self):
        return (tuple(map(torch.from_numpy, each)) for each in self.rest)


class Restartable(Stream):
    def __init__(self, count):
        self.count = count

    @property
    def rest(self):
        return generator(self.count)


def loader(data, **more):
    return torch.utils.data.DataLoader(data, **more)


FINITE = {
    "arrays": arrays,
    "generator": generator,
    "indexed": Indexed,
    "threads": lambda count: Indexed(count, workers=2, max_queue_size=3),
    "loader": lambda count: loader(tensors(count), batch_size=ROWS),
    "shuffled loader": lambda count: loader(
        tensors(count), batch_sampler=[list(range(ROWS * n, ROWS * n + ROWS)) for n in range(count)]
    ),
    "loader in processes": lambda count: loader(tensors(count), batch_size=ROWS, num_workers=1),
    "stream": lambda count: loader(Stream(count), batch_size=None),
    "restartable": lambda count: loader(Restartable(count), batch_size=None),
}
INFINITE = {
    "generator": lambda: map_forever(batch),
    "endless": lambda: Endless(0),
    "endless threads": lambda: Endless(0, workers=2, max_queue_size=3),
    "stream": lambda: loader(Stream(NUM_BATCHES), batch_size=None),
}


def map_forever(function):
    for number in itertools.count():
        yield function(number % NUM_BATCHES)


def given(data):
    """Returns the arguments of Keras's methods for some data."""
    return data if isinstance(data, tuple) else (data,)


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
@pytest.mark.parametrize("make", [built, unbuilt, Recorder])
@pytest.mark.parametrize("kind", FINITE)
def test_fit_then_each_batch_trains_once(kind: str, make, steps: int) -> None:
    model = model_of(make, steps=steps)
    model.fit(*given(FINITE[kind](8)), batch_size=None if kind != "arrays" else ROWS, verbose=0)
    assert times_trained(model) == once(range(8))


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("make", [built, unbuilt])
def test_fit_when_it_returns_then_the_processes_of_a_loader_have_ended(make, steps: int) -> None:
    """Keras begins an epoch that never runs; its processes end without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        before = set(multiprocessing.active_children())
        model = model_of(make, steps=steps)
        model.fit(FINITE["loader in processes"](8), epochs=2, verbose=0)
        assert set(multiprocessing.active_children()) <= before
    finally:
        gc.enable()


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("make", [built, unbuilt])
@pytest.mark.parametrize("kind", INFINITE)
def test_fit_when_steps_per_epoch_are_given_then_epochs_go_on_where_the_last_one_ended(
    kind: str, make, steps: int
) -> None:
    model = model_of(make, steps=steps)
    model.fit(INFINITE[kind](), steps_per_epoch=4, epochs=3, verbose=0)
    assert times_trained(model) == once(range(12))


@pytest.mark.parametrize("kind", ["arrays", "indexed", "loader", "loader in processes"])
@pytest.mark.parametrize("steps", [1, 4])
def test_fit_when_epochs_are_parts_of_the_data_then_all_of_it_trains(kind: str, steps: int) -> None:
    model = model_of(steps=steps)
    size = {"batch_size": ROWS} if kind == "arrays" else {}
    model.fit(
        *given(FINITE[kind](12)), steps_per_epoch=4, epochs=6, shuffle=False, verbose=0, **size
    )
    assert times_trained(model) == [2 * trained for trained in once(range(12))]


def test_fit_when_an_execution_is_longer_than_the_epoch_then_the_epoch_is_as_long_as_said() -> None:
    model = model_of(steps=8)
    model.fit(map_forever(batch), steps_per_epoch=3, epochs=2, verbose=0)
    assert times_trained(model) == once(range(6))
    model = model_of(steps=8)
    model.fit(*arrays(12), batch_size=ROWS, steps_per_epoch=3, epochs=4, shuffle=False, verbose=0)
    assert times_trained(model) == once(range(12))


def test_fit_when_called_again_on_a_generator_then_goes_on() -> None:
    model, data = model_of(steps=2), map_forever(batch)
    for _ in range(3):
        model.fit(data, steps_per_epoch=4, verbose=0)
    assert times_trained(model) == once(range(12))


def test_fit_when_a_generator_has_ended_then_a_further_epoch_trains_nothing() -> None:
    model = model_of(steps=4)
    with pytest.warns(UserWarning, match="ran out of data"):
        history = model.fit(generator(8), epochs=3, verbose=0)
    assert times_trained(model) == once(range(8))
    assert len(history.epoch) == 3


def test_fit_when_a_generator_ends_within_an_execution_then_is_refused_for_that() -> None:
    model = model_of(steps=4)
    with pytest.raises(ValueError, match="last execution of the epoch has 2 steps"):
        model.fit(generator(10), verbose=0)
    assert times_trained(model) == once(range(8))


def labelled(number: int):
    """Returns a batch with the loss 2**number for a model whose output is 0."""
    x, y = batch(number)
    return x, y * 2.0 ** (number / 2)


def labelled_stream(count=None):
    numbers = itertools.count() if count is None else range(count)
    return (labelled(number % NUM_BATCHES) for number in numbers)


def seen(loss: float, count: int) -> list[int]:
    """Returns how often each batch of `labelled` is part of a mean over `count` batches."""
    total = round(loss * count)
    return [int(digit) for digit in reversed(f"{total:b}")]


@pytest.mark.parametrize("steps", [1, 3, 4, 5, 16])
@pytest.mark.parametrize("make", [built, unbuilt])
@pytest.mark.parametrize("is_endless", [True, False])
def test_evaluate_then_each_batch_counts_once(is_endless: bool, make, steps: int) -> None:
    model = model_of(make, steps=steps)
    if is_endless:
        loss = model.evaluate(labelled_stream(), steps=10, verbose=0)
    else:
        loss = model.evaluate(labelled_stream(10), verbose=0)
    assert seen(loss, 10) == [1] * 10


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("make", [built, unbuilt])
def test_validation_then_takes_so_many_steps_and_goes_on_with_the_next(make, steps: int) -> None:
    with models.scope(True):
        model = make()
    model.compile(keras.optimizers.SGD(0.0), "mse", steps_per_execution=steps)
    logs = model.fit(
        map_forever(batch),
        steps_per_epoch=4,
        epochs=3,
        validation_data=labelled_stream(),
        validation_steps=6,
        verbose=0,
    ).history["val_loss"]
    wanted = [list(range(6 * epoch, 6 * epoch + 6)) for epoch in range(3)]
    assert logs == [sum(2.0**number for number in numbers) / 6 for numbers in wanted]


@pytest.mark.parametrize("steps", [1, 3, 4, 16])
@pytest.mark.parametrize("make", [built, unbuilt, Recorder])
def test_predict_then_each_batch_is_predicted_once_in_order(make, steps: int) -> None:
    model = model_of(make, steps=steps)
    model(np.zeros((1, NUM_BATCHES), "float32"))
    weights = np.arange(NUM_BATCHES, dtype="float32")[:, None]
    model.set_weights([weights])
    wanted = np.repeat(np.arange(10), ROWS)
    endless = ((batch(number % NUM_BATCHES)[0],) for number in itertools.count())
    assert np.array_equal(model.predict(endless, steps=10, verbose=0)[:, 0], wanted)
    assert np.array_equal(next(endless)[0], batch(10)[0]), "Nothing was drawn beyond that."
    assert np.array_equal(model.predict(arrays(10)[0], batch_size=ROWS, verbose=0)[:, 0], wanted)


def test_epochs_of_a_dataset_of_the_user_then_are_told_of_as_in_eager_keras() -> None:
    class Told(Indexed):
        def __init__(self, count):
            super().__init__(count)
            self.calls = []

        def on_epoch_begin(self):
            self.calls.append("begin")

        def on_epoch_end(self):
            self.calls.append("end")
            self.offset = 1 - getattr(self, "offset", 0)

        def __getitem__(self, index):
            self.calls.append(index)
            return batch(index)

    def calls(is_on_ipus, steps):
        with models.scope(is_on_ipus):
            model = built()
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=steps)
        model.fit(data := Told(4), epochs=2, shuffle=False, verbose=0)
        assert times_trained(model) == [2 * trained for trained in once(range(4))]
        first = data.calls.index("end")
        return data.calls[first:]

    assert calls(True, 1) == calls(True, 2) == calls(False, 1)


@pytest.mark.parametrize("steps", [0, -1, 1.5, None, "auto", True])
def test_steps_per_execution_when_no_positive_integer_then_is_refused(steps) -> None:
    with models.scope(True):
        model = built()
    words = f"steps_per_execution is {steps!r}, but must be a positive integer"
    with pytest.raises(ValueError, match=words):
        model.compile("sgd", "mse", steps_per_execution=steps)
    model.compile("sgd", "mse", steps_per_execution=np.int64(2))
    model.fit(*arrays(4), batch_size=ROWS, verbose=0)
    model.steps_per_execution = steps
    for use in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=words):
            use(*arrays(4), verbose=0)
    with pytest.raises(ValueError, match=words):
        model.predict(arrays(4)[0], verbose=0)


def test_callbacks_when_the_last_execution_is_shorter_then_know_its_last_step() -> None:
    ends = []
    model = model_of(steps=4)
    ended = keras.callbacks.LambdaCallback()
    ended.on_test_batch_end = lambda step, logs=None: ends.append(step)
    model.evaluate(*arrays(10), batch_size=ROWS, callbacks=[ended], verbose=0)
    assert ends == [3, 7, 9]
