"""What is used of PyTorch that it does not promise to keep, and the versions that were tried.

Names of PyTorch that begin with an underscore, or lie in a module that does, may move or change
with any release. No other module names them: each is here under a name of its own, and above it
stands what breaks if it moves. What differs by version is made here, too.
"""

from __future__ import annotations

import sys
from functools import cache
from types import FunctionType
from typing import Any

import torch
import torch._higher_order_ops
import torch._library.simple_registry
import torch._meta_registrations
import torch._tensor_str
import torch.utils._mode_utils
import torch.utils._python_dispatch
import torch.utils._pytree
import torch.utils.checkpoint
from torch._C import _distributed_c10d as c10d
from torch._subclasses import fake_impls, fake_tensor
from torch.autograd import graph
from torch.fx.experimental import proxy_tensor
from torch.nn.modules import batchnorm
from torch.utils.data import dataloader

# Functions of the package have the names of its modules.
cond, map_rows, scan, while_loop = (
    sys.modules[f"torch._higher_order_ops.{name}"] for name in ("cond", "map", "scan", "while_loop")
)

# Operators, of which all graphs consist: nothing is recorded, rewritten or lowered.
OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket

# Operators that take functions: branches and loops of PyTorch's own would be refused.
HigherOrderOperator = torch._ops.HigherOrderOperator
cond_module = cond
cond_op = cond.cond_op
map_impl = map_rows.map_impl
scan_op = scan.scan_op
while_loop_op = while_loop.while_loop_op
# A graph in the graph would keep values of stand-ins, silently.
MakefxTracer = proxy_tensor._MakefxTracer

# Tensors without elements, with which forward is recorded, and how they refuse.
FakeTensor = fake_tensor.FakeTensor
FakeTensorMode = fake_tensor.FakeTensorMode
DataDependentOutputException = fake_tensor.DataDependentOutputException
DynamicOutputShapeException = fake_tensor.DynamicOutputShapeException
FakeTensorDeviceMismatchError = fake_tensor.FakeTensorDeviceMismatchError
UnsupportedOperatorException = fake_tensor.UnsupportedOperatorException
make_subclass = torch.Tensor._make_subclass
make_wrapper_subclass = torch.Tensor._make_wrapper_subclass
# Fakes would hand out an address of nothing.
set_throw_on_mutable_data_ptr = torch._C._set_throw_on_mutable_data_ptr

# Modes that see each operation, and how PyTorch's own code is kept from them: operations would be
# recorded twice, or by nobody.
TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode
disable_current_modes = torch.utils._python_dispatch._disable_current_modes
no_dispatch = torch.utils._mode_utils.no_dispatch
DisableTorchDispatch = torch._C._DisableTorchDispatch
DisableTorchFunction = torch._C.DisableTorchFunction
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
disabled_torch_function_impl = torch._C._disabled_torch_function_impl
get_current_function_mode_stack = torch.overrides._get_current_function_mode_stack
is_torch_function_mode_enabled = torch._C._is_torch_function_mode_enabled

# What a fake knows of an operation: metadata of results would not be remembered.
TorchDispatchModeKey = torch._C._TorchDispatchModeKey
PreserveDispatchKeyGuard = torch._C._PreserveDispatchKeyGuard
get_dispatch_mode = torch._C._get_dispatch_mode
has_kernel_for_dispatch_key = torch._C._dispatch_has_kernel_for_dispatch_key
op_implementations_checks = fake_impls.op_implementations_checks
set_meta_in_tls_dispatch_include = torch._C._set_meta_in_tls_dispatch_include

# Operators of libraries: they would have no gradients, and calls by a packet no overload.
DispatchKey = torch._C.DispatchKey
ForceDispatchKeyGuard = torch._C._ForceDispatchKeyGuard
dispatch_tls_local_exclude_set = torch._C._dispatch_tls_local_exclude_set
dispatch_tls_local_include_set = torch._C._dispatch_tls_local_include_set
resolve_packet = torch._C._jit_resolve_packet

# Which operation of forward one of backward belongs to: backward would have no stage and no line.
current_autograd_node = torch._C._current_autograd_node
get_sequence_nr = torch._C._autograd._get_sequence_nr
top_saved_tensors_default_hooks = torch._C._autograd._top_saved_tensors_default_hooks

# Gradients: `torch.autograd.grad` does not take stand-ins.
engine_run_backward = graph._engine_run_backward
current_graph_task_id = torch._C._current_graph_task_id

# Functions that are recorded in a form of ours, or patched while something is recorded.
grouped_mm = torch._grouped_mm
meta_registrations = torch._meta_registrations
nll_loss_nd = torch._C._nn.nll_loss_nd
pack_padded_sequence = torch._VF._pack_padded_sequence
pad_packed_sequence = torch._VF._pad_packed_sequence
tensor_str = torch._tensor_str

# The generator around a function that is checkpointed, which 2.14 renamed: such functions would be
# run twice by PyTorch, and not recomputed by the device.
CHECKPOINT_GENERATOR = next(
    name
    for name in (
        "_checkpoint_without_reentrant_generator_impl",
        "_checkpoint_without_reentrant_generator",
    )
    if hasattr(torch.utils.checkpoint, name)
)

