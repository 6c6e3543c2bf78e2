"""Exercise 1: cut eight equal layers over four IPUs."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from poptorch_emu.emulator.course.exercise import Exercise, Findings, Wrapped
from poptorch_emu.emulator.course.layers import Layers
from poptorch_emu.emulator.course.placing import SYSTEM, plain_options
from poptorch_emu.emulator.estimates import estimate
from poptorch_emu.executor.factories import trainingModel
from poptorch_emu.optim import SGD
from poptorch_emu.report.time_report import TimeReport

HIDDEN, WIDTH, NUM_IPUS = (1024,) * 8, 256, 4
_ROWS, _ACCUMULATION = 8, 16
_WAY = "poptorch.BeginBlock(layer, ipu_id=...) puts a layer on an IPU"


def _wrap(model: Layers) -> Wrapped:
    model = copy.deepcopy(model)  # The learner's model stays unchanged and can be checked again.
    inputs = torch.zeros(2, _ROWS * _ACCUMULATION, WIDTH).unbind()
    optimizer = SGD(model.parameters(), lr=0.1)
    return trainingModel(model, plain_options(_ACCUMULATION), optimizer), *inputs


def _assess(model: Layers) -> Findings:
    if not _has_all_layers(model):
        return Findings((
            f"The model should be course.Layers({list(HIDDEN)}), with all its layers, but its "
            "weights are others.",
        ))  # fmt: skip
    if not _computes_the_same(model):
        return Findings((
            "The model no longer computes what course.Layers does. A cut changes where layers "
            "run, never what they compute: is each layer called once, in order?",
        ))  # fmt: skip
    report = estimate(*_wrap(model), system=SYSTEM)
    halves = [
        [_ipu_of(f"layers.{number}.{half}", report) for half in ("up", "down")]
        for number in range(len(HIDDEN))
    ]
    shown = ("/".join(map(str, dict.fromkeys(of_layer))) for of_layer in halves)
    facts = (f"The layers run on the IPUs {', '.join(shown)}.",)
    ipus = [ipu for of_layer in halves for ipu in of_layer]
    return Findings(tuple(_faults(ipus, sorted(set(ipus)))), facts)


def _faults(ipus: Sequence[int], used: Sequence[int]) -> list[str]:
    if len(used) != NUM_IPUS:
        return [f"The layers use {len(used)} of the {NUM_IPUS} IPUs that there are. {_WAY}."]
    counts = [ipus.count(ipu) / 2 for ipu in used]  # Two halves are a layer.
    if len(set(counts)) > 1:
        shown = ", ".join(f"{count:g}" for count in counts)
        return [
            f"The IPUs have {shown} layers. All layers take equally long, so the IPU with most of "
            "them makes the others wait: give each IPU the same number."
        ]
    return []


def _ipu_of(module: str, report: TimeReport) -> int:
    return next(one.ipu for one in report.operations() if one.module == module)


def _has_all_layers(model: Layers) -> bool:
    shapes = {name: value.shape for name, value in Layers(HIDDEN, WIDTH).named_parameters()}
    return {name: value.shape for name, value in model.named_parameters()} == shapes


def _computes_the_same(model: Layers) -> bool:
    plain = Layers(HIDDEN, WIDTH)
    plain.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(2, _ROWS, WIDTH, generator=generator).unbind()
    with torch.no_grad():
        outputs = zip(model(*batch), plain(*batch), strict=True)
        return all(torch.allclose(here, there, rtol=1e-4, atol=1e-5) for here, there in outputs)


EXERCISE = Exercise(
    "cut a model", "a course.Layers of which you have cut the layers", (Layers,), _assess, _wrap
)
