"""Operations that PopTorch adds to PyTorch's. Outside a trace they run as plain PyTorch."""

from poptorch_emu.ops import namespace as _namespace  # noqa: F401 (registers operators)
from poptorch_emu.ops.attribute_lists import attributes_lists
from poptorch_emu.ops.contexts import Attribute, NameScope
from poptorch_emu.ops.cpu import CPU
from poptorch_emu.ops.custom import custom_op
from poptorch_emu.ops.decoding import ctc_beam_search_decoder
from poptorch_emu.ops.geometry import fps, nearest
from poptorch_emu.ops.identities import (
    identity_loss,
    nop,
    recomputationCheckpoint,
    set_available_memory,
)
from poptorch_emu.ops.loops_and_branches import cond, for_loop
from poptorch_emu.ops.multi_conv import MultiConv
from poptorch_emu.ops.overlap import set_overlap_for_input, set_overlap_for_output
from poptorch_emu.ops.printing import ipu_print_tensor
from poptorch_emu.ops.serialized_matmul import serializedMatMul
from poptorch_emu.ops.slicing import dynamic_slice, dynamic_update

__all__ = [
    "CPU",
    "Attribute",
    "MultiConv",
    "NameScope",
    "attributes_lists",
    "cond",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "for_loop",
    "fps",
    "identity_loss",
    "ipu_print_tensor",
    "nearest",
    "nop",
    "recomputationCheckpoint",
    "serializedMatMul",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
]
