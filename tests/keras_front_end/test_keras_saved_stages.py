"""Saved and loaded models with stages, and assignments of layers outside of training."""

from __future__ import annotations

import zipfile

import pytest

keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support import keras_nested_models as nested  # noqa: E402

from poptorch_emu.errors import Error  # noqa: E402
from poptorch_emu.keras import ipu  # noqa: E402

pytestmark = pytest.mark.feature("Keras: pipelines", fidelity="exact")


def _sequential():
    model = keras.Sequential(
        [keras.Input((models.data()[0].shape[1],)), keras.layers.Dense(8), keras.layers.Dense(4)]
    )
    model.set_pipeline_stage_assignment([0, 1])
    return model


def _functional():
    inputs = keras.Input((models.data()[0].shape[1],))
    with ipu.keras.PipelineStage(0):
        x = keras.layers.Dense(8)(inputs)
    with ipu.keras.PipelineStage(1):
        x = keras.layers.Dense(4)(x)
    return keras.Model(inputs, x)


def _nested():
    model = nested.made("deep")
    entries = model.get_pipeline_stage_assignment()
    nested.give(entries, nested.NESTED["deep"][1])
    model.set_pipeline_stage_assignment(entries)
    return model


@pytest.mark.filterwarnings("ignore:Duplicate name", "ignore:You are saving your model as an HDF5")
@pytest.mark.parametrize(
    ("make", "suffix"),
    [(_sequential, ".keras"), (_sequential, ".h5"), (_functional, ".h5"), (_nested, ".keras")],
)
def test_model_in_stages_when_loaded_then_has_its_stages_and_trains_on(
    make, suffix, tmp_path
) -> None:
    models.use_ipus(None)
    x, labels = models.data()
    with models.SCOPE():
        model = make()
        model.set_pipelining_options(
            8, gradient_accumulation_reduction_method="mean",
            recomputation_mode=ipu.pipelining_ops.RecomputationMode.Auto, offload_activations=False,
        )  # fmt: skip
        models.compiled(model, steps_per_execution=8)
        model.fit(x, labels, batch_size=4, verbose=0, shuffle=False)
        model.save(tmp_path / f"model{suffix}")
        found = keras.models.load_model(tmp_path / f"model{suffix}")
    assert str(found.get_pipeline_stage_assignment()) == str(model.get_pipeline_stage_assignment())
    found.compile(found.optimizer, found.loss, steps_per_execution=8)
    for each in (model, found):
        each.fit(x, labels, batch_size=4, verbose=0, shuffle=False)
    assert models.largest_difference(model, found) == 0


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_file_when_its_stages_are_of_another_model_then_is_refused(tmp_path) -> None:
    with models.SCOPE():
        _functional().save(tmp_path / "model.keras")
        with zipfile.ZipFile(tmp_path / "model.keras", "a") as archive:
            archive.writestr("poptorch_emu_pipeline.json", '{"settings": {}, "stages": [0]}')
        with pytest.raises(Error, match="do not belong to its model"):
            keras.models.load_model(tmp_path / "model.keras")
    keras.models.load_model(tmp_path / "model.keras")


class Counting(keras.layers.Layer):
    def build(self, shape) -> None:
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.count.assign_add(1.0)
        return x * 2


@pytest.mark.parametrize("use", ["predict", "evaluate"])
def test_state_when_assigned_outside_of_training_then_is_kept(use: str) -> None:
    models.use_ipus(1)  # Each of several replicas would count its own batches.
    x, _ = models.data()
    with models.SCOPE():
        model = keras.Sequential([keras.Input((x.shape[1],)), Counting()])
        model.compile("sgd", "mse")
    given = (x,) if use == "predict" else (x, x)
    for _ in range(2):
        getattr(model, use)(*given, batch_size=4, verbose=0)
    assert float(model.layers[0].count) == 2 * len(x) / 4


def test_summary_when_there_are_stages_then_shows_them() -> None:
    def shown(model) -> str:
        lines: list[str] = []
        model.summary(line_length=90, print_fn=lines.append)
        return "\n".join(lines)

    with models.SCOPE():
        model = _sequential()
    names = [layer.name for layer in model.layers]
    assert "Pipeline stage" in shown(model)
    assert shown(model).splitlines()[-1].split() == [names[1], "Dense", "1"]
    model.reset_pipeline_stage_assignment()
    assert "Pipeline stage" not in shown(model) and names[1] in shown(model)


def test_saved_model_then_is_refused_with_the_way_out(tmp_path) -> None:
    tf = pytest.importorskip("tensorflow")
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = _sequential()
    for save in (model.export, lambda path: tf.saved_model.save(model, path)):
        with pytest.raises(Error, match=r"writes a SavedModel, .* model.save\('name.keras'\)"):
            save(str(tmp_path / "new"))


@pytest.mark.parametrize("name", ["new/model.keras", "new/model", "new/inner/model.h5"])
def test_model_when_saved_into_a_missing_folder_then_is_there(tmp_path, name: str) -> None:
    with models.SCOPE():
        model = models.compiled(models.mlp())
        model.save(str(tmp_path / name))
        model.save_weights(str(tmp_path / "weights" / "last"))
        found = keras.models.load_model(str(tmp_path / name))
        assert models.largest_difference(model, found) == 0
        found.load_weights(str(tmp_path / "weights" / "last"))
