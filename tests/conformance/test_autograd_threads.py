"""Autograd's threads: PyTorch may differentiate before us, beside us, and in forked children.

A process decides at its first `backward()` which threads it has, so each test has one of its own.
"""

from __future__ import annotations

import os

import pytest
from support.forked_programs import FINALIZED, PYTORCH, run_forked

pytestmark = [
    pytest.mark.feature("PoplarExecutor", fidelity="exact"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
]

BEGINNING = """
import os
import torch
torch.set_num_threads(1)

def differentiate():
    weight = torch.ones(3, requires_grad=True)
    (2 * weight).sum().backward()
    return weight.grad.tolist() == [2, 2, 2]

def train():
    import poptorch_emu as poptorch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            return poptorch.identity_loss(x * self.weight, "sum")

    model = Model()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5)
    options = poptorch.Options().showCompilationProgressBar(False)
    training = poptorch.trainingModel(model, options, optimizer)
    training(torch.tensor([[1.0, 2.0]]))
    return model.weight.tolist() == [0.5, 0]

def in_child(action):
    child = os.fork()
    if child == 0:
        is_fine = False
        try:
            is_fine = action()
        finally:
            os._exit(0 if is_fine else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

class Differentiating(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.tensor(differentiate())

def load():
    loader = torch.utils.data.DataLoader(Differentiating(), num_workers=1)
    return all(bool(element) for element in loader)
"""

PROGRAMS = {
    "backward before the import": "print(differentiate(), train(), differentiate())",
    "backward after the import, then children": (
        "import poptorch_emu\n"
        "print(differentiate(), in_child(differentiate), load(), in_child(train))"
    ),
    "training, then children": (
        "print(train(), in_child(differentiate), in_child(train), load(), train())"
    ),
    "training in inference mode, then a child": (
        "with torch.inference_mode():\n    import poptorch_emu\n"
        "differentiate()\nprint(in_child(lambda: in_child(train) and train()), train())"
    ),
}


# Programs that run code before they import the package.
FRESH = ("backward before the import", "training in inference mode, then a child")


@pytest.mark.parametrize("name", PROGRAMS)
def test_backward_when_others_differentiate_too_then_works(name: str) -> None:
    code = BEGINNING + PROGRAMS[name]
    loaded = PYTORCH if name in FRESH else "poptorch_emu"
    done = run_forked(["-c", code], FINALIZED, loaded=loaded)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"True"}, done.stdout + done.stderr