# Nests of tensors; how often a tensor was written to; the base of all batch norms; what a loader
# without workers iterates with; a name of PopTorch's native core.
pytree = torch.utils._pytree
version_of = torch.Tensor._version.__get__  # type: ignore[attr-defined]
BatchNorm = batchnorm._BatchNorm
SingleProcessDataLoaderIter = dataloader._SingleProcessDataLoaderIter
propagate_shapes_on_graph = torch._C._jit_pass_propagate_shapes_on_graph

# Stores of process groups, where processes leave messages for each other.
Store = c10d.Store
PrefixStore = c10d.PrefixStore
TCPStore = c10d.TCPStore
default_store = torch.distributed.distributed_c10d._get_default_store


def leave_uncompiled(function: FunctionType) -> None:
    """Keeps `torch.compile` from following a function, and what it calls, without its import."""
    vars(function)["_torchdynamo_disable"] = True
    skip = torch._C._dynamo.eval_frame._FrameAction.SKIP
    strategy = torch._C._dynamo.eval_frame._FrameExecStrategy(skip, skip)
    torch._C._dynamo.eval_frame.set_code_exec_strategy(function.__code__, strategy)


def is_jit_tracing() -> bool:
    """Returns whether `torch.jit.trace` runs a function."""
    return torch._C._is_tracing()


def has_functorch_transform() -> bool:
    """Returns whether a function runs under `torch.func`, whose tensors have no memory."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def has_capturing_mode() -> bool:
    """Returns whether operations are taken down, by a trace of ours or by PyTorch's."""
    keys = (torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY)
    return any(torch._C._get_dispatch_mode(key) is not None for key in keys)


@cache
def start_autograd() -> None:
    """Has autograd decide about its threads, once, before it meets tensors without values.

    Of a build for CUDA, PyTorch 2.14 would start threads among fake tensors, and a process that is
    forked from one with such threads cannot differentiate.
    """
    with torch.inference_mode(False), torch.enable_grad():
        torch.autograd.backward(torch.ones((), requires_grad=True))


def registered_operator(name: str) -> Any:
    """Returns what PyTorch knows of a user's operator beyond its schema: kernels for metadata."""
    return torch._library.simple_registry.singleton.find(name)


def validates_distributions() -> bool:
    """Returns whether `torch.distributions` looks at values, as `set_default_validate_args` set."""
    return torch.distributions.Distribution._validate_args


# Private attributes of PyTorch's objects, with what breaks if one goes.
ATTRIBUTES = {
    "_backward_hooks": "hooks of parameters, which are refused",
    "_base": "writes through views of tensors of the host",
    "_buffers": "buffers are found, and put back after a trace",
    "_cdata": "operators and tensors are told apart by their place in memory",
    "_check_input_dim": "batch norms that average their statistics",
    "_detect_is_causal_mask": "masks of Transformers, whose values are not looked at",
    "_flat_weights": "parameters of recurrent layers are put back after a trace",
    "_forward_pre_hooks": "block annotations, and the text of a model",
    "_get_name": "the text of a model",
    "_indices": "sparse tensors of the host that forward reads",
    "_is_param": "which tensors a trace takes for parameters",
    "_kwargs_chunk_spec": "how exported breadth-first pipelines cut their inputs",
    "_make_subclass": "parameters that are made in forward",
    "_metadata": "the versions of modules in a state",
    "_modules": "the parts of a model are walked through",
    "_next_data": "batches that are collated into their place",
    "_opt_called": "the warning of PyTorch's learning rate schedulers",
    "_overloadname": "kernels for metadata, and the names of exported operators",
    "_parameters": "parameters are found, and put back after a trace",
    "_post_accumulate_grad_hooks": "hooks of parameters, which are refused",
    "_prepare_schedule_with_comms": "exported pipelines that run a table",
    "_qualified_op_name": "operators of libraries that are called by packet",
    "_schema": "the arguments of operators by name, and what they alias",
    "_sequence_nr": "which operation of forward one of backward belongs to",
    "_str_intern": "how tensors of a device are printed",
    "_use_count": "whether forward left a tensor somewhere",
    "_values": "sparse tensors of the host that forward reads",
}
# Operators of PyTorch's whose names are private, with what is recognised no more if one goes.
OPERATORS = {
    "_adaptive_avg_pool2d": "poolings of joined micro-batches",
    "_adaptive_avg_pool2d_backward": "poolings of joined micro-batches",
    "_cdist_backward": "distances of float16 numbers",
    "_cdist_forward": "distances of float16 numbers",
    "_efficientzerotensor": "zeros of derivatives in forward mode, whose values are asked for",
    "_index_put_impl_": "assignments by masks",
    "_local_scalar_dense": "numbers that are read from tensors, which is refused",
    "_log_softmax": "losses that are computed in one pass",
    "_log_softmax_backward_data": "losses that are computed in one pass",
    "_native_batch_norm_legit": "norms, which recomputation keeps",
    "_native_batch_norm_legit_functional": "norms in training: images channels last, recomputation",
    "_native_batch_norm_legit_no_training": "norms, which recomputation keeps",
    "_reshape_alias": "views whose metadata is remembered",
    "_scaled_dot_product_flash_attention_for_cpu": "attention, also in half precision",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "attention, also in half precision",
    "_softmax": "softmaxes of joined micro-batches",
    "_softmax_backward_data": "softmaxes of joined micro-batches",
    "_to_copy": "casts",
    "_unique2": "results of unknown sizes, which are refused",
    "_unsafe_view": "views that their schema does not declare",
}
