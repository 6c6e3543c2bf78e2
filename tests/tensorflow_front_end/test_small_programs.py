"""Small programs in the manner of public ones, compared with TensorFlow's results in a file.

`make test-tensorflow` runs all programs. `python -m tensorflow_loops --golden` writes the file.
"""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras")

from support.tensorflow_programs import strategy
from tensorflow_loops.bench import DeviceBench
from tensorflow_loops.check import difference, golden
from tensorflow_loops.programs import PROGRAMS

from poptorch_emu.keras.ipu.ipu_outfeed_queue import IPUOutfeedQueue

pytestmark = [
    pytest.mark.feature("TensorFlow: IPUStrategy.run", fidelity="exact"),
    pytest.mark.filterwarnings("ignore"),
]

CHOSEN = (
    "accumulation_by_hand",
    "counter_in_a_loop_over_range",
    "counter_in_an_attribute_that_the_loop_assigns",
    "counter_in_an_element_that_the_loop_assigns",
    "counter_of_a_method",
    "counters_in_a_loop_of_a_data_set",
    "gradient_of_an_unwatched_variable",
    "gradient_of_an_inner_tape_around_the_outer_one",
    "gradient_outside_of_the_tape",
    "gradient_penalty",
    "gradient_with_a_stopped_tape",
    "learning_rate_assigned_in_the_loop",
    "nested_loops",
    "number_of_an_element",
    "number_of_calls_as_a_factor",
    "number_of_python_in_a_loop",
    "previous_batch",
    "random_numbers_of_python",
    "rotated_variables",
    "sharpness_aware_minimization",
    "state_in_an_attribute",
    "tape_used_twice",
    "values_of_an_iterator",
    "variable_made_at_first_call",
)


@pytest.mark.parametrize("name", CHOSEN)
def test_program_then_has_tensorflows_results_or_is_refused(name: str) -> None:
    with (found := strategy()).scope():
        bench = DeviceBench(found, IPUOutfeedQueue)
        assert difference(name, golden().get(name, []), bench) == ""


def test_programs_then_all_have_results_or_are_refused() -> None:
    assert {name for name, each in PROGRAMS.items() if not each.refused} == set(golden())
