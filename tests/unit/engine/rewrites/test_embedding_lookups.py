"""Embeddings that fetch rows ahead: in every program, with the bits of PyTorch's lookup."""

from __future__ import annotations

import pytest
import torch
from support.rewrites import leave_out
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.engine.rewrites.embedding import fetch_rows_ahead

WORDS, WIDTH, ROWS, LENGTH = 50, 8, 4, 6
OURS, PYTORCHS = "poptorch_emu::embedding(", "aten::embedding("


class Tagger(nn.Module):
    """Looks up words and places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=3, scale_grad_by_freq=False)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.last = nn.Linear(WIDTH, 5)

    def forward(self, words: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        x = self.last(torch.sin(self.words(words) + self.places(torch.arange(LENGTH))))
        if labels is None:
            return x
        return nn.functional.cross_entropy(x.flatten(0, 1), labels.flatten())


def words(count: int) -> torch.Tensor:
    return torch.randint(WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(1))


def trained(recomputation: str = "modelled") -> tuple[list[torch.Tensor], str]:
    """Returns the weights after three updates in a pipeline, and the program."""
    model = Tagger()
    model.last = poptorch.BeginBlock(model.last, ipu_id=1)
    options = poptorch.Options().deviceIterations(3)
    options.Training.gradientAccumulation(4)
    poptorch.emulator.set_recomputation(options, recomputation)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5)
    training = poptorch.trainingModel(model, options, optimizer)
    count = 3 * options.Training.gradient_accumulation * ROWS
    training(words(count), words(count) % 5)
    training.copyWeightsToHost()
    text = training._executable.program.text()
    return [weight.detach() for weight in model.parameters()], text


def test_training_when_rows_are_fetched_ahead_then_has_the_bits_of_pytorchs_lookup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights, text = trained()
    assert OURS in text and PYTORCHS not in text
    leave_out(monkeypatch, fetch_rows_ahead)
    others, other_text = trained()
    assert PYTORCHS in other_text and OURS not in other_text
    for found, expected in zip(weights, others, strict=True):
        assert torch.equal(found, expected)


def test_inference_when_rows_are_fetched_ahead_then_has_pytorchs_rows() -> None:
    model = Tagger().eval()
    inference = poptorch.inferenceModel(model)
    torch.testing.assert_close(inference(words(ROWS)), model(words(ROWS)))
    assert OURS in inference._executable.program.text()


def test_inference_when_a_lookup_depends_on_weights_alone_then_is_prepared() -> None:
    inference = poptorch.inferenceModel(Tagger().eval())
    inference(words(ROWS))
    text = inference._executable.program.text()
    prepared, code = text[text.index("prepare forward 0") :].split("\nforward 0", 1)
    assert (prepared.count(OURS), code.count(OURS)) == (1, 1)


def test_training_when_the_engine_recomputes_then_looks_up_again() -> None:
    (weights, text), (others, stashing) = trained("executed"), trained()
    backward, other = (each[each.index("\nbackward 0") :] for each in (text, stashing))
    assert (backward.count(OURS), other.count(OURS)) == (2, 0)
    for found, expected in zip(weights, others, strict=True):
        assert torch.equal(found, expected)


def test_call_when_a_word_has_no_row_then_says_so() -> None:
    inference = poptorch.inferenceModel(Tagger().eval())
    wrong = words(ROWS)
    wrong[1, 2] = WORDS
    with pytest.raises(poptorch.Error, match=f"index out of range.*{WORDS} was looked up"):
        inference(wrong)
