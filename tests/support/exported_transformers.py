"""Models of the `transformers` package for exported pipelines, with one layer on each IPU.

Importing this module registers them as families of `exported_models`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from support.exported_models import FAMILIES, Batch, Case, Family, train_exported
from torch import nn

import poptorch_emu as poptorch

_STACK = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 20,
}
_T5 = {
    "vocab_size": 40,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 2,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.0,
}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

# Classes of the config and of the model, sizes, and paths of the layers.
_MODELS: dict[str, tuple[str, str, dict[str, Any], Sequence[str]]] = {
    # Llama has rotary tables, a causal mask with padding, and a shared embedding.
    "llama": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {**_STACK, "num_key_value_heads": 1, "tie_word_embeddings": True},
        ["model.layers"],
    ),
    "bert": (
        "BertConfig",
        "BertForMaskedLM",
        {**_STACK, **_NO_DROPOUT},
        ["bert.encoder.layer"],
    ),
    # Several stages read the table of relative positions and the encoder's result, with gradients.
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        _T5,
        ["encoder.block", "decoder.block"],
    ),
}


class _Wrapped(nn.Module):
    """Passes tensors by position, and returns only the loss."""

    def __init__(self, name: str, num_ipus: int) -> None:
        super().__init__()
        import transformers

        config_name, model_name, sizes, places = _MODELS[name]
        self.model = getattr(transformers, model_name)(getattr(transformers, config_name)(**sizes))
        layers = [layer for place in places for layer in self.model.get_submodule(place)]
        for index, layer in enumerate(layers[1:], 1):
            poptorch.BeginBlock(layer, f"layer{index}", ipu_id=index * num_ipus // len(layers))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        result = self.model(input_ids=ids, attention_mask=mask, labels=labels, return_dict=True)
        return poptorch.identity_loss(result.loss, "none")


def _padded(rows: int) -> Batch:
    mask = torch.ones(rows, 7, dtype=torch.long)
    mask[::2, 5:] = 0
    return torch.randint(3, 40, (rows, 7)), mask, torch.randint(3, 40, (rows, 7))


def _family(name: str) -> Family:
    make: Callable[[int], nn.Module] = partial(_Wrapped, name)
    return Family(make, _padded, "SGD")


FAMILIES.update({name: _family(name) for name in _MODELS})


def train_all(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Trains this process's stages of each case."""
    return [train_exported(case) for case in cases]
