"""Zeros and copies that the engine leaves out because nothing needs them: the same bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.engine import engine_cut

JOIN = "poptorch_emu::joined_gradients"


class Attention(nn.Module):
    """PyTorch's attention, whose packed projection is read in three parts."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x, x, x, need_weights=False)[0]
        return x + y


class Parts(nn.Module):
    """A layer whose result is read in parts, which a function takes from it."""

    def __init__(self, take: Callable[[torch.Tensor], list[torch.Tensor]]) -> None:
        super().__init__()
        self.body = nn.Linear(8, 6)
        self.take = take

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        parts = self.take(y)
        return sum(part.sum() * (1 + place) * part.exp().mean() for place, part in enumerate(parts))


# For each case: the parts of a tensor (4, 5, 6), and whether its gradient is joined from parts.
TAKEN: dict[str, tuple[Callable[[torch.Tensor], list[torch.Tensor]], bool]] = {
    "selected": (lambda y: [y[:, :, index] for index in range(6)], True),
    "selected in another order": (lambda y: [y[:, index] for index in (2, 0, 4, -2, 1)], True),
    "sliced": (lambda y: [y[..., :1], y[..., 1:4], y[..., 4:]], True),
    "sliced and selected": (lambda y: [y[:, 0], y[:, 1:]], True),
    "narrowed": (lambda y: [y.narrow(1, 3, 2), y.narrow(1, 0, 3)], True),
    "of a transpose": (lambda y: [y.transpose(0, 2)[:2], y.transpose(0, 2)[2:]], False),
    "with one missing": (lambda y: [y[:, :, index] for index in range(5)], False),
    "with one twice": (lambda y: [y[:, index] for index in (0, 1, 2, 3, 4, 4)], False),
    "overlapping": (lambda y: [y[..., :4], y[..., 3:]], False),
    "with gaps": (lambda y: [y[..., ::2], y[..., 1::2]], False),
    "in two dimensions": (lambda y: [y[:, :2], y[:, 2:], y[..., :3]], False),
    "and read whole": (lambda y: [y[..., :3], y[..., 3:], y], False),
    "chunk": (lambda y: list(y.chunk(3, -1)), False),
    "split": (lambda y: list(y.split([1, 2, 3], -1)), False),
    "unbind": (lambda y: list(y.unbind(1)), False),
}


class Trained(nn.Module):
    """Returns a body's result, with a loss of it."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.body(x)
        return y, poptorch.identity_loss(y * y, reduction="mean")


def trained(
    make: Callable[[], nn.Module],
    change: Callable[[poptorch.Options], object] = lambda _: None,
    batch: int = 8,
) -> tuple[list[torch.Tensor], str]:
    """Returns outputs and weights after some updates, and the text of the program."""
    torch.manual_seed(0)
    model = Trained(make())
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    options.outputMode(poptorch.OutputMode.All)
    change(options)
    training = poptorch.trainingModel(
        model, options, torch.optim.AdamW(model.parameters(), lr=0.01)
    )
    torch.manual_seed(1)
    outputs = [each.clone() for _ in range(3) for each in training(torch.randn(batch, 5, 8))]
    weights = [value.detach().clone() for value in model.state_dict().values()]
    return outputs + weights, training._executable.program.text()


def assert_same_as_plain(make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch) -> str:
    """Compares every bit with an engine that keeps all copies; returns the program's text."""
    found, text = trained(make)
    with monkeypatch.context() as patched:
        patched.setattr(engine_cut, "leave_out_copies", lambda cut: cut)
        expected, plain_text = trained(make)
    assert JOIN not in plain_text
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32))
    return text


def num_copies(text: str) -> int:
    """Returns how many instructions of a program copy, always or for another order only."""
    return text.count("::clone(") + text.count("::contiguous(")


@pytest.mark.parametrize("name", TAKEN)
def test_gradient_of_parts_when_they_make_up_the_whole_then_is_joined(name, monkeypatch):
    take, is_joined = TAKEN[name]
    text = assert_same_as_plain(lambda: Parts(take), monkeypatch)
    assert (JOIN in text) is is_joined
    assert ("select_backward" in text or "slice_backward" in text) is (
        not is_joined and name not in ("chunk", "split", "unbind")
    )


