"""The life of an executor (api.md §16.1 to §16.6; semantics.md §8.2, §16): compile to destroy."""

from __future__ import annotations

import datetime
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.executor_models import NOT_COMPILED, Linear, Noise, Plain, X, options, training
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator

# For each method, the error that it raises before compilation, or the value that it returns.
BEFORE_COMPILATION = {
    "copyWeightsToHost": NOT_COMPILED,
    "copyWeightsToDevice": NOT_COMPILED,
    "copyNamedBuffersToDevice": NOT_COMPILED,
    "attachToDevice": NOT_COMPILED,
    "detachFromDevice": NOT_COMPILED,
    "compilationTime": "Please compile the model before obtaining compilation time.",
    "_debugGetPopartIR": NOT_COMPILED,
}


@pytest.mark.feature("PoplarExecutor", fidelity="exact")
@pytest.mark.parametrize("is_destroyed", [False, True], ids=["new", "destroyed"])
@pytest.mark.parametrize(("method", "phrase"), BEFORE_COMPILATION.items())
def test_method_when_not_compiled_then_error(method: str, phrase: str, is_destroyed: bool) -> None:
    executor = poptorch.inferenceModel(Plain(), options())
    if is_destroyed:
        executor(X)
        executor.destroy()
    with pytest.raises(poptorch.Error, match=phrase):
        getattr(executor, method)()


@pytest.mark.feature("PoplarExecutor", fidelity="exact")
def test_questions_when_not_compiled_then_answers() -> None:
    executor = poptorch.inferenceModel(Plain(), options())
    assert not executor.isCompiled()
    assert not executor.isAttachedToDevice()
    assert executor.copyWeightsToHostIfNeeded() is False
    executor.destroy()  # Nothing to do.
    with pytest.raises(poptorch.Error, match=NOT_COMPILED):
        executor.rng_state  # noqa: B018
    with pytest.raises(poptorch.Error, match=NOT_COMPILED):
        executor.rng_state = [1]
    with pytest.raises(AssertionError, match="Model must be compiled before calling getTensorNam"):
        executor.getTensorNames()
    with pytest.raises(AssertionError, match="No tensor with name weight found."):
        executor.getAnchoredTensor("weight")


@pytest.mark.feature("PoplarExecutor.compile", fidelity="exact")
def test_compile_when_repeated_then_warns_and_keeps_the_first(caplog) -> None:
    executor = poptorch.inferenceModel(Plain(), options())
    executor.compile(X)
    assert executor.isCompiled() and executor.isAttachedToDevice()
    assert "ignored" not in caplog.text
    executor.compile(torch.ones(3))
    assert "Call to compile() ignored: the executable is already compiled" in caplog.text
    assert executor(X).item() == 3


