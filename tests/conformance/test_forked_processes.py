"""Models of several IPUs in a forked child, which has the engine's memory without its threads."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable

import pytest
import torch
from support.accessor_data import wait_until
from support.forked_programs import FINALIZED, run_forked
from support.models import FAMILIES

import poptorch_emu as poptorch
from poptorch_emu import emulator

pytestmark = [
    pytest.mark.feature("PoplarExecutor", fidelity="exact"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
    # Newer versions of Python warn about a fork of a process with threads.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

FAMILY = FAMILIES["mlp"]
PEEK = os.WEXITED | os.WNOHANG | os.WNOWAIT


def in_child(action: Callable[[], bool]) -> bool | None:
    """Returns the result of `action` in a forked child, or `None` if the child never ends."""
    child = os.fork()
    if child == 0:
        is_fine = False
        try:
            is_fine = action()
        finally:
            os._exit(0 if is_fine else 1)
    has_ended = wait_until(lambda: os.waitid(os.P_PID, child, PEEK) is not None, 60)
    if not has_ended:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0 if has_ended else None


@pytest.fixture(autouse=True)
def _has_two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_EMU_WORKERS", "2")


def trained(iterations: int = 1) -> poptorch.PoplarExecutor:
    """Returns a model on two IPUs that has run, so that the engine has a waiting thread."""
    torch.manual_seed(1)
    model = FAMILY.make(2)
    opts = poptorch.Options().showCompilationProgressBar(False).deviceIterations(iterations)
    opts.outputMode(poptorch.OutputMode.All)
    opts.Training.gradientAccumulation(4)
    wrapped = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.1))
    wrapped(*FAMILY.batch(8 * iterations))
    return wrapped


def test_model_when_collected_in_a_child_then_the_child_goes_on():
    training = trained()

    def collect() -> bool:
        nonlocal training
        del training
        return gc.collect() > 0

    assert in_child(collect)


def test_model_when_destroyed_in_a_child_then_the_parents_runs_on():
    training = trained()

    def destroy() -> bool:
        training.destroy()
        return True

    assert in_child(destroy)
    assert torch.isfinite(training(*FAMILY.batch(8))[1]).all()


def test_model_when_called_in_a_child_then_trains_there_as_it_does_here():
    training = trained()

    def weights() -> list[torch.Tensor]:
        return [value.clone() for value in training.state_dict().values()]

    before = weights()
    of_child = [value.clone().share_memory_() for value in before]

    def train() -> bool:
        training(*FAMILY.batch(8))
        for place, value in zip(of_child, weights(), strict=True):
            place.copy_(value)
        return True

    assert in_child(train)
    # Training in the child does not change the weights of the parent.
    assert all(map(torch.equal, weights(), before))
    training(*FAMILY.batch(8))
    assert all(map(torch.equal, weights(), of_child))
    assert not any(map(torch.equal, of_child, before))


def test_model_on_one_ipu_when_called_in_a_child_then_waits_for_no_threads_of_the_parent():
    """With GNU's OpenMP, plain PyTorch waits if an operation ran on several threads before."""
    parts = torch.nn.Linear(6, 300), torch.nn.LogSoftmax(-1), torch.nn.Linear(300, 2)
    model = torch.nn.Sequential(*parts)
    inference = poptorch.inferenceModel(model, poptorch.Options().showCompilationProgressBar(False))
    x = torch.randn(200, 6)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        expected = inference(x)
        assert in_child(lambda: torch.allclose(inference(x), expected))
    finally:
        torch.set_num_threads(before)


def is_refused(use: Callable[[], object]) -> bool:
    try:
        use()
    except poptorch.Error as error:
        return "rap the model anew here" in str(error)
    return False


def test_stream_when_forked_meanwhile_then_the_child_can_do_all_but_go_on():
    training, other, batch = trained(20), trained(), FAMILY.batch(160)
    open_ones = [emulator.stream(training, *batch, max_unread=1)]
    next(open_ones[0])

    def use() -> bool:
        uses = [lambda: next(open_ones[0]), lambda: training(*batch)]
        is_fine = all(map(is_refused, uses))
        open_ones[0].close()
        is_fine &= is_refused(uses[1])
        uses.clear()
        open_ones.clear()
        gc.collect()
        return is_fine and bool(torch.isfinite(other(*FAMILY.batch(8))[1]).all())

    assert in_child(use)
    assert len(list(open_ones[0])) == 19
    training(*batch)


SCRIPT = """
import os, signal, sys
import torch
import poptorch_emu as poptorch
from poptorch_emu import emulator

class Model(torch.nn.Module):
    def forward(self, x):
        with poptorch.Block("first", ipu_id=0):
            x = x + 1
        with poptorch.Block("second", ipu_id=1):
            return x * 2

def begin():
    model = poptorch.inferenceModel(Model(), poptorch.Options().deviceIterations(20))
    results = emulator.stream(model, torch.ones(20), max_unread=1)
    next(results)
    return results

results = begin()
child = os.fork()
if child == 0:
    signal.alarm(20)
    del results
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(list(results)))
"""


def test_child_when_forked_in_a_stream_then_exits_like_any_other():
    done = run_forked(["-c", SCRIPT], FINALIZED)
    assert done.stdout == "5 19\n", done.stderr


def test_model_when_its_parent_has_streamed_results_then_streams_in_the_child() -> None:
    x, options = torch.arange(4.0), poptorch.Options().deviceIterations(4)
    options.outputMode(poptorch.OutputMode.All).showCompilationProgressBar(False)

    def streams() -> bool:
        model = poptorch.inferenceModel(torch.nn.Softplus(), options)
        results = torch.stack(list(emulator.stream(model, x)))
        return torch.equal(results, torch.nn.functional.softplus(x).reshape(results.shape))

    assert streams()  # The stream's thread then waits for the next call.
    assert in_child(streams)
