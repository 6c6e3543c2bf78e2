"""Wrapped models of `numbers_models`, and harmless changes of their options."""

from __future__ import annotations

import torch
from support.numbers_models import Language

import poptorch_emu as poptorch
from poptorch_emu import emulator

ROWS = 2


def options(accumulation=1, replicas=1):
    opts = poptorch.Options().showCompilationProgressBar(False)
    opts.Training.gradientAccumulation(accumulation)
    return opts.replicationFactor(replicas)


def adam(parameters, **settings):
    return poptorch.optim.AdamW(parameters, lr=0.01, **settings)


def sgd(parameters, **settings):
    return poptorch.optim.SGD(parameters, lr=0.1, **settings)


def training(change="", opts=None, optimizer=adam, **settings):
    model = Language(change)
    chosen = opts or options()
    return poptorch.trainingModel(model, chosen, optimizer(model.parameters(), **settings))


def in_half(executor):
    executor.model.half()
    return executor


def suspects(report):
    first = report.first
    return [first.value, *first.only_ours, *first.only_theirs]


def with_schedule(opts):
    emulator.set_schedule(opts, emulator.schedules.gpipe())
    return opts


def with_shared_state(opts):
    place = poptorch.TensorLocationSettings().useReplicatedTensorSharding(True)
    opts.TensorLocations.setOptimizerLocation(place.minElementsForReplicatedTensorSharding(2))
    return opts


def with_half_partials(opts):
    opts.Precision.setPartialsType(torch.half)
    return opts


# Harmless changes of options: function, number of IPUs, number of replicas.
HARMLESS_OPTIONS = {
    "another order": (with_schedule, 2, 1),
    "shared states": (with_shared_state, 1, 2),
    "half partials": (with_half_partials, 1, 1),
}
