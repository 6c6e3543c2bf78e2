"""The peers that the benchmarks compare with do the work of the plain loop."""

import copy
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmarks():
    sys.path.insert(0, str(BENCHMARKS))
    import models
    import peers
    import speed

    yield models, peers, speed
    sys.path.remove(str(BENCHMARKS))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 4)
        self.layer = nn.Linear(4, 3)

    def forward(self, words, labels):
        result = self.layer(self.embedding(words).mean(dim=1))
        return result, nn.functional.cross_entropy(result, labels)


def batch(rows):
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(20, (rows, 5), generator=generator)
    return words, torch.randint(3, (rows,), generator=generator)


@pytest.mark.parametrize("mixes_rows", [False, True])
@pytest.mark.parametrize("has_plain_sgd", [True, False])
def test_expert_when_it_trains_then_weights_are_those_of_the_plain_loop(
    benchmarks, has_plain_sgd, mixes_rows
):
    models, peers, speed = benchmarks
    make_optimizer = models._SGD if has_plain_sgd else partial(torch.optim.AdamW, lr=0.01)
    initial = Words()
    trained = []
    for make_step in (partial(speed.plain_step, is_compiled=False), peers.expert_step):
        model = copy.deepcopy(initial)
        case = models.Case(
            lambda model=model: model, batch, 2, 4, 3, make_optimizer, mixes_rows=mixes_rows
        )
        make_step(case)()
        trained.append(model)
    for name, wanted in trained[0].named_parameters():
        assert not torch.equal(wanted, initial.get_parameter(name))
        torch.testing.assert_close(trained[1].get_parameter(name), wanted)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.head = nn.Linear(36, 3)

    def forward(self, images, labels):
        result = self.head(self.body(images))
        return result, nn.functional.cross_entropy(result, labels)


def test_expert_when_images_are_channels_last_then_weights_are_those_of_the_plain_loop(benchmarks):
    models, peers, speed = benchmarks
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(24, 2, 8, 8, generator=generator), torch.arange(24) % 3
    initial = Images()
    trained = []
    last = partial(peers.expert_step, expert=peers.EXPERTS["expert, channels last"])
    for make_step in (partial(speed.plain_step, is_compiled=False), last):
        model = copy.deepcopy(initial)
        case = models.Case(
            lambda model=model: model, lambda n: (images[:n], labels[:n]), 2, 4, 3, models._SGD
        )
        assert case.has_images and peers.is_for("expert, channels last", case)
        make_step(case)()
        trained.append(model)
    assert trained[1].body[0].weight.is_contiguous(memory_format=torch.channels_last)
    for name, wanted in trained[0].named_parameters():
        torch.testing.assert_close(trained[1].get_parameter(name), wanted)


def test_peer_whose_package_is_missing_then_it_says_which(benchmarks, monkeypatch):
    _, peers, _ = benchmarks
    monkeypatch.setitem(peers.FOR_INFERENCE, "openvino", ("torch", "no_such_package"))
    assert peers.lacks("openvino") == "no_such_package"
    assert peers.lacks("expert") == ""
