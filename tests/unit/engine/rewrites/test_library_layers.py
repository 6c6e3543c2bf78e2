"""Large layers of inference by PyTorch's library, with packed weights: its numbers and bits."""

from __future__ import annotations

import pytest
import torch
from support.panels import panels
from test_packed_linear import LAYER, OUR_LAYER, OUR_PACK, text_of, wrapped
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import _C
from poptorch_emu.engine.rewrites import packed_linear
from poptorch_emu.engine.rewrites.packed_weights import has_library

pytestmark = pytest.mark.skipif(not has_library(), reason="this PyTorch has no MKL")

# Deeper than what the engine's kernel for small products takes.
INPUTS, OUTPUTS, ROWS = 300, 310, 24


@pytest.fixture(autouse=True, params=[False, True], ids=["library", "panels"])
def by_library(monkeypatch, request):
    """Has layers of fewer numbers packed, on any processor, for the library or for our kernel."""
    monkeypatch.setattr(packed_linear, "is_onednn_faster", lambda: False)
    monkeypatch.setattr(packed_linear, "_FEWEST_MULTIPLICATIONS_OF_LIBRARY", 0)
    with panels(request.param):
        by_panels = torch.ops.poptorch_emu.is_by_panels(ROWS, INPUTS, OUTPUTS)
        assert by_panels is (request.param and _C.vector_width() > 0)
        yield


def made() -> nn.Module:
    """Returns layers with and without a bias, the last of which is a small one."""
    torch.manual_seed(0)
    layers = (
        nn.Linear(INPUTS, OUTPUTS),
        nn.ReLU(),
        nn.Linear(OUTPUTS, 7, bias=False),
        nn.Linear(7, 5),
    )
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, {}), (torch.float16, {"rtol": 4e-3, "atol": 4e-3})]
)
def test_layers_then_have_the_numbers_of_pytorch(workers, replicas, dtype, tolerance, monkeypatch):
    monkeypatch.setenv("POPTORCH_EMU_WORKERS", str(workers))
    model, x = made().to(dtype), torch.randn(8 * ROWS, INPUTS).to(dtype)
    copy = made().to(dtype)
    inference = wrapped(copy, deviceIterations=8 // replicas, replicationFactor=replicas)
    for _ in range(2):
        torch.testing.assert_close(inference(x), model(x), **tolerance)
    text = text_of(inference)
    assert text.count(OUR_LAYER) == text.count(OUR_PACK) == 3
    assert LAYER not in text


@pytest.fixture(params=[False, True], ids=["denormals", "flushed denormals"])
def flushes(request):
    """Has this thread, and calls from it, take denormal numbers for zero, or not."""
    if not torch.set_flush_denormal(request.param):
        pytest.skip("this processor cannot")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("flushes")
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, {}), (torch.float16, {"rtol": 4e-3, "atol": 4e-3})]
)
def test_weights_when_they_are_asked_for_then_have_their_bits(dtype, tolerance):
    model, x = made().to(dtype), torch.randn(ROWS, INPUTS).to(dtype)
    with torch.no_grad():
        special = [-0.0, 1e-44, -1e-44, 6e-8, -6e-5, torch.inf, torch.nan]
        model[0].weight[3, : len(special)] = torch.tensor(special)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    inference = wrapped(model)
    expected = model(x)
    for _ in range(2):
        torch.testing.assert_close(inference(x), expected, equal_nan=True, **tolerance)
        for parameter in model.parameters():
            parameter.data.fill_(7.0)
        inference.copyWeightsToHost()
        for name, value in model.state_dict().items():
            assert torch.equal(value.view(torch.int8), state[name].view(torch.int8)), name


def test_weights_when_they_are_written_then_the_next_call_has_them():
    model, x = made(), torch.randn(ROWS, INPUTS)
    inference = wrapped(model)
    inference.compile(x)
    for factor in (1.0, 2.0, -0.5):
        with torch.no_grad():
            model[0].weight.mul_(factor)
        inference.copyWeightsToDevice()
        plain = made()
        plain.load_state_dict(model.state_dict())
        torch.testing.assert_close(inference(x), plain(x))


class SeveralSizes(nn.Module):
    """One weight for inputs of two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INPUTS, INPUTS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(x).view(-1, 2, INPUTS).sum(1))


def test_weight_of_products_of_several_sizes_then_is_packed_for_the_first():
    torch.manual_seed(0)
    model, x = SeveralSizes().eval(), torch.randn(2 * ROWS, INPUTS)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    inference = poptorch.inferenceModel(model)
    torch.testing.assert_close(inference(x), model(x))
    assert text_of(inference).count(OUR_LAYER) == 1
    inference.copyWeightsToHost()
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
