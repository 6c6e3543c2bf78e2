"""Checks of models and inputs (semantics.md §8, §12 to §14, §17, §21, §23; api.md §22)."""

from __future__ import annotations

import copy
import logging
import re

import pytest
import torch
from support.wrapped_functions import X, options, run, wrapped
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.compile.limits import check_processes
from poptorch_emu.config import WeightGroups
from poptorch_emu.options.freeze import freeze


@pytest.mark.feature("CPU tensors in forward", fidelity="exact")
def test_cpu_tensor_when_moved_or_made_in_forward_then_is_a_constant() -> None:
    def forward(self, x):
        table = torch.arange(2.0, device="cpu") * 10 + self.host
        return x + table.to("ipu") + self.host.to("ipu") + torch.tensor(5.0, device="cpu")

    assert wrapped(forward)(X).tolist() == [1 + 1 + 1 + 5, 1 + 11 + 1 + 5]


@pytest.mark.feature("CPU tensors in forward", fidelity="exact")
def test_values_of_cpu_tensors_in_forward_then_can_be_read() -> None:
    def forward(self, x):
        steps = int(torch.tensor([2, 3], device="cpu").sum())
        return x * steps

    assert wrapped(forward)(X).tolist() == [5, 5]


@pytest.mark.feature("Tensor factories", fidelity="exact")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2),
        lambda: torch.ones(2),
        lambda: torch.full((2,), 4.0),
        lambda: torch.empty(2),
        lambda: torch.arange(2),
        pytest.param(
            lambda: torch.range(0, 1),
            marks=pytest.mark.filterwarnings("ignore:torch.range is deprecated"),
        ),
        lambda: torch.linspace(0, 1, 2),
        lambda: torch.logspace(0, 1, 2),
        lambda: torch.rand(2),
        lambda: torch.randn(2),
        lambda: torch.randint(3, (2,)),
        lambda: torch.randperm(2),
        lambda: torch.normal(0.0, 1.0, (2,)),
        lambda: torch.tensor([1.0, 2.0]),
        lambda: torch.zeros_like(torch.ones(2, device="cpu")),
        lambda: torch.full_like(torch.ones(2, device="cpu"), 3.0),
    ],
)
def test_factory_without_a_device_then_forced_to_the_ipu_which_is_said_once(make, caplog) -> None:
    devices = []
    caplog.set_level(logging.INFO, "poptorch::python")

    def forward(self, x):
        value = make() + make()
        devices.append(value.device.type)
        return x + value

    run(forward, X)
    assert devices == ["ipu"]
    told = [r for r in caplog.records if "forcing to IPU" in r.getMessage()]
    assert [record.levelname for record in told] == ["INFO"]
    assert re.match(r"No device set in torch\.\w+\(\): forcing to IPU", told[0].getMessage())


def test_factories_without_a_device_then_each_is_named_once(caplog) -> None:
    caplog.set_level(logging.INFO, "poptorch::python")
    run(lambda self, x: x + torch.ones(1) + torch.zeros(1) + torch.ones(1), X)
    told = [r.getMessage() for r in caplog.records if "forcing to IPU" in r.getMessage()]
    phrase = "No device set in torch.{}(): forcing to IPU"
    assert told == [phrase.format("ones"), phrase.format("zeros")]


def reassign_buffer(self, x):
    self.state = self.state.long()  # A buffer of the same type would be kept.
    return x


def reassign_parameter(self, x):
    self.weight = nn.Parameter(torch.ones(1))
    return x


def remove_buffer(self, x):
    del self.state
    return x + 1


def remove_parameter(self, x):
    del self.weight
    return x + 1


@pytest.mark.feature("Replacing parameters in forward", fidelity="exact")
@pytest.mark.parametrize(
    ("forward", "phrase"),
    [
        (
            reassign_buffer,
            'Buffer state is reassigned within the model.*"self.state.copy_\\(src\\)"',
        ),
        (reassign_parameter, "Parameter weight is reassigned within the model"),
        (
            remove_buffer,
            r"Buffer state is removed from the model when calling the forward method\.",
        ),
        (
            remove_parameter,
            r"Parameter weight is removed from the model when calling the forward method\.",
        ),
    ],
)
def test_parameter_or_buffer_when_replaced_in_forward_then_error_and_restored(
    forward, phrase
) -> None:
    executor = wrapped(forward)
    before = dict(executor.model.state_dict())
    with pytest.raises(poptorch.Error, match=phrase):
        executor(X)
    after = executor.model.state_dict()
    assert before.keys() == after.keys()
    assert all(value.device.type == "cpu" for value in after.values())
    assert not executor.isCompiled()


