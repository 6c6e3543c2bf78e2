"""Finds where each operation of a trace belongs: block, module, line and scope.

An operation of backward finds its forward operation by the sequence number of its autograd node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from poptorch_emu.ir.record import BlockPlace, NodeRecord, Phase
from poptorch_emu.torch_versions import (
    current_autograd_node,
    get_sequence_nr,
    top_saved_tensors_default_hooks,
)
from poptorch_emu.trace.places import blocks, scopes
from poptorch_emu.trace.places.source_line import model_source
from poptorch_emu.trace.pytorch import checkpoints

# Returns the open block, for the name of an operation and the module that runs it.
OpenBlock = Callable[[str, str], BlockPlace]


class Origins:
    """Makes the records of the operations of one trace.

    Attributes:
        modules: dotted names of the modules whose forward is running, the innermost last.
        phase: phase that is being recorded, forward or backward.
        has_saved_tensor_hooks: whether hooks of the user change the tensors that autograd saves.
    """

    def __init__(self, open_block: OpenBlock = blocks.current_block) -> None:
        """Starts in forward, outside of all modules. `open_block` gives the block of a record."""
        self._open_block = open_block
        self.modules: list[str] = []
        self.phase = Phase.FORWARD
        self.has_saved_tensor_hooks = False
        self._forward_records: dict[int, NodeRecord] = {}
        self._last_parts: tuple[Any, ...] = ()
        self._last_record = NodeRecord()

    def __call__(self, operation: str) -> NodeRecord:
        """Returns the record of the operation that is being recorded; "" stands for a constant."""
        if self.phase is Phase.BACKWARD:
            record = self._backward_origin()
            if not record.is_anonymous:  # Recomputed code is differentiated, too.
                self._forward_records.setdefault(get_sequence_nr() - 1, record)
            return record
        module = self.modules[-1] if self.modules else ""
        place = self._open_block(operation, module)
        if top_saved_tensors_default_hooks(True) is not None:
            self.has_saved_tensor_hooks = True
        record = self._record(
            place,
            module,
            model_source(),
            scopes.current_name(),
            scopes.current_attributes(),
            checkpoints.open_call(),
        )
        self._forward_records.setdefault(get_sequence_nr() - 1, record)
        return record

    def _record(
        self,
        place: BlockPlace,
        module: str,
        source: str,
        scope: str,
        attributes: Mapping[str, Mapping[str, Any]],
        call: int,
    ) -> NodeRecord:
        """Returns a record. Consecutive operations of one line share it."""
        parts = (place, module, source, scope, call)
        if self._last_parts != parts or self._last_record.attributes is not attributes:
            self._last_parts = parts
            self._last_record = NodeRecord(
                place,
                Phase.FORWARD,
                module,
                source,
                scope=scope,
                attributes=attributes,
                recomputed_call=call,
            )
        return self._last_record

    def _backward_origin(self) -> NodeRecord:
        node = current_autograd_node()
        forward = self._forward_records.get(node._sequence_nr()) if node is not None else None
        if forward is None:
            return NodeRecord(BlockPlace("", 0, 0), Phase.BACKWARD, is_anonymous=True)
        return replace(forward, phase=Phase.BACKWARD)
