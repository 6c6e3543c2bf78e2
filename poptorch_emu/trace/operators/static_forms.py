"""Static forms of functions of PyTorch that read values or cannot be functionalised.

Each form computes the same result as the original, without its checks of the data and without
decisions that only save time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from poptorch_emu.errors import compiler_error
from poptorch_emu.torch_versions import (
    FakeTensor,
    disable_current_modes,
    grouped_mm,
    pack_padded_sequence,
    pad_packed_sequence,
    pytree,
)
from poptorch_emu.trace.model_state import quantisation
from poptorch_emu.trace.operators import dynamic_slices
from poptorch_emu.trace.places.source_line import user_source
from poptorch_emu.trace.pytorch import host_draws
from poptorch_emu.trace.recording import host_moves, host_writes
from poptorch_emu.trace.recording.regions import current
from poptorch_emu.trace.refusals import refusal, value_checks
from poptorch_emu.trace.values import decided_draws, value_guards
from poptorch_emu.trace.values.host_backed import HostBacked
from poptorch_emu.troubleshooting import Topic


def _gaussian_nll_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """Computes the loss without the check that all variances are at least 0."""
    if not isinstance(var, torch.Tensor):
        var = torch.full_like(input, var)
    elif var.dim() == input.dim() - 1:
        var = var.unsqueeze(-1)
    # The lower limit of the variance has no gradient.
    var = var + (var.clamp(min=eps) - var).detach()
    loss = 0.5 * (var.log() + (input - target).square() / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


def _bincount(
    input: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
) -> torch.Tensor:
    """Counts into exactly `minlength` bins, and ignores larger values."""
    if minlength <= 0 and input.device.type == "ipu" and input.numel():
        known = current().recorder.known.value(input.max())
        minlength = 0 if known is None else int(known) + 1
    if minlength <= 0:
        raise compiler_error(
            f"Bincount `minlength` must be specified and must be a constant, but at "
            f"{user_source()} it is {minlength}: the number of bins would depend on data. Pass "
            f"the number of bins. {value_guards.hint()}; {Topic.DATA_DEPENDENT_SHAPE}"
        )
    if weights is None:
        weights = torch.ones_like(input, dtype=torch.int64)
    elif weights.dtype is not torch.float32:
        weights = weights.double()
    bins = weights.new_zeros(minlength + 1)
    return bins.scatter_add(0, input.long().clamp(max=minlength), weights)[:-1]


def _tensor_split(
    input: torch.Tensor, indices_or_sections: Any, dim: int = 0
) -> tuple[torch.Tensor, ...]:
    """Splits by a tensor on the device if its values are known."""
    if isinstance(indices_or_sections, torch.Tensor) and indices_or_sections.device.type == "ipu":
        known = current().recorder.known.value(indices_or_sections)
        if known is None:
            raise compiler_error(
                f"tensor_split at {user_source()} makes tensors whose shape depends on data: its "
                "indices or sections are a tensor. Pass Python numbers. "
                f"{value_guards.hint()}; {Topic.DATA_DEPENDENT_SHAPE}"
            )
        indices_or_sections = known.tolist()
    return torch.tensor_split(input, indices_or_sections, dim)


def _narrow(input: torch.Tensor, dim: int, start: int | torch.Tensor, length: int) -> torch.Tensor:
    """Accepts a tensor as start. A slice beyond the end continues at the beginning."""
    if not isinstance(start, torch.Tensor):
        return torch.narrow(input, dim, start, length)
    offsets = torch.arange(length, device=input.device)
    return input.index_select(dim, (start.reshape(()) + offsets) % input.size(dim))


def _index_fill(
    input: torch.Tensor, dim: int, index: torch.Tensor, value: float | torch.Tensor
) -> torch.Tensor:
    """Selects by a mask, because the original's gradient of a tensor value checks for repeats."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return torch.index_fill(input, dim, index, value)
    mask = torch.zeros_like(input, dtype=torch.bool).index_fill(dim, index, True)
    return torch.where(mask, value, input)


def _index_fill_(
    input: torch.Tensor, dim: int, index: torch.Tensor, value: float | torch.Tensor
) -> torch.Tensor:
    """Does the same as `_index_fill`, in place."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return input.index_fill_(dim, index, value)
    return input.copy_(_index_fill(input, dim, index, value))


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Accepts classes of any integer type. The number of classes must not depend on data."""
    if num_classes < 0 and tensor.device.type == "ipu" and tensor.numel():
        known = current().recorder.known.value(tensor.max())
        if known is not None:
            return F.one_hot(tensor.long(), int(known) + 1)
        raise compiler_error(
            "OneHot num classes must be specified and must be constant. At "
            f"{user_source()} it would be one more than the largest value. Pass num_classes. "
            f"{value_guards.hint()}; {Topic.DATA_DEPENDENT_SHAPE}"
        )
    return F.one_hot(tensor.long(), num_classes)


