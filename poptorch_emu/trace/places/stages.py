"""Finds the place of a block from its id, by the rules of the execution strategy."""

from __future__ import annotations

from collections import Counter

from poptorch_emu.config import StrategyConfig
from poptorch_emu.enums import AutoStage
from poptorch_emu.ir.record import BlockPlace
from poptorch_emu.log import logger
from poptorch_emu.near_names import did_you_mean
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.troubleshooting import Topic


class StageResolver:
    """Returns the stage, IPU and phase of each block; automatic stages are made on first use."""

    def __init__(self, strategy: StrategyConfig) -> None:
        self._auto_stage = strategy.auto_stage
        self._places: dict[str, tuple[int, int | None, int]] = {}
        self._used: set[str] = set()
        self._first: dict[str, BlockPlace] = {}
        self._last: BlockPlace | None = None
        self._warned: set[str] = set()
        # Each phase numbers its stages from 0.
        num_stages: Counter[int] = Counter()
        for stage in strategy.stages:
            for block_id in stage.block_ids:
                self._places[block_id] = (num_stages[stage.phase], stage.ipu, stage.phase)
            num_stages[stage.phase] += 1

    def __call__(self, block_id: str, ipu_id: int | None) -> BlockPlace:
        """Returns the place of `block_id`, whose annotation may name the IPU `ipu_id`.

        Raises:
            AssertionError: the strategy does not list the block, or stages equal IPUs and the
                annotation names no IPU.
        """
        if block_id not in self._places:
            self._places[block_id] = (self._new_stage(block_id, ipu_id), None, 0)
        self._used.add(block_id)
        stage, stage_ipu, phase = self._places[block_id]
        ipu = stage_ipu if stage_ipu is not None else ipu_id
        if ipu is None:
            logger.debug("No IPU specified for block %s: default to stage_id %d", block_id, stage)
            ipu = stage
        logger.debug("Starting block id=%s stage=%d phase=%d ipu=%d", block_id, stage, phase, ipu)
        place = BlockPlace(block_id, stage, ipu, phase)
        self._warn_of_second(place)
        self._last = place
        return place

    def warn_of_unused(self) -> None:
        """Warns of blocks that the strategy lists but the model does not have."""
        unused = sorted(set(self._places) - self._used)
        if unused:
            logger.warning(
                "The execution strategy names blocks that the model did not begin: %s; it began "
                "%s. Their stages are left out.%s Check their names; %s",
                unused,
                sorted(self._used),
                did_you_mean(unused[0], sorted(self._used - set(self._places))),
                Topic.BLOCK_NAMES,
            )

    def _warn_of_second(self, place: BlockPlace) -> None:
        """Warns once of an id that two blocks share, unless one follows directly on the other."""
        name, last = place.block_id, self._last
        first = self._first.setdefault(name, place)
        if last is None or name in self._warned:
            return
        if first != place:
            self._warned.add(name)
            logger.warning(
                "Two blocks have the id '%s': one on IPU %d, and one at %s on IPU %d. They are two "
                "stages; give each an id of its own; %s",
                *(name, first.ipu, user_source(), place.ipu, Topic.BLOCK_NAMES),
            )
        elif last.stage != place.stage and last.block_id != name and first is not place:
            self._warned.add(name)
            logger.warning(
                "Block '%s' begins again at %s, after block '%s'. Blocks of one id are one block: "
                "this is stage %d on IPU %d again. Give it an id of its own if it is to run "
                "elsewhere; %s",
                *(name, user_source(), last.block_id, place.stage, place.ipu, Topic.BLOCK_NAMES),
            )

    def _new_stage(self, block_id: str, ipu_id: int | None) -> int:
        if self._auto_stage is None:
            raise AssertionError(
                f"Unknown Block '{block_id}' list of expected Blocks: {sorted(self._places)}."
                f"{did_you_mean(block_id, sorted(self._places))} Add it to a stage of the "
                f"execution strategy, or let stages be made automatically; {Topic.BLOCK_NAMES}"
            )
        if self._auto_stage is AutoStage.AutoIncrement:
            return max((stage for stage, _, _ in self._places.values()), default=0) + 1
        if ipu_id is None:
            raise AssertionError(
                "poptorch.AutoStage.SameAsIpu was selected but no IPU was specified for block "
                f"{block_id}. Give the block an ipu_id, or choose poptorch.AutoStage.AutoIncrement."
            )
        return ipu_id