def test_attention_when_trained_then_its_gradient_is_joined_without_copies(monkeypatch):
    text = assert_same_as_plain(Attention, monkeypatch)
    assert text.count(JOIN) == 1
    assert "select_backward" not in text
    with monkeypatch.context() as patched:
        patched.setattr(engine_cut, "leave_out_copies", lambda cut: cut)
        plain_text = trained(Attention)[1]
    # Two copies of each part, and one of the whole.
    assert num_copies(plain_text) - num_copies(text) == 7


class Copied(nn.Module):
    """Copies of transposed copies; `is_used` adds a second reader of the first copy."""

    def __init__(self, is_used: bool) -> None:
        super().__init__()
        self.body = nn.Linear(8, 6)
        self.is_used = is_used

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x).transpose(1, 2).clone(memory_format=torch.contiguous_format)
        z = y.view(-1, 2, 3, 5).permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)
        z = z.view(-1, 30).cumsum(1)
        return z * y.exp().view(-1, 30) if self.is_used else z


@pytest.mark.parametrize("is_used", [True, False])
def test_copy_when_only_another_copy_reads_it_then_is_left_out(is_used, monkeypatch):
    def make() -> nn.Module:
        return Copied(is_used)

    text = assert_same_as_plain(make, monkeypatch)
    forward = text[text.index("forward 0") : text.index("backward 0")]
    assert num_copies(forward) == (2 if is_used else 1)


def offload(options: poptorch.Options) -> None:
    location = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setActivationLocation(location.minElementsForOffChip(0))


CHANGES: dict[str, Callable[[poptorch.Options], object]] = {
    "recomputing": lambda options: emulator.set_recomputation(options, "executed"),
    "offloaded": offload,
    "replicated": lambda options: options.replicationFactor(2),
}


class Ordered(nn.Module):
    """Copies of contiguous values, of a value in another order, and of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        in_order = y.view(-1, 5, 2, 3).clone(memory_format=torch.contiguous_format)
        turned = y.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        given = x.clone(memory_format=torch.contiguous_format)
        return in_order.flatten(1).cumsum(1) * turned.flatten(1).exp() + given.sum()


def test_copy_when_what_was_computed_lies_in_order_then_only_the_input_is_copied_in_any_case(
    monkeypatch,
):
    text = assert_same_as_plain(Ordered, monkeypatch)
    forward = text[text.index("forward 0") : text.index("backward 0")]
    assert forward.count("::contiguous(") == 2
    assert forward.count("::clone(") == 1


class Staged(nn.Module):
    """Attention behind a layer; `split` says whether each has a virtual IPU of its own."""

    def __init__(self, split: bool) -> None:
        super().__init__()
        self.split = split
        self.parts = nn.ModuleList([nn.Linear(8, 8), Attention()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, part in enumerate(self.parts):
            poptorch.Block.start(f"part {index}", ipu_id=index if self.split else 0)
            x = part(x)
            left, right = x[..., :3], x[..., 3:]
            x = torch.cat([right.sigmoid(), left], -1)
        return x


@pytest.mark.parametrize("change", ["recomputing", "offloaded"])
def test_attention_when_in_a_stage_of_its_own_then_has_the_same_bits(change):
    def split(options: poptorch.Options) -> None:
        options.Training.gradientAccumulation(8)
        CHANGES[change](options)

    def whole(options: poptorch.Options) -> None:
        options.Training.gradientAccumulation(8)

    found = trained(lambda: Staged(True), split, batch=16)[0]
    expected = trained(lambda: Staged(False), whole, batch=16)[0]
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("change", CHANGES)
def test_attention_when_other_options_are_set_then_is_joined_too(change):
    text = trained(Attention, CHANGES[change])[1]
    assert JOIN in text


def test_stochastic_rounding_and_checks_when_set_then_leave_the_code_as_it_is():
    def rounding(options: poptorch.Options) -> None:
        options.Precision.enableStochasticRounding(True)

    def checking(options: poptorch.Options) -> None:
        options.Precision.enableFloatingPointExceptions(True)

    for change in (rounding, checking):
        assert JOIN not in trained(Attention, change)[1]