@pytest.mark.feature("Replacing parameters in forward", fidelity="exact")
def test_buffer_when_changed_in_place_then_persists_between_micro_batches_and_calls() -> None:
    def forward(self, x):
        self.state += 1
        self.state.copy_(self.state * 2)
        return x + self.state

    executor = run(forward, torch.zeros(2), opts=options().deviceIterations(2))
    assert executor(torch.zeros(2)).tolist() == [14, 30]  # The first call returns [2, 6].
    executor.copyWeightsToHost()
    assert executor.model.state.item() == 30


@pytest.mark.feature("Integer buffers", fidelity="exact")
def test_integer_buffer_then_is_a_constant_with_a_warning(caplog) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.tensor([1, 2]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.mask

    model = Masked()
    executor = poptorch.inferenceModel(model, options())
    assert executor(X).tolist() == [1, 2]
    assert re.search(
        "Parameter mask: .* was downgraded to constant because PopART doesn't support non floating "
        "point parameters",
        caplog.text,
    )
    model.mask.fill_(5)
    executor.copyWeightsToDevice()
    assert executor(X).tolist() == [1, 2]


def through_norm(self, x):
    return poptorch.identity_loss(self.norm(x), "sum")


@pytest.mark.feature("BatchNorm in eval mode", fidelity="exact")
@pytest.mark.parametrize("trainable", ["before", "inside", "nothing"])
def test_eval_batch_norm_when_gradients_must_pass_then_error(trainable: str) -> None:
    def forward(self, x):
        if trainable == "before":
            x = x * self.weight
        loss = poptorch.identity_loss(self.norm(x), "sum")
        return poptorch.identity_loss(loss * self.weight, "sum")

    executor = wrapped(forward, is_training=True)
    executor.model.norm.eval()
    if trainable != "inside":
        executor.model.norm.requires_grad_(False)
    x = torch.randn(4, 2)
    if trainable == "nothing":
        executor(x)
        return
    with pytest.raises(
        poptorch.Error, match="in inference mode.*its gradient Op is being created"
    ) as error:
        executor(x)
    assert "Detach" in str(error.value) and error.value.type == "popart_exception"


class Summed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(x, "sum")


@pytest.mark.feature("BatchNorm", fidelity="exact")
def test_num_batches_tracked_when_read_then_is_what_pytorch_counts() -> None:
    executor = wrapped(through_norm, is_training=True)
    before = executor.model.norm.running_mean.clone()
    plain = torch.nn.BatchNorm1d(2)
    for _ in range(2):
        x = torch.randn(4, 2) + 3
        executor(x)
        plain(x)
        assert executor.model.norm.num_batches_tracked == plain.num_batches_tracked
    executor(x)
    state = executor.model.state_dict()
    assert {value.item() for name, value in state.items() if name.endswith("tracked")} == {3}
    assert not torch.equal(executor.model.norm.running_mean, before)


def test_num_batches_tracked_with_several_micro_batches_then_counts_each_and_weights_are_no_news(
    caplog,
) -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2).eval(), torch.nn.BatchNorm1d(2), Summed())
    opts = poptorch.Options().showCompilationProgressBar(False).deviceIterations(3)
    opts.Training.gradientAccumulation(2)
    optimizer = poptorch.optim.SGD(model[1].parameters(), lr=0.1)
    model[0].requires_grad_(False)
    training = poptorch.trainingModel(model, opts, optimizer)
    training(torch.randn(24, 2))
    caplog.clear()
    assert [model[index].num_batches_tracked.item() for index in (1, 0)] == [6, 0]
    training(torch.randn(24, 2))
    training.copyWeightsToDevice()  # Discards the device's updates.
    training(torch.randn(24, 2))
    assert [model[index].num_batches_tracked.item() for index in (1, 0)] == [12, 0]
    assert caplog.text == ""
    saved = copy.deepcopy(model.state_dict())
    training.load_state_dict(saved)
    assert model.state_dict()["1.num_batches_tracked"] == 12
    assert poptorch.inferenceModel(model.eval())(torch.randn(4, 2)).isfinite()
    assert model[1].num_batches_tracked == 12


def test_num_batches_tracked_of_a_checkpoint_then_the_cached_executable_is_found(tmp_path) -> None:
    for count in (0, 7):
        model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), Summed())
        model[0].num_batches_tracked.fill_(count)
        opts = poptorch.Options().showCompilationProgressBar(False)
        opts.enableExecutableCaching(str(tmp_path))
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        poptorch.trainingModel(model, opts, optimizer)(torch.ones(4, 2))
        assert model[0].num_batches_tracked == count + 1
    assert len(list(tmp_path.glob("*.executable"))) == 1


