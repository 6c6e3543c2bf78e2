"""Matching of the values of two runs."""

import torch

from poptorch_emu.numbers.alignment import aligned, aligned_places
from poptorch_emu.numbers.run import Direction, Value, given


def values(text, module="", direction=Direction.FORWARD, shape=(2,)):
    return [Value(kind, 0, direction, module, "", torch.float32, shape) for kind in text.split()]


def pairs(ours, theirs):
    return sorted(aligned(ours, theirs).items())


def test_aligned_when_runs_are_alike_then_each_value_has_its_own():
    run = values("mm add relu mm add")
    assert pairs(run, run) == [(index, index) for index in range(5)]


def test_aligned_when_one_run_has_more_then_that_is_left_out():
    assert pairs(values("mm mul softmax"), values("mm softmax")) == [(0, 0), (2, 1)]
    assert pairs(values("mm softmax"), values("mm mul softmax")) == [(0, 0), (1, 2)]


def test_aligned_when_both_have_other_steps_then_the_last_ones_belong_together():
    assert pairs(values("mm softmax"), values("mm exp sum div")) == [(0, 0), (1, 3)]
    assert pairs(values("mm exp"), [*values("mm"), *values("sum", shape=(3,))]) == [(0, 0)]


def test_aligned_when_modules_come_in_another_order_then_they_keep_to_themselves():
    one, two = values("mm add", "one"), values("mm add", "two")
    assert pairs([*one, *two], [*two, *one]) == [(0, 2), (1, 3), (2, 0), (3, 1)]


def test_aligned_when_directions_or_shapes_differ_then_nothing_belongs_together():
    ours = values("mm")
    assert pairs(ours, values("mm", direction=Direction.BACKWARD)) == []
    assert pairs(ours, values("mm", shape=(3,))) == []


def test_aligned_when_tensors_have_names_then_these_count():
    x, y = given("x", torch.ones(2)), given("y", torch.ones(2))
    assert pairs([x, y], [y, x]) == [(0, 1), (1, 0)]
    assert pairs([x], [given("x", torch.ones(3))]) == []


def test_places_when_replicas_take_turns_otherwise_then_the_same_rows_meet():
    four = [(micro_batch, 0) for micro_batch in range(4)]
    two_by_two = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert aligned_places(four, two_by_two) == {
        (0, 0): (0, 0), (1, 0): (0, 1), (2, 0): (1, 0), (3, 0): (1, 1),
    }  # fmt: skip
