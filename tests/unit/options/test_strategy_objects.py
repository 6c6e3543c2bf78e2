"""Stages, phases and strategies as the user builds them, and their immutable form."""

import copy
import pickle

import pytest

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.config import StageConfig, StrategyConfig, StrategyKind
from poptorch_emu.enums import AutoStage, Liveness, OutputMode
from poptorch_emu.options import (
    Options,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)
from poptorch_emu.options.popart import validate_options
from poptorch_emu.options.strategies import strategy_config

pytestmark = pytest.mark.feature("Execution strategies, Stage, Phase", fidelity="exact")

PIPELINED = pytest.mark.parametrize("strategy_class", [PipelinedExecution, ShardedExecution])
PHASED = pytest.mark.parametrize("strategy_class", [SerialPhasedExecution, ParallelPhasedExecution])


def test_stage_then_keeps_its_blocks_and_ipu():
    stage = Stage("a", "b")
    assert stage.blocks == ("a", "b")
    assert (stage._stage_id, stage._phase_id, stage._ipu) == (-1, -1, None)
    assert stage.ipu(3) is stage
    assert stage._ipu == 3


@pytest.mark.parametrize("wrong", [1, None, ["a"]], ids=repr)
def test_stage_when_id_is_no_string_then_asserts(wrong):
    with pytest.raises(AssertionError, match="Block IDs are supposed to be strings but got"):
        Stage("a", wrong)


def test_stage_ipu_when_not_an_int_then_asserts():
    with pytest.raises(AssertionError, match="ipu must be of type int"):
        Stage("a").ipu("1")


def test_phase_of_ids_then_is_one_stage():
    phase = Phase("a", "b")
    assert [stage.blocks for stage in phase.stages] == [("a", "b")]


def test_phase_of_stages_then_keeps_them_and_sets_their_ipus():
    first, second = Stage("a"), Stage("b")
    phase = Phase(first, second)
    assert phase.stages == (first, second)
    assert phase.stage(1) is second
    assert phase.ipus(0, 2) is None
    assert (first._ipu, second._ipu) == (0, 2)


@pytest.mark.parametrize("ipus", [(), (1,), (1, 2, 3)], ids=len)
def test_phase_ipus_when_count_differs_then_asserts(ipus):
    with pytest.raises(
        AssertionError, match=f"Phase contains 2 stages but you provided {len(ipus)} ipus"
    ):
        Phase(Stage("a"), Stage("b")).ipus(*ipus)


@pytest.mark.parametrize(
    "arguments", [("a", Stage("b")), (1,), (["a"],)], ids=["mix", "int", "list"]
)
def test_phase_when_arguments_are_mixed_then_asserts(arguments):
    with pytest.raises(
        AssertionError, match=r"All arguments must either be block IDs \(strings\) or Stages:"
    ):
        Phase(*arguments)


@PIPELINED
@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ((), AutoStage.SameAsIpu),
        ((AutoStage.SameAsIpu,), AutoStage.SameAsIpu),
        ((AutoStage.AutoIncrement,), AutoStage.AutoIncrement),
    ],
    ids=["none", "same-as-ipu", "increment"],
)
def test_automatic_strategy_then_has_a_rule_and_no_stages(strategy_class, arguments, rule):
    strategy = strategy_class(*arguments)
    config = strategy_config(strategy)
    assert config.auto_stage is rule and config.is_automatic and config.stages == ()
    with pytest.raises(AssertionError, match="Unknown block a"):
        strategy.stage("a")


@PIPELINED
def test_explicit_stages_then_numbered_in_order(strategy_class):
    strategy = strategy_class(Stage("a").ipu(1), "b", ["c", "d"])
    assert [strategy.stage(block)._stage_id for block in "abcd"] == [0, 1, 2, 2]
    assert strategy.stage("c") is strategy.stage("d")
    kinds = {
        PipelinedExecution: StrategyKind.PIPELINED,
        ShardedExecution: StrategyKind.SHARDED,
    }
    assert strategy_config(strategy) == StrategyConfig(
        kind=kinds[strategy_class],
        stages=(StageConfig(("a",), ipu=1), StageConfig(("b",)), StageConfig(("c", "d"))),
        auto_stage=None,
    )


def test_stage_changed_after_the_strategy_was_made_then_counts():
    strategy = PipelinedExecution("a", "b")
    strategy.stage("b").ipu(5)
    assert strategy_config(strategy).stages[1].ipu == 5


@pytest.mark.parametrize(
    "build",
    [
        lambda: PipelinedExecution("a", "b", "a"),
        lambda: ShardedExecution(["a", "a"]),
        lambda: SerialPhasedExecution("a", ["b", "a"]),
        lambda: ParallelPhasedExecution([Stage("a"), Stage("a")]),
    ],
    ids=["pipelined", "sharded", "serial", "parallel"],
)
def test_strategy_when_a_block_is_named_twice_then_asserts(build):
    with pytest.raises(AssertionError, match="a associated with more than one stage"):
        build()


def test_strategy_when_rule_and_stages_are_mixed_then_asserts():
    with pytest.raises(AssertionError, match="Block IDs are supposed to be strings but got"):
        PipelinedExecution(AutoStage.AutoIncrement, "a")


@PHASED
def test_phased_then_stages_know_phase_and_place(strategy_class):
    strategy = strategy_class(Phase("a"), [Stage("b"), Stage("c").ipu(1)], ["d", "e"], "f")
    assert [strategy.stage(block)._phase_id for block in "abcdef"] == [0, 1, 1, 2, 2, 3]
    assert [strategy.stage(block)._stage_id for block in "abcdef"] == [0, 0, 1, 0, 0, 0]
    assert [(s.block_ids, s.ipu, s.phase) for s in strategy_config(strategy).stages] == [
        (("a",), None, 0),
        (("b",), None, 1),
        (("c",), 1, 1),
        (("d", "e"), None, 2),
        (("f",), None, 3),
    ]
    assert strategy_config(strategy).auto_stage is None


