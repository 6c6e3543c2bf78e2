"""Random legal tables of a pipeline, in any order."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from poptorch_emu.schedule.actions import Action, Kind

Rows = list[list[str]]


@st.composite
def legal_tables(draw: Any, num_stages: int | None = None, num_micro_batches: int = 0) -> Rows:
    """Draws the rows of a table: a random order in which each action follows its inputs.

    Backwards of some stages are split, for all micro-batches or for some; some cells have two
    actions.

    Args:
        draw: hypothesis's function that draws a value.
        num_stages: number of stages, by default 1 to 5.
        num_micro_batches: number of micro-batches, by default 1 to 4.
    """
    count = num_stages or draw(st.integers(1, 5))
    batches = num_micro_batches or draw(st.integers(1, 4))
    ids = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    ipus = [sorted(set(ids)).index(ipu) for ipu in ids]
    needs: dict[Action, list[Action]] = {}
    for stage in range(count):
        for m in range(batches):
            _add(needs, stage, m, draw(st.booleans()), count)
    rows: Rows = [[] for _ in set(ipus)]
    done: set[Action] = set()
    while len(done) < len(needs):
        ready = [a for a in needs if a not in done and all(_is_done(n, done) for n in needs[a])]
        action = draw(st.sampled_from(ready))
        row = rows[ipus[action.stage]]
        done.add(action)
        row.append(str(action))
        if draw(st.integers(0, 9)) == 0:
            row.append("")
    return rows


def _add(
    needs: dict[Action, list[Action]], stage: int, m: int, is_cut: bool, num_stages: int
) -> None:
    forward = Action(Kind.FORWARD, stage, m)
    needs[forward] = [Action(Kind.FORWARD, stage - 1, m)] if stage else []
    kind = Kind.BACKWARD_INPUTS if is_cut else Kind.BACKWARD
    behind = [Action(Kind.BACKWARD, stage + 1, m)] if stage + 1 < num_stages else []
    needs[Action(kind, stage, m)] = [forward, *behind]
    if is_cut:
        needs[Action(Kind.BACKWARD_WEIGHTS, stage, m)] = [forward, Action(kind, stage, m)]


def _is_done(needed: Action, done: set[Action]) -> bool:
    """Returns whether an action is done; for a backward, its gradients of inputs are enough."""
    if needed.kind is Kind.BACKWARD:
        half = Action(Kind.BACKWARD_INPUTS, needed.stage, needed.micro_batch)
        return needed in done or half in done
    return needed in done