@pytest.mark.feature("PoplarExecutor.compilationTime", fidelity="exact")
@pytest.mark.parametrize("is_shown", [True, False])
def test_compilation_time_when_the_progress_bar_is_hidden_then_one_warning_or_strict_error(
    is_shown: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = "Please set showCompilationProgressBar option to obtain compilation time."
    opts = poptorch.Options().showCompilationProgressBar(is_shown)
    executor = poptorch.inferenceModel(Plain(), opts)
    start = time.perf_counter()
    executor.compile(X)
    longest = datetime.timedelta(seconds=time.perf_counter() - start)
    for _ in range(2):
        assert datetime.timedelta() < executor.compilationTime() <= longest
    assert caplog.text.count(rule) == (0 if is_shown else 1)
    monkeypatch.setenv("POPTORCH_EMU_STRICT", "error")
    if not is_shown:
        with pytest.raises(poptorch.Error, match=rule):
            executor.compilationTime()


@pytest.mark.feature("PoplarExecutor.attachToDevice", fidelity="exact")
def test_attach_and_detach_when_out_of_turn_then_error() -> None:
    executor = poptorch.inferenceModel(Plain(), options())
    executor(X)
    with pytest.raises(poptorch.Error, match="Device is already attached"):
        executor.attachToDevice()
    executor.detachFromDevice()
    assert executor.isCompiled() and not executor.isAttachedToDevice()
    with pytest.raises(poptorch.Error, match="Device is not attached"):
        executor.detachFromDevice()
    executor.attachToDevice()
    assert executor.isAttachedToDevice()
    executor.detachFromDevice()
    assert executor(X).item() == 3  # A call attaches the model.
    assert executor.isAttachedToDevice()


@pytest.mark.feature("PoplarExecutor.destroy", fidelity="exact")
def test_destroy_then_model_is_plain_again_and_another_wrapper_may_take_it() -> None:
    model = Linear()
    original = type(model)
    executor = training(model)
    assert type(model).__name__ == "PoptorchLinear" and isinstance(model, original)
    with pytest.raises(RuntimeError, match="Model has already been wrapped in 'poptorch.training"):
        training(model)
    executor(X)
    executor.destroy()
    assert type(model) is original
    assert type(model.weight) is nn.Parameter and type(model.seen) is torch.Tensor
    assert not executor.isCompiled() and not executor.isAttachedToDevice()
    other = training(model)
    assert other(X).item() == 0.5


@pytest.mark.feature("PoplarExecutor.destroy", fidelity="exact")
def test_destroy_when_not_compiled_then_another_wrapper_may_take_the_model() -> None:
    model = Linear()
    original = type(model)
    executor = training(model)
    executor.destroy()
    assert type(model) is original and type(model.weight) is nn.Parameter
    other = training(model)
    with pytest.raises(RuntimeError, match="Model has already been wrapped"):
        executor(X)
    assert other(X).item() == 1.0


@pytest.mark.feature("PoplarExecutor.destroy", fidelity="exact")
def test_destroy_when_called_again_then_compiles_for_other_shapes_and_syncs() -> None:
    model = Linear()
    executor = training(model)
    executor(X)
    executor.destroy()
    assert executor(torch.ones(3)).item() == 1.5
    assert type(model).__name__ == "PoptorchLinear"
    assert model.weight.item() == 0.5 - 0.5 * 3
    executor.destroy()
    other = training(model)
    with pytest.raises(RuntimeError, match="Model has already been wrapped"):
        executor(X)
    assert other(X).item() == -1.0


@pytest.mark.feature("PoplarExecutor.destroy", fidelity="exact")
@pytest.mark.parametrize("make", [poptorch.optim.Adam, poptorch.optim.RMSprop, torch.optim.Adam])
def test_destroy_then_an_optimiser_of_another_class_may_follow(make, caplog) -> None:
    model = Linear()
    executor = poptorch.trainingModel(
        model, options(), poptorch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    )
    executor(X)
    with pytest.raises(poptorch.Error):
        executor.setOptimizer(make(model.parameters(), lr=0.25))
    executor.destroy()
    caplog.clear()
    executor.setOptimizer(make(model.parameters(), lr=0.25))
    executor(X)
    plain = torch.nn.Parameter(torch.tensor([0.5]))
    reference = getattr(torch.optim, make.__name__)([plain], lr=0.25)
    plain.grad = torch.ones(1)
    reference.step()
    assert model.weight.item() == pytest.approx(plain.item(), rel=1e-5)
    assert "Ignoring unexpected" not in caplog.text
    assert "ignoring missing state" not in caplog.text


@pytest.mark.feature("PoplarExecutor.destroy", fidelity="exact")
def test_destroy_then_the_optimisers_state_goes_on() -> None:
    """Velocity of the first update, 1, is still there: 1 - 0.1 * 1 - 0.1 * (0.5 * 1 + 1)."""
    model = Linear()
    executor = poptorch.trainingModel(
        model, options(), poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    )
    executor(X)
    executor.destroy()
    executor(X)
    assert model.weight.item() == pytest.approx(1 - 0.1 - 0.15)


@pytest.mark.feature("PoplarExecutor", fidelity="exact")
def test_several_executors_when_used_in_turn_then_do_not_disturb_each_other() -> None:
    models = [Linear() for _ in range(3)]
    executors = [training(model, lr) for model, lr in zip(models, (0.1, 0.2, 0.3), strict=True)]
    for _ in range(2):
        for executor in executors:
            executor(X)
    assert all(executor.isAttachedToDevice() for executor in executors)
    executors[1].destroy()
    values = [model.weight.item() for model in models]
    assert values == pytest.approx([0.8, 0.6, 0.4])


@pytest.mark.feature("PoplarExecutor attributes", fidelity="exact")
def test_attribute_when_read_then_is_the_models_and_when_set_is_the_executors() -> None:
    model = Plain()
    model.note = "mine"
    executor = training(model)
    assert executor.model is model and executor.note == "mine"
    assert executor.weight.item() == 3
    executor.note = "yours"
    assert (executor.note, model.note) == ("yours", "mine")
    with pytest.raises(AttributeError, match="nothing_like_that"):
        executor.nothing_like_that  # noqa: B018
    executor.eval()
    assert not model.training
    executor.train()
    assert model.training
    assert [name for name, _ in executor.named_parameters()] == ["weight"]
    assert repr(executor) == poptorch.module_repr(model)
    for name in ("resetOptimizer", "backward", "getLatencies"):
        assert not hasattr(executor, name)


@pytest.mark.feature("PoplarExecutor attributes", fidelity="exact")
def test_inference_model_then_works_on_a_shallow_copy() -> None:
    model = Plain()
    executor = poptorch.inferenceModel(model, options())
    assert executor.model is not model
    assert executor.model.weight is model.weight
    executor.eval()
    assert not executor.model.training and model.training
    assert executor.options.output_mode == poptorch.OutputMode.All
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        executor.options.deviceIterations(2)


@pytest.mark.feature("PoplarExecutor.setOptimizer", fidelity="exact")
def test_set_optimizer_on_an_inference_model_then_attribute_error() -> None:
    model = Plain()
    executor = poptorch.inferenceModel(model, options())
    with pytest.raises(AttributeError):
        executor.setOptimizer(poptorch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.feature("PoplarExecutor.setOptimizer", fidelity="exact")
@pytest.mark.parametrize("moment", ["before compile", "attached", "detached"])
def test_set_optimizer_then_takes_effect_at_the_next_call(moment: str) -> None:
    model = Linear()
    executor = training(model, 0.5)
    expected = 1.0
    if moment != "before compile":
        executor(X)
        expected -= 0.5
    if moment == "detached":
        executor.detachFromDevice()
    executor.setOptimizer(poptorch.optim.SGD(model.parameters(), lr=0.125))
    executor(X)
    assert model.weight.item() == expected - 0.125


@pytest.mark.feature("Outputs", fidelity="exact")
def test_output_when_backward_is_called_then_error_but_it_is_a_plain_tensor(tmp_path) -> None:
    out = training(Linear())(X)
    with pytest.raises(
        poptorch.Error,
        match="backward\\(\\) cannot be called explicitly on outputs of a PopTorch model.",
    ):
        out.backward()
    assert not out.requires_grad and out.device.type == "cpu" and type(out) is torch.Tensor
    torch.save(out, tmp_path / "out.pt")
    assert torch.equal(torch.load(tmp_path / "out.pt"), out)
    derived = (out * torch.ones(1, requires_grad=True)).sum()
    derived.backward()  # Autograd accepts tensors that the user computes from an output.


@pytest.mark.feature("PoplarExecutor.rng_state", fidelity="exact")
def test_rng_state_when_given_back_then_the_numbers_repeat() -> None:
    executor = poptorch.inferenceModel(Noise(), options().randomSeed(42))
    x = torch.zeros(8)
    first = executor(x)
    state = executor.rng_state
    assert state[0] == 42 and all(isinstance(word, int) for word in state)
    second = executor(x)
    assert not torch.equal(first, second)
    executor.rng_state = state
    assert torch.equal(executor(x), second)
    assert executor.rng_state is not state
    state.append(1)
    assert len(executor.rng_state) == len(state) - 1


@pytest.mark.feature("PoplarExecutor.rng_state", fidelity="exact")
def test_rng_state_when_detached_then_is_kept_for_the_next_device() -> None:
    x = torch.zeros(8)
    straight = poptorch.inferenceModel(Noise(), options().randomSeed(42))
    expected = [straight(x) for _ in range(3)]
    executor = poptorch.inferenceModel(Noise(), options().randomSeed(42))
    assert torch.equal(executor(x), expected[0])
    executor.detachFromDevice()
    saved = executor.rng_state
    assert torch.equal(executor(x), expected[1])
    executor.detachFromDevice()
    executor.rng_state = saved
    assert torch.equal(executor(x), expected[1])
    assert torch.equal(executor(x), expected[2])


@pytest.mark.feature("PoplarExecutor.rng_state", fidelity="exact")
def test_rng_state_of_another_length_then_refused_but_the_seed_alone_will_do() -> None:
    executor = poptorch.inferenceModel(Noise(), options().randomSeed(42))
    executor(torch.zeros(2))
    before = executor.rng_state
    with pytest.raises(
        poptorch.Error,
        match=f"Devicex::setRngStateValue received rngState of size {len(before)}; was expecting "
        f"size {len(before) - 1}",
    ):
        executor.rng_state = [*before, 0]
    assert executor.rng_state == before
    executor.rng_state = [7]
    assert executor.rng_state == [7, *before[1:]]


@pytest.mark.feature("PoplarExecutor.rng_state", fidelity="exact")
def test_rng_state_when_nothing_is_random_then_the_seed_is_0() -> None:
    executor = poptorch.inferenceModel(Plain(), options().randomSeed(42))
    executor(X)
    assert executor.rng_state[0] == 0


@pytest.mark.feature("PoplarExecutor.cycleCount", fidelity="modelled")
def test_cycle_count_then_documented_errors_first_and_then_the_estimate() -> None:
    executor = poptorch.inferenceModel(Plain(), options())
    with pytest.raises(poptorch.Error, match="Cycle count logging is disabled.*logCycleCount to T"):
        executor.cycleCount()
    executor = poptorch.inferenceModel(Plain(), options().logCycleCount(True))
    with pytest.raises(poptorch.Error, match="Please run the model at least once before obtainin"):
        executor.cycleCount()
    executor(X)
    assert executor.cycleCount() == emulator.estimate(executor).cycles > 0


@pytest.mark.feature("PoplarExecutor", fidelity="exact")
def test_tracing_that_fails_then_executor_may_try_again() -> None:
    class Fails(Plain):
        is_broken = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.is_broken:
                raise KeyError("broken")
            return super().forward(x)

    Fails.is_broken = True
    executor = poptorch.inferenceModel(Fails(), options())
    with pytest.raises(KeyError, match="broken"):
        executor(X)
    assert not executor.isCompiled() and not poptorch.isRunningOnIpu()
    Fails.is_broken = False
    assert executor(X).item() == 3


@pytest.mark.feature("PoplarExecutor", fidelity="exact")
@pytest.mark.parametrize("num_ipus", [1, 2])
def test_calls_when_several_threads_make_them_then_one_after_the_other(num_ipus: int) -> None:
    """The first calls compile; in PopTorch threads take turns because of Python's lock."""
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    model[2] = poptorch.BeginBlock(model[2], ipu_id=num_ipus - 1)
    executor = poptorch.inferenceModel(model, options().deviceIterations(4))
    batches = torch.randn(60, 32, 16)
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(executor, batches))
    for batch, result in zip(batches, results, strict=True):
        torch.testing.assert_close(result, model(batch).detach())


@pytest.mark.feature("PoplarExecutor", fidelity="exact")
def test_trainers_of_one_weight_when_in_two_threads_then_every_step_counts() -> None:
    model = Linear()
    trainers = [training(model), training(nn.Sequential(model))]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda trainer: [trainer(X) for _ in range(20)], trainers))
    assert (model.weight.item(), model.seen.item()) == (1.0 - 40 * 0.5, 40.0)


@pytest.mark.feature("PoplarExecutor", fidelity="exact")
def test_trainers_that_share_weights_with_two_others_when_in_threads_then_none_waits_for_ever() -> (
    None
):
    """Each call of the third trainer asks the other two for weights, and they ask the third."""
    models = [Linear(), Linear()]

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(models)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.parts[0](x) + self.parts[1](x), "sum")

    trainers = [*map(training, models), training(Both())]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda trainer: [trainer(X) for _ in range(20)], trainers))
    assert [(model.weight.item(), model.seen.item()) for model in models] == [(-19.0, 40.0)] * 2
