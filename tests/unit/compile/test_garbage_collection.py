"""A compilation runs without garbage collection, and leaves its setting as it was."""

import gc
import sys

import pytest
import torch

import poptorch_emu as poptorch


class Model(torch.nn.Module):
    def __init__(self, is_wrong: bool = False) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.is_wrong = is_wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).sum().item() if self.is_wrong else self.layer(x)


@pytest.fixture(params=[True, False], ids=["enabled", "disabled"])
def is_enabled(request):
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_collection_after_a_compilation_then_is_as_before(is_enabled):
    poptorch.inferenceModel(Model())(torch.ones(1, 2))
    assert gc.isenabled() is is_enabled


def test_collection_after_a_failed_compilation_then_is_as_before(is_enabled):
    with pytest.raises(poptorch.Error):
        poptorch.inferenceModel(Model(is_wrong=True))(torch.ones(1, 2))
    assert gc.isenabled() is is_enabled


def test_collections_while_the_threshold_is_low_then_none_interrupts_a_compilation():
    model, thresholds, found = poptorch.inferenceModel(Model()), gc.get_threshold(), []

    def note(phase: str, info: object) -> None:
        found.append(sys._getframe(1).f_code.co_filename)

    gc.callbacks.append(note)
    gc.set_threshold(50, 1, 1)
    try:
        model.compile(torch.ones(1, 2))
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*thresholds)
    assert not [file for file in found if "/poptorch_emu/trace/" in file or "/torch/fx/" in file]
