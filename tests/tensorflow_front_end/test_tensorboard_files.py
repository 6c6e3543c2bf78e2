"""The files that TensorBoard reads, beside those that Keras writes without IPUs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorboard")
keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402

pytestmark = pytest.mark.feature("Keras: callbacks and files", fidelity="exact")

Values = dict[tuple[str, str, int], np.ndarray]


def written(folder: Path) -> Values:
    """Returns the values in a folder by part of the run, tag and step."""
    found = {}
    for path in folder.rglob("events.out.tfevents.*"):
        for record in tf.data.TFRecordDataset(str(path), buffer_size=2**20):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name in ("scalars", "histograms"):
                    key = path.parent.name, value.tag, event.step
                    found[key] = tf.make_ndarray(value.tensor)
    return found


def trained(is_on_ipus: bool, folder: Path) -> Values:
    models.use_ipus(1)
    keras.backend.clear_session()  # Layers have the same names in each run.
    x, labels = models.data()
    with models.scope(is_on_ipus):
        model = models.mlp()
        steps = {"steps_per_execution": 4} if is_on_ipus else {}
        model.compile("sgd", models.cross_entropy(), metrics=["accuracy"], **steps)
        if is_on_ipus:
            model.set_asynchronous_callbacks(True)
    model.fit(
        x,
        labels,
        batch_size=4,
        epochs=2,
        shuffle=False,
        verbose=0,
        validation_data=(x, labels),
        callbacks=[keras.callbacks.TensorBoard(folder, histogram_freq=1, update_freq="batch")],
    )
    return written(folder)


def test_files_of_tensorboard_then_have_what_eager_keras_writes(tmp_path: Path) -> None:
    wanted, found = (trained(each, tmp_path / str(each)) for each in (False, True))
    assert set(found) == set(wanted)
    assert {("train", "batch_loss", step) for step in range(1, 17)} <= set(found)
    assert ("validation", "epoch_accuracy", 1) in found
    assert len([tag for _, tag, _ in found if tag.endswith("histogram")]) == 2 * 6
    for key, value in wanted.items():
        is_histogram = value.ndim == 2  # Rows of left, right and count.
        one, other = (x[:, :2] if is_histogram else x for x in (found[key], value))
        np.testing.assert_allclose(one, other, atol=1e-4, err_msg=str(key))
