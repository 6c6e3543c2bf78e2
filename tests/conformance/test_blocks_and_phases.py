"""Blocks, stages and phases (api.md §10, §11; semantics.md §9, §10): places and refusals."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch

X = torch.ones(2)


def options(strategy=None) -> poptorch.Options:
    opts = poptorch.Options().showCompilationProgressBar(False).useIpuModel(True)
    return opts.setExecutionStrategy(strategy) if strategy is not None else opts


def wrapped(forward, strategy=None, opts=None) -> poptorch.PoplarExecutor:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Identity(), nn.Identity()

    Model.forward = forward
    return poptorch.inferenceModel(Model(), opts or options(strategy))


def places(forward, strategy=None) -> list[tuple[str, int, int]]:
    """Returns block, stage and IPU of each operation of a compiled `forward`."""
    executor = wrapped(forward, strategy)
    executor.compile(X)
    operations = json.loads(executor._debugGetPopartIR())["maingraph"]
    return [(each["block"], each["stage"], each["ipu"]) for each in operations]


def chain(*blocks):
    """Returns a forward with one operation before the blocks, and one in each (id, IPU)."""

    def forward(self, x):
        x = x + 1
        for block_id, ipu in blocks:
            with poptorch.Block(block_id, ipu_id=ipu):
                x = x * 2
        return x

    return forward


SHARDED = poptorch.ShardedExecution


@pytest.mark.feature("Placement", fidelity="exact")
def test_operation_before_the_first_block_then_on_ipu_0() -> None:
    assert places(chain(("a", 1)), SHARDED()) == [("", 0, 0), ("a", 1, 1)]


@pytest.mark.feature("AutoStage.SameAsIpu", fidelity="exact")
def test_same_as_ipu_then_stage_is_the_ipu_and_a_block_needs_one() -> None:
    blocks = chain(("a", 0), ("b", 2), ("c", 1))
    assert places(blocks, SHARDED(poptorch.AutoStage.SameAsIpu))[1:] == [
        ("a", 0, 0),
        ("b", 2, 2),
        ("c", 1, 1),
    ]
    with pytest.raises(
        AssertionError,
        match="poptorch.AutoStage.SameAsIpu was selected but no IPU was specified for block a",
    ):
        places(chain(("a", None)), SHARDED())


@pytest.mark.feature("AutoStage.AutoIncrement", fidelity="exact")
def test_auto_increment_then_stages_count_from_1_in_order_of_first_appearance() -> None:
    blocks = chain(("a", 3), ("b", 0), ("a", 3), ("c", None))
    assert places(blocks, SHARDED(poptorch.AutoStage.AutoIncrement))[1:] == [
        ("a", 1, 3),
        ("b", 2, 0),
        ("a", 1, 3),
        ("c", 3, 3),  # Block c names no IPU, so it gets the IPU with its stage's number.
    ]


@pytest.mark.feature("Stage", fidelity="exact")
def test_explicit_stages_then_numbered_in_order_and_their_ipu_wins() -> None:
    strategy = SHARDED(poptorch.Stage("a", "b").ipu(2), "c", ["d", "e"])
    blocks = chain(("a", 5), ("b", None), ("c", 3), ("d", None), ("e", 1))
    assert places(blocks, strategy)[1:] == [
        ("a", 0, 2),
        ("b", 0, 2),
        ("c", 1, 3),
        ("d", 2, 2),
        ("e", 2, 1),
    ]


@pytest.mark.feature("Stage", fidelity="exact")
@pytest.mark.parametrize(
    ("make", "phrase"),
    [
        (lambda: poptorch.Stage(3), "Block IDs are supposed to be strings but got"),
        (lambda: poptorch.Stage("a").ipu("0"), "ipu"),
        (lambda: poptorch.Phase("a", 3), "All arguments must either be block IDs"),
        (lambda: poptorch.Phase("a").ipus(0, 1), "Phase contains 1 stages but you provided 2 ipus"),
        (lambda: SHARDED("a", "a"), "a associated with more than one stage"),
        (lambda: SHARDED("a").stage("b"), "Unknown block b"),
        (lambda: SHARDED().stage("b"), "Unknown block b"),
        (lambda: poptorch.SerialPhasedExecution(), "There is currently no AutoStage for PhasedEx"),
        (lambda: poptorch.SerialPhasedExecution("a", ["b", "a"]), "a associated with more than on"),
        (
            lambda: poptorch.SerialPhasedExecution([poptorch.Phase("a"), poptorch.Phase("b")]),
            "All arguments must either be block IDs",
        ),
        (lambda: poptorch.SerialPhasedExecution("a").phase(-1), "Phases are identified by positiv"),
        (lambda: poptorch.SerialPhasedExecution("a").setTensorsLiveness(1), "liveness"),
        (lambda: poptorch.SerialPhasedExecution("a").useSeparateBackwardPhase(1), "bool"),
        (lambda: poptorch.ParallelPhasedExecution("a").sendTensorsOffChipAfterFwd(1), "bool"),
    ],
)
def test_strategy_that_is_wrong_then_assertion(make, phrase) -> None:
    with pytest.raises(AssertionError, match=phrase):
        make()


@pytest.mark.feature("Stage", fidelity="exact")
@pytest.mark.parametrize("strategy", [SHARDED("a"), poptorch.SerialPhasedExecution("a")])
def test_block_that_the_strategy_does_not_name_then_error_lists_the_expected(strategy) -> None:
    with pytest.raises(AssertionError, match=r"Unknown Block 'b' list of expected Blocks: \['a'\]"):
        places(chain(("b", 0)), strategy)


def phases() -> tuple[list[poptorch.Stage], list[poptorch.Stage]]:
    """Returns two phases of two stages each."""
    stage = poptorch.Stage
    return [stage("a"), stage("b")], [stage("c"), stage("d")]


@pytest.mark.feature("SerialPhasedExecution", fidelity="modelled")
def test_phases_then_stages_are_counted_anew_in_each_and_give_the_ipu() -> None:
    blocks = chain(("a", None), ("b", None), ("c", None), ("d", None))
    assert places(blocks, poptorch.SerialPhasedExecution(*phases()))[1:] == [
        ("a", 0, 0),
        ("b", 1, 1),
        ("c", 0, 0),
        ("d", 1, 1),
    ]


@pytest.mark.feature("SerialPhasedExecution", fidelity="modelled")
@pytest.mark.parametrize("liveness", list(poptorch.Liveness))
@pytest.mark.parametrize("is_separate", [True, False])
def test_phases_then_results_are_those_of_one_ipu(liveness, is_separate) -> None:
    strategy = poptorch.SerialPhasedExecution(*phases()).setTensorsLiveness(liveness)
    strategy.useSeparateBackwardPhase(is_separate)
    blocks = chain(("a", None), ("b", None), ("c", None), ("d", None))
    assert wrapped(blocks, strategy)(X).tolist() == [32, 32]


@pytest.mark.feature("ParallelPhasedExecution", fidelity="modelled")
@pytest.mark.parametrize(
    ("ipus", "is_allowed"),
    [(((0, 2), (1, 3)), True), (((0, 1), (1, 3)), False), (((0, 2), (2, 3)), False)],
)
def test_parallel_phases_then_even_ones_on_even_ipus_and_odd_ones_on_odd(ipus, is_allowed) -> None:
    strategy = poptorch.ParallelPhasedExecution(*phases()).sendTensorsOffChipAfterFwd()
    for number, ids in enumerate(ipus):
        strategy.phase(number).ipus(*ids)
    blocks = chain(("a", None), ("b", None), ("c", None), ("d", None))
    if is_allowed:
        assert wrapped(blocks, strategy)(X).tolist() == [32, 32]
        return
    with pytest.raises(
        poptorch.Error,
        match="When phases are executed in parallel.*even phases must run on even IPUs",
    ):
        wrapped(blocks, strategy)(X)


# Tests of annotations.


@pytest.mark.feature("Block", fidelity="exact")
def test_operation_after_a_block_then_error_until_the_next_starts() -> None:
    def after(self, x):
        with poptorch.Block("a", ipu_id=0):
            x = x * 2
        return x + 1

    def after_inner(self, x):
        with poptorch.Block("a", ipu_id=0):
            with poptorch.Block("b", ipu_id=0):
                x = x * 2
            return x + 1

    for forward in (after, after_inner):
        with pytest.raises(
            poptorch.Error, match="No active Block, all the ops must belong to a Block"
        ):
            places(forward, SHARDED())


@pytest.mark.feature("Block", fidelity="exact")
def test_block_start_and_begin_block_then_last_until_the_next() -> None:
    def forward(self, x):
        poptorch.Block.start("a", ipu_id=1)
        x = self.first(x * 2) + 1
        return self.second(x) * 3

    executor = wrapped(forward, SHARDED())
    assert poptorch.BeginBlock(executor.model.second, "b", ipu_id=2) is executor.model.second
    executor.compile(X)
    operations = json.loads(executor._debugGetPopartIR())["maingraph"]
    assert [each["block"] for each in operations] == ["a", "a", "b"]
    assert "BeginBlock(user_id=b, ipu_id=2)" in repr(executor)
    poptorch.removeBlocks(executor.model)
    assert "BeginBlock" not in repr(executor)


@pytest.mark.feature("Block", fidelity="exact")
def test_blocks_without_an_id_then_get_numbers_and_use_auto_id_starts_again() -> None:
    def forward(self, x):
        poptorch.Block.useAutoId()
        for user_id in (None, "", "named", None):
            with poptorch.Block(user_id, ipu_id=0):
                x = x * 2
        poptorch.Block.useAutoId()
        with poptorch.Block(ipu_id=0):
            return x * 2

    assert [block for block, _, _ in places(forward, SHARDED())] == ["0", "1", "named", "2", "0"]


@pytest.mark.feature("BeginBlock", fidelity="exact")
def test_begin_block_when_wrong_then_error_and_of_a_function_a_module() -> None:
    with pytest.raises(
        poptorch.Error, match="module is not an instance of torch.nn.Module or function."
    ):
        poptorch.BeginBlock(3)
    layer = poptorch.BeginBlock(nn.Identity(), "a")
    with pytest.raises(poptorch.Error, match="module has already been assigned to a block."):
        poptorch.BeginBlock(layer, "b")
    function = poptorch.BeginBlock(lambda x: x * 2, "a")
    assert isinstance(function, poptorch.LegacyBeginBlockFn)
    assert function(X).tolist() == [2, 2]  # Outside a model blocks do nothing.
    with pytest.raises(AssertionError):
        poptorch.removeBlocks(lambda x: x)


@pytest.mark.feature("BlockFunction", fidelity="exact")
def test_block_function_then_each_call_is_in_the_block() -> None:
    @poptorch.BlockFunction("f", ipu_id=1)
    def double(x):
        return x * 2

    assert places(lambda self, x: double(x), SHARDED()) == [("f", 1, 1)]
    assert double(X).tolist() == [2, 2]


def test_block_id_then_is_a_string() -> None:
    stage = poptorch.Stage(poptorch.BlockId("a"), poptorch.BlockId(1))
    assert list(stage.blocks) == ["a", "1"]


@pytest.mark.feature("Block", fidelity="exact")
def test_blocks_when_traced_then_told_at_level_debug(caplog) -> None:
    caplog.set_level(logging.DEBUG, logger="poptorch::python")
    places(chain(("a", None)), SHARDED(poptorch.AutoStage.AutoIncrement))
    assert "No IPU specified for block a: default to stage_id 1" in caplog.text
    assert "Starting block id=a stage=1 phase=0 ipu=1" in caplog.text
    poptorch.PipelinedExecution("a")
    assert "block a added to stage 0" in caplog.text
    poptorch.SerialPhasedExecution("a")
    assert "block a added to phase 0" in caplog.text


# Tests of pipelines.


def pipeline(num_ipus: int, is_training: bool, count: int):
    """Returns a model over `num_ipus` with `count` micro-batches a window, and a batch."""
    blocks = chain(*((str(ipu), ipu) for ipu in range(num_ipus)))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = blocks(self, x * self.weight)
            with poptorch.Block("loss", ipu_id=num_ipus - 1):
                return poptorch.identity_loss(x, "sum")

    opts = options(poptorch.PipelinedExecution())
    if is_training:
        opts.Training.gradientAccumulation(count)
        return poptorch.trainingModel(Model(), opts), torch.ones(count)
    return poptorch.inferenceModel(Model(), opts.deviceIterations(count)), torch.ones(count)


@pytest.mark.feature("PipelinedExecution", fidelity="exact")
@pytest.mark.parametrize(
    ("num_ipus", "is_training", "needed", "option"),
    [
        (1, True, 1, ""),
        (2, True, 3, "Training.gradientAccumulation"),
        (3, True, 5, "Training.gradientAccumulation"),
        (2, False, 2, "deviceIterations"),
        (4, False, 4, "deviceIterations"),
    ],
)
def test_pipeline_then_needs_as_many_micro_batches_as_stages(
    num_ipus, is_training, needed, option
) -> None:
    executor, x = pipeline(num_ipus, is_training, needed)
    executor(x)
    if needed == 1:
        return
    executor, x = pipeline(num_ipus, is_training, needed - 1)
    with pytest.raises(
        poptorch.Error,
        match=rf"poptorch.Options\(\).{option} must be greater.*number of pipeline stages "
        rf"\({needed}\)",
    ) as error:
        executor(x)
    assert "poptorch.PipelinedExecution" in str(error.value)


@pytest.mark.feature("PipelinedExecution", fidelity="exact")
def test_ipu_visited_again_then_refused_with_same_as_ipu_and_fine_with_auto_increment() -> None:
    blocks = chain(("a", 0), ("b", 1), ("c", 0))
    for stage, is_allowed in ((poptorch.AutoStage.SameAsIpu, False), ("AutoIncrement", True)):
        rule = poptorch.AutoStage.AutoIncrement if is_allowed else stage
        opts = options(poptorch.PipelinedExecution(rule)).deviceIterations(3)
        executor = wrapped(blocks, opts=opts)
        if is_allowed:
            assert executor(torch.ones(3)).tolist() == [16, 16, 16]
        else:
            with pytest.raises(poptorch.Error, match="cannot go backwards"):
                executor(torch.ones(3))


@pytest.mark.feature("Options._Popart", fidelity="exact")
@pytest.mark.parametrize(
    ("name", "value", "ignored"),
    [
        ("autoRecomputation", 1, 3),
        ("enablePipelining", False, True),
        ("virtualGraphMode", 0, 1),
        ("constantWeights", True, False),
        ("enableGradientAccumulation", False, True),
        ("autoRecomputation", 3, None),
    ],
)
def test_backend_option_that_poptorch_sets_too_then_the_users_wins_with_a_warning(
    name, value, ignored, caplog
) -> None:
    executor, x = pipeline(2, True, 3)
    executor.options._unfreeze()
    executor.options._Popart.set(name, value)
    executor.options._freeze()
    executor(x)
    text = f"{name} forced by the user from default to {value}, ignoring value {ignored}"
    assert (text in caplog.text) == (ignored is not None)
    assert ("forced by the user" in caplog.text) == (ignored is not None)
