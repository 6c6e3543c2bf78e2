"""Mistakes of beginners: the error names the line, in words of this package or of PyTorch."""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import poptorch_emu as poptorch


def options(**counts: int) -> poptorch.Options:
    opts = poptorch.Options().showCompilationProgressBar(False)
    opts.deviceIterations(counts.get("iterations", 1))
    opts.Training.gradientAccumulation(counts.get("accumulation", 1))
    return opts


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x, y=None):
        out = self.second(torch.relu(self.first(x)))
        return out if y is None else (out, F.cross_entropy(out, y))


X, Y = torch.ones(8, 4), torch.zeros(8, dtype=torch.int64)


def named_line(error: BaseException, before: str) -> str:
    """Returns the text of the line that the message names after some words."""
    found = re.search(rf"{before} (\S+\.py):(\d+)", str(error))
    assert found is not None, str(error)
    return linecache.getline(found[1], int(found[2])).strip()


def test_operation_without_a_block_then_operation_module_and_line_are_named() -> None:
    class Model(Net):
        def forward(self, x):
            with poptorch.Block("one", ipu_id=0):
                x = self.first(x)
            return self.second(x)

    with pytest.raises(poptorch.Error, match="No active Block") as error:
        poptorch.inferenceModel(Model(), options())(X)
    assert "operation aten." in str(error.value) and "of module 'second'" in str(error.value)
    assert named_line(error.value, "at") == "return self.second(x)"


def test_scalar_without_a_loss_then_the_lines_of_return_and_scalar_are_named() -> None:
    class Model(Net):
        def forward(self, x, y):
            out = self.first(x)
            if y is None:
                return out
            value = (out - 1).square().mean()
            return out, value

    with pytest.raises(poptorch.Error, match="Couldn't find a loss") as error:
        poptorch.trainingModel(Model(), options())(X, Y)
    assert named_line(error.value, "returns is at") == "return out, value"
    assert named_line(error.value, "It has a scalar, made at").startswith("value =")


def test_no_loss_and_no_scalar_then_nothing_is_guessed() -> None:
    class Model(Net):
        def forward(self, x, y):
            return self.first(x), y.sum()  # An integer is no loss.

    with pytest.raises(poptorch.Error, match="Couldn't find a loss") as error:
        poptorch.trainingModel(Model(), options())(X, Y)
    assert "scalar" not in str(error.value)


