"""Gathering of outputs and anchors (semantics.md §2.2, §3, §4; api.md §7.5, §16.3)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch

MODES = poptorch.OutputMode


def options(
    iterations: int = 1, accumulation: int = 1, replicas: int = 1, mode=None, period=None
) -> poptorch.Options:
    opts = poptorch.Options().showCompilationProgressBar(False).deviceIterations(iterations)
    opts.replicationFactor(replicas)
    opts.Training.gradientAccumulation(accumulation)
    if mode is not None:
        opts.outputMode(mode, period)
    return opts


def gathered(
    pieces: torch.Tensor, mode: poptorch.OutputMode, period: int, num_steps: int, replicas: int
) -> torch.Tensor:
    """Gathers the micro-batch outputs `pieces`, step-major with the replica innermost.

    Written from the table of semantics.md §3, with no regard to how the engine does it.
    """
    steps = pieces.reshape(num_steps, replicas, *pieces.shape[1:])
    if mode == MODES.All:
        kept = steps
    elif mode == MODES.Final:
        kept = steps[-1:]
    elif mode == MODES.Sum:
        kept = steps.sum(dim=0, keepdim=True)
    else:
        kept = steps[period - 1 :: period]
    flat = kept.flatten(0, 1)
    if flat.shape[0] == 1:
        return flat[0]
    return flat if flat.dim() == 1 else flat.flatten(0, 1)


class Outputs(nn.Module):
    """Returns rows, a scalar and its input; trains one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor):
        rows = self.weight.detach() * 0 + x * 2
        return rows, poptorch.identity_loss(self.weight * x, "sum"), x


CASES = [
    (iterations, accumulation, replicas, mode, period, is_training)
    for iterations, accumulation, replicas in [(1, 1, 1), (4, 1, 1), (4, 1, 2), (2, 3, 2)]
    for mode, period in [(MODES.All, 1), (MODES.Final, 1), (MODES.Sum, 1), (MODES.EveryN, 2)]
    for is_training in (False, True)
    if iterations % period == 0 and (is_training or accumulation == 1)
]


@pytest.mark.feature("Options.outputMode", fidelity="exact")
@pytest.mark.parametrize(
    ("iterations", "accumulation", "replicas", "mode", "period", "is_training"), CASES
)
def test_outputs_when_gathered_then_follow_the_table(
    iterations, accumulation, replicas, mode, period, is_training
) -> None:
    opts = options(iterations, accumulation, replicas, mode, period)
    model = Outputs()
    steps = iterations * accumulation
    x = torch.randn(2 * steps * replicas)
    if is_training:
        zero = poptorch.optim.SGD([{"params": model.parameters(), "lr": 0.0}], lr=1e-30)
        executor = poptorch.trainingModel(model, opts, zero)
    else:
        executor = poptorch.inferenceModel(model, opts)
    rows, total, same = executor(x)
    pieces = x.reshape(steps * replicas, 2)
    for result, expected in ((rows, 2 * pieces), (total, pieces.sum(1)), (same, pieces)):
        wanted = gathered(expected, mode, period, steps, replicas)
        assert result.shape == wanted.shape
        torch.testing.assert_close(result, wanted)


