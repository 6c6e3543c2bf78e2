"""Programs written for Keras 2: they keep their meaning, or an error says the way out."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402

from poptorch_emu.keras import ipu  # noqa: E402
from poptorch_emu.keras.keras_2 import old_programs  # noqa: E402

pytestmark = pytest.mark.feature("Keras: programs of Keras 2", fidelity="exact")

optimizers = keras.optimizers


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Nadam"])
def test_rate_when_by_its_old_name_then_is_the_rate(name: str) -> None:
    optimizer = getattr(optimizers, name)(lr=0.25, decay=0)
    assert float(optimizer.lr) == float(optimizer.learning_rate) == 0.25
    optimizer.lr = 0.5
    assert float(optimizer.learning_rate) == 0.5
    again = type(optimizer).from_config(optimizer.get_config())
    assert float(again.learning_rate) == 0.5


def test_arguments_of_optimizers_when_without_a_meaning_then_the_way_out_is_said() -> None:
    with pytest.raises(ValueError, match="decay.*schedules.InverseTimeDecay"):
        optimizers.SGD(0.1, decay=1e-4)
    with pytest.raises(ValueError, match="gradient_transformers.*global_clipnorm"):
        optimizers.Adam(0.1, gradient_transformers=[lambda pairs: pairs])
    with pytest.raises(ValueError, match="not recognized"):
        optimizers.Adam(rate=0.1)


def test_model_when_trained_by_old_names_then_equals_that_of_the_new_ones() -> None:
    models.use_ipus(1)
    x, labels = models.data()
    found = []
    for old in (True, False):
        with models.SCOPE():
            model = models.mlp()
            steps = "experimental_steps_per_execution" if old else "steps_per_execution"
            optimizer = optimizers.SGD(**{"lr" if old else "learning_rate": 0.1})
            model.compile(optimizer, models.cross_entropy(), **{steps: 2})
            loaders = {"workers": 2, "use_multiprocessing": False, "max_queue_size": 4}
            settings = loaders if old else {}
            model.fit(x, labels, batch_size=4, shuffle=False, verbose=0, **settings)
        assert model.steps_per_execution == 2
        found.append(model)
    assert models.largest_difference(*found) == 0


def test_modules_that_have_gone_then_are_there() -> None:
    preprocessing = keras.layers.experimental.preprocessing
    assert preprocessing.Rescaling is keras.layers.Rescaling
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.experimental.set_policy("float32")
    assert keras.mixed_precision.experimental.global_policy().name == "float32"
    keras.mixed_precision.set_global_policy(before)


def test_legacy_optimizers_then_are_those_of_keras() -> None:
    tf_keras = pytest.importorskip("keras._tf_keras.keras")
    assert tf_keras.optimizers.legacy.Adam is optimizers.Adam


def test_datasets_when_there_is_a_folder_then_are_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {
        f"{kind}_{part}": np.full((3, 28, 28) if kind == "x" else 3, len(part), np.uint8)
        for kind in "xy"
        for part in ("train", "test")
    }
    np.savez(tmp_path / "mnist.npz", **arrays)
    monkeypatch.setenv(old_programs.DATASETS_VARIABLE, str(tmp_path))
    (x, labels), (_, test_labels) = keras.datasets.mnist.load_data()
    assert x.shape == (3, 28, 28) and labels[0] == 5 and test_labels[0] == 4


def test_datasets_when_there_is_no_file_then_it_is_said_where_it_must_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(fname, *args, **kwargs):
        raise OSError("no network")

    monkeypatch.setenv(old_programs.DATASETS_VARIABLE, str(tmp_path))
    find = partial(old_programs._get_file, "mnist", download)
    with pytest.raises(FileNotFoundError, match="no network.*mnist.npz.*--datasets FOLDER"):
        find("mnist.npz", origin="")


def test_names_then_are_installed_once() -> None:
    build = optimizers.SGD.__init__
    old_programs.install()
    assert optimizers.SGD.__init__ is build and ipu is not None


def test_files_when_named_without_a_suffix_then_keras_3_takes_them(tmp_path: Path) -> None:
    model = models.mlp()
    model.save_weights(tmp_path / "weights")
    model.save(str(tmp_path / "model"))
    other = models.mlp()
    other.weights[0].assign_add(np.ones((12, 16)))
    assert models.largest_difference(model, other) > 0
    other.load_weights(tmp_path / "weights")
    assert models.largest_difference(model, other) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.keras", "weights.weights.h5"]
    keras.callbacks.ModelCheckpoint(str(tmp_path / "each"), save_weights_only=True)
    assert keras.callbacks.ModelCheckpoint(tmp_path / "each").filepath.endswith("each.keras")
    with pytest.raises(ValueError, match="period.*save_freq"):
        keras.callbacks.ModelCheckpoint(tmp_path / "each", period=2)
    with pytest.raises(ValueError, match="SavedModel.*model.keras"):
        model.save(tmp_path / "model", save_format="tf")


def newer(path: Path) -> None:
    """Makes a file newer than all others, independently of the file system's clock."""
    os.utime(path, ns=(2**62, 2**62))