@pytest.mark.feature("isRunningOnIpu", fidelity="exact")
def test_forward_when_traced_then_runs_once_on_ipu_tensors() -> None:
    seen = []

    def forward(self, x):
        seen.append((poptorch.isRunningOnIpu(), str(x.device), tuple(x.shape), x.requires_grad))
        return x * self.weight

    executor = run(forward, torch.ones(6), opts=options().deviceIterations(3))
    executor(torch.ones(6))
    assert seen == [(True, "ipu:0", (2,), False)]
    assert not poptorch.isRunningOnIpu()


@pytest.mark.feature("Tracing", fidelity="exact")
def test_distribution_in_forward_then_its_arguments_are_not_checked_while_tracing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Importing PyTorch's compiler turns these checks off in the whole process.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)

    def forward(self, x):
        return torch.distributions.Normal(x, x + 1).log_prob(x * 2)

    out = wrapped(forward)(X)
    torch.testing.assert_close(out, torch.distributions.Normal(X, X + 1).log_prob(X * 2))
    with pytest.raises(ValueError, match="Expected parameter scale"):
        torch.distributions.Normal(X, -X)


@pytest.mark.feature("Options.enableExecutableCaching", fidelity="exact")
def test_cache_when_on_the_ipu_model_then_warns(caplog, tmp_path) -> None:
    opts = options().useIpuModel(True).enableExecutableCaching(str(tmp_path))
    run(lambda self, x: x + 1, X, opts=opts)
    assert "enableExecutableCaching doesn't work with the IPU model" in caplog.text


@pytest.mark.feature("Compile hooks", fidelity="exact")
@pytest.mark.parametrize("is_failing", [False, True])
def test_hooks_then_run_around_each_trace_even_a_failing_one(is_failing: bool) -> None:
    calls = []

    def forward(self, x):
        calls.append("forward")
        if is_failing:
            raise KeyError("no")
        return x + 1

    executor = wrapped(forward)

    def device_of_weight() -> str:
        return executor._model.weight.device.type

    handles = [
        poptorch.registerPreCompileHook(
            lambda: calls.append(("pre", poptorch.isRunningOnIpu(), device_of_weight()))
        ),
        poptorch.registerPreCompileHook(lambda: calls.append("second pre")),
        poptorch.registerPostCompileHook(lambda: calls.append(("post", poptorch.isRunningOnIpu()))),
    ]
    if is_failing:
        with pytest.raises(KeyError):
            executor(X)
    else:
        executor(X)
        executor(X)
    assert calls == [("pre", True, "ipu"), "second pre", "forward", ("post", True)]
    for handle in handles:
        handle.remove()
    calls.clear()
    if not is_failing:
        run(lambda self, x: x + 1, X)
        assert calls == []


@pytest.mark.feature("Compile hooks", fidelity="exact")
@pytest.mark.parametrize(
    ("register", "phrase"),
    [
        (poptorch.registerPreCompileHook, "Pre-compile hook must be callable"),
        (poptorch.registerPostCompileHook, "Post-compile hook must be callable"),
    ],
)
def test_hook_that_is_not_callable_then_runtime_error(register, phrase) -> None:
    with pytest.raises(RuntimeError, match=phrase):
        register(3)


@pytest.mark.feature("Options.Distributed", fidelity="exact")
@pytest.mark.parametrize("is_cached", [False, True])
def test_inference_in_several_processes_then_each_runs_its_own(is_cached, tmp_path, caplog) -> None:
    """Without a shared folder each process also compiles (semantics.md 21)."""
    opts = options().enableExecutableCaching(str(tmp_path) if is_cached else None)
    opts.Distributed.configureProcessId(1, 2)
    run(lambda self, x: x + 1, X, opts=opts)
    advice = "Use poptorch.Options.enableExecutableCaching() to avoid compiling the model once per"
    assert [record.levelname for record in caplog.records if advice in record.getMessage()] == (
        [] if is_cached else ["WARNING"]
    )


@pytest.mark.feature("replicaGrouping in several processes", fidelity="refused")
def test_training_in_several_processes_when_grouped_then_refused_with_a_way_out() -> None:
    opts = options()
    opts.Distributed.configureProcessId(1, 2)
    opts.outputMode(poptorch.OutputMode.All)
    groups = WeightGroups("weight", poptorch.CommGroupType.NoGrouping, 1, False)
    with pytest.raises(poptorch.Error, match="'weight' has a replicaGrouping.*2 processes"):
        check_processes(freeze(opts, is_training=True, weight_groups=(groups,)))
