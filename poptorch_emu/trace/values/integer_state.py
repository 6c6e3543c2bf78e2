"""Parameters and buffers of integers or bool: constants, unless `forward` changes them.

PopTorch makes all of them constants. Here a buffer that `forward` changes keeps its new value, as
in plain PyTorch. If `forward` only adds numbers to a buffer, as batch norms do to their counters,
the host adds them, so that no program needs the buffer. Otherwise the buffer becomes a variable of
the device in every model that shares it. A trace cannot read the value of such a buffer, because
every call would then use the same value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import fx
from torch.utils.weak import WeakIdKeyDictionary

from poptorch_emu.errors import Error, compiler_error
from poptorch_emu.ir.graph import Graph, Source, SourceKind, source_of
from poptorch_emu.ir.mutation import is_mutating, written_memory
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.troubleshooting import Topic

_ADDITIONS = (torch.ops.aten.add_.Tensor, torch.ops.aten.add_.Scalar)
_IS_STATE = "is_state"
# Name of counters of batches, which a training model changes and an evaluated one reads.
_COUNTER = "num_batches_tracked"
# Tensors of the host that the `forward` of some model changes.
_changing = WeakIdKeyDictionary()


def mark(node: fx.Node) -> None:
    """Marks the constant `node` as a parameter or buffer of the model."""
    node.meta[_IS_STATE] = True


def is_integer_state(node: fx.Node) -> bool:
    """Returns whether `node` is a parameter or buffer that is still a constant."""
    return node.op == "placeholder" and _IS_STATE in node.meta


def settle(
    graph: Graph,
    returned: Collection[fx.Node],
    lines_that_read: Mapping[str, str],
    host_tensors: Mapping[str, torch.Tensor],
) -> dict[str, int]:
    """Turns buffers of integers that `forward` changes into variables.

    Args:
        graph: the recorded `forward`.
        returned: nodes of the outputs.
        lines_that_read: the user's line that read the value of a buffer in the trace, by buffer.
        host_tensors: buffers on the host, by name.

    Returns:
        The number that a micro-batch adds, for each buffer that `forward` only adds numbers to or
        does not use.

    Raises:
        Error: the trace read the value of a buffer that `forward` changes.
    """
    state = [node for node in graph.sources if is_integer_state(node)]
    if not state:
        return {}
    written = set[fx.Node]().union(*map(written_memory, filter(is_mutating, graph.operations)))
    counts = {}
    for node in state:
        name, added = source_of(node).name, _added_to(node, returned)
        if node in written:
            if name in lines_that_read:
                raise reads_changed(name, lines_that_read[name])
            _changing[host_tensors[name]] = True
        is_read_only = node not in written and added is None
        if is_read_only and (name in lines_that_read or not _changes(name, host_tensors[name])):
            continue
        del node.meta[_IS_STATE]
        if added is None:
            node.meta["source"] = Source(SourceKind.VARIABLE, name)
            del graph.constants[name]
        else:
            counts[name] = added
    return counts


def _changes(name: str, value: torch.Tensor) -> bool:
    """Returns whether another model may change a buffer that this one only reads."""
    return name.rpartition(".")[2] == _COUNTER or value in _changing


def reads_changed(name: str, line: str = "") -> Error:
    """Returns the error for a read of a buffer that `forward` changes."""
    return compiler_error(
        f"forward reads the value of {name} (int(), item(), tolist(), `if` or a mask as an index) "
        f"at {line or user_source()}, and changes {name}, too: every call would use the value of "
        "the first one. Keep the value on the device: compute with the tensor, decide with "
        "torch.where or poptorch.cond, and write rows of a queue by a tensor index, as "
        f"queue.index_copy_(0, (self.ptr + torch.arange(n)) % size, rows); {Topic.INTEGER_STATE}"
    )


def _added_to(node: fx.Node, returned: Collection[fx.Node]) -> int | None:
    """Returns the sum of the numbers added in place; None if the buffer is used otherwise."""
    total = 0
    if node in returned or node.meta["val"].dtype is torch.bool:
        return None
    for user in node.users:
        if user.target not in _ADDITIONS or user.args[0] is not node or user.kwargs:
            return None
        number, further = user.args[1], _added_to(user, returned)
        if type(number) is not int or len(user.args) != 2 or further is None:
            return None
        total += number + further
    return total