@pytest.mark.parametrize("name", ["weights.h5", "weights.hdf5", "weights"])
def test_weights_when_saved_by_an_old_name_then_the_newest_are_loaded(
    tmp_path: Path, name: str
) -> None:
    model, other = models.mlp(), models.mlp()
    model.weights[0].assign_add(np.ones((12, 16)))
    model.save_weights(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["weights.weights.h5"]
    other.load_weights(filepath=str(tmp_path / name))
    assert models.largest_difference(model, other) == 0
    if name != "weights":
        models.mlp().save(tmp_path / name)  # The old format, written later under this exact name.
        newer(tmp_path / name)
        other.load_weights(tmp_path / name)
        assert models.largest_difference(models.mlp(), other) == 0


@pytest.mark.parametrize("name", ["model", "model.h5", "model.hdf5"])
def test_model_when_saved_by_an_old_name_then_it_is_loaded_by_it(tmp_path: Path, name: str) -> None:
    tf_keras = pytest.importorskip("keras._tf_keras.keras")
    model = models.mlp()
    keras.models.save_model(model, tmp_path / name)
    for load in (keras.models.load_model, tf_keras.models.load_model, keras.saving.load_model):
        loaded = load(str(tmp_path / name), compile=False)
        assert models.largest_difference(model, loaded) == 0
    with pytest.raises(ValueError, match="SavedModel.*model"):
        tf_keras.models.save_model(model, tmp_path / name, save_format="tf")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("at-{epoch}.hdf5",), "at-{epoch}.h5"),
        (("at.h5", "loss"), "at.h5"),
        (("at.h5", "loss", 0, False, True), "at.weights.h5"),
        (("at", "loss", 0, False, True, "auto"), "at.weights.h5"),
    ],
)
def test_checkpoint_by_an_old_name_then_keras_3_takes_it(arguments, wanted: str) -> None:
    assert keras.callbacks.ModelCheckpoint(*arguments).filepath == wanted


def test_checkpoint_when_loaded_by_its_old_name_then_is_found(tmp_path: Path) -> None:
    model, name = models.mlp(), str(tmp_path / "best.hdf5")
    model.compile("sgd", models.cross_entropy())
    model.fit(*models.data(), verbose=0, callbacks=[keras.callbacks.ModelCheckpoint(name)])
    assert models.largest_difference(model, keras.models.load_model(name)) == 0


def test_names_that_have_gone_then_mean_what_they_meant() -> None:
    assert keras.Input(8).shape == (None, 8)
    assert keras.losses.Reduction.NONE == "none"
    loss = keras.losses.MeanSquaredError(reduction=keras.losses.Reduction.SUM)
    assert float(loss(np.ones((2, 1)), np.zeros((2, 1)))) == 2