def _take_along_dim(
    input: torch.Tensor, indices: torch.Tensor, dim: int | None = None, **out: torch.Tensor
) -> torch.Tensor:
    """Accepts indices of any integer type."""
    return torch.take_along_dim(input, indices.long(), dim, **out)


def _grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiplies all rows by the matrix of each group, and selects the product of each row.

    The size of each group depends on data (`offs` holds their ends), as in a mixture of experts.
    """
    if mat_a.dim() != 2 or mat_b.dim() != 3 or offs is None or bias is not None:
        raise compiler_error(
            f"grouped_mm at {user_source()} of {mat_a.dim()} and {mat_b.dim()} axes: only rows "
            "(two axes) times a matrix for each group (three axes), with offs and without bias, "
            "have a static form. Multiply the groups one by one, or batched with torch.bmm."
        )
    rows = torch.arange(mat_a.size(0), device=mat_a.device)
    group = torch.searchsorted(offs.long(), rows, right=True).unsqueeze(1)
    result = mat_a.new_zeros(mat_a.size(0), mat_b.size(2))
    for index, matrix in enumerate(mat_b):
        result = torch.where(group == index, mat_a @ matrix, result)
    return result if out_dtype is None else result.to(out_dtype)


def _histc(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Also counts integers, as PyTorch does on devices other than the CPU."""
    if input.is_floating_point():
        return torch.histc(input, *args, **kwargs)
    return torch.histc(input.float(), *args, **kwargs).to(input.dtype)


def _roll(input: torch.Tensor, shifts: Any, dims: Any = ()) -> torch.Tensor:
    """Raises the compiler's error if the shifts do not fit the dims."""
    num_shifts, num_dims = (len(v) if isinstance(v, Sequence) else 1 for v in (shifts, dims))
    if num_dims == 0 and num_shifts != 1:
        raise compiler_error(
            f"The 'shifts' argument of the roll op at {user_source()} must be a scalar where no "
            f"'dims' are given, not {num_shifts} numbers."
        )
    if num_dims != 0 and num_shifts != num_dims:
        raise compiler_error(
            f"The 'shifts' and 'dims' arguments of the roll op at {user_source()} must have the "
            f"same size, not {num_shifts} and {num_dims}."
        )
    return torch.roll(input, shifts, dims)


