"""Exchanges between replicas in plain PyTorch, and a network that runs them in both ways.

Values are computed for all replicas at once, so that PyTorch's autograd finds the gradients of the
sum of all losses. If an exchange defines another gradient, the values of the other replicas are
detached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import poptorch_emu as poptorch
from poptorch_emu.companions.poptorch_experimental_addons import collectives

Values = list[torch.Tensor]


def gather(values: Sequence[torch.Tensor]) -> Values:
    """Returns all values to each replica."""
    return [torch.stack(list(values)) for _ in values]


def gather_identical(values: Sequence[torch.Tensor]) -> Values:
    """Returns all values to each replica; each value's gradient is that of its own replica."""
    return [
        torch.stack([other if r == s else other.detach() for s, other in enumerate(values)])
        for r, _ in enumerate(values)
    ]


def reduce(values: Sequence[torch.Tensor]) -> Values:
    """Returns the sum to each replica; the gradient passes unchanged."""
    total = torch.stack(list(values)).sum(0).to(values[0].dtype)
    return [value + (total - value).detach() for value in values]


def sum_gradients(values: Sequence[torch.Tensor]) -> Values:
    """Returns the values; the gradient of each is the sum of all gradients."""
    others = [value - value.detach() for value in values]
    return [
        value.detach() + torch.stack([other.to(value.dtype) for other in others]).sum(0)
        for value in values
    ]


def to_all(values: Sequence[torch.Tensor]) -> Values:
    """Returns to replica r the r-th of R pieces of each value."""
    count = len(values)
    pieces = [value.chunk(count) for value in values]
    return [torch.cat([pieces[s][r] for s in range(count)]) for r in range(count)]


# Name -> function on one replica, of the number of replicas; function of all replicas at once.
EXCHANGES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "gather": (collectives.all_gather_cross_replica, gather),
    "identical": (
        collectives.all_gather_cross_replica_identical_grads_in,
        gather_identical,
    ),
    "reduce": (collectives.all_reduce_cross_replica_sum, reduce),
    "sum of gradients": (
        lambda x, count: collectives.all_reduce_cross_replica_sum(x, count, True),
        sum_gradients,
    ),
    "all to all": (collectives.all_to_all_single_cross_replica, to_all),
}


def options(num_replicas: int, accumulation: int = 1, **more: Any) -> poptorch.Options:
    result = poptorch.Options()
    result.showCompilationProgressBar(False)
    result.replicationFactor(num_replicas).autoRoundNumIPUs(True)
    result.Training.gradientAccumulation(accumulation)
    result.outputMode(poptorch.OutputMode.All)
    for name, value in more.items():
        getattr(result, name)(value)
    return result


class Network(torch.nn.Module):
    """Layers that all replicas share, with exchanges between them, on one IPU or several."""

    def __init__(self, num_replicas: int, num_stages: int, exchanges: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        self.num_replicas, self.num_stages, self.exchanges = num_replicas, num_stages, exchanges

    def mixed(self, values: list[torch.Tensor], run: Callable[[str, Any], Any]) -> Any:
        """Runs the layers on the values of some replicas; `run` runs the exchange with a name."""
        for number, layer in enumerate(self.layers):
            if self.num_stages > 1:
                stage = number * self.num_stages // len(self.layers)
                poptorch.Block.start(f"stage {stage}", ipu_id=stage)
            values = [torch.tanh(layer(value)) for value in values]
            for name in self.exchanges[number]:
                given = run(name, [torch.sin(value) for value in values])
                # Without the division, rounding in nested sums would exceed the tolerance.
                values = [
                    value
                    + (other.mean(0) if other.dim() > value.dim() else other) / self.num_replicas
                    for value, other in zip(values, given, strict=True)
                ]
        return values

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        (y,) = self.mixed([x], lambda name, x: [EXCHANGES[name][0](x[0], self.num_replicas)])
        return y, poptorch.identity_loss((y - target).square(), reduction="mean")

    def plain_step(self, x: torch.Tensor, target: torch.Tensor, accumulation: int) -> Any:
        """Runs one update in plain PyTorch; returns outputs in the emulator's order."""
        count = accumulation * self.num_replicas
        rows, targets = x.chunk(count), target.chunk(count)
        outputs = []
        for first in range(0, count, self.num_replicas):
            own = slice(first, first + self.num_replicas)
            values = self.mixed(list(rows[own]), lambda name, x: EXCHANGES[name][1](x))
            losses = [(y - t).square().mean() for y, t in zip(values, targets[own], strict=True)]
            (sum(losses) / count).backward()
            outputs += [value.detach() for value in values]
        with torch.no_grad():
            for parameter in self.parameters():
                parameter -= 0.5 * parameter.grad
                parameter.grad = None
        return torch.cat(outputs)


def compare(
    num_replicas: int,
    accumulation: int,
    num_stages: int,
    exchanges: Any,
    opts: poptorch.Options | None = None,
) -> None:
    """Trains two steps on the emulator and in plain PyTorch, and compares them."""
    module = Network(num_replicas, num_stages, exchanges)
    reference = Network(num_replicas, 1, exchanges)
    opts = options(num_replicas, accumulation) if opts is None else opts
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.5, use_combined_accum=False)
    training = poptorch.trainingModel(module, opts, optimizer)
    generator = torch.Generator().manual_seed(5)
    for _ in range(2):
        rows = accumulation * num_replicas * num_replicas
        x, target = torch.randn(2, rows, 4, generator=generator).unbind()
        y, _ = training(x, target)
        torch.testing.assert_close(y, reference.plain_step(x, target, accumulation))
    for name, weight in module.named_parameters():
        torch.testing.assert_close(weight.data, reference.get_parameter(name).data, msg=name)
    training.destroy()
