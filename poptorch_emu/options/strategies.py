"""Execution strategies, which assign blocks to stages and stages to IPUs.

These objects only store the user's choices. `strategy_config` converts one to the immutable
`StrategyConfig`; while a model is traced, the layers below choose the stage and IPU of each block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, TypeAlias

from poptorch_emu.config import (
    PipelineOrder,
    StageConfig,
    StrategyConfig,
    StrategyKind,
    TableConfig,
)
from poptorch_emu.enums import AutoStage, Liveness
from poptorch_emu.errors import require
from poptorch_emu.log import logger
from poptorch_emu.near_names import did_you_mean
from poptorch_emu.options.base import integer, require_type

BlockId: TypeAlias = str


class Stage:
    """Blocks that run one after another on one IPU (exact)."""

    def __init__(self, *block_ids: BlockId) -> None:
        """Joins blocks to a stage.

        Raises:
            AssertionError: an id is not a string.
        """
        for block_id in block_ids:
            require(
                isinstance(block_id, str),
                f"Block IDs are supposed to be strings but got {block_id!r} of type "
                f"{type(block_id).__name__}.",
            )
        self._blocks = block_ids
        self._stage_id = -1
        self._phase_id = -1
        self._ipu: int | None = None

    @property
    def blocks(self) -> tuple[BlockId, ...]:
        """The ids of the blocks."""
        return self._blocks

    def ipu(self, ipu: int) -> Stage:
        """Sets the IPU, which overrides the `ipu_id` of the blocks (exact)."""
        self._ipu = integer(ipu, "ipu", range(2**31))
        return self

    def __repr__(self) -> str:
        """Returns the expression that creates the stage."""
        ipu = "" if self._ipu is None else f".ipu({self._ipu})"
        return f"{_call(self, self._blocks)}{ipu}"


class Phase:
    """Stages that run at the same time in phased execution (exact)."""

    stages: Sequence[Stage]

    def __init__(self, *arg: BlockId | Stage) -> None:
        """Stores stages, or creates a single stage from the ids of its blocks.

        Raises:
            AssertionError: the arguments are neither all stages nor all strings.
        """
        if all(isinstance(element, Stage) for element in arg):
            self.stages = arg  # type: ignore[assignment]
            return
        require(
            all(isinstance(element, str) for element in arg),
            f"All arguments must either be block IDs (strings) or Stages: got {arg!r}. "
            "Pass each phase as an argument of its own.",
        )
        self.stages = [Stage(*arg)]  # type: ignore[arg-type]

    def stage(self, idx: int) -> Stage:
        """Returns the stage at index `idx`."""
        return self.stages[idx]

    def ipus(self, *ipus: int) -> None:
        """Sets the IPU of each stage.

        Raises:
            AssertionError: the number of IPUs differs from the number of stages.
        """
        require(
            len(ipus) == len(self.stages),
            f"Phase contains {len(self.stages)} stages but you provided {len(ipus)} ipus. "
            "Pass one for each stage.",
        )
        for stage, ipu in zip(self.stages, ipus, strict=True):
            stage.ipu(ipu)

    def __repr__(self) -> str:
        """Returns the expression that creates the phase."""
        return _call(self, self.stages)


class _IExecutionStrategy:
    """Base class of all strategies, which maps blocks to stages."""

    def __init__(self) -> None:
        self._block_map: dict[BlockId, Stage] = {}

    def onStartTracing(self) -> None:
        """Does nothing, because the tracer assigns stages (accepted)."""

    def onEndTracing(self) -> None:
        """Does nothing, because the tracer assigns stages (accepted)."""

    def stage(self, block_id: BlockId) -> Stage:
        """Returns the stage of a block; automatic strategies have no stages (exact).

        Raises:
            AssertionError: the strategy does not name the block.
        """
        if block_id not in self._block_map:
            raise AssertionError(
                f"Unknown block {block_id}. The strategy names {list(self._block_map)}."
                f"{did_you_mean(block_id, self._block_map)}"
            )
        return self._block_map[block_id]

    def backendOptions(self) -> dict[str, Any]:
        """Returns the entries of the strategy in `Options.toDict()` (exact)."""
        raise NotImplementedError("a strategy says how it executes")

    def _add_stages(self, stages: Iterable[Stage], phase: int, container: str) -> None:
        for stage_id, stage in enumerate(stages):
            stage._stage_id, stage._phase_id = stage_id, phase
            for block_id in stage.blocks:
                require(
                    block_id not in self._block_map,
                    f"{block_id} associated with more than one stage. Name each block once.",
                )
                self._block_map[block_id] = stage
                index = phase if container == "phase" else stage_id
                logger.debug("block %s added to %s %d", block_id, container, index)


class PipelinedExecution(_IExecutionStrategy):
    """Runs stages on different IPUs at the same time, each on another micro-batch (exact).

    Example:
        >>> options = poptorch.Options()
        >>> strategy = poptorch.PipelinedExecution("first", "second")
        >>> _ = options.setExecutionStrategy(strategy)
    """

    _execution_mode = 0

    def __init__(self, *args: AutoStage | BlockId | Sequence[BlockId] | Stage) -> None:
        """Stores the stages in order, or the rule that assigns blocks to stages.

        Args:
            args: stages, block ids, or lists of block ids that form one stage; or a single
                `AutoStage`; or nothing, which means `AutoStage.SameAsIpu`.

        Raises:
            AssertionError: a block is named twice, or an id is not a string.
        """
        super().__init__()
        self._order: PipelineOrder | TableConfig = PipelineOrder.GROUPED
        self._auto_stage: AutoStage | None = None
        self._stages: list[Stage] = []
        if not args:
            self._auto_stage = AutoStage.SameAsIpu
        elif len(args) == 1 and isinstance(args[0], AutoStage):
            self._auto_stage = args[0]
        else:
            self._stages = [_as_stage(arg) for arg in args]
            self._add_stages(self._stages, phase=0, container="stage")

    def backendOptions(self) -> dict[str, Any]:
        """Returns the entries of the strategy in `Options.toDict()` (exact)."""
        return {"execution_mode": self._execution_mode}

    @property
    def order(self) -> PipelineOrder | TableConfig:
        """Order of the stages, or the table that schedules them (see `emulator.set_schedule`)."""
        return self._order

    def set_order(self, order: PipelineOrder | TableConfig) -> None:
        """Sets the order or the table; `emulator.set_schedule` also checks it."""
        self._order = order

    def __repr__(self) -> str:
        """Returns the expression that creates the strategy, and the order of the pipeline."""
        stages = self._stages if self._auto_stage is None else [self._auto_stage]
        order = self._order.name if isinstance(self._order, TableConfig) else self._order.value
        suffix = "" if order == PipelineOrder.GROUPED.value else f" in the order {order!r}"
        return f"{_call(self, stages)}{suffix}"


class ShardedExecution(PipelinedExecution):
    """Runs the model over the IPUs in sequence, one micro-batch at a time (exact)."""

    _execution_mode = 1


class _IPhasedExecution(_IExecutionStrategy):
    """Runs phases one after another; between phases, tensors may leave the chip."""

    _is_serial: bool

    def __init__(self, *phases: Phase | Sequence[BlockId | Stage] | BlockId | Stage) -> None:
        """Stores the phases in order, each as an argument of its own.

        Args:
            phases: phases, lists of stages or of block ids, single stages or block ids.

        Raises:
            AssertionError: no phase is given, or a block is named twice.
        """
        super().__init__()
        self._tensors_liveness = Liveness.AlwaysLive
        self._separate_backward_phase = False
        require(
            len(phases) > 0,
            "There is currently no AutoStage for PhasedExecution, please explicitly specify the "
            "phases, each as an argument of its own.",
        )
        self._phases = [_as_phase(phase) for phase in phases]
        for index, phase in enumerate(self._phases):
            self._add_stages(phase.stages, phase=index, container="phase")

    def phase(self, n: int) -> Phase:
        """Returns the phase at index `n`.

        Raises:
            AssertionError: `n` is not an int, or is negative.
        """
        require(
            isinstance(n, int) and n >= 0,
            f"Phases are identified by positive integers, not by {n!r}.",
        )
        return self._phases[n]

    def useSeparateBackwardPhase(self, use: bool = True) -> _IPhasedExecution:
        """Gives the first backward phase a number of its own (modelled: shown in the schedule)."""
        require_type(use, bool, "useSeparateBackwardPhase")
        self._separate_backward_phase = use
        return self

    def __repr__(self) -> str:
        """Returns the expression that creates the strategy, and its settings."""
        separate = ".useSeparateBackwardPhase()" if self._separate_backward_phase else ""
        return f"{_call(self, self._phases)}{self._liveness_call()}{separate}"

    def _liveness_call(self) -> str:
        """Returns the call that sets the liveness; "" for the default."""
        raise NotImplementedError("a phased strategy says how its liveness is set")

    def backendOptions(self) -> dict[str, Any]:
        """Returns the entries of the strategy in `Options.toDict()` (exact)."""
        return {
            "execution_mode": 2,
            "separate_backward_phase": self._separate_backward_phase,
            "tensors_liveness": self._tensors_liveness.value,
            "serial_phases_execution": self._is_serial,
        }


class ParallelPhasedExecution(_IPhasedExecution):
    """Runs even phases on even IPUs while odd IPUs load the next phase (modelled)."""

    _is_serial = False

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> ParallelPhasedExecution:
        """Moves weights and activations to streaming memory after forward (modelled).

        `Options.TensorLocations` overrides this setting.
        """
        require_type(off_chip, bool, "sendTensorsOffChipAfterFwd")
        self._tensors_liveness = Liveness.OffChipAfterFwd if off_chip else Liveness.AlwaysLive
        return self

    def _liveness_call(self) -> str:
        is_default = self._tensors_liveness is Liveness.AlwaysLive
        return "" if is_default else ".sendTensorsOffChipAfterFwd()"


class SerialPhasedExecution(_IPhasedExecution):
    """Runs all phases on the same IPUs, one after another (modelled)."""

    _is_serial = True

    def setTensorsLiveness(self, liveness: Liveness) -> SerialPhasedExecution:
        """Sets when weights and activations are moved to streaming memory (modelled).

        With `AlwaysLive` they stay on the chip. Otherwise weights live in streaming memory and
        are loaded for each phase that uses them, and activations are stored there until backward.
        `OffChipAfterFwd` loads the tensors of the next phase while a phase runs;
        `OffChipAfterFwdNoOverlap` loads them between phases, so that the chip holds the tensors
        of one phase only. `OffChipAfterEachPhase` also moves the tensors that one phase passes to
        another. `Options.TensorLocations` overrides this setting.
        """
        require_type(liveness, Liveness, "liveness")
        self._tensors_liveness = liveness
        return self

    def _liveness_call(self) -> str:
        is_default = self._tensors_liveness is Liveness.AlwaysLive
        return "" if is_default else f".setTensorsLiveness({self._tensors_liveness})"


def _order_config(order: PipelineOrder | TableConfig) -> dict[str, Any]:
    return {"table" if isinstance(order, TableConfig) else "order": order}


def strategy_config(strategy: _IExecutionStrategy) -> StrategyConfig:
    """Returns the immutable form of a strategy."""
    if isinstance(strategy, PipelinedExecution):
        is_sharded = isinstance(strategy, ShardedExecution)
        return StrategyConfig(
            kind=StrategyKind.SHARDED if is_sharded else StrategyKind.PIPELINED,
            stages=tuple(_stage_config(stage, phase=0) for stage in strategy._stages),
            auto_stage=strategy._auto_stage,
            **_order_config(strategy.order),
        )
    assert isinstance(strategy, _IPhasedExecution), "every strategy is pipelined or phased"
    return StrategyConfig(
        kind=StrategyKind.SERIAL_PHASED if strategy._is_serial else StrategyKind.PARALLEL_PHASED,
        stages=tuple(
            _stage_config(stage, index)
            for index, phase in enumerate(strategy._phases)
            for stage in phase.stages
        ),
        auto_stage=None,
        liveness=strategy._tensors_liveness,
        has_separate_backward_phase=strategy._separate_backward_phase,
    )


def _stage_config(stage: Stage, phase: int) -> StageConfig:
    return StageConfig(block_ids=stage.blocks, ipu=stage._ipu, phase=phase)


def _call(made: object, arguments: Iterable[Any]) -> str:
    """Returns a call of an object's class, whose arguments are members of enumerations or not."""
    texts = (str(each) if isinstance(each, Enum) else repr(each) for each in arguments)
    return f"{type(made).__name__}({', '.join(texts)})"


def _as_stage(arg: Any) -> Stage:
    if isinstance(arg, Stage):
        return arg
    return Stage(*arg) if isinstance(arg, (list, tuple)) else Stage(arg)


def _as_phase(arg: Any) -> Phase:
    if isinstance(arg, Phase):
        return arg
    return Phase(*arg) if isinstance(arg, (list, tuple)) else Phase(arg)
