"""Layers, losses, metrics and initializers have the values and gradients of Keras on TensorFlow.

`python -m keras_samples` (`make test-tensorflow`) compares all samples, here a part of them.
"""

from __future__ import annotations

import pytest

pytest.importorskip("keras")
pytest.importorskip("tensorflow")

from keras_samples.check import differences
from keras_samples.samples import all_samples

from poptorch_emu.keras import ipu

pytestmark = pytest.mark.feature("Keras: layers, losses, metrics", fidelity="exact")

# Every which sample is taken, so that the test takes some seconds; prime, to vary the arguments.
EVERY = 17


def test_samples_then_have_the_values_of_keras_on_tensorflow() -> None:
    ipu.ipu_strategy.IPUStrategy()
    samples = all_samples(["layers", "losses", "metrics", "initializers"])
    assert len({(each.room, each.name) for each in samples}) > 150
    assert differences(samples[::EVERY]) == []
