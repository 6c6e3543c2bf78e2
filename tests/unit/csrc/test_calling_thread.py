"""Settings of the calling thread apply to all workers that run its micro-batches."""

import pytest
import torch
from hand_built import ALL, Reg, add, executor, one_segment

IN_EACH_ORDER = True

N = 8
CALLS = 20


def scaling_engine():
    """Returns an engine with two workers that multiplies rows by 1e-20 and takes a while."""
    program, segment = one_segment(num_micro_batches=N)
    add(program, segment, "mul.Tensor", [Reg(0), 1e-20], [1])
    for register in range(2, 7):
        add(program, segment, "exp", [Reg(1)], [register])
    program.store_output(segment, 1, ALL, 1)
    return executor(program, workers=2)


def test_denormal_numbers_when_the_caller_flushes_them_then_every_worker_does() -> None:
    engine = scaling_engine()
    x = torch.full((N, 100_000), 1e-20)
    kept = torch.full((N, 100_000), 1e-40)
    assert torch.equal(engine.run([x], 1)[0], kept)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    try:
        results = [engine.run([x], 1)[0] for _ in range(CALLS)]
    finally:
        torch.set_flush_denormal(False)
    # The bits are compared as integers, because a comparison of floats might flush denormals, too.
    assert not any(result.view(torch.int32).any() for result in results)
    assert torch.equal(engine.run([x], 1)[0], kept)


@pytest.mark.parametrize("is_inference", [True, False])
def test_results_when_the_caller_is_in_inference_mode_then_are_its_tensors(is_inference) -> None:
    engine = scaling_engine()
    x = torch.ones(N, 100_000)
    results = []
    for _ in range(CALLS):
        with torch.inference_mode(is_inference):
            results += engine.run([x], 1)
    assert [result.is_inference() for result in results] == [is_inference] * CALLS
