"""Counters of batches, the buffers `num_batches_tracked` of norms: counted as PyTorch counts them.

A counter is a buffer of integers, so it begins as a constant of the graph. Where `forward` only
adds to it, no program needs it: the host counts what a micro-batch adds. Where `forward` computes
with it (a cumulative average does), it is a variable of the device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx
from torch.nn.modules.batchnorm import SyncBatchNorm

from poptorch_emu.errors import compiler_error
from poptorch_emu.ir.graph import Graph, Source, SourceKind, source_of
from poptorch_emu.ir.mutation import is_mutating, written_memory
from poptorch_emu.torch_versions import BatchNorm
from poptorch_emu.trace.patches import patched
from poptorch_emu.troubleshooting import Topic

COUNTER = "num_batches_tracked"
_ADDITIONS = (torch.ops.aten.add_.Tensor, torch.ops.aten.add_.Scalar)


def is_counter(node: fx.Node) -> bool:
    """Returns whether `node` is a counter of batches that is still a constant."""
    if node.op != "placeholder" or source_of(node).kind is not SourceKind.CONSTANT:
        return False
    return source_of(node).name.rpartition(".")[2] == COUNTER


def settle(
    graph: Graph, returned: Collection[fx.Node], lines_that_read: Mapping[str, str]
) -> dict[str, int]:
    """Makes variables of the counters that `forward` computes with.

    Args:
        graph: the recorded `forward`.
        returned: the nodes of what it returned.
        lines_that_read: the user's line for each counter whose value was looked at while tracing.

    Returns:
        By how much a micro-batch raises each of the other counters.

    Raises:
        Error: the value of a counter was looked at before it was changed.
    """
    counters = [node for node in graph.sources if is_counter(node)]
    if not counters:
        return {}
    written = set[fx.Node]().union(*map(written_memory, filter(is_mutating, graph.operations)))
    counts = {}
    for node in counters:
        name, added = source_of(node).name, _added_to(node, returned)
        if node in written and name in lines_that_read:
            raise _looked_at(name, lines_that_read[name])
        if added is None:
            node.meta["source"] = Source(SourceKind.VARIABLE, name)
            del graph.constants[name]
        else:
            counts[name] = added
    return counts


@contextmanager
def cumulative_averages() -> Iterator[None]:
    """Lets batch norms without a momentum read their counter on the device while they are traced.

    PyTorch reads its value: it is the number of the average's terms.
    """
    with (
        patched(BatchNorm, forward=_averaging(BatchNorm.forward)),
        patched(SyncBatchNorm, forward=_averaging(SyncBatchNorm.forward)),
    ):
        yield


def _averaging(forward: Any) -> Any:
    def averaged(norm: BatchNorm, input: torch.Tensor) -> Any:
        is_averaged = norm.training and norm.track_running_stats and norm.momentum is None
        if not is_averaged or norm.num_batches_tracked is None:
            return forward(norm, input)
        norm._check_input_dim(input)  # type: ignore[no-untyped-call]
        norm.num_batches_tracked.add_(1)
        share = 1.0 / norm.num_batches_tracked
        averages: Any = (norm.running_mean, norm.running_var)
        mean, variance = map(torch.zeros_like, averages)
        result = F.batch_norm(input, mean, variance, norm.weight, norm.bias, True, 1.0, norm.eps)
        with torch.no_grad():
            for average, batch in zip(averages, (mean, variance), strict=True):
                average.copy_((1.0 - share) * average.float() + share * batch.float())
        return result

    return averaged


def _added_to(node: fx.Node, returned: Collection[fx.Node]) -> int | None:
    """Returns the sum of the numbers that are added in place; `None` if anything else happens."""
    total = 0
    if node in returned:
        return None
    for user in node.users:
        if user.target not in _ADDITIONS or user.args[0] is not node or user.kwargs:
            return None
        number, further = user.args[1], _added_to(user, returned)
        if type(number) is not int or len(user.args) != 2 or further is None:
            return None
        total += number + further
    return total


def _looked_at(name: str, line: str) -> Exception:
    return compiler_error(
        f"forward looks at the value of {name} at {line}, and changes it afterwards: that value "
        "only exists when the model runs. Compute with the tensor (torch.where, poptorch.cond) "
        f"instead of int(), float(), item() or `if`; {Topic.PYTHON_CONTROL_FLOW}"
    )