def of(function: Callable[..., torch.Tensor], *layers: nn.Module) -> nn.Module:
    """Returns a model that applies a function to its inputs and some layers."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, *inputs):
            return function(*self.layers, *inputs)

    return Model()


INTEGERS = torch.ones(3, 4, dtype=torch.int64)
IMAGES = torch.ones(1, 4, 5, 5, dtype=torch.int64)
CALL: Callable[..., torch.Tensor] = lambda layer, *inputs: layer(*inputs)  # noqa: E731


@pytest.mark.parametrize(
    "model, inputs",
    [
        (of(CALL, nn.Linear(4, 2)), [INTEGERS]),
        (of(CALL, nn.Linear(4, 2, bias=False)), [INTEGERS]),
        (of(CALL, nn.Linear(4, 2)), [INTEGERS.bool()]),
        (of(CALL, nn.Linear(4, 2)), [INTEGERS.int()]),
        (of(CALL, nn.Conv2d(4, 2, 3)), [IMAGES]),
        (of(torch.matmul), [INTEGERS, torch.ones(4, 3)]),
        (of(torch.matmul), [INTEGERS, torch.ones(4)]),
        (of(torch.bmm), [INTEGERS[None], torch.ones(1, 4, 3)]),
        (of(F.gelu), [INTEGERS]),
        (of(lambda x: F.softmax(x, -1)), [INTEGERS]),
        (of(lambda x: F.interpolate(x, scale_factor=2)), [IMAGES]),
        (of(lambda x: F.scaled_dot_product_attention(x, x, x)), [IMAGES]),
        (of(lambda x: x.std()), [INTEGERS]),
    ],
    ids=str,
)
def test_integers_where_pytorch_takes_none_then_compile_says_it_in_its_words(model, inputs) -> None:
    with pytest.raises(RuntimeError) as of_pytorch:
        model(*inputs)
    wrapped = poptorch.inferenceModel(model, options())
    with pytest.raises(RuntimeError) as error:
        wrapped.compile(*inputs)
    words = re.sub(r"_channels_last|\.$", "", str(of_pytorch.value))
    # The order of operands may differ, and so may the kernel, which depends on the layout.
    assert set(re.findall(r"\w+", words)) <= set(re.findall(r"\w+", str(error.value))) | {
        "the", "upsample_nearest2d"
    }  # fmt: skip
    assert not wrapped.isCompiled()


@pytest.mark.parametrize(
    "function",
    [
        F.relu,
        lambda x: x * 0.5,
        lambda x: torch.where(x > 0, x, 1),
        lambda x: torch.ones(5, 2, device=x.device)[x],
        lambda x: F.one_hot(x, 3).float(),
        lambda x: (x == 1).all(-1),
        lambda x: torch.cat([x, x + 0.5]),
        lambda x: x // 2 + x % 2,
    ],
)
def test_integers_where_pytorch_takes_them_then_results_are_its(function) -> None:
    inference = poptorch.inferenceModel(of(function), options())
    torch.testing.assert_close(inference(INTEGERS), function(INTEGERS), check_dtype=False)


def test_integers_in_a_recurrent_layer_then_compile_refuses() -> None:
    inference = poptorch.inferenceModel(of(CALL, nn.LSTM(4, 2)), options())
    with pytest.raises(RuntimeError, match="same dtype"):
        inference.compile(INTEGERS)


@pytest.mark.parametrize(
    "backward, kind",
    [
        (lambda out, loss: loss.backward(), poptorch.Error),
        (lambda out, loss: loss.mean().backward(), RuntimeError),
        (lambda out, loss: (loss / 2).backward(), RuntimeError),
        (lambda out, loss: F.cross_entropy(out, Y).backward(), RuntimeError),
    ],
)
def test_backward_kept_in_the_loop_then_our_words(backward, kind) -> None:
    out, loss = poptorch.trainingModel(Net(), options())(X, Y)
    with pytest.raises(kind, match="cannot be called explicitly on outputs"):
        backward(out, loss)


def test_backward_of_plain_pytorch_then_as_ever() -> None:
    poptorch.trainingModel(Net(), options())(X, Y)
    value = torch.ones(2, requires_grad=True)
    (value * 3).sum().backward()
    assert value.grad is not None and value.grad.tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="can be implicitly created only for scalar"):
        (value * 3).backward()


@pytest.mark.parametrize(
    "rows, sizes", [(5, "12 rows"), (13, "12 or 24 rows"), (35, "24 or 36 rows"), (1, "12 rows")]
)
def test_batch_of_wrong_size_then_the_nearest_sizes_that_work_are_named(rows, sizes) -> None:
    training = poptorch.trainingModel(Net(), options(iterations=3, accumulation=4))
    with pytest.raises(AssertionError, match=f"of fitting size: {sizes} are the nearest"):
        training(torch.ones(rows, 4), torch.zeros(rows, dtype=torch.int64))
    for size in re.findall(r"\d+", sizes):
        training(torch.ones(int(size), 4), torch.zeros(int(size), dtype=torch.int64))
        training.destroy()


class Blocks(nn.Module):
    def __init__(self, *blocks: tuple[str, int]) -> None:
        super().__init__()
        self.blocks = blocks

    def forward(self, x):
        for name, ipu in self.blocks:
            with poptorch.Block(name, ipu_id=ipu):
                x = x + 1
        return x


@pytest.mark.parametrize(
    "blocks, warning",
    [
        ([("a", 0), ("b", 1), ("a", 0)], "Block 'a' begins again at .*, after block 'b'"),
        ([("a", 0), ("a", 1)], "Two blocks have the id 'a': one on IPU 0, and one at .* on IPU 1"),
        ([("a", 0), ("a", 0), ("b", 1), ("b", 1)], None),
        ([("a", 0), ("b", 0), ("a", 0)], None),
    ],
)
def test_two_blocks_of_one_id_then_a_warning_where_they_do_not_follow(blocks, warning, caplog):
    opts = options().setExecutionStrategy(poptorch.ShardedExecution())
    assert poptorch.inferenceModel(Blocks(*blocks), opts)(torch.zeros(1)) == len(blocks)
    warnings = [record.getMessage() for record in caplog.records if "lock" in record.getMessage()]
    if warning is None:
        assert not warnings
    else:
        assert len(warnings) == 1 and re.match(warning, warnings[0])


def test_backward_of_the_loss_within_forward_then_is_named() -> None:
    class Model(Net):
        def forward(self, x, y):
            loss = F.cross_entropy(self.first(x), y)
            loss.backward()
            return loss

    with pytest.raises(poptorch.Error, match=r"forward has called backward\(\) on the loss"):
        poptorch.trainingModel(Model(), options())(X, Y)


def test_optimizer_in_the_place_of_options_then_says_the_order() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(poptorch.Error, match="and the optimizer after them, or by name"):
        poptorch.trainingModel(model, optimizer)


def test_class_of_an_optimizer_then_says_how_an_instance_is_made() -> None:
    with pytest.raises(AssertionError, match=r"SGD is a class. Pass an instance, as SGD\(model"):
        poptorch.trainingModel(Net(), options(), torch.optim.SGD)


@pytest.mark.parametrize("shape, is_rest", [((3, 4), True), ((9, 4), False), ((3, 5), False)])
def test_smaller_last_batch_then_drop_last_is_offered(shape, is_rest) -> None:
    inference = poptorch.inferenceModel(torch.nn.ReLU(), options())
    inference(X)
    with pytest.raises(poptorch.Error, match="Shape mismatch") as error:
        inference(torch.ones(shape))
    assert ("drop_last=True" in str(error.value)) == is_rest


@pytest.mark.parametrize(
    "model, inputs",
    [
        (of(CALL, nn.Linear(4, 2)), [torch.ones(3, 5)]),
        (of(CALL, nn.Linear(4, 2, bias=False)), [torch.ones(2, 3, 5)]),
        (of(torch.bmm), [torch.ones(1, 2, 3), torch.ones(1, 4, 3)]),
        (of(torch.add), [torch.ones(2, 3), torch.ones(2, 4)]),
        (of(CALL, nn.Conv2d(3, 4, 3)), [torch.ones(2, 1, 8, 8)]),
        (of(lambda *given: torch.cat(given)), [torch.ones(2, 3), torch.ones(2, 4)]),
    ],
)
def test_shapes_that_do_not_go_together_then_compile_says_it_in_pytorchs_words(
    model, inputs
) -> None:
    with pytest.raises(RuntimeError) as of_pytorch:
        model(*inputs)
    with pytest.raises(RuntimeError) as error:
        poptorch.inferenceModel(model, options()).compile(*inputs)
    assert str(error.value).rstrip(".") == str(of_pytorch.value).rstrip(".")


@pytest.mark.parametrize("gives_gradients", [torch.autograd.grad, torch.autograd.backward])
def test_gradient_of_what_needs_none_then_pytorchs_error_says_what_holds_of_outputs(
    gives_gradients,
) -> None:
    name, net, own = gives_gradients.__name__, Net(), torch.ones(())
    leaves = [list(net.parameters())] if name == "grad" else []
    with pytest.raises(RuntimeError) as of_pytorch:
        inspect.unwrap(gives_gradients)(own, *leaves)
    optimizer = poptorch.optim.SGD(net.parameters(), lr=0.1)
    out, _ = poptorch.trainingModel(net, options(), optimizer)(X, Y)
    # A tensor does not show whether it was computed from outputs, so both losses get one error.
    for loss in F.cross_entropy(out, Y), own:
        with pytest.raises(RuntimeError, match="If it was computed from what a wrapped") as error:
            getattr(torch.autograd, name)(loss, *leaves)
        assert str(error.value).startswith(str(of_pytorch.value))
        assert f"{name}() cannot be called explicitly on outputs" in str(error.value)
    (gradient,) = torch.autograd.grad(net(X, Y)[1], [net.second.bias])  # Plain PyTorch works.
    assert gradient.shape == (2,)
