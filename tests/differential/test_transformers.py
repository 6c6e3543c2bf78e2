"""Models of the `transformers` package, if it is installed: forward and one training step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from support.helpers import Setting, assert_same_training
from support.transformers_models import ENTRIES, Entry, ids
from torch import nn

import poptorch_emu as poptorch

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Wrapped(nn.Module):
    """Returns all tensors of a model's output, and its loss as the loss to train."""

    def __init__(self, entry: Entry) -> None:
        super().__init__()
        config = getattr(transformers, entry.config_name)(**entry.sizes)
        _switch_dropout_off(config)
        self.model = getattr(transformers, entry.model)(config)

    def forward(self, **batch: Any):
        result = self.model(**batch, return_dict=True)
        outputs = [value for value in result.to_tuple()[1:] if isinstance(value, torch.Tensor)]
        return outputs, poptorch.identity_loss(result.loss, "none")


def _switch_dropout_off(config: Any) -> None:
    for name, value in vars(config).items():
        if isinstance(value, transformers.PretrainedConfig):
            _switch_dropout_off(value)
        elif isinstance(value, float) and ("dropout" in name or name.endswith("_pdrop")):
            setattr(config, name, 0.0)


def assert_near(actual: Any, expected: Any) -> None:
    """Compares results, although some float32 sums are in another order."""
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, check_dtype=False)


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


@pytest.fixture(params=ENTRIES, ids=lambda entry: entry.model)
def case(request) -> tuple[Wrapped, dict[str, Any]]:
    torch.manual_seed(0)
    return Wrapped(request.param), request.param.batch()


def test_inference_equals_plain_pytorch(case):
    model, batch = case
    inference = poptorch.inferenceModel(copy.deepcopy(model).eval(), options())
    with torch.no_grad():
        expected = model.eval()(**batch)
    assert_near(inference(**batch), expected)


def test_one_training_step_equals_plain_pytorch(case):
    plain, batch = case
    emulated = copy.deepcopy(plain.train())
    optimizer = poptorch.optim.SGD(emulated.parameters(), lr=0.1)
    training = poptorch.trainingModel(emulated, options(), optimizer)
    _, loss = training(**batch)
    _, expected = plain(**batch)
    assert_near(loss, expected.detach())
    expected.backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    training.destroy()
    for (path, ours), theirs in zip(emulated.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-4, atol=1e-5, msg=lambda text, path=path: f"{path}: {text}"
        )


class ByPosition(nn.Module):
    """A model whose words and labels are positional arguments."""

    def __init__(self, wrapped: Wrapped) -> None:
        super().__init__()
        self.wrapped = wrapped

    def forward(self, words: torch.Tensor, labels: torch.Tensor):
        return self.wrapped(input_ids=words, labels=labels)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("strategy", ["pipelined", "sharded"])
def test_training_on_two_ipus_equals_plain_pytorch(strategy, replicas):
    torch.manual_seed(0)
    entry = next(entry for entry in ENTRIES if entry.model == "BertForMaskedLM")
    model = ByPosition(Wrapped(entry))
    poptorch.BeginBlock(model.wrapped.model.bert.encoder.layer[1], ipu_id=1)
    setting = Setting(strategy=strategy, accumulation=4, replicas=replicas)

    def batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        return ids(rows, 7), ids(rows, 7)

    assert_same_training(model, batch, setting, num_updates=3, rtol=1e-3, atol=1e-4)
