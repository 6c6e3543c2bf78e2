"""Records an optimiser's rule once, as a graph that serves every parameter of a group.

The rule is a plain-PyTorch function of one weight, its gradient and its state; it must not look at
shapes, so that what is recorded on a small tensor runs on any other.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from poptorch_emu.ir.graph import Graph, Sink, SinkKind, Source, SourceKind
from poptorch_emu.ir.record import NodeRecord, Phase
from poptorch_emu.trace.recorder import IPU, Recorder
from poptorch_emu.update.config import LOSS_SCALING, OptimizerConfig
from poptorch_emu.update.rules import state_names, update

# No size of the template may be mistaken for a number of the rule.
_TEMPLATE_SHAPE = (3, 5)

WEIGHT = "weight"


def record_update(
    config: OptimizerConfig, group_index: int, weight_dtype: torch.dtype, gradient_scale: float
) -> Graph:
    """Returns the graph of one update of one weight.

    Args:
        config: the optimiser.
        group_index: which of its groups.
        weight_dtype: type of the weight.
        gradient_scale: by what the accumulated gradient is multiplied first.

    Returns:
        A graph with sources VARIABLE (the weight and its state, by name), GRADIENT and SCALAR
        (hyper-parameters that the host may change), and sinks VARIABLE.
    """
    graph = Graph()
    record = NodeRecord(phase=Phase.UPDATE)
    recorder = Recorder(graph, lambda: record)
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)

    def source(
        kind: SourceKind, name: str, dtype: torch.dtype, shape: tuple[int, ...] = _TEMPLATE_SHAPE
    ) -> torch.Tensor:
        with fake_mode:
            value = torch.empty(shape, dtype=dtype, device=IPU)
        recorder.add_source(Source(kind, name), value, record)
        return value

    weight = source(SourceKind.VARIABLE, WEIGHT, weight_dtype)
    gradient = source(SourceKind.GRADIENT, WEIGHT, config.accum_type)
    states = {}
    for spec in state_names(config, config.groups[group_index]):
        shape = () if spec.is_scalar else _TEMPLATE_SHAPE
        states[spec.name] = source(SourceKind.VARIABLE, spec.name, spec.dtype, shape)
    hypers: dict[str, float | torch.Tensor] = {
        name: hyper.value
        if hyper.is_constant
        else source(SourceKind.SCALAR, name, torch.float64, ())
        for name, hyper in (*config.groups[group_index].hypers, (LOSS_SCALING, config.loss_scaling))
    }
    with torch.no_grad(), fake_mode, recorder:
        reduced = _rescaled(gradient, hypers.pop(LOSS_SCALING), gradient_scale)
        new_weight, new_state = update(config, group_index, weight, reduced, states, hypers)
    results = []
    for name, value in {WEIGHT: new_weight, **new_state}.items():
        node = recorder.find(value)
        assert node is not None, f"the rule made {name} without an operation"
        results.append((Sink(SinkKind.VARIABLE, name), node))
    graph.set_results(results)
    return graph


def _rescaled(
    gradient: torch.Tensor, loss_scaling: float | torch.Tensor, scale: float
) -> torch.Tensor:
    """Frees a gradient of the loss scaling and multiplies it by `scale`."""
    if isinstance(loss_scaling, torch.Tensor):
        return gradient.float() * (scale / loss_scaling).float()
    factor = scale / loss_scaling
    return gradient if factor == 1.0 else gradient.float() * factor