def _istft(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Checks the window with its current values, unless it depends on inputs."""
    recording = current()

    def has_gap(condition: torch.Tensor) -> bool:
        value = None if recording.recorder.is_in_region else recording.present_value(condition)
        with disable_current_modes():
            if value is None or not bool(value):
                return False
        raise RuntimeError(
            f"istft at {user_source()}: windows that overlap must not add up to zero anywhere. Use "
            "another window, hop_length or center=True."
        )

    recording.recorder.equals = has_gap
    try:
        return torch.istft(*args, **kwargs)
    finally:
        recording.recorder.equals = None


def _polygamma_(input: torch.Tensor, n: int) -> torch.Tensor:
    """Copies the result into the input, because functionalisation does not support the original."""
    return input.copy_(torch.polygamma(n, input))


def _matrix_rank(*args: Any, out: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor:
    """Writes `out`, which the original does not do in a trace."""
    result = torch.linalg.matrix_rank(*args, **kwargs)
    return result if out is None else out.copy_(result)


def _on_host(tensor: torch.Tensor, reader: str) -> torch.Tensor:
    """Returns a tensor of the host, or the value of one on the device.

    Raises:
        Error: the value only exists when the model runs.
    """
    if tensor.device.type != "ipu":
        return tensor
    known = current().recorder.known.value(tensor)
    if known is None:
        raise refusal.reads_value(reader)
    return known


def _masked_select(input: torch.Tensor, mask: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Indexes by a mask with known values, so that the result has a static shape."""
    if kwargs or current().recorder.known.value(mask) is None:
        return torch.masked_select(input, mask, **kwargs)
    both = torch.broadcast_shapes(input.shape, mask.shape, (1,))  # type: ignore[no-untyped-call]
    return input.expand(both)[mask.expand(both)]


def _numpy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Converts a tensor on the device if its value is known."""
    return _on_host(tensor, "Tensor.numpy").numpy(*args, **kwargs)


def _item(tensor: torch.Tensor) -> Any:
    """Returns the value of a tensor; a random draw and a number of a check become objects."""
    node = current().recorder.find(tensor) if isinstance(tensor, FakeTensor) else None
    is_draw = node is not None and decided_draws.is_uniform(node)
    return host_draws.Draw(0.0, 1.0) if is_draw else value_checks.item(tensor)


def _array(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Converts a tensor on the device to a NumPy array if its value is known."""
    on_host = _on_host(tensor, "numpy.asarray")
    return on_host.__array__(*args, **kwargs)  # type: ignore[no-untyped-call]


def tolist(tensor: torch.Tensor) -> Any:
    """Reads all values at once, also those of constants moved to the device before the trace.

    `FakeTensor` has its own method, which reads the elements one by one.
    """
    if isinstance(tensor, HostBacked):
        return tensor.host.tolist()
    if tensor.device.type == "ipu":
        return _on_host(tensor, "Tensor.tolist").tolist()
    return _fake_tolist(tensor) if isinstance(tensor, FakeTensor) else tensor.tolist()


_fake_tolist = FakeTensor.tolist


def _set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Raises for new memory of a tensor on the device, because no operation would record that.

    `weight.data *= mask` is allowed, because it changes values and assigns the same memory.
    """
    if isinstance(tensor, FakeTensor):
        if isinstance(value, FakeTensor) and _is_same_memory(tensor, value):
            return
        raise compiler_error(
            f"`tensor.data = value` at {user_source()} cannot be captured. Change the values in "
            "place instead: tensor.data.copy_(value)."
        )
    if isinstance(value, FakeTensor):
        raise host_writes.refusal(tensor)
    tensor.data = value


def _is_same_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    def place(value: torch.Tensor) -> tuple[Any, ...]:
        address = value.untyped_storage()._cdata
        return address, value.storage_offset(), value.shape, value.stride(), value.dtype

    return place(tensor) == place(other)


def _format(tensor: torch.Tensor, spec: str) -> str:
    """Raises for a number on the device with a format; without one, a placeholder is shown."""
    if tensor.device.type == "ipu" and spec:
        tensor = _on_host(tensor, "Tensor.__format__")
    return format(tensor, spec)


def _packed(*args: Any, **kwargs: Any) -> Any:
    """Raises for packed sequences."""
    raise compiler_error(
        f"Packed sequences are not supported (at {user_source()}): their shape depends on data, "
        "but a compiled graph has static shapes. Pad the sequences to one length, pass the padded "
        f"tensor, and mask what is beyond each end; {Topic.DATA_DEPENDENT_SHAPE}"
    )


def _assert_tensor_metadata(a: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    """Checks all but the device, which in an exported program is that of the exporting machine."""
    kwargs.pop("device", None)
    torch.ops.aten._assert_tensor_metadata.default(a, *args, **kwargs)


def _compressed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that makes compressed sparse tensors of the host, and refuses others."""

    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        if any(isinstance(each, FakeTensor) for each in pytree.tree_leaves((args, kwargs))):
            raise refusal.sparse_result(function.__name__, "is compressed")
        result: torch.Tensor = function(*args, **kwargs)
        return result

    return make


STATIC_FORMS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._assert_tensor_metadata.default: _assert_tensor_metadata,
    torch.fused_moving_avg_obs_fake_quant: quantisation.fused_fake_quantisation,
    F.gaussian_nll_loss: _gaussian_nll_loss,
    torch.bincount: _bincount,
    torch.Tensor.bincount: _bincount,
    F.grouped_mm: _grouped_mm,
    F.one_hot: _one_hot,
    torch.istft: _istft,
    torch.Tensor.istft: _istft,
    torch.histc: _histc,
    torch.Tensor.histc: _histc,
    grouped_mm: _grouped_mm,
    torch.take_along_dim: _take_along_dim,
    torch.Tensor.take_along_dim: _take_along_dim,
    torch.linalg.matrix_rank: _matrix_rank,
    torch.index_fill: _index_fill,
    torch.Tensor.index_fill: _index_fill,
    torch.Tensor.index_fill_: _index_fill_,
    torch.narrow: _narrow,
    torch.Tensor.narrow: _narrow,
    torch.Tensor.__getitem__: dynamic_slices.take,
    torch.Tensor.__setitem__: dynamic_slices.put,
    torch.Tensor.__array__: _array,
    torch.Tensor.cpu: host_moves.cpu,
    torch.Tensor.to: host_moves.to,
    **{
        each: _compressed(each)
        for each in (
            torch.sparse_bsc_tensor,
            torch.sparse_bsr_tensor,
            torch.sparse_compressed_tensor,
            torch.sparse_csc_tensor,
            torch.sparse_csr_tensor,
        )
    },
    torch.Tensor.data.__set__: _set_data,  # type: ignore[attr-defined]
    torch.Tensor.item: _item,
    torch.Tensor.numpy: _numpy,
    torch.Tensor.tolist: tolist,
    torch.masked_select: _masked_select,
    torch.Tensor.masked_select: _masked_select,
    torch.Tensor.roll: _roll,
    torch.roll: _roll,
    torch.Tensor.__format__: _format,
    torch.Tensor.polygamma_: _polygamma_,
    pack_padded_sequence: _packed,
    pad_packed_sequence: _packed,
    torch.tensor_split: _tensor_split,
    torch.Tensor.tensor_split: _tensor_split,
}
"""Static form that is traced for each function."""
