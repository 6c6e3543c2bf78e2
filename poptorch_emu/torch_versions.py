"""The private names of PyTorch that the package uses, for all versions that it supports.

Names of PyTorch that begin with an underscore, or belong to a module whose name does, may move or
change with any release. No other module uses them: each has a name here, and the comment above it
says what breaks if it moves. Differences between versions of PyTorch are handled here, too.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
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

# The next modules are looked up by name, because functions of the package hide some of them.
cond, map_rows, scan, while_loop = (
    sys.modules[f"torch._higher_order_ops.{name}"] for name in ("cond", "map", "scan", "while_loop")
)

# Operators. Without them no operation can be recorded, rewritten or lowered.
OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket

# Operators that take functions. Without them PyTorch's own branches and loops would be refused.
HigherOrderOperator = torch._ops.HigherOrderOperator
cond_module = cond
cond_op = cond.cond_op
map_impl = map_rows.map_impl
scan_op = scan.scan_op
while_loop_op = while_loop.while_loop_op
# Tracer of PyTorch. Without it a graph within a graph would silently keep values of stand-ins.
MakefxTracer = proxy_tensor._MakefxTracer

# Tensors without elements, for recording forward, and the errors that they raise.
FakeTensor = fake_tensor.FakeTensor
FakeTensorMode = fake_tensor.FakeTensorMode
DataDependentOutputException = fake_tensor.DataDependentOutputException
DynamicOutputShapeException = fake_tensor.DynamicOutputShapeException
FakeTensorDeviceMismatchError = fake_tensor.FakeTensorDeviceMismatchError
UnsupportedOperatorException = fake_tensor.UnsupportedOperatorException
make_subclass = torch.Tensor._make_subclass
make_wrapper_subclass = torch.Tensor._make_wrapper_subclass
# Without this, fakes would return an invalid address for their data.
set_throw_on_mutable_data_ptr = torch._C._set_throw_on_mutable_data_ptr

# Modes that see each operation, and ways to hide PyTorch's own code from them. Without these,
# operations would be recorded twice or not at all.
TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode
disable_current_modes = torch.utils._python_dispatch._disable_current_modes
no_dispatch = torch.utils._mode_utils.no_dispatch
DisableTorchDispatch = torch._C._DisableTorchDispatch
DisableTorchFunction = torch._C.DisableTorchFunction
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
disabled_torch_function_impl = torch._C._disabled_torch_function_impl
get_current_function_mode_stack = torch.overrides._get_current_function_mode_stack
is_torch_function_mode_enabled = torch._C._is_torch_function_mode_enabled

# Internals of fakes. Without them metadata of results could not be cached.
TorchDispatchModeKey = torch._C._TorchDispatchModeKey
PreserveDispatchKeyGuard = torch._C._PreserveDispatchKeyGuard
get_dispatch_mode = torch._C._get_dispatch_mode
has_kernel_for_dispatch_key = torch._C._dispatch_has_kernel_for_dispatch_key
op_implementations_checks = fake_impls.op_implementations_checks
set_meta_in_tls_dispatch_include = torch._C._set_meta_in_tls_dispatch_include

# Look-up of operators in libraries. Without it they would have no gradients, and calls of an
# operator without its overload would fail.
DispatchKey = torch._C.DispatchKey
ForceDispatchKeyGuard = torch._C._ForceDispatchKeyGuard
dispatch_tls_local_exclude_set = torch._C._dispatch_tls_local_exclude_set
dispatch_tls_local_include_set = torch._C._dispatch_tls_local_include_set
resolve_packet = torch._C._jit_resolve_packet

# Links from backward to forward. Without them operations of backward would have no stage or line.
current_autograd_node = torch._C._current_autograd_node
get_sequence_nr = torch._C._autograd._get_sequence_nr
top_saved_tensors_default_hooks = torch._C._autograd._top_saved_tensors_default_hooks

# Function for gradients, because `torch.autograd.grad` does not accept stand-ins.
engine_run_backward = graph._engine_run_backward
current_graph_task_id = torch._C._current_graph_task_id

# Functions that are recorded in a form of ours, or patched during a recording.
grouped_mm = torch._grouped_mm
meta_registrations = torch._meta_registrations
nll_loss_nd = torch._C._nn.nll_loss_nd
native_functions = torch._C._nn
pack_padded_sequence = torch._VF._pack_padded_sequence
pad_packed_sequence = torch._VF._pad_packed_sequence
tensor_str = torch._tensor_str

# Functions of PyTorch that raise if a value is false; whether elements of a tensor share memory.
CHECKS = frozenset({torch._assert.__code__, torch._check_tensor_all_with.__code__})
has_internal_overlap = torch._debug_has_internal_overlap

# The generator of a checkpointed function, which 2.14 renamed. Without it PyTorch would run such
# functions twice, and the device would not recompute them.
CHECKPOINT_GENERATOR = next(
    name
    for name in (
        "_checkpoint_without_reentrant_generator_impl",
        "_checkpoint_without_reentrant_generator",
    )
    if hasattr(torch.utils.checkpoint, name)
)

# Nests of tensors; the count of writes to a tensor; the base class of all batch norms; the iterator
# of a loader without workers; a function behind a name of PopTorch's native core.
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
    """Excludes a function and its callees from `torch.compile`, without importing the compiler."""
    vars(function)["_torchdynamo_disable"] = True
    skip = torch._C._dynamo.eval_frame._FrameAction.SKIP
    strategy = torch._C._dynamo.eval_frame._FrameExecStrategy(skip, skip)
    torch._C._dynamo.eval_frame.set_code_exec_strategy(function.__code__, strategy)


def is_jit_tracing() -> bool:
    """Returns whether `torch.jit.trace` is running a function."""
    return torch._C._is_tracing()


@contextmanager
def without_jit_tracing() -> Iterator[None]:
    """Keeps `torch.jit.trace` from recording operations, which may change recorded values."""
    core: Any = torch._C
    state = core._get_tracing_state()
    core._set_tracing_state(None)
    try:
        yield
    finally:
        core._set_tracing_state(state)


def without_functorch_transforms() -> AbstractContextManager[Any]:
    """Runs operations as outside of `torch.func`, which refuses changes of captured tensors."""
    if not has_functorch_transform():
        return nullcontext()
    transforms: Any = importlib.import_module("torch._functorch.pyfunctorch")
    cleared: AbstractContextManager[Any] = transforms.temporarily_clear_interpreter_stack()
    return cleared


def has_functorch_transform() -> bool:
    """Returns whether a function runs under `torch.func`, whose tensors have no memory."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def has_capturing_mode() -> bool:
    """Returns whether operations are being recorded, by our tracer or by PyTorch's."""
    keys = (torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY)
    return any(torch._C._get_dispatch_mode(key) is not None for key in keys)


