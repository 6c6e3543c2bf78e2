"""Failures during a capture are reported in the user's terms, with the user's line."""

from __future__ import annotations

import json
import re
import traceback
import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.operator_database import op_db
from torch import nn
from torch.utils import _pytree as pytree

import poptorch_emu as poptorch

X = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
INTERNAL = re.compile(r"FakeTensor|\bMeta\b|\bproxy\b|DispatchKey|DataDependent|\bNYI\b")

library = torch.library.Library("failure_text", "DEF")
library.define("nowhere(Tensor x) -> Tensor")


@torch.library.custom_op("failure_text::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    """A user's operator without a rule for fake tensors."""
    return x * 2


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


class Trained(Calls):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(self.function(x * self.weight).sum(), "none")


def run(function: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    options = poptorch.Options().showCompilationProgressBar(False)
    return poptorch.inferenceModel(Calls(function), options)(*(tensors or (X,)))


def under_device(x: torch.Tensor) -> torch.Tensor:
    with torch.device("cuda"):
        return x + torch.ones(2)


class InBackward(torch.autograd.Function):
    """Runs a given action in backward."""

    @staticmethod
    def forward(ctx, x, action):
        ctx.action = action
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return ctx.action(gradient), None


OTHER_DEVICES = {
    "cuda": lambda x: x.cuda(),
    "cuda by index": lambda x: x.cuda(0),
    "constant": lambda x: x + torch.ones(2, device="cpu").cuda(),
    "to": lambda x: x.to("cuda"),
    "to device": lambda x: x.to(torch.device("cuda", 0), torch.float16),
    "to index": lambda x: x.to(0),
    "factory": lambda x: x + torch.ones(2, device="cuda"),
    "factory by index": lambda x: x + torch.ones(2, device=0),
    "tensor": lambda x: x + torch.tensor([1.0, 2.0], device="cuda"),
    "as_tensor": lambda x: x + torch.as_tensor([1.0, 2.0], device="cuda"),
    "array": lambda x: x + torch.from_numpy(np.ones(2, "float32")).cuda(),
    "like": lambda x: torch.zeros_like(x, device="cuda") + x,
    "new": lambda x: x.new_zeros(2, device="cuda") + x,
    "new tensor": lambda x: x.new_tensor([1.0, 2.0], device="cuda") + x,
    "out": lambda x: torch.add(x, x, out=torch.empty(2, 2, device="cuda")),
    "context": under_device,
    "module": lambda x: nn.Linear(2, 2).cuda()(x),
    "module on device": lambda x: nn.Linear(2, 2, device="cuda")(x),
    "xpu": lambda x: x.xpu(),
    "mps": lambda x: x.to("mps"),
    "old type": lambda x: x + torch.cuda.FloatTensor([1.0, 2.0]),
    "type": lambda x: x.type("torch.cuda.FloatTensor"),
    "current device": lambda x: x + torch.cuda.current_device(),
    "synchronize": lambda x: (torch.cuda.synchronize(), x)[1],
    "stream": lambda x: (torch.cuda.Stream(), x)[1],
    "generator": lambda x: x + torch.randn(2, generator=torch.Generator("cuda")),
}

# Uses that need values or memory, or that PyTorch does not support for tensors without them.
WITHOUT_VALUES = {
    "address": lambda x: x.data_ptr(),
    "storage": lambda x: x.untyped_storage()[0],
    "dlpack": lambda x: np.from_dlpack(x),
    "pinned": lambda x: x.pin_memory(),
    "shared": lambda x: x.share_memory_(),
    "map": lambda x: x.clone().map_(x, lambda a, b: a),
    "set": lambda x: torch.ones(2, device="cpu").set_(x),
    "meta": lambda x: x + torch.ones(2, 2, device="meta"),
    "list of values": lambda x: torch.FloatTensor([x.sum(), 1.0]),
    "argument of an operator": lambda x: torch.ops.aten._safe_softmax(x, x.sum().int()),
    "flex attention": lambda x: __import__(
        "torch.nn.attention.flex_attention", fromlist=["flex_attention"]
    ).flex_attention(x[None, None], x[None, None], x[None, None]),
    "no kernel": lambda x: torch.ops.failure_text.nowhere(x),
    "sparse": lambda x: x.to_sparse_csr(),
    "allclose": lambda x: torch.allclose(x, x),
    "rows": lambda x: x[x > 0],
    "least squares": lambda x: torch.linalg.lstsq(x, x).solution,
}

# Uses that PyTorch rejects for any tensor, with an error that names the tensor's class.
MISTAKES = {
    "attribute": (AttributeError, lambda x: x.no_such_name),
    "none": (TypeError, lambda x: x + None),
    "text": (TypeError, lambda x: torch.max(x, "a")),
    "object": (TypeError, lambda x: x * object()),
    "json": (TypeError, lambda x: json.dumps(x)),
    "decimal": (TypeError, lambda x: Decimal(x)),
    "bytes": (TypeError, lambda x: memoryview(x)),
    "size": (TypeError, lambda x: torch.Size([x.sum().int()])),
    "dimension": (TypeError, lambda x: F.normalize(x, dim=x.sum())),
}


def line_of(function: Callable[..., Any]) -> str:
    return f"{__file__}:{function.__code__.co_firstlineno}"


def printed(error: BaseException) -> str:
    """Returns Python's text of an error, without source lines of this file."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "\n".join(line for line in lines if not line.startswith("    "))


@pytest.mark.feature("Other devices in forward", fidelity="refused")
@pytest.mark.parametrize("function", OTHER_DEVICES.values(), ids=OTHER_DEVICES)
def test_other_device_in_forward_then_refused_with_the_line(function) -> None:
    with pytest.raises(poptorch.Error, match="Another device is used in forward at") as caught:
        run(function)
    assert __file__ in caught.value.message
    assert "x.device" in caught.value.message
    assert not INTERNAL.search(printed(caught.value))


def test_other_device_in_backward_then_refused_with_the_line() -> None:
    def forward(x):
        return InBackward.apply(x, lambda gradient: gradient.cuda())

    options = poptorch.Options().showCompilationProgressBar(False)
    with pytest.raises(poptorch.Error, match="Another device") as caught:
        poptorch.trainingModel(Trained(forward), options)(X)
    assert __file__ in caught.value.message


@pytest.mark.parametrize("flag", ["is_cuda", "is_xpu", "is_mps", "is_meta"])
def test_question_for_another_device_then_answered_no(flag) -> None:
    assert torch.equal(run(lambda x: x + 1 if getattr(x, flag) else x - 1), X - 1)


@pytest.mark.parametrize("function", WITHOUT_VALUES.values(), ids=WITHOUT_VALUES)
def test_values_are_needed_then_our_sentence_comes_first(function) -> None:
    with pytest.raises(poptorch.Error) as caught:
        run(function)
    assert __file__ in caught.value.message
    before = printed(caught.value).partition(caught.value.message[:40])[0]
    assert not INTERNAL.search(before)


@pytest.mark.parametrize(("kind", "function"), MISTAKES.values(), ids=MISTAKES)
def test_wrong_argument_then_told_as_of_any_tensor(kind, function) -> None:
    with pytest.raises(kind, match="Tensor") as caught:
        run(function)
    assert line_of(function) in str(caught.value)
    assert not INTERNAL.search(printed(caught.value))


def test_wrong_argument_that_forward_catches_then_it_goes_on() -> None:
    def forward(x):
        try:
            return x + None
        except TypeError:
            return x + 1

    assert torch.equal(run(forward), X + 1)


def test_exception_of_the_users_own_then_unchanged() -> None:
    mine = KeyError("cuda and Meta are words of mine, too")

    def forward(x):
        raise mine

    with pytest.raises(KeyError) as caught:
        run(forward)
    assert caught.value is mine


@pytest.mark.parametrize("function", [torch.linspace, torch.logspace])
def test_tensors_are_bounds_of_a_sequence_then_as_of_plain_pytorch(function) -> None:
    def forward(x):
        return function(x[0, 0] / 8, x.max() / 8, 4)

    torch.testing.assert_close(run(forward), forward(X))


def test_operator_in_python_without_fakes_then_asked_on_zeros() -> None:
    assert torch.equal(run(lambda x: doubled(x) + 1), X * 2 + 1)


def wrong_calls() -> Iterator[Any]:
    """Yields a third of the wrong arguments in PyTorch's operator database."""
    for op in op_db:
        if op.error_inputs_func is not None and zlib.crc32(op.name.encode()) % 3 == 0:
            for wrong in op.error_inputs("cpu"):
                yield op, wrong.sample_input


def test_wrong_arguments_of_operators_then_no_word_of_pytorchs_inside() -> None:
    told = []
    for op, sample in wrong_calls():
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def forward(*tensors, op=op, leaves=leaves, spec=spec, places=places):
            filled = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                filled[place] = tensor
            first, rest, named = pytree.tree_unflatten(filled, spec)
            return op.op(first, *rest, **named)

        try:
            run(forward, *(leaves[place].detach() for place in places))
        except poptorch.Error:
            continue
        except Exception as error:
            if INTERNAL.search(f"{type(error)}: {error}"):
                told.append(f"{op.name}: {error}")
    assert not told
