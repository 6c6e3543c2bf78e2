"""Levels of stages: the stages of one level can run side by side."""

from __future__ import annotations

from collections import defaultdict

from poptorch_emu.schedule.actions import Kind
from poptorch_emu.schedule.partition import Partition


def stage_levels(placed: Partition) -> tuple[int, ...]:
    """Returns the level of each stage; empty if the stages form a chain.

    Phases follow one another. Within a phase the level of a stage is above that of each stage whose
    results it uses, and above that of each earlier stage on the same IPU.
    """
    needed = _needed_stages(placed)
    levels: list[int] = []
    first = 0  # stage of the present phase
    for stage, place in enumerate(placed.places):
        if place.phase != placed.places[first].phase:
            first = stage
        before = [
            levels[other]
            for other in range(first, stage)
            if other in needed[stage] or placed.ipu_of_stage[other] == placed.ipu_of_stage[stage]
        ]
        # A phase begins after the last level of the earlier phases.
        start = 1 + max(levels[:first], default=-1)
        levels.append(max([start, *(1 + level for level in before)]))
    is_chain = levels == list(range(len(levels)))
    return () if is_chain else tuple(levels)


def _needed_stages(placed: Partition) -> defaultdict[int, set[int]]:
    """Returns for each stage the stages before it whose results it uses, in either direction."""
    needed: defaultdict[int, set[int]] = defaultdict(set)
    for node, (kind, stage) in placed.port_of.items():
        for value in node.all_input_nodes:
            other_kind, other = placed.port_of.get(value, (kind, stage))
            if other != stage and other_kind is kind:
                first, second = (other, stage) if kind is Kind.FORWARD else (stage, other)
                needed[second].add(first)
    return needed
