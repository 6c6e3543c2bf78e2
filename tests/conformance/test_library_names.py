"""Names and habits of other libraries that build on PopTorch (api.md 11 and 21)."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.forked_programs import run_forked
from support.small_models import options
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.executor import args_parser
from poptorch_emu.names import wrapping_names
from poptorch_emu.runtime.arguments import Arguments

names = pytest.mark.feature("Names that other libraries reach for", fidelity="exact")
blocks = pytest.mark.feature("Blocks", fidelity="exact")

_LOADS = """
import importlib.util, warnings
warnings.simplefilter("error")
import poptorch_emu.emulator
poptorch_emu.emulator.install()
import poptorch
spec = importlib.util.find_spec("poptorch._impl")
module = spec.loader.load_module()
import poptorch._impl
assert module is poptorch._impl, module
assert spec.loader.load_module("poptorch._impl") is module
"""


@names
def test_loader_of_an_aliased_module_when_asked_without_a_name_then_answers() -> None:
    """In a process of its own: the finder stays installed."""
    done = run_forked(["-c", _LOADS])
    assert done.returncode == 0, done.stderr


@names
def test_is_dispatch_tracing_when_in_forward_then_true() -> None:
    seen = []

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(wrapping_names.isDispatchTracing())
            return x + 1

    poptorch.inferenceModel(Model(), options())(torch.ones(2))
    assert seen == [True]
    assert not wrapping_names.isDispatchTracing()


@names
@pytest.mark.parametrize("name", ["autocastEnabled", "autocastPolicy"])
def test_name_of_release_2_when_read_on_the_class_then_has_a_docstring(name: str) -> None:
    group = type(poptorch.Options().Precision)
    assert getattr(group, name).__doc__
    assert name not in dir(group)
    with pytest.raises(AttributeError, match="has no attribute 'autocastNever'"):
        group.autocastNever  # noqa: B018


@names
def test_name_of_release_2_when_read_on_options_then_is_what_does_its_work() -> None:
    assert poptorch.Options.anchorMode.__doc__
    assert isinstance(poptorch.Options.Popart, property)


class Swapped(args_parser.ArgsParser):
    """A parser that swaps two arguments, and never reads a signature."""

    def __init__(self) -> None:
        self.varnames = ["x", "y"]

    def __call__(self, args: Any, kwargs: Any) -> Arguments:
        return super().__call__(args[::-1], kwargs)


class Unread(args_parser.ArgsParser):
    """A parser that keeps the order of arguments, and never reads a signature."""

    def __init__(self) -> None:
        self.varnames = ["x", "y"]


class Difference(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x - y


@names
@pytest.mark.parametrize(("parser", "sign"), [(Swapped, -1), (Unread, 1)])
def test_args_parser_when_a_subclass_calls_no_constructor_then_works(
    parser: Any, sign: int
) -> None:
    model = poptorch.inferenceModel(Difference(), options())
    model._args_parser = parser()
    assert model(torch.tensor([3.0]), torch.tensor([1.0])).item() == 2.0 * sign


class Staged(nn.Module):
    """Blocks of every kind, with integers as ids."""

    def __init__(self) -> None:
        super().__init__()
        self.first = poptorch.BeginBlock(nn.Linear(2, 3), 0, ipu_id=0)
        self.second = poptorch.BeginBlock(nn.Linear(3, 2), user_id=1, ipu_id=1)

    @poptorch.BlockFunction(2, ipu_id=1)
    def error(self, x: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(x, torch.zeros_like(x))

    def forward(self, x: torch.Tensor):
        x = self.second(self.first(x))
        return x, self.error(x)


def _staged_options() -> poptorch.Options:
    stages = poptorch.Stage("0").ipu(0), poptorch.Stage("1", "2").ipu(1)
    return options(accumulation=3).setExecutionStrategy(poptorch.PipelinedExecution(*stages))


def _saved(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


_COPIES = {
    "itself": lambda model: model,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickled": lambda model: pickle.loads(pickle.dumps(model)),
    "saved": _saved,
}


@blocks
@pytest.mark.parametrize("how", _COPIES)
def test_module_with_blocks_when_copied_or_saved_then_keeps_them(how: str) -> None:
    model = _COPIES[how](Staged())
    text = poptorch.module_repr(model)
    assert "BeginBlock(user_id=0, ipu_id=0)" in text and "BeginBlock(user_id=1, ipu_id=1)" in text
    training = poptorch.trainingModel(model, _staged_options())
    training(torch.randn(3, 2))
    assert training._executable.ipus_per_replica == 2
    training.destroy()


@blocks
@pytest.mark.parametrize("how", ["deepcopy", "pickled", "saved"])
def test_wrapped_model_with_block_functions_when_copied_then_is_the_plain_one(how: str) -> None:
    model = Staged()
    training = poptorch.trainingModel(model, _staged_options())
    training(torch.randn(3, 2))
    duplicate = _COPIES[how](model)
    assert type(duplicate) is Staged
    x = torch.randn(1, 2)
    torch.testing.assert_close(duplicate(x)[1], model(x)[1])
    training.destroy()


@blocks
def test_block_when_its_id_is_zero_then_that_is_no_automatic_id() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with poptorch.Block():
                x = x + 1
            with poptorch.Block(0, ipu_id=0):
                return x * 2

    opts = options().setExecutionStrategy(poptorch.ShardedExecution(poptorch.Stage("0")))
    assert poptorch.inferenceModel(Model(), opts)(torch.ones(1)).item() == 4.0


@blocks
@pytest.mark.parametrize("wrong", [1.5, True, object()])
def test_block_when_its_id_is_neither_text_nor_integer_then_error(wrong: Any) -> None:
    with pytest.raises(AssertionError, match="Block IDs are supposed to be strings"):
        poptorch.Block(wrong)
