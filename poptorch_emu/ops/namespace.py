"""Operators of `torch.ops.poptorch`, which programs call in place of the public functions.

Each one decomposes into the operations of a public function, on the CPU and in a trace, so a graph
never contains one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from poptorch_emu.enums import OverlapMode
from poptorch_emu.errors import compiler_error
from poptorch_emu.ops.decoding import ctc_beam_search_decoder
from poptorch_emu.ops.geometry import fps, nearest
from poptorch_emu.ops.identities import (
    identity_loss,
    nop,
    recomputationCheckpoint,
    set_available_memory,
)
from poptorch_emu.ops.overlap import set_overlap_for_input, set_overlap_for_output
from poptorch_emu.ops.printing import ipu_print_tensor
from poptorch_emu.ops.slicing import dynamic_slice, dynamic_update
from poptorch_emu.trace.places import scopes

# Names of dtypes in PyTorch and in ONNX.
_TYPES = {
    "bool": torch.bool,
    "float": torch.float32,
    "float16": torch.float16,
    "float32": torch.float32,
    "half": torch.float16,
    "int": torch.int32,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
}


def _pop_name_scope() -> None:
    if not scopes.current_name():
        raise compiler_error("pop_name_scope was called more often than push_name_scope.")
    scopes.close_name()


def _internal_cast(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    found = _TYPES.get(dtype.lower().removeprefix("torch."))
    if found is None:
        raise compiler_error(
            f"internal_cast cannot convert to {dtype!r}; choose one of {', '.join(_TYPES)}."
        )
    return tensor.to(found)


def _overlap_for_input(tensor: torch.Tensor, mode: str) -> torch.Tensor:
    result: torch.Tensor = set_overlap_for_input(tensor, OverlapMode(mode))
    return result


def _overlap_for_output(tensor: torch.Tensor, mode: str) -> torch.Tensor:
    result: torch.Tensor = set_overlap_for_output(tensor, OverlapMode(mode))
    return result


_OPERATORS: dict[str, Callable[..., Any]] = {
    "ctc_beam_search_decoder(Tensor probs, Tensor lengths, int blank=0, int beam_width=100, "
    "int top_paths=1) -> (Tensor, Tensor, Tensor)": ctc_beam_search_decoder,
    "dynamic_slice(Tensor tensor, int dim, Tensor start, int size, int step) -> Tensor": (
        dynamic_slice
    ),
    "dynamic_update(Tensor input, Tensor src, int dim, Tensor start, int size) -> Tensor": (
        dynamic_update
    ),
    "fps(Tensor src, int[] ptr, float ratio=0.5, bool random_start=False) -> Tensor": fps,
    "identity_loss(Tensor x, str reduction) -> Tensor": identity_loss,
    "internal_cast(Tensor tensor, str dtype) -> Tensor": _internal_cast,
    'ipu_print_tensor(Tensor tensor, str title="", bool print_gradient=True, '
    "int summarise_threshold=1000, int edge_items=3, int max_line_width=80, int digits=4, "
    'str float_format="auto", str separator=", ", str open_bracket="(", str close_bracket=")") '
    "-> Tensor": ipu_print_tensor,
    "nearest(Tensor x, Tensor y, Tensor? batch_x=None, Tensor? batch_y=None) -> Tensor": nearest,
    "nearest_batch_list(Tensor x, Tensor y, int[] batch_x, int[] batch_y) -> Tensor": nearest,
    "nop(Tensor tensor) -> Tensor": nop,
    "pop_name_scope() -> ()": _pop_name_scope,
    "push_name_scope(str name) -> ()": scopes.open_name,
    "recomputation_checkpoint(Tensor tensor) -> Tensor": recomputationCheckpoint,
    "set_available_memory(Tensor tensor, float proportion) -> Tensor": set_available_memory,
    "set_overlap_for_input(Tensor tensor, str mode) -> Tensor": _overlap_for_input,
    "set_overlap_for_output(Tensor tensor, str mode) -> Tensor": _overlap_for_output,
}

_library = torch.library.Library("poptorch", "FRAGMENT")  # type: ignore[no-untyped-call]
for _schema, _function in _OPERATORS.items():
    _name = _library.define(_schema)  # type: ignore[no-untyped-call]
    _library.impl(_name, _function, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]
