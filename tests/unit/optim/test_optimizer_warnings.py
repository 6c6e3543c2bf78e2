"""Warnings where the device does something else than PyTorch would."""

import logging

import pytest
import torch

from poptorch_emu import optim
from poptorch_emu.optim.optimizer_conversion import optimizer_config
from poptorch_emu.optim.optimizer_warnings import warn_once


def _parameters():
    return {name: torch.nn.Parameter(torch.ones(2)) for name in ("kept", "left_out")}


@pytest.fixture
def warnings_of(caplog):
    """Returns a function that returns the warnings of a conversion, as in a fresh process."""
    warn_once.cache_clear()

    def convert(optimizer, parameters):
        caplog.clear()
        optimizer_config(optimizer, parameters)
        return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]

    return convert


@pytest.mark.parametrize(
    ("make", "phrase"),
    [
        (lambda p: optim.Adam(p, maximize=True), "maximize=True of Adam is ignored"),
        (
            lambda p: optim.SGD(p, 0.1, momentum=0.9, dampening=0.1),
            "velocity of SGD starts at zero",
        ),
        (lambda p: optim.AdamW(p, bias_correction=False), "bias_correction=False of AdamW"),
        (
            lambda p: optim.SGD(p, 0.1, max_grad_norm=0.5, loss_scaling=16.0),
            "are limited to 0.03125. To limit them to 0.5, pass max_grad_norm=8",
        ),
    ],
    ids=["maximize", "dampening", "bias_correction", "scaled norm"],
)
def test_difference_when_torch_would_differ_then_warns_once(warnings_of, make, phrase):
    parameters = _parameters()
    optimizer = make(list(parameters.values()))
    (message,) = warnings_of(optimizer, parameters)
    assert phrase in message
    assert warnings_of(optimizer, parameters) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda p: optim.SGD(p, 0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        lambda p: optim.LAMB(p, bias_correction=False),
        lambda p: torch.optim.AdamW(p),
        lambda p: optim.AdamW(p, max_grad_norm=0.5, loss_scaling=16.0),
    ],
    ids=["sgd", "torch_sgd", "lamb", "torch_adamw", "adamw that clips"],
)
def test_difference_when_torch_agrees_then_says_nothing(warnings_of, make):
    parameters = _parameters()
    assert warnings_of(make(list(parameters.values())), parameters) == []
