"""Errors for pipelines of Keras models that do not fit the model or the IPUs."""

from __future__ import annotations

import pytest

keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402
from support.keras_refusals import fit, on_ipus, refuses  # noqa: E402

from poptorch_emu import emulator  # noqa: E402
from poptorch_emu.keras import ipu  # noqa: E402

pytestmark = pytest.mark.feature("Keras: what has no counterpart", fidelity="refused")
layers = keras.layers


@pytest.fixture(autouse=True)
def _one_ipu():
    models.use_ipus(1)


@pytest.mark.parametrize("stages", [[0, 1], [0, 1, 1, 1]])
def test_stages_when_not_one_for_each_layer_then_are_refused(stages) -> None:
    with refuses(f"got {len(stages)} stages, but model 'sequential.*' has 3 layers: dense"):
        on_ipus().set_pipeline_stage_assignment(stages)


def test_stages_when_decreasing_then_are_refused() -> None:
    with refuses("'dense.*' has stage 0, but the layer before has stage 1: stages must not"):
        on_ipus().set_pipeline_stage_assignment([0, 1, 0])


@pytest.mark.parametrize("stage", [-1, 1.0, True, "0"])
def test_stage_when_no_number_then_is_refused(stage) -> None:
    with refuses("must be an integer from 0 on"):
        on_ipus().set_pipeline_stage_assignment([0, 0, stage])
    with refuses("must be an integer from 0 on"):
        ipu.keras.PipelineStage(stage)


def functional(stages, num_ipus: int = 4):
    """Returns a model of three calls, each in its given stage; `None` means no stage."""
    models.use_ipus(num_ipus)

    def make():
        inputs = hidden = keras.Input((12,))
        for stage in stages:
            layer = layers.Dense(12)
            if stage is None:
                hidden = layer(hidden)
                continue
            with ipu.keras.PipelineStage(stage):
                hidden = layer(hidden)
        return keras.Model(inputs, hidden)

    return on_ipus(make)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([0, None, 1], "some layer calls have a pipeline stage, but these have none: dense"),
        ([0, 1, 0], "in pipeline stage 0, but takes a result of 'dense.*' in stage 1"),
        ([0, 0, 2], "No layer of model .* is in pipeline stage 1, but one is in stage 2"),
    ],
)
def test_stages_of_a_functional_model_when_they_do_not_fit_then_are_refused(
    stages, message: str
) -> None:
    model = functional(stages)
    with refuses(message):
        fit(model)


def test_stages_when_nested_or_inside_a_call_then_are_refused() -> None:
    message = "PipelineStage.1. is entered inside PipelineStage.0"
    with ipu.keras.PipelineStage(0), refuses(message, RuntimeError):
        with ipu.keras.PipelineStage(1):
            pass

    class InCall(layers.Dense):
        def call(self, x):
            with ipu.keras.PipelineStage(0):
                return super().call(x)

    with refuses("is entered in the call.. of a layer"):
        fit(on_ipus(lambda: keras.Sequential([keras.Input((12,)), InCall(3)])))


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ([0], "device_mapping has 1 entries, .0., but the model has 2 stages"),
        ([0, 2], "the IPUs of a model are numbered from 0 without gaps"),
    ],
)
def test_device_mapping_when_it_does_not_fit_then_is_refused(mapping, message: str) -> None:
    models.use_ipus(2)
    model = on_ipus()
    model.set_pipeline_stage_assignment([0, 0, 1])
    model.set_pipelining_options(device_mapping=mapping, gradient_accumulation_steps_per_replica=4)
    with refuses(message):
        fit(model, steps_per_execution=4)


def test_device_mapping_without_stages_or_with_words_then_is_refused() -> None:
    model = on_ipus()
    with refuses("device_mapping has the entry 'IPU0'"):
        model.set_pipelining_options(device_mapping=["IPU0"])
    model.set_pipelining_options(device_mapping=[0])
    with refuses("but model 'sequential.*' has no stages"):
        fit(model)


def test_pipeline_when_it_cannot_be_filled_or_has_no_graph_then_is_refused() -> None:
    models.use_ipus(2)
    model = on_ipus()
    model.set_pipeline_stage_assignment([0, 0, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    with refuses("is 2, but to train a pipeline of 2 stages it must be at least 3"):
        fit(model, steps_per_execution=2)
    with refuses("has no graph of layers to divide into stages"):
        on_ipus(models.of_its_own_class).set_pipeline_stage_assignment([])


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"gradient_accumulation_steps_per_replica": 0}, ValueError, "a positive integer, not 0"),
        ({"pipeline_schedule": "Grouped"}, TypeError, "one of PipelineSchedule.Grouped, "),
        ({"pipeline_schedule": "gpipe"}, TypeError, "a function of .*emulator.schedules returns"),
        (
            {"pipeline_schedule": emulator.schedules.gpipe(), "device_mapping": [0, 1]},
            ValueError,
            "the schedule 'gpipe' determines the IPU of each stage. Leave device_mapping",
        ),
        ({"recomputation_mode": 1}, TypeError, "one of RecomputationMode.Auto, "),
        ({"gradient_accumulation_reduction_method": 0}, TypeError, "Method.SUM, .*not 0"),
        (
            {"gradient_accumulation_reduction_method": "median"},
            ValueError,
            "one of 'sum', 'mean', 'running_mean', not 'median'",
        ),
        ({"offload_weights": 1}, TypeError, "offload_weights must be True, False or None, not 1"),
    ],
)
def test_pipelining_option_when_wrong_then_is_refused(options, kind, message: str) -> None:
    with refuses(message, kind):
        on_ipus().set_pipelining_options(**options)


def test_assignment_when_of_another_kind_or_model_then_is_refused() -> None:
    model, other = functional([0, 0, 0]), functional([0, 0, 0])
    with refuses("takes the entries of get_pipeline_stage_assignment.., not 0", TypeError):
        model.set_pipeline_stage_assignment([0, 0, 0])
    with refuses("Call 0 of layer 'dense.*' is not part of model"):
        model.set_pipeline_stage_assignment(other.get_pipeline_stage_assignment())


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (emulator.schedules.dualpipe_v(), "dualpipe_v has 2 stages on each IPU.*model has 3"),
        (emulator.schedules.from_table([["0F0", "0B0"]]), "The table has 1 stages, .*model has 3"),
        (
            emulator.schedules.from_table([["0F0", "0B0"], ["1F0", "1B0"], ["2F0", "2B0"]]),
            "does not fit 3 stages and gradient_accumulation_steps_per_replica=4, ",
        ),
    ],
)
def test_table_when_it_does_not_fit_the_model_then_is_refused(schedule, message: str) -> None:
    models.use_ipus(3)
    model = on_ipus()
    model.set_pipeline_stage_assignment([0, 1, 2])
    model.set_pipelining_options(
        pipeline_schedule=schedule, gradient_accumulation_steps_per_replica=4
    )
    with refuses(message):
        fit(model, steps_per_execution=4)
