"""Name scopes are prefixes of the names of operations (API reference, section 12.9)."""

import pytest
import torch
from support.small_models import options
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("NameScope", fidelity="exact")


class Scoped(nn.Module):
    """One operation in nested scopes, one in a scope of the operator namespace, one in none."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        with poptorch.NameScope("outer"), poptorch.NameScope("inner"):
            x = self.fc(x)
        torch.ops.poptorch.push_name_scope("pushed")
        x = torch.relu(x)
        torch.ops.poptorch.pop_name_scope()
        return torch.sigmoid(x)


def test_scopes_then_prefix_the_names_of_tensors_which_can_be_anchored():
    opts = options()
    opts.anchorTensor("hidden", "outer/inner/fc/Gemm:0")
    opts.anchorTensor("positive", "pushed/Relu:0")
    module = Scoped()
    model = poptorch.inferenceModel(module, opts)
    x = torch.randn(1, 2)
    model(x)
    assert {"Sigmoid:0", "outer/inner/fc/Gemm:0", "pushed/Relu:0"} <= set(model.getTensorNames())
    torch.testing.assert_close(model.getAnchoredTensor("hidden"), module.fc(x))
    torch.testing.assert_close(model.getAnchoredTensor("positive"), module.fc(x).relu())


def test_scopes_when_modules_do_not_name_then_still_prefix():
    opts = options()
    opts.disableModuleNamescope()
    model = poptorch.inferenceModel(Scoped(), opts)
    model.compile(torch.ones(1, 2))
    assert "outer/inner/Gemm:0" in model.getTensorNames()
