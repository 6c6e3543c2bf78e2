"""Strict mode finds uses that PopTorch's compiler rejects (ops-coverage, sections 3 and 7)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import poptorch_emu as poptorch


class Calls(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor):
        return self.function(*tensors)


class Holds(nn.Module):
    """A model with a layer as submodule `layer`."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *tensors: torch.Tensor):
        return self.layer(*tensors)


def run(model: nn.Module, *tensors: torch.Tensor):
    options = poptorch.Options().showCompilationProgressBar(False)
    return poptorch.inferenceModel(model, options)(*tensors)


@pytest.fixture
def warned(monkeypatch, caplog):
    """Runs a model in mode "warn" and returns the findings."""
    monkeypatch.setenv("POPTORCH_EMU_STRICT", "warn")

    def findings(model, *tensors):
        caplog.clear()
        run(model, *tensors)
        return [record.getMessage() for record in caplog.records if ": " in record.getMessage()]

    return findings


x = torch.randn(4, 6)
image = torch.randn(1, 2, 5, 5)
REFUSED = {
    "operator": (lambda: Calls(torch.digamma), [x], "[aten::digamma]"),
    "linalg": (lambda: Calls(torch.linalg.inv), [torch.eye(3)], "aten::linalg_inv_ex"),
    "triu": (lambda: Calls(torch.triu), [x], "only supported within constant expressions"),
    "topk": (lambda: Calls(lambda t: t.topk(2, sorted=False)), [x], "sorted=False"),
    "variance": (lambda: Calls(lambda t: t.var(1, correction=2)), [x], "correction of 0 or 1"),
    "empty": (lambda: Calls(lambda t: t[2:2]), [x], "Zero-sized tensors are unsupported"),
    "complex": (lambda: Calls(lambda t: torch.complex(t, t).abs()), [x], "Unsupported scalar type"),
    "accumulate": (
        lambda: Calls(lambda t: t.index_put((torch.tensor([0, 0]),), t[:2], accumulate=True)),
        [x],
        "accumulate=True is silently ignored",
    ),
    "bitwise": (
        lambda: Calls(torch.bitwise_and),
        [torch.ones(3, dtype=torch.uint8)] * 2,
        "8-bit integral",
    ),
    "divisor": (
        lambda: Calls(lambda t: F.avg_pool2d(t, 2, divisor_override=3)),
        [image],
        "divisor_override",
    ),
    "adaptive": (lambda: Calls(lambda t: F.adaptive_avg_pool2d(t, 2)), [image], "not divisible"),
    "indices": (
        lambda: Calls(lambda t: F.max_pool2d(t, 2, return_indices=True)),
        [image],
        "return_indices",
    ),
    "transposed": (
        lambda: Holds(nn.ConvTranspose2d(2, 2, 2, dilation=2)),
        [image],
        "dilation other than 1",
    ),
    "bicubic": (
        lambda: Calls(lambda t: F.interpolate(t, (7, 7), mode="bicubic", align_corners=True)),
        [image],
        "align_corners=False",
    ),
    "layers": (
        lambda: Holds(nn.LSTM(6, 3, num_layers=2)),
        [x[None]],
        "Only LSTM with 1 layer supported",
    ),
    "directions": (
        lambda: Holds(nn.LSTM(6, 3, bidirectional=True)),
        [x[None]],
        "bidirectional LSTM",
    ),
    "biases": (lambda: Holds(nn.LSTM(6, 3, bias=False)), [x[None]], "LSTM without biases"),
    "sparse": (
        lambda: Holds(nn.Embedding(4, 2, scale_grad_by_freq=True)),
        [torch.tensor([1, 2])],
        "Unsupported aten::embedding operation",
    ),
    "offsets": (
        lambda: Holds(nn.EmbeddingBag(4, 2)),
        [torch.tensor([1, 2]), torch.tensor([0, 1])],
        "offsets tensor must be a constant.",
    ),
    "steps": (
        lambda: Calls(lambda t: _clear(t[:, 1::2])),
        [x],
        "In-place modification of slices with step size other than 1",
    ),
    "checkpoint": (
        lambda: Calls(lambda t: checkpoint(torch.tanh, t, use_reentrant=False)),
        [x],
        "torch.utils.checkpoint has no meaning there",
    ),
    "view": (
        lambda: Calls(lambda t: _clear(t[::2].transpose(0, 1)[1])),
        [x],
        "In-place modification of slices with step size other than 1",
    ),
}


def _clear(view: torch.Tensor) -> torch.Tensor:
    return view.zero_() + 1


@pytest.mark.feature("Strict mode", fidelity="modelled")
@pytest.mark.parametrize("name", REFUSED)
def test_what_the_compiler_refuses_is_reported_with_operator_and_line(name, warned):
    make, tensors, words = REFUSED[name]
    found = [text for text in warned(make(), *tensors) if words in text]
    assert found, f"nothing says {words!r}"
    assert "::" in found[0] and f"{__file__}:" in found[0]


def test_the_module_is_named_once_although_it_is_called_twice(warned):
    class Twice(Holds):
        def forward(self, t):
            for _ in range(2):
                t = self.layer(t)
            return t

    found = warned(Twice(Calls(torch.digamma)), x)
    assert len(found) == 1
    assert "module 'layer'" in found[0]


PLAIN = nn.Sequential(
    nn.Conv2d(3, 4, 3),
    nn.BatchNorm2d(4),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Dropout(0.1),
    nn.Linear(4, 4),
    nn.LayerNorm(4),
    nn.GELU(),
    nn.Softmax(-1),
)


def test_a_model_that_the_compiler_takes_passes_in_mode_error(monkeypatch):
    monkeypatch.setenv("POPTORCH_EMU_STRICT", "error")
    run(PLAIN, torch.randn(2, 3, 10, 10))
    run(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 3, 8))
    run(nn.LSTM(6, 3), x[None])
    run(nn.EmbeddingBag(4, 2), torch.tensor([[1, 2], [3, 0]]))
    run(Calls(lambda t: _clear(t[:, 1:4])), x)


def test_mode_error_raises_one_error_with_all_places(monkeypatch):
    monkeypatch.setenv("POPTORCH_EMU_STRICT", "error")
    with pytest.raises(poptorch.Error) as raised:
        run(Calls(lambda t: torch.digamma(t) + torch.lgamma(t)), x)
    assert "aten::digamma" in str(raised.value)
    assert "aten::lgamma" in str(raised.value)


def test_without_the_variable_nothing_is_said(monkeypatch, caplog):
    monkeypatch.delenv("POPTORCH_EMU_STRICT", raising=False)
    torch.testing.assert_close(run(Calls(torch.digamma), x), torch.digamma(x))
    assert "digamma" not in caplog.text


@pytest.mark.parametrize("mode", ["off", ""])
def test_mode_when_off_then_nothing_is_looked_for(monkeypatch, mode):
    monkeypatch.setenv("POPTORCH_EMU_STRICT", mode)
    torch.testing.assert_close(run(Calls(torch.digamma), x), torch.digamma(x))


def test_mode_when_unknown_then_error(monkeypatch):
    monkeypatch.setenv("POPTORCH_EMU_STRICT", "yes")
    with pytest.raises(ValueError, match="POPTORCH_EMU_STRICT is 'yes'; set it to 'warn', 'error'"):
        run(Calls(torch.neg), x)