@cache
def start_autograd() -> None:
    """Runs one backward, so that autograd sets up its threads before it meets fake tensors.

    Otherwise a CUDA build of PyTorch 2.14 would start threads while fake tensors are active, and a
    process that is forked from one with such threads cannot differentiate.
    """
    with torch.inference_mode(False), torch.enable_grad():
        torch.autograd.backward(torch.ones((), requires_grad=True))


def registered_operator(name: str) -> Any:
    """Returns PyTorch's entry for a user's operator, which holds its kernels for metadata."""
    return torch._library.simple_registry.singleton.find(name)


def validates_distributions() -> bool:
    """Returns whether `torch.distributions` checks values (`set_default_validate_args`)."""
    return torch.distributions.Distribution._validate_args


# Private attributes of PyTorch's objects, with the feature that breaks if one is removed.
ATTRIBUTES = {
    "_backward_hooks": "hooks of parameters, which are refused",
    "_base": "writes through views of tensors of the host",
    "_buffers": "buffers are found, and put back after a trace",
    "_cdata": "operators and tensors are told apart by their place in memory",
    "_check_input_dim": "batch norms that average their statistics",
    "_detect_is_causal_mask": "masks of Transformers, whose values are not looked at",
    "_flat_weights": "parameters of recurrent layers are put back after a trace",
    "_flat_weights_names": "parameters of recurrent layers, as another thread sees them",
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
# Operators of PyTorch with private names, with the feature that breaks if one is removed.
OPERATORS = {
    "_adaptive_avg_pool2d": "poolings of joined micro-batches",
    "_adaptive_avg_pool2d_backward": "poolings of joined micro-batches",
    "_assert_async": "checks of values, which decide nothing",
    "_assert_tensor_metadata": "checks of metadata in exported programs, which are left out",
    "_cdist_backward": "distances of float16 numbers",
    "_cdist_forward": "distances of float16 numbers",
    "_ctc_loss": "kernels that read the order of memory",
    "_efficientzerotensor": "zeros of derivatives in forward mode, whose values are asked for",
    "_embedding_bag": "kernels that read the order of memory",
    "_embedding_bag_forward_only": "kernels that read the order of memory",
    "_index_put_impl_": "assignments by masks",
    "_linalg_det": "factors that the gradient of a determinant expects",
    "_linalg_slogdet": "factors that the gradient of a determinant expects",
    "_local_scalar_dense": "numbers that are read from tensors, which is refused",
    "_log_softmax": "losses that are computed in one pass",
    "_log_softmax_backward_data": "losses that are computed in one pass",
    "_batch_norm_no_update": "norms, whose strides differ from those of the kernel",
    "_batch_norm_with_update": "norms, whose strides differ from those of the kernel",
    "_batch_norm_with_update_functional": "norms, whose strides differ from those of the kernel",
    "_native_batch_norm_legit": "norms, which recomputation keeps",
    "_native_batch_norm_legit_functional": "norms in training: images channels last, recomputation",
    "_native_batch_norm_legit_no_training": "norms, which recomputation keeps",
    "_pdist_backward": "kernels that read the order of memory",
    "_pdist_forward": "kernels that read the order of memory",
    "_reshape_alias": "views whose metadata is remembered",
    "_scaled_dot_product_flash_attention_for_cpu": "attention, also in half precision",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "attention, also in half precision",
    "_softmax": "softmaxes of joined micro-batches",
    "_softmax_backward_data": "softmaxes of joined micro-batches",
    "_to_copy": "casts",
    "_unique2": "results of unknown sizes, which are refused",
    "_unsafe_view": "views that their schema does not declare",
}
