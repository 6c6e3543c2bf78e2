"""Operations that an inference program runs once before its micro-batches, or for each of them."""

from __future__ import annotations

import pytest
import torch
from support.inference_ways import off_chip
from torch import nn

import poptorch_emu as poptorch


class Model(nn.Module):
    """A model whose `forward` is given as a function of itself and its input."""

    def __init__(self, body) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = body
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("state", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self, x)


def segments_of(executor: poptorch.PoplarExecutor) -> dict[str, list[str]]:
    """Returns the operators of each segment, in order."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in executor._executable.program.text().splitlines():
        if " on IPU " in line:
            name = line.split(" on IPU")[0]
            found[name] = []
        elif line.startswith("  %") and "::" in line:
            found[name].append(line.split("::")[1].split("(")[0])
    return found


def run(body, change=lambda options: None, calls: int = 2) -> dict[str, list[str]]:
    """Compares some calls with plain PyTorch, and returns the operators of each segment."""
    plain, emulated = Model(body).eval(), Model(body).eval()
    options = poptorch.Options()
    options.deviceIterations(4)
    change(options)
    inference = poptorch.inferenceModel(emulated, options)
    for _ in range(calls):
        x = torch.randn(8, 4)
        micro_batches = x.split(8 // 4 // options.replication_factor)
        expected = torch.cat([plain(part).detach() for part in micro_batches])
        torch.testing.assert_close(inference(x), expected)
    return segments_of(inference)


def test_what_depends_on_weights_alone_then_is_prepared():
    found = run(lambda model, x: x @ (model.weight.tanh() * 2).t() + x)
    assert found == {
        "prepare forward 0": ["tanh", "mul.Tensor", "t"],
        "forward 0": ["mm", "add.Tensor"],
    }


def test_weights_of_two_stages_then_are_prepared_for_each():
    def body(model, x):
        with poptorch.Block(ipu_id=0):
            x = x @ model.weight.exp()
        with poptorch.Block(ipu_id=1):
            return x @ model.weight.tanh()

    found = run(body)
    assert found["prepare forward 0"] == ["exp"]
    assert found["prepare forward 1"] == ["tanh"]


def test_what_a_call_changes_then_is_read_anew():
    def body(model, x):
        y = x * (model.state * 2)
        model.state.mul_(0.5)
        return y

    assert list(run(body)) == ["forward 0"]


def test_random_numbers_then_are_drawn_for_each_micro_batch():
    def body(model, x):
        return x * 0 + torch.rand_like(model.weight[:2]) * model.weight[:2].exp()

    options = poptorch.Options()
    options.deviceIterations(4)
    inference = poptorch.inferenceModel(Model(body), options)
    parts = inference(torch.zeros(8, 4)).split(2)
    assert len({tuple(part.flatten().tolist()) for part in parts}) == 4
    assert "exp" in segments_of(inference)["prepare forward 0"]


def sharded(options: poptorch.Options) -> None:
    options.replicationFactor(2)
    location = poptorch.TensorLocationSettings().minElementsForReplicatedTensorSharding(2)
    options.TensorLocations.setWeightLocation(location.useReplicatedTensorSharding(True))


@pytest.mark.parametrize("change", [off_chip, sharded])
def test_weights_that_come_for_each_use_then_are_not_prepared(change):
    assert list(run(lambda model, x: x @ model.weight.tanh(), change)) == ["forward 0"]


def test_replicas_then_share_what_is_prepared():
    found = run(lambda model, x: x @ model.weight.tanh(), lambda o: o.replicationFactor(2))
    assert found["prepare forward 0"] == ["tanh"]


def test_what_code_of_the_users_gets_then_is_made_anew():
    """User code may write to its arguments."""

    def spoil(value: torch.Tensor) -> torch.Tensor:
        result = value + 1
        value.zero_()
        return result

    def body(model, x):
        kept = model.weight.tanh()
        return x @ poptorch.CPU(spoil, "spoil")(kept.exp()) @ model.weight.sin()

    plain = Model(lambda model, x: x @ (model.weight.tanh().exp() + 1) @ model.weight.sin())
    options = poptorch.Options()
    options.deviceIterations(4)
    inference = poptorch.inferenceModel(Model(body), options)
    for _ in range(2):
        x = torch.randn(8, 4)
        torch.testing.assert_close(inference(x), plain(x))
    assert segments_of(inference)["prepare forward 0"] == ["sin"]


def test_what_goes_to_another_stage_then_is_made_anew():
    def body(model, x):
        with poptorch.Block(ipu_id=0):
            weight = model.weight.tanh()
            x = x @ model.weight.exp()
        with poptorch.Block(ipu_id=1):
            return x @ weight

    found = run(body)
    assert found["prepare forward 0"] == ["exp"]
    assert "tanh" in found["forward 0"]


def test_what_is_given_back_then_can_be_written():
    inference = poptorch.inferenceModel(Model(lambda model, x: model.weight.exp() + x.sum() * 0))
    first = inference(torch.ones(1, 4))
    expected = first.clone()
    first.zero_()
    torch.testing.assert_close(inference(torch.ones(1, 4)), expected)
