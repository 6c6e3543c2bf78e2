"""Compares the printed tree of a model with PyTorch's own."""

import pytest
import torch

from poptorch_emu.executor.module_repr import module_repr
from poptorch_emu.executor.module_repr import print as print_model
from poptorch_emu.ops.block_annotations import BeginBlock

pytestmark = pytest.mark.feature("poptorch.module_repr", fidelity="exact")


class ManyLines(torch.nn.Module):
    def extra_repr(self):
        return "first\nsecond"


@pytest.mark.parametrize(
    "module",
    [
        torch.nn.ReLU(),
        torch.nn.Linear(2, 3),
        ManyLines(),
        torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(1, 1), ManyLines())),
        torch.nn.TransformerEncoderLayer(8, 2),
    ],
    ids=lambda module: type(module).__name__,
)
def test_module_repr_without_hooks_then_equals_pytorchs(module):
    assert module_repr(module) == repr(module)


def test_module_repr_with_blocks_then_they_stand_in_front_of_the_names():
    inner = BeginBlock(torch.nn.ReLU(), "b", ipu_id=1)
    model = BeginBlock(torch.nn.Sequential(torch.nn.Sequential(inner)), "a")
    assert module_repr(model) == (
        "BeginBlock(user_id=a, ipu_id=None) Sequential(\n"
        "  (0): Sequential(\n"
        "    (0): BeginBlock(user_id=b, ipu_id=1) ReLU()\n"
        "  )\n"
        ")"
    )


def test_print_module_then_blocks_first_and_then_the_module(capsys):
    layer = BeginBlock(torch.nn.ReLU(), "a")
    print_model(layer)
    assert capsys.readouterr().out == "BeginBlock(user_id=a, ipu_id=None) ReLU()\nReLU()\n"


def test_print_other_object_then_as_always(capsys):
    print_model([1, 2])
    assert capsys.readouterr().out == "[1, 2]\n"
