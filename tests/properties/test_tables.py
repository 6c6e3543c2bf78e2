"""Tables of a user: every legal order is accepted, and every fault is refused with its reason."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.random_tables import Rows, legal_tables

from poptorch_emu.schedule.actions import Kind, parse_action
from poptorch_emu.schedule.csv_text import to_csv
from poptorch_emu.schedule.free_run import free_run
from poptorch_emu.schedule.legality import check
from poptorch_emu.schedule.schedule import link_depths
from poptorch_emu.schedule.stash import stash_depths
from poptorch_emu.schedule.tables.own import read_table


def places(rows: Rows, kinds: str = "FBIW") -> list[tuple[int, int]]:
    """Returns row and position of each action of some kinds."""
    return [
        (ipu, at)
        for ipu, row in enumerate(rows)
        for at, text in enumerate(row)
        if text and parse_action(text).kind.value in kinds
    ]


def refusal(rows: Rows) -> str:
    with pytest.raises(ValueError) as error:
        read_table(rows)
    return str(error.value)


@given(legal_tables())
def test_table_when_legal_then_keeps_its_order_and_passes_all_checks(rows: Rows) -> None:
    schedule = read_table(rows)
    check(schedule, max_stash=stash_depths(schedule), depths=link_depths(schedule))
    for ipu, row in enumerate(rows):
        kept = [str(a) for a in schedule.actions(ipu) if a.kind is not Kind.UPDATE]
        assert kept == [text for text in row if text]


@given(legal_tables())
def test_table_when_written_and_read_again_then_is_the_same(rows: Rows) -> None:
    schedule = read_table(rows)
    assert read_table([line.split(",") for line in to_csv(schedule).splitlines()]) == schedule


@given(legal_tables())
def test_table_when_run_freely_then_nothing_begins_before_what_it_needs(rows: Rows) -> None:
    schedule = read_table(rows)
    run = free_run(schedule)
    for producer, consumer in schedule.links:
        ends = actions_at(schedule, producer), actions_at(schedule, consumer)
        for first, second in zip(*ends, strict=True):
            assert first == second or run.ends[first] <= run.begins[second]
    assert run.end <= sum(run.busy)
    assert 0 <= run.bubble < 1


def actions_at(schedule, port):
    """Returns the action of each micro-batch, in order, that runs the work of a port."""
    found = [a for a in schedule.slot_of if a.kind is not Kind.UPDATE]
    found = [a for a in found if port in schedule.ports_of(a)]
    return sorted(found, key=lambda action: action.micro_batch)


@given(legal_tables(), st.randoms(use_true_random=False))
def test_table_when_an_action_is_left_out_then_says_which(rows: Rows, rng: random.Random) -> None:
    assume(len(places(rows, "BI")) > 1)  # A table without any backward is one of inference.
    ipu, at = rng.choice(places(rows, "BIW"))
    action, rows[ipu][at] = parse_action(rows[ipu][at]), ""
    problem, *grid = refusal(rows).splitlines()
    # Half a backward without its `W` counts as a whole one, so another one may lack its half.
    assert re.match(f"IPU {ipu} never runs {action.stage}[BIW]{action.micro_batch}.", problem)
    assert [line[:5] for line in grid if line.endswith("<-- ERROR HERE")] == [f"IPU {ipu}"]


@given(legal_tables(), st.randoms(use_true_random=False))
def test_table_when_an_action_comes_twice_then_says_so(rows: Rows, rng: random.Random) -> None:
    ipu, at = rng.choice(places(rows))
    text = rows[ipu][at]
    rows[ipu].insert(rng.randrange(len(rows[ipu]) + 1), text)
    problem, *grid = refusal(rows).splitlines()
    assert problem == f"IPU {ipu} runs {text} twice. Every action happens once: leave one out."
    assert f">{text}<" in grid[ipu]


@given(legal_tables(), st.randoms(use_true_random=False))
def test_table_when_a_backward_is_on_another_ipu_then_says_whose_it_is(
    rows: Rows, rng: random.Random
) -> None:
    assume(len(rows) > 1)
    ipu, at = rng.choice(places(rows, "BIW"))
    text, rows[ipu][at] = rows[ipu][at], ""
    other = (ipu + 1) % len(rows)
    rows[other].append(text)
    letter = parse_action(text).kind.value
    problem, *grid = refusal(rows).splitlines()
    assert re.match(f"IPU {other} runs .*, which belongs to IPU {ipu}. Move it there.", problem)
    assert letter in problem or letter in "IW"
    assert grid[other].endswith("<-- ERROR HERE")


@given(legal_tables(num_micro_batches=3), st.randoms(use_true_random=False))
def test_table_when_a_stage_has_forwards_on_two_ipus_then_says_which(
    rows: Rows, rng: random.Random
) -> None:
    assume(len(rows) > 1)
    ipu, at = rng.choice(places(rows, "F"))
    text, rows[ipu][at] = rows[ipu][at], ""
    rows[(ipu + 1) % len(rows)].append(text)
    assert refusal(rows).startswith(f"Stage {parse_action(text).stage} has forwards on IPU ")


@given(legal_tables(), st.randoms(use_true_random=False))
def test_table_when_a_backward_comes_before_its_forward_then_ipus_wait_for_ever(
    rows: Rows, rng: random.Random
) -> None:
    ipu, at = rng.choice(places(rows, "BI"))
    action = parse_action(rows[ipu][at])
    forward = rows[ipu].index(f"{action.stage}F{action.micro_batch}")
    rows[ipu][at], rows[ipu][forward] = rows[ipu][forward], rows[ipu][at]
    problem, *grid = refusal(rows).splitlines()
    assert problem.startswith("IPUs wait for ever: ") and f"IPU {ipu} before" in problem
    assert any(">" in line for line in grid)
