# ruff: noqa: E501 -- tables of configurations
"""Neurons of `snntorch` behind a linear layer, over a few steps of time."""

from __future__ import annotations

import inspect
from typing import Any

import snntorch
import torch
from sample import Library, Sample, first_that_runs

_STEPS, _BATCH, _SIZE = 4, 3, 6
_OWN = ("Alpha", "DeltaLeaky", "Lapicque", "Leaky", "LeakyParallel", "RLeaky", "RSynaptic",
        "SConv2dLSTM", "SLSTM", "StateLeaky", "AssociativeLeaky", "LinearLeaky", "Synaptic")  # fmt: skip
_WAYS = ("hidden", "learning", "reset_zero", "explicit")
_OVER_TIME = {"LeakyParallel", "StateLeaky", "AssociativeLeaky", "LinearLeaky"}
_GIVEN: dict[str, Any] = {
    "beta": 0.9, "alpha": 0.8, "threshold": 0.5, "linear_features": _SIZE, "input_size": _SIZE,
    "hidden_size": _SIZE, "in_channels": 2, "out_channels": 2, "kernel_size": 3, "channels": _SIZE,
    "in_dim": _SIZE, "num_spiking_neurons": _SIZE**2, "d_value": _SIZE, "d_key": _SIZE,
    "in_features": _SIZE, "out_features": _SIZE,
}  # fmt: skip


def names() -> list[str]:
    """Returns each neuron with each way to keep its state."""
    known = [name for name in _OWN if hasattr(snntorch, name)]
    return [f"{name}-{way}" for name in known for way in _WAYS]


def make(name: str) -> Sample:
    """Returns a network with one neuron."""
    kind, _, way = name.partition("-")
    settings = {
        "hidden": {"init_hidden": True},
        "learning": {"init_hidden": True, "learn_beta": True, "learn_threshold": True},
        "reset_zero": {"init_hidden": True, "reset_mechanism": "zero"},
        "explicit": {},
    }[way]
    own = getattr(snntorch, kind)
    accepted = set(inspect.signature(own.__init__).parameters)
    if kind == "DeltaLeaky":  # It passes other arguments to the constructor of Leaky.
        accepted |= set(inspect.signature(snntorch.Leaky.__init__).parameters)
    if kind in ("RLeaky", "RSynaptic"):  # The recurrent layer is linear.
        accepted.discard("kernel_size")
    given = {**_GIVEN, **({"alpha": 0.95} if kind == "Alpha" else {}), **settings}
    neuron = own(**{key: value for key, value in given.items() if key in accepted})
    model = _Network(neuron, kind, is_explicit=way == "explicit")
    shape = (_BATCH, 2, 5, 5) if kind == "SConv2dLSTM" else (_BATCH, _SIZE)
    return first_that_runs(model, [(torch.rand(_STEPS, *shape),)])


class _Network(torch.nn.Module):
    """A linear layer (none before convolutions) and a neuron."""

    def __init__(self, neuron: Any, kind: str, *, is_explicit: bool) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(
            5 if kind == "SConv2dLSTM" else _SIZE, 5 if kind == "SConv2dLSTM" else _SIZE
        )
        self.neuron = neuron
        self._kind, self._is_explicit = kind, is_explicit

    def forward(self, x: torch.Tensor) -> Any:
        if self._kind in _OVER_TIME:
            return self.neuron(self.linear(x))
        if not self._is_explicit:
            # `reset_hidden` would reset every neuron of the process that was not copied.
            self.neuron.reset_mem()
            spikes = [self.neuron(self.linear(step)) for step in x]
            return torch.stack([s[0] if isinstance(s, tuple) else s for s in spikes])
        state = self._first_state()
        found = []
        for step in x:
            spike, *state = self.neuron(self.linear(step), *state)
            found.append(spike)
        return torch.stack(found), *state

    def _first_state(self) -> tuple[Any, ...]:
        if self._kind == "DeltaLeaky":
            return ((None, None),)
        state = self.neuron.reset_mem()
        return state if isinstance(state, tuple) else (state,)


LIBRARY = Library(names, make)
