"""Models of the `transformers` package, if it is installed: forward and one training step."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import poptorch_emu as poptorch

transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
ENCODER = {**SIZES, "intermediate_size": 32, "max_position_embeddings": 20}


@dataclass(frozen=True)
class Entry:
    """A model class, its configuration, and what it takes besides `labels`."""

    model: str
    config: str
    sizes: dict[str, Any]
    inputs: str = "input_ids"


ENTRIES = {
    "bert": Entry("BertForSequenceClassification", "BertConfig", ENCODER),
    "roberta": Entry("RobertaForSequenceClassification", "RobertaConfig", ENCODER),
    "distilbert": Entry(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"vocab_size": 40, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    ),
    "gpt2": Entry(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 20},
    ),
    "t5": Entry(
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": 40,
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 32,
            "num_layers": 2,
            "num_heads": 2,
            "decoder_start_token_id": 0,
        },
    ),
    "vit": Entry(
        "ViTForImageClassification",
        "ViTConfig",
        {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "image_size": 16,
            "patch_size": 4,
        },
        inputs="pixel_values",
    ),
}


class Wrapped(nn.Module):
    """Takes tensors by position and returns (logits, loss)."""

    def __init__(self, entry: Entry) -> None:
        super().__init__()
        config = getattr(transformers, entry.config)(**entry.sizes)
        for name in vars(config):
            if "dropout" in name or name.endswith("_pdrop"):
                setattr(config, name, 0.0)
        self.model = getattr(transformers, entry.model)(config)
        self.inputs = entry.inputs

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor):
        result = self.model(**{self.inputs: inputs}, labels=labels, return_dict=False)
        return result[1], poptorch.identity_loss(result[0], "none")


def arguments(entry: Entry) -> tuple[torch.Tensor, torch.Tensor]:
    if entry.inputs == "pixel_values":
        return torch.randn(2, 3, 16, 16), torch.randint(2, (2,))
    ids = torch.randint(2, 40, (2, 7))
    is_classifier = "Classification" in entry.model
    return ids, torch.randint(2, (2,)) if is_classifier else torch.randint(2, 40, (2, 7))


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.filterwarnings("ignore")
def test_forward_and_one_training_step_equal_plain_pytorch(name):
    torch.manual_seed(0)
    entry = ENTRIES[name]
    plain = Wrapped(entry).train()
    emulated = copy.deepcopy(plain)
    batch = arguments(entry)
    options = poptorch.Options().showCompilationProgressBar(False)
    inference = poptorch.inferenceModel(copy.deepcopy(plain).eval(), options)
    with torch.no_grad():
        expected = plain.eval()(*batch)
    torch.testing.assert_close(inference(*batch), expected, rtol=1e-4, atol=1e-5)

    plain.train()
    optimizer = poptorch.optim.SGD(emulated.parameters(), lr=0.1)
    training = poptorch.trainingModel(emulated, options, optimizer)
    _, loss = training(*batch)
    _, expected_loss = plain(*batch)
    torch.testing.assert_close(loss, expected_loss.detach(), rtol=1e-4, atol=1e-5)
    expected_loss.backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    training.destroy()
    for (path, ours), theirs in zip(emulated.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=path)
