"""Stages, accumulation and replicas of Keras models give the results of one large batch.

The learning rate is divided by the number of replicas, because their gradients are added.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from support import keras_models as models  # noqa: E402

from poptorch_emu import emulator  # noqa: E402
from poptorch_emu.keras import ipu  # noqa: E402
from poptorch_emu.keras.settings import run_settings  # noqa: E402

pytestmark = pytest.mark.feature("Keras: pipelines and replicas", fidelity="exact")

NEAR = 1e-6
Schedule = ipu.pipelining_ops.PipelineSchedule
Reduction = ipu.gradient_accumulation.GradientAccumulationReductionMethod


def trained(model, batch_size: int, steps: int = 1, rate: float = 0.1):
    models.compiled(model, keras.optimizers.SGD(rate), steps_per_execution=steps)
    x, labels = models.data()
    model.fit(x, labels, batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
    return model


def staged_mlp(num_ipus: int = 2, **options):
    models.use_ipus(num_ipus)
    with models.SCOPE():
        model = models.mlp()
    model.set_pipeline_stage_assignment([0, 0, 1])
    options.setdefault("gradient_accumulation_steps_per_replica", 4)
    options.setdefault("gradient_accumulation_reduction_method", Reduction.MEAN)
    model.set_pipelining_options(**options)
    return model


@pytest.mark.parametrize("schedule", Schedule)
def test_two_stages_and_accumulation_then_equal_one_batch(schedule) -> None:
    model = trained(staged_mlp(pipeline_schedule=schedule), batch_size=4, steps=8)
    eager = trained(models.mlp(), batch_size=16)
    assert models.largest_difference(eager, model) < NEAR
    x, labels = models.data()
    for rows in (4, 3):  # With batches of 3 rows, the last batch has 2.
        wanted = eager.evaluate(x, labels, batch_size=rows, verbose=0)
        losses = model.evaluate(x, labels, batch_size=rows, verbose=0)
        np.testing.assert_allclose(losses, wanted, atol=NEAR)


def test_memory_proportion_of_a_stage_then_is_that_of_its_ipu_in_the_plan_of_memory() -> None:
    of_stage, name = ipu.pipelining_ops.PipelineStageOptions, "availableMemoryProportion"
    stages = [of_stage({name: "0.5"}, {name: "0.1"}), of_stage()]
    model = trained(
        staged_mlp(
            forward_propagation_stages_poplar_options=stages,
            backward_propagation_stages_poplar_options=[of_stage(), of_stage({name: 0.3})],
        ),
        batch_size=4,
        steps=8,
    )
    settings = str(emulator.memory(model)).splitlines()[-2:]
    assert settings == [
        "IPU 0: products and convolutions may take 0.1 of its memory",
        "IPU 1: products and convolutions may take 0.3 of its memory",
    ]


def test_memory_proportion_of_the_config_then_is_that_of_each_ipu_without_its_own() -> None:
    of_stage, name = ipu.pipelining_ops.PipelineStageOptions, "availableMemoryProportion"
    model = staged_mlp(
        forward_propagation_stages_poplar_options=[of_stage(None, {name: 0.2}), of_stage()]
    )
    config = ipu.config.get_ipu_config()
    config.matmuls.poplar_options = {name: "0.4"}
    config.configure_ipu_system()
    text = str(emulator.memory(trained(model, batch_size=4, steps=8)))
    assert "IPU 0: products and convolutions may take 0.2" in text
    assert "IPU 1: products and convolutions may take 0.4" in text


@pytest.mark.parametrize(
    ("stages", "error", "text"),
    [
        ([{}], TypeError, r"PipelineStageOptions\(...\), not {}"),
        ([ipu.pipelining_ops.PipelineStageOptions()] * 3, ValueError, "list 3 stages.*has 2"),
    ],
)
def test_options_of_stages_when_they_do_not_fit_then_say_so(stages, error, text) -> None:
    with pytest.raises(error, match=text):
        trained(staged_mlp(forward_propagation_stages_poplar_options=stages), 4, 8)


@pytest.mark.parametrize(
    "options",
    [
        {"device_mapping": [1, 0]},
        {"recomputation_mode": ipu.pipelining_ops.RecomputationMode.Auto},
        {"offload_weight_update_variables": True, "offload_activations": True},
        {"offload_weights": True, "offload_gradient_accumulation_buffers": True},
    ],
    ids=lambda options: ", ".join(options),
)
def test_places_and_recomputation_then_change_no_result(options) -> None:
    plain = trained(staged_mlp(), batch_size=4, steps=4)
    model = trained(staged_mlp(**options), batch_size=4, steps=4)
    assert models.largest_difference(plain, model) == 0


OWN_TABLE = [
    [*(f"0F{m}" for m in range(4)), *(f"0I{m}" for m in range(4)), *(f"0W{m}" for m in range(4))],
    [f"1{kind}{m}" for m in range(4) for kind in "FB"],
]


@pytest.mark.parametrize(
    ("num_ipus", "schedule"),
    [
        (2, emulator.schedules.zero_bubble_h1()),
        (1, emulator.schedules.interleaved_1f1b()),
        (1, emulator.schedules.zero_bubble_v()),
        (2, emulator.schedules.from_table(OWN_TABLE)),
        (2, emulator.schedules.from_table(OWN_TABLE[::-1])),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_table_when_it_is_the_schedule_then_it_places_stages_and_changes_no_bit(
    num_ipus: int, schedule
) -> None:
    plain = trained(staged_mlp(), batch_size=4, steps=4)
    x, labels = models.data()
    wanted = plain.evaluate(x, labels, batch_size=4, verbose=0)
    model = trained(staged_mlp(num_ipus, pipeline_schedule=schedule), batch_size=4, steps=4)
    assert models.largest_difference(plain, model) == 0
    assert model.evaluate(x, labels, batch_size=4, verbose=0) == wanted


def test_table_when_it_takes_half_the_ipus_then_there_are_twice_the_replicas() -> None:
    schedule = emulator.schedules.zero_bubble_v()
    options = {"gradient_accumulation_steps_per_replica": 2, "pipeline_schedule": schedule}
    model = trained(staged_mlp(2, **options), batch_size=4, steps=4)
    eager = trained(models.mlp(), batch_size=16, rate=0.2)  # Gradients of replicas are added.
    assert models.largest_difference(eager, model) < NEAR


def test_stages_on_one_ipu_then_equal_eager_keras() -> None:
    model = trained(staged_mlp(1, device_mapping=[0, 0]), batch_size=4, steps=4)
    assert models.largest_difference(trained(models.mlp(), batch_size=16), model) < NEAR


@pytest.mark.parametrize("accumulation", [1, 2])
def test_two_replicas_then_equal_one_batch(accumulation: int) -> None:
    models.use_ipus(2)
    with models.SCOPE():
        model = models.mlp()
    model.set_gradient_accumulation_options(
        gradient_accumulation_steps_per_replica=accumulation,
        gradient_accumulation_reduction_method="mean",
        replicated_optimizer_state_sharding=True,
    )
    trained(model, batch_size=4, steps=4, rate=0.05)
    eager = trained(models.mlp(), batch_size=8 * accumulation)
    assert models.largest_difference(eager, model) < NEAR
    x, labels = models.data()
    np.testing.assert_allclose(
        model.predict(x, batch_size=4, verbose=0), eager.predict(x, verbose=0), atol=NEAR
    )


def test_pipeline_with_replicas_then_equals_one_batch() -> None:
    model = trained(staged_mlp(4), batch_size=4, steps=4, rate=0.05)
    assert models.largest_difference(trained(models.mlp(), batch_size=32), model) < NEAR


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("method", [None, "sum", Reduction.MEAN, "Running_Mean"])
def test_gradients_then_are_reduced_over_batches_and_added_over_replicas(
    method, accumulation: int, replicas: int
) -> None:
    """A sum of n gradients is their mean with n times the learning rate."""
    models.use_ipus(replicas)
    with models.SCOPE():
        model = models.mlp()
    options = {} if method is None else {"gradient_accumulation_reduction_method": method}
    model.set_gradient_accumulation_options(accumulation, **options)
    added = replicas * (accumulation if method in (None, "sum") else 1)
    trained(model, batch_size=4, steps=accumulation, rate=0.1 / added)
    eager = trained(models.mlp(), batch_size=4 * accumulation * replicas)
    assert models.largest_difference(eager, model) < NEAR


def test_sum_when_nothing_was_set_then_is_said_once(caplog) -> None:
    run_settings.note_default_reduction.cache_clear()
    models.use_ipus(2)
    for _ in range(2):
        with models.SCOPE():
            trained(models.mlp(), batch_size=4)
    said = [each.message for each in caplog.records if "are added up" in each.message]
    assert len(said) == 1 and "divides by the accumulation count" in said[0]


def test_batch_norm_in_a_pipeline_then_statistics_are_those_of_its_micro_batches() -> None:
    def make():
        keras.utils.set_random_seed(1)
        return keras.Sequential(
            [
                keras.Input((12,)),
                keras.layers.Dense(4),
                keras.layers.BatchNormalization(momentum=0.5),
                keras.layers.Dense(3),
            ]
        )

    models.use_ipus(2)
    with models.SCOPE():
        model = make()
    model.set_pipeline_stage_assignment([0, 0, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    # With a rate of 0 nothing is learnt, so that eager Keras sees the same activations.
    trained(model, batch_size=4, steps=4, rate=0.0)
    assert models.largest_difference(trained(make(), batch_size=4, rate=0.0), model) < NEAR


def functional(*, is_staged: bool):
    """Builds a model with a layer called twice, in two stages, and a connection around both."""
    stage = ipu.keras.PipelineStage if is_staged else lambda _: nullcontext()
    keras.utils.set_random_seed(1)
    inputs = keras.Input((12,))
    shared = keras.layers.Dense(12, activation="tanh")
    with stage(0):
        first = shared(inputs)
    with stage(1):
        second = shared(first)
        outputs = keras.layers.Dense(3, name="last")(second + first)
    return keras.Model(inputs, outputs)


def test_layer_when_called_in_two_stages_then_equals_eager_keras() -> None:
    models.use_ipus(2)
    with models.SCOPE():
        model = functional(is_staged=True)
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=4, gradient_accumulation_reduction_method="mean"
    )
    eager = trained(functional(is_staged=False), batch_size=16)
    assert models.largest_difference(eager, trained(model, batch_size=4, steps=4)) < NEAR
    stages = [each.pipeline_stage for each in model.get_pipeline_stage_assignment()]
    assert stages == [0, 1, 1, 1]


def test_stages_of_a_functional_model_when_set_one_by_one_then_equal_eager_keras() -> None:
    models.use_ipus(2)
    with models.SCOPE():
        model = functional(is_staged=False)
    assignments = model.get_pipeline_stage_assignment()
    assert [each.pipeline_stage for each in assignments] == [None] * 4
    for each in assignments:
        each.pipeline_stage = 1 if each.layer.name == "last" else 0
    assert [layer.name for layer in assignments[-1].inbound_layers] == [assignments[2].layer.name]
    model.set_pipeline_stage_assignment(assignments)
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=4, gradient_accumulation_reduction_method="mean"
    )
    lines: list[str] = []
    model.print_pipeline_stage_assignment_summary(line_length=60, print_fn=lines.append)
    assert [line.split()[-1] for line in lines[2:]] == ["0", "0", "0", "1"]
    eager = trained(functional(is_staged=False), batch_size=16)
    assert models.largest_difference(eager, trained(model, batch_size=4, steps=4)) < NEAR
    model.reset_pipeline_stage_assignment()
    assert [each.pipeline_stage for each in model.get_pipeline_stage_assignment()] == [None] * 4


def stages_of(model) -> list[int | None]:
    return [each.pipeline_stage for each in model.get_pipeline_stage_assignment()]


@pytest.mark.parametrize("as_entries", [False, True])
def test_stages_of_a_sequential_then_are_shown_and_taken_away(as_entries: bool) -> None:
    models.use_ipus(2)
    with models.SCOPE():
        model = models.mlp()
    entries = model.get_pipeline_stage_assignment()
    assert [each.layer for each in entries] == model.layers
    assert entries[2].inbound_layers == [model.layers[1]]
    assert stages_of(model) == [None] * 3
    for each, stage in zip(entries, [0, 1, 1], strict=True):
        assert isinstance(each, ipu.keras.SequentialLayerPipelineStageAssignment)
        each.pipeline_stage = stage
    model.set_pipeline_stage_assignment(entries if as_entries else [0, 1, 1])
    assert stages_of(model) == [0, 1, 1]
    lines: list[str] = []
    model.print_pipeline_stage_assignment_summary(print_fn=lines.append)
    assert [line.split()[-1] for line in lines[2:]] == ["0", "1", "1"]
    with pytest.raises(ValueError, match="The entry of layer .* stands where .* Give the entries"):
        model.set_pipeline_stage_assignment(entries[::-1])
    model.reset_pipeline_stage_assignment()
    assert stages_of(model) == [None] * 3


@pytest.mark.parametrize("is_sequential", [False, True])
def test_nested_model_then_has_entries_of_its_own_and_runs_in_one_stage(
    is_sequential: bool,
) -> None:
    models.use_ipus(2)
    inner = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8), keras.layers.ReLU()])
    with models.SCOPE():
        if is_sequential:
            model = keras.Sequential([keras.Input((12,)), inner, keras.layers.Dense(3)])
        else:
            inputs = keras.Input((12,))
            model = keras.Model(inputs, keras.layers.Dense(3)(inner(inputs)))
    entries = model.get_pipeline_stage_assignment()
    assert isinstance(entries[0], ipu.keras.NestedModelPipelineStageAssignment)
    assert entries[0].nested_model is entries[0].layer is inner
    nested = entries[0].pipeline_stage_assignments
    assert [each.layer for each in nested] == inner.layers
    for each, stage in zip([*nested, entries[1]], [0, 0, 1], strict=True):
        each.pipeline_stage = stage
    model.set_pipeline_stage_assignment(entries)
    assert stages_of(model) == [0, 1]
    model.set_pipelining_options(4, gradient_accumulation_reduction_method="mean")
    eager = keras.models.clone_model(model)
    eager.set_weights(model.get_weights())
    trained(model, batch_size=4, steps=4)
    assert models.largest_difference(trained(eager, batch_size=16), model) < NEAR
    nested[1].pipeline_stage = 1
    with pytest.raises(ValueError, match="have several pipeline stages, 0, 1, and the model as a"):
        _ = entries[0].pipeline_stage
