"""`poptorch_emu.emulator.stream`: results of a call are read while it runs."""

import gc
import threading
import time

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu.emulator import stream

pytestmark = pytest.mark.feature("emulator.stream", fidelity="exact")

ROWS = 2


class TwoStages(torch.nn.Module):
    """A pipeline of two IPUs that returns a value from each IPU."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 4)
        self.second = torch.nn.Linear(4, 2)
        self.loss = torch.nn.MSELoss()

    def forward(self, x, target=None):
        with poptorch.Block("first", ipu_id=0):
            hidden = self.first(x)
        with poptorch.Block("second", ipu_id=1):
            output = self.second(hidden)
            if target is None:
                return {"hidden": hidden, "output": output}
            return hidden, output, self.loss(output, target)


def options_of(iterations, accumulation=1, replicas=1, mode=poptorch.OutputMode.All):
    options = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    options.outputMode(mode).showCompilationProgressBar(False).randomSeed(3)
    return options


def inference(iterations, **settings):
    torch.manual_seed(0)
    model = poptorch.inferenceModel(TwoStages(), options_of(iterations, **settings))
    return model, torch.randn(iterations * ROWS * settings.get("replicas", 1), 3)


def training(iterations, accumulation, replicas=1, **settings):
    torch.manual_seed(0)
    options = options_of(iterations, accumulation, replicas, **settings)
    module = TwoStages()
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.1)
    rows = iterations * accumulation * replicas * ROWS
    return poptorch.trainingModel(module, options, optimizer), torch.randn(rows, 3), module


@pytest.mark.parametrize("max_unread", [1, 2, 100])
@pytest.mark.parametrize("replicas", [1, 2])
def test_stream_when_inference_then_results_are_slices_of_a_call(replicas, max_unread):
    model, x = inference(6, replicas=replicas)
    whole = model(x)
    results = list(stream(model, x, max_unread=max_unread))
    assert len(results) == 6
    for key in ("hidden", "output"):
        pieces = torch.cat([result[key] for result in results])
        torch.testing.assert_close(pieces, whole[key], rtol=0, atol=0)


@pytest.mark.parametrize("replicas", [1, 2])
def test_stream_when_training_then_results_and_weights_are_those_of_a_call(replicas):
    streamed, x, module = training(4, 3, replicas)
    called, _, other = training(4, 3, replicas)
    target = torch.randn(len(x), 2)
    expected = called(x, target)
    results = list(stream(streamed, x, target))
    assert len(results) == 4
    for index, whole in enumerate(expected):
        pieces = torch.cat([result[index] for result in results])
        torch.testing.assert_close(pieces, whole, rtol=0, atol=0)
    for name, value in other.named_parameters():
        torch.testing.assert_close(module.get_parameter(name), value, rtol=0, atol=0)


def test_stream_when_one_iteration_of_one_number_then_it_stays_a_number():
    model, x, _ = training(5, 3)
    for _, _, loss in stream(model, x, torch.zeros(len(x), 2)):
        assert loss.shape == (3,)

    class Sum(torch.nn.Module):
        def forward(self, x):
            return x.sum()

    sums = poptorch.inferenceModel(Sum(), options_of(4))
    assert [value.shape for value in stream(sums, torch.ones(8))] == [()] * 4


def test_stream_when_not_read_then_the_engine_pauses():
    model, x = inference(200)
    model.compile(x)
    results = stream(model, x, max_unread=1)
    next(results)
    time.sleep(0.1)
    assert model._on_device.device.session._call.is_running
    assert len(list(results)) == 199


def test_streams_one_after_the_other_then_run_on_one_thread_and_as_the_caller_has_it():
    class Half(torch.nn.Module):
        def forward(self, x):
            return x / 2

    half, x = poptorch.inferenceModel(Half(), options_of(4)), torch.full((4, 3), 1e-39)
    with stream(half, x) as results:
        kept = torch.cat(list(results))
    threads = set(threading.enumerate())
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    try:
        with stream(half, x) as results:
            flushed = torch.cat(list(results))
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(kept, torch.full((4, 3), 5e-40)) and not flushed.view(torch.int32).any()
    assert set(threading.enumerate()) <= threads


def test_stream_when_closed_early_then_the_call_is_complete():
    model, x, module = training(8, 3)
    other, _, reference = training(8, 3)
    target = torch.randn(len(x), 2)
    other(x, target)
    with stream(model, x, target, max_unread=1) as results:
        next(results)
    with pytest.raises(StopIteration):
        next(results)
    torch.testing.assert_close(module.first.weight, reference.first.weight, rtol=0, atol=0)
    assert model(x, target)[0].shape == (len(x), 4)


def test_stream_when_dropped_then_the_model_is_free_again():
    model, x = inference(50)
    results = stream(model, x, max_unread=1)
    next(results)
    del results
    gc.collect()
    assert model(x)["output"].shape == (100, 2)


def test_model_when_a_stream_is_open_then_every_other_use_is_refused():
    model, x, module = training(50, 3)
    target = torch.randn(len(x), 2)
    results = stream(model, x, target, max_unread=1)
    uses = (
        lambda: model(x, target),
        lambda: stream(model, x, target),
        model.copyWeightsToHost,
        model.copyWeightsToDevice,
        lambda: module.first.weight.sum(),
        lambda: model.rng_state,
    )
    for use in uses:
        with pytest.raises(poptorch.Error, match="are being streamed.*close the stream"):
            use()
    results.close()
    before = module.first.weight.clone()
    model(x, target)
    assert not torch.equal(before, module.first.weight)


def test_stream_when_the_run_fails_then_the_error_comes_from_the_iterator():
    class Pick(torch.nn.Module):
        def forward(self, x, index):
            return x.index_select(1, index).sum()

    model = poptorch.inferenceModel(Pick(), options_of(4))
    index = torch.tensor([0, 1, 0, 7])
    results = stream(model, torch.eye(4), index)
    assert [next(results).item() for _ in range(3)] == [1, 1, 0]
    with pytest.raises(poptorch.Error, match="(?i)index.*out of"):
        next(results)
    assert list(stream(model, torch.eye(4), torch.zeros(4, dtype=torch.int64)))


def test_stream_when_output_mode_is_not_all_then_refused():
    model, x = inference(4, mode=poptorch.OutputMode.Final)
    with pytest.raises(poptorch.Error, match=r"OutputMode.Final cannot be streamed.*All"):
        stream(model, x)


@pytest.mark.parametrize("replicas", [1, 2])
def test_stream_when_tensors_are_anchored_then_results_and_anchors_are_those_of_a_call(replicas):
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        options = options_of(4, 3, replicas)
        options.anchorTensor("new", "UpdatedVar___second.bias")
        options.anchorTensor("hidden", "first/Gemm:0", poptorch.OutputMode.Final)
        module = TwoStages()
        optimizer = poptorch.optim.SGD(module.parameters(), lr=0.1)
        models.append(poptorch.trainingModel(module, options, optimizer))
    called, streamed = models
    x = torch.randn(4 * 3 * replicas * ROWS, 3)
    target = torch.randn(len(x), 2)
    for _ in range(2):
        expected = called(x, target)
        results = list(stream(streamed, x, target))
        assert len(results) == 4
        for index, whole in enumerate(expected):
            pieces = torch.cat([result[index] for result in results])
            torch.testing.assert_close(pieces, whole, rtol=0, atol=0)
        for name in ("new", "hidden"):
            anchored = streamed.getAnchoredTensor(name)
            torch.testing.assert_close(anchored, called.getAnchoredTensor(name), rtol=0, atol=0)


def test_stream_when_nothing_may_wait_then_refused():
    model, x = inference(4)
    with pytest.raises(ValueError, match="max_unread must be at least 1, not 0"):
        stream(model, x, max_unread=0)


def test_stream_when_there_are_no_outputs_then_refused():
    class Nothing(torch.nn.Module):
        def forward(self, x):
            return None

    model = poptorch.inferenceModel(Nothing(), options_of(1))
    with pytest.raises(poptorch.Error, match="no results to stream"):
        stream(model, torch.ones(2))


def test_stream_when_the_batch_changes_meanwhile_then_results_are_those_of_its_beginning():
    model, x = inference(50)
    expected = model(x)["output"]
    batch = x.clone()
    results = stream(model, batch, max_unread=1)
    first = next(results)
    batch.zero_()
    torch.testing.assert_close(
        torch.cat([result["output"] for result in (first, *results)]), expected, rtol=0, atol=0
    )


def test_stream_when_backward_is_called_on_a_result_then_refused_as_of_a_call():
    model, x, _ = training(2, accumulation=4)
    losses = [loss for _, _, loss in stream(model, x, torch.zeros(len(x), 2))]
    assert len(losses) == 2
    for loss in losses:
        with pytest.raises(poptorch.Error, match="cannot be called explicitly"):
            loss.backward()
