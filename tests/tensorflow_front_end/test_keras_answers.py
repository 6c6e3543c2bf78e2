"""Programs get the same answers about Keras's results as in Keras on TensorFlow.

`python -m keras_samples.answers` (`make test-tensorflow`) asks about all, here about a part.
"""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras")

from keras_samples import answers

pytestmark = pytest.mark.feature("TensorFlow: functions on the device", fidelity="exact")

# Every which expression is asked, so that the test takes some seconds; prime, to vary the kinds.
EVERY = 47
PLACES = ("host", "device_function", "fit_call", "callback")


def test_result_of_keras_then_programs_get_the_answers_of_keras_on_tensorflow() -> None:
    expressions, comparison = answers.compared(PLACES, every=EVERY)
    assert sum(map(len, expressions)) > 35
    assert min(counts["same"] for counts in comparison.counts.values()) > 5
    assert {kind: dict(found) for kind, found in comparison.texts.items()} == {}