def test_phased_then_kind_follows_the_class():
    assert strategy_config(SerialPhasedExecution("a")).kind is StrategyKind.SERIAL_PHASED
    assert strategy_config(ParallelPhasedExecution("a")).kind is StrategyKind.PARALLEL_PHASED


@PHASED
def test_phased_without_phases_then_asserts(strategy_class):
    with pytest.raises(
        AssertionError, match="There is currently no AutoStage for PhasedExecution, please"
    ):
        strategy_class()


@PHASED
def test_phased_with_one_list_of_phases_then_asserts(strategy_class):
    with pytest.raises(AssertionError, match="All arguments must either be block IDs"):
        strategy_class([Phase("a"), Phase("b")])


@PHASED
@pytest.mark.parametrize("index", [-1, 0.0, "0"], ids=repr)
def test_phase_lookup_when_not_an_index_then_asserts(strategy_class, index):
    strategy = strategy_class("a", "b")
    assert strategy.phase(1).stage(0).blocks == ("b",)
    with pytest.raises(AssertionError, match="Phases are identified by positive integers"):
        strategy.phase(index)


@PIPELINED
def test_pipelined_backend_options_then_only_the_mode(strategy_class):
    mode = {PipelinedExecution: 0, ShardedExecution: 1}[strategy_class]
    assert strategy_class().backendOptions() == {"execution_mode": mode}


def test_phased_backend_options_then_follow_the_setters():
    serial = SerialPhasedExecution("a")
    expected = {
        "execution_mode": 2,
        "separate_backward_phase": False,
        "tensors_liveness": 0,
        "serial_phases_execution": True,
    }
    assert serial.backendOptions() == expected
    assert serial.useSeparateBackwardPhase() is serial
    assert serial.setTensorsLiveness(Liveness.OffChipAfterEachPhase) is serial
    assert serial.backendOptions() == {
        **expected,
        "separate_backward_phase": True,
        "tensors_liveness": 3,
    }
    validate_options(Options().setExecutionStrategy(serial).outputMode(OutputMode.All).toDict())


def test_parallel_phased_then_liveness_has_two_values():
    parallel = ParallelPhasedExecution("a")
    assert parallel.sendTensorsOffChipAfterFwd() is parallel
    assert parallel.backendOptions()["tensors_liveness"] == 1
    assert parallel.backendOptions()["serial_phases_execution"] is False
    parallel.sendTensorsOffChipAfterFwd(False)
    assert parallel.backendOptions()["tensors_liveness"] == 0


@pytest.mark.parametrize(
    "write",
    [
        lambda: SerialPhasedExecution("a").setTensorsLiveness(1),
        lambda: SerialPhasedExecution("a").useSeparateBackwardPhase(1),
        lambda: ParallelPhasedExecution("a").sendTensorsOffChipAfterFwd(None),
    ],
    ids=["liveness", "separate", "off-chip"],
)
def test_phased_setter_when_type_is_wrong_then_asserts(write):
    with pytest.raises(AssertionError, match="must be of type"):
        write()


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))], ids=["copy", "pickle"]
)
def test_copy_of_a_strategy_then_equal_and_apart(duplicate):
    strategy = ParallelPhasedExecution([Stage("a"), Stage("b")], "c")
    other = duplicate(strategy)
    assert strategy_config(other) == strategy_config(strategy)
    strategy.phase(0).ipus(0, 2)
    assert strategy_config(other) != strategy_config(strategy)


def test_tracing_callbacks_then_harmless():
    strategy = PipelinedExecution("a")
    strategy.onStartTracing()
    strategy.onEndTracing()
    assert strategy.stage("a").blocks == ("a",)


@pytest.mark.parametrize(
    "text",
    [
        "Stage('a', 'b').ipu(3)",
        "Phase(Stage('a'), Stage('b').ipu(1))",
        "PipelinedExecution(AutoStage.SameAsIpu)",
        "PipelinedExecution(Stage('a').ipu(1), Stage('b', 'c'))",
        "ShardedExecution(Stage('a'))",
        "ParallelPhasedExecution(Phase(Stage('a'))).sendTensorsOffChipAfterFwd()",
        "SerialPhasedExecution(Phase(Stage('a')), Phase(Stage('b')))"
        ".setTensorsLiveness(Liveness.OffChipAfterFwd).useSeparateBackwardPhase()",
    ],
)
def test_repr_then_is_the_expression_that_creates_the_value(text):
    assert repr(eval(text, vars(poptorch).copy())) == text


def test_repr_when_a_schedule_is_set_then_names_it():
    options = poptorch.Options()
    options.setExecutionStrategy(poptorch.PipelinedExecution("a", "b"))
    for order in ("zero_bubble_v", "interleaved"):
        emulator.set_schedule(options, order)
        expected = f"PipelinedExecution(Stage('a'), Stage('b')) in the order {order!r}"
        assert f"execution_strategy={expected}" in repr(options)


def test_options_in_a_notebook_then_have_a_row_each_and_names_are_text():
    options = poptorch.Options().modelName("<b>bert")
    options.Training.gradientAccumulation(12)
    markup = options._repr_html_()
    assert "<b>" not in markup and "&lt;b&gt;bert" in markup
    cell = '</td><td style="text-align:left">'
    assert f"Training.gradient_accumulation{cell}12</td>" in markup
    assert f"execution_strategy{cell}PipelinedExecution(" in markup
    assert " object at 0x" not in markup