@pytest.mark.feature("Options.outputMode", fidelity="exact")
@pytest.mark.parametrize(("is_training", "expected"), [(False, [1, 2, 3, 4]), (True, [4.0])])
def test_output_mode_when_not_chosen_then_depends_on_the_model(is_training, expected) -> None:
    model = Outputs()
    wrap = poptorch.trainingModel if is_training else poptorch.inferenceModel
    executor = wrap(model, options(4))
    _, _, same = executor(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert same.tolist() == expected


@pytest.mark.feature("Gradient reduction", fidelity="exact")
@pytest.mark.parametrize(
    ("reduction", "mode", "weight", "losses"),
    [
        ("Mean", MODES.Final, 0.75, [3, 4]),
        ("Mean", MODES.Sum, 0.75, [4, 6]),
        ("Mean", MODES.All, 0.75, [1, 2, 3, 4]),
        ("Sum", MODES.Final, 0.0, [3, 4]),
    ],
)
def test_worked_example_of_reduction_then_as_documented(reduction, mode, weight, losses) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.weight * x, "sum")

    opts = options(1, 2, 2, mode)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType[reduction])
    model = Scaled()
    executor = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.1))
    assert executor(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == losses
    assert model.weight.item() == pytest.approx(weight, abs=1e-6)


@pytest.mark.feature("OutputMode.EveryN", fidelity="exact")
@pytest.mark.parametrize(
    ("period", "phrase"),
    [(5, "Return period must be <= to"), (3, "Return period must be a factor of"), (2, None)],
)
@pytest.mark.parametrize("is_anchor", [False, True], ids=["output", "anchor"])
def test_period_when_compiled_then_must_divide_the_device_iterations(
    period, phrase, is_anchor
) -> None:
    opts = options(4)
    if is_anchor:
        opts.anchorTensor("x", "input", MODES.EveryN, period)
    else:
        opts.outputMode(MODES.EveryN, period)
    executor = poptorch.inferenceModel(Outputs(), opts)
    if phrase is None:
        executor.compile(torch.ones(4))
        return
    with pytest.raises(poptorch.Error, match=phrase) as error:
        executor.compile(torch.ones(4))
    assert "4" in str(error.value) and error.value.type == "popart_exception"
    assert not executor.isCompiled()


@pytest.mark.feature("OutputMode.EveryN", fidelity="exact")
@pytest.mark.parametrize("is_pipelined", [True, False])
def test_every_n_when_pipelined_over_two_ipus_then_refused(is_pipelined: bool) -> None:
    class TwoStages(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with poptorch.Block("a", ipu_id=0):
                x = x + 1
            with poptorch.Block("b", ipu_id=1):
                return x * 2

    kind = poptorch.PipelinedExecution if is_pipelined else poptorch.ShardedExecution
    opts = options(4, mode=MODES.EveryN, period=2)
    opts.setExecutionStrategy(kind(poptorch.AutoStage.SameAsIpu))
    executor = poptorch.inferenceModel(TwoStages(), opts)
    x = torch.arange(4.0)
    if is_pipelined:
        with pytest.raises(
            poptorch.Error, match="AnchorReturnType::EVERYN is not valid for pipelined models"
        ):
            executor(x)
    else:
        assert executor(x).tolist() == [4, 8]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        z = self.second(torch.relu(self.first(x)))
        return z, nn.functional.mse_loss(z, y)


def plain_training(model: Net, x, y, iterations: int, accumulation: int, replicas: int):
    """Returns, from a plain loop with momentum, everything that the anchors below name."""
    seen = {name: [] for name in ("hidden", "gradient", "updated", "velocity", "sum")}
    velocity = torch.zeros_like(model.first.weight)
    pieces = zip(x.split(2), y.split(2), strict=True)
    for _ in range(iterations):
        total = torch.zeros_like(velocity)
        for _ in range(accumulation * replicas):
            rows, labels = next(pieces)
            seen["hidden"].append(model.first(rows).detach())
            _, loss = model(rows, labels)
            (gradient,) = torch.autograd.grad(loss, [model.first.weight])
            seen["gradient"].append(gradient)
            total += gradient
        velocity = 0.9 * velocity + total / (accumulation * replicas)
        with torch.no_grad():
            model.first.weight -= 0.1 * velocity
        seen["sum"].append(total.clone())
        seen["velocity"].append(velocity.clone())
        seen["updated"].append(model.first.weight.detach().clone())
    return {name: torch.stack(values) for name, values in seen.items()}


LONG_NAMES = {
    "hidden": "first/Gemm:0",
    "gradient": "Gradient___first.weight",
    "updated": "UpdatedVar___first.weight",
    "velocity": "Accl1___first.weight",
    "sum": "Accum___first.weight",
}


@pytest.mark.feature("Options.anchorTensor", fidelity="exact")
@pytest.mark.parametrize(
    ("mode", "period"), [(MODES.All, 1), (MODES.Final, 1), (MODES.Sum, 1), (MODES.EveryN, 2)]
)
@pytest.mark.parametrize("replicas", [1, 2])
def test_anchors_in_training_then_equal_a_plain_loop(mode, period, replicas) -> None:
    iterations, accumulation = 4, 2
    model = Net()
    for parameter in (model.first.bias, *model.second.parameters()):
        parameter.requires_grad_(False)
    plain = Net()
    plain.load_state_dict(model.state_dict())
    opts = options(iterations, accumulation, replicas)
    for short_name, long_name in LONG_NAMES.items():
        opts.anchorTensor(short_name, long_name, mode, period)
    optimizer = poptorch.optim.SGD([model.first.weight], lr=0.1, momentum=0.9)
    executor = poptorch.trainingModel(model, opts, optimizer)
    rows = 2 * iterations * accumulation * replicas
    x, y = torch.randn(rows, 3), torch.randn(rows, 2)
    outputs = executor(x, y)
    assert len(outputs) == 2  # Anchors are not outputs.
    expected = plain_training(plain, x, y, iterations, accumulation, replicas)
    for name, pieces in expected.items():
        if name in ("hidden", "gradient"):
            wanted = gathered(pieces, mode, period, iterations * accumulation, replicas)
        else:  # Such an anchor has one value for each update.
            every = pieces.repeat_interleave(replicas, dim=0)
            wanted = gathered(every, mode, period, iterations, replicas)
        actual = executor.getAnchoredTensor(name)
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.feature("Options.anchorTensor", fidelity="exact")
def test_anchor_without_a_mode_then_has_the_models_and_the_latest_value() -> None:
    opts = options(2, mode=MODES.Sum)
    opts.anchorTensor("hidden", "first/Gemm:0")
    opts.anchorTensor("weight", "first.weight", MODES.Final)
    model = Net()
    executor = poptorch.inferenceModel(model, opts)
    for _ in range(2):
        x = torch.randn(4, 3)
        executor(x, torch.randn(4, 2))
        hidden = model.first(x)
        torch.testing.assert_close(executor.getAnchoredTensor("hidden"), hidden[:2] + hidden[2:])
    assert torch.equal(executor.getAnchoredTensor("weight"), model.first.weight)
    with pytest.raises(AssertionError, match="No tensor with name hid found."):
        executor.getAnchoredTensor("hid")
    executor.detachFromDevice()
    executor.getAnchoredTensor("hidden")


@pytest.mark.feature("Options.anchorTensor", fidelity="exact")
def test_anchor_of_a_64_bit_value_then_is_narrowed_like_an_output() -> None:
    class Positions(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.argmax(dim=1).float()

    opts = options()
    opts.anchorTensor("best", "Argmax:0")
    executor = poptorch.inferenceModel(Positions(), opts)
    executor(torch.tensor([[0.0, 3.0, 1.0]]))
    best = executor.getAnchoredTensor("best")
    assert best.dtype == torch.int32 and best.tolist() == [1]


@pytest.mark.feature("Options.anchorTensor", fidelity="exact")
def test_anchor_that_does_not_exist_then_error_names_the_nearest() -> None:
    opts = options()
    opts.anchorTensor("w", "Gradient___first.weigth")
    model = Net()
    executor = poptorch.trainingModel(model, opts)
    with pytest.raises(poptorch.Error, match="'Gradient___first.weigth' not found") as error:
        executor(torch.ones(1, 3), torch.ones(1, 2))
    assert "Gradient___first.weight" in str(error.value)
    assert not executor.isCompiled()


@pytest.mark.feature("PoplarExecutor.getTensorNames", fidelity="exact")
@pytest.mark.parametrize("is_scoped", [True, False])
def test_tensor_names_then_are_sorted_unique_and_cover_the_documented_kinds(is_scoped) -> None:
    opts = options(1, 2)
    if not is_scoped:
        opts.disableModuleNamescope()
    model = Net()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, opts, optimizer)
    executor.compile(torch.ones(2, 3), torch.ones(2, 2))
    names = executor.getTensorNames()
    assert names == sorted(set(names))
    for name, _ in model.named_parameters():
        prefixes = ("", "Gradient___", "UpdatedVar___", "Accl1___", "Accl2___", "Step___")
        assert {f"{prefix}{name}" for prefix in (*prefixes, "Accum___")} <= set(names)
    assert {"input", "input/1"} <= set(names)
    gemms = {"first/Gemm:0", "second/Gemm:0"} if is_scoped else {"Gemm:0", "Gemm:0/1"}
    assert gemms <= set(names)


def test_tensor_names_when_forward_catches_an_error_of_a_module_then_name_the_right_one() -> None:
    class Recovering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return self.layer(x)
            except RuntimeError:
                return torch.relu(x)

    model = poptorch.inferenceModel(Recovering(), poptorch.Options())
    model(torch.ones(2, 4))
    assert "Relu:0" in model.getTensorNames()
