"""A generated call of each raw operator, compared with TensorFlow.

`make test-tensorflow` makes all calls.
"""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras")

from tensorflow_ops.check import difference
from tensorflow_ops.names import SERVED, functions, status_of
from tensorflow_ops.samples import samples_of

from poptorch_emu.keras import ipu
from poptorch_emu.keras.tensorflow.functions.device_graph import ROWS

pytestmark = [
    pytest.mark.feature("TensorFlow: functions on the device", fidelity="exact"),
    pytest.mark.filterwarnings("ignore"),
]
# Their inputs are known on the host, or they hand on what they get.
WITHOUT_SAMPLES = {"IdentityN", "Range", "ShapeN"}


@pytest.mark.parametrize("part", range(4))
def test_operators_then_return_and_derive_what_tensorflow_does(part: int) -> None:
    ipu.ipu_strategy.IPUStrategy()
    names = sorted(ROWS.keys() - WITHOUT_SAMPLES)[part::4]
    samples = [samples_of(name) for name in names]
    chosen = [each[len(name) % len(each)] for name, each in zip(names, samples, strict=True)]
    assert [text for text in map(difference, chosen) if text] == []


def test_functions_then_return_what_tensorflow_does_or_are_refused() -> None:
    ipu.ipu_strategy.IPUStrategy()
    found = functions()
    chosen = {name: found[name] for name in sorted(found)[3::12]}
    results = {name: status_of(name, each, most=1) for name, each in chosen.items()}
    assert {
        name: text for name, (status, text) in results.items() if status == SERVED and text
    } == {}
    assert sum(status == SERVED for status, _ in results.values()) > len(results) / 3


def test_operators_then_all_have_samples() -> None:
    assert {name for name in ROWS if not samples_of(name)} == WITHOUT_SAMPLES
