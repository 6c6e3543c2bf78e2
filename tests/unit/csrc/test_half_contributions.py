"""Float16 contributions to float32 sums: the bits of casts and additions, in any order."""

import pytest
import torch
from hand_built import ALL, MICRO_BATCH, WINDOW, Reg, add, executor

from poptorch_emu import _C

IN_EACH_ORDER = True

N, WINDOWS = 5, 3


def summing(view, *, is_mean=False, is_remote=False, replicas=1):
    """Returns a program that adds up a view of its input and returns each window's sum."""
    program = _C.Program()
    segment = program.add_segment("backward", 0, MICRO_BATCH)
    program.load_input(segment, 0, program.add_input("x", True))
    add(program, segment, view, [Reg(0)], [1])
    accumulator = program.add_accumulator("g", torch.float32, is_mean)
    if is_remote:
        program.set_remote_accumulator(accumulator)
    program.accumulate(segment, 1, accumulator)
    update = program.add_segment("update", 0, WINDOW)
    program.set_runners(update, list(range(replicas)))
    parts = [(update, 0)]
    if replicas > 1:
        reduction = program.add_segment("reduce", 0, WINDOW)
        program.set_runners(reduction, list(range(replicas)))
        program.reduce(reduction, accumulator)
        parts.insert(0, (reduction, 0))
    program.load_accumulator(update, 0, accumulator)
    program.store_output(update, 0, ALL, 1)
    program.set_schedule([[*((segment, m) for m in range(N)), *parts]], N)
    return program


def sums_by_hand(contributions, *, is_mean=False, replicas=1, **_):
    """Adds up the contributions of each window's micro-batches with plain PyTorch."""
    sums = []
    for window in zip(*[iter(contributions)] * (N * replicas), strict=True):
        of_replica = []
        for replica in range(replicas):
            total = window[replica].float()
            for index, value in enumerate(window[replica::replicas][1:], start=1):
                if is_mean:
                    total.mul_(index / (index + 1)).add_(value.float(), alpha=1 / (index + 1))
                else:
                    total += value.float()
            of_replica.append(total)
        sums += [sum(of_replica)] * replicas
    return torch.cat(sums)


VIEWS = {"clone": torch.clone, "t": torch.t, "_neg_view": torch._neg_view}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", [(3, 7), (300, 250)], ids=["small", "large"])
@pytest.mark.parametrize(
    ("settings", "workers"),
    [
        ({}, 1),
        ({}, 3),
        ({"is_mean": True}, 1),
        ({"is_mean": True}, 3),
        ({"is_remote": True}, 1),
        ({"replicas": 2}, 2),
    ],
)
def test_sum_when_contributions_are_half_then_has_the_bits_of_wider_ones(
    settings, workers, shape, view
):
    replicas = settings.get("replicas", 1)
    x = torch.randn(N * WINDOWS * replicas * shape[0], shape[1]).half()
    engine = executor(summing(view, **settings), replicas=replicas, workers=workers)
    expected = sums_by_hand([VIEWS[view](part) for part in x.split(shape[0])], **settings)
    kept = engine.run([x], WINDOWS)[0]
    assert torch.equal(kept, expected)
    assert torch.equal(engine.run([-x], WINDOWS)[0], -expected)
    assert torch.equal(kept, expected)
