"""Rows selected by a mask (`x[mask]`) and assigned to the same places (`y[mask] = ...`).

The number of rows depends on data, but the result of the assignment is static: `torch.where`. Until
then the rows stay at their places, and only elementwise functions, linear layers and embeddings may
use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx

from poptorch_emu.errors import Error
from poptorch_emu.ir.mutation import is_mutating, memory_of, written_memory
from poptorch_emu.torch_versions import pytree
from poptorch_emu.trace.recording.regions import current
from poptorch_emu.trace.refusals import refusal

_CASTS = frozenset({"to", "float", "half", "double", "int", "long", "bool", "detach"})
# Functions that compute each row from its own features and from weights.
_BY_ROW = frozenset({F.embedding, F.linear})
_INDEX = torch.ops.aten.index.Tensor


def is_unknown_mask(index: Any) -> bool:
    """Returns whether an index is a mask on the device without known values."""
    is_mask = isinstance(index, torch.Tensor) and index.dtype is torch.bool and index.dim() > 0
    return is_mask and index.device.type == "ipu" and current().recorder.known.value(index) is None


class MaskedRows(Iterator[Any]):
    """Rows of a tensor that a mask selects; all other places hold ones.

    The final `torch.where` drops the gradients of the other places. So a function that is singular
    at 1 does no harm, unless another tensor receives a gradient through it.
    """

    def __init__(self, full: torch.Tensor, mask: torch.Tensor, error: Error) -> None:
        """Stores rows at their places.

        Args:
            full: tensor with the rows at their places, and any values elsewhere.
            mask: mask over the leading axes of `full`.
            error: error for other uses of the rows; it names the line of the selection.
        """
        self.full, self.mask, self.error = full, mask, error
        self._mask_state = _state(mask)

    @classmethod
    def of(cls, tensor: torch.Tensor, mask: torch.Tensor) -> MaskedRows:
        """Returns `tensor[mask]`."""
        kept = torch.where(_expanded(mask, tensor), tensor, torch.ones_like(tensor))
        return cls(kept, mask, refusal.data_dependent(_INDEX))

    def put(self, tensor: torch.Tensor, mask: torch.Tensor) -> None:
        """Runs `tensor[mask] = rows`.

        Raises:
            Error: the mask is not the one that selected the rows, or the shapes differ.
        """
        is_same = isinstance(mask, torch.Tensor) and self._mask_state == _state(mask)
        if not is_same or self.full.shape != tensor.shape:
            raise self.error
        tensor.copy_(torch.where(_expanded(mask, tensor), self.full.to(tensor.dtype), tensor))

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Applies a function to each row.

        Raises:
            Error: the function may combine rows, or another tensor differs between rows.
        """
        leaves = pytree.tree_leaves((args, dict(kwargs or {})))
        rows = [leaf for leaf in leaves if isinstance(leaf, cls)]
        others = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        first = rows[0]
        if func in _BY_ROW:
            return first._by_row(func, len(rows), args, dict(kwargs or {}))
        fits = all(
            each._mask_state == _state(first.mask) and each.full.shape == first.full.shape
            for each in rows
        )
        if not (fits and _is_pointwise(func) and all(map(_is_constant_number, others))):
            raise first.error
        args, kwargs = pytree.tree_map_only(cls, lambda each: each.full, (args, dict(kwargs or {})))
        return cls(func(*args, **kwargs), first.mask, first.error)

    def _by_row(
        self, func: Callable[..., Any], num_rows: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> MaskedRows:
        """Applies a linear layer or an embedding, whose weights get gradients from the rows alone.

        The other places are filled before and after it, so that no infinite value or derivative
        reaches the weights from there.
        """
        is_embedding = func is F.embedding
        has_features = self.full.dim() > self.mask.dim()
        is_alone = num_rows == 1 and args and args[0] is self and kwargs.get("max_norm") is None
        if not (is_alone and (is_embedding or has_features)):
            raise self.error
        fill = torch.zeros_like(self.full) if is_embedding else torch.ones_like(self.full)
        rows = torch.where(_expanded(self.mask, self.full), self.full, fill)
        result = func(rows, *args[1:], **kwargs)
        kept = torch.where(_expanded(self.mask, result), result, torch.ones_like(result))
        return MaskedRows(kept, self.mask, self.error)

    def __getattr__(self, name: str) -> Any:
        """Returns PyTorch's function for a method of tensors."""
        if name in _CASTS:
            return lambda *args, **kwargs: MaskedRows(
                getattr(self.full, name)(*args, **kwargs), self.mask, self.error
            )
        if name in ("dtype", "device"):
            return getattr(self.full, name)
        function = getattr(torch, name, None)
        if name.startswith("__") or not callable(function) or name.endswith("_"):
            raise self.error
        return partial(function, self)

    def __neg__(self) -> Any:
        return self.__torch_function__(torch.neg, (), (self,))

    def __next__(self) -> Any:
        raise self.error

    def __bool__(self) -> bool:
        raise self.error

    def __len__(self) -> int:
        raise self.error

    def __getitem__(self, index: Any) -> Any:
        raise self.error


def _operator(name: str, function: Callable[..., Any]) -> None:
    setattr(MaskedRows, f"__{name}__", lambda self, *others: function(self, *others))
    setattr(MaskedRows, f"__r{name}__", lambda self, other: function(other, self))


for _name in ("add", "sub", "mul", "pow"):
    _operator(_name, getattr(torch, _name))
_operator("truediv", torch.true_divide)


def _is_pointwise(func: Callable[..., Any]) -> bool:
    """Returns whether a function is elementwise and draws no random numbers."""
    name = getattr(func, "__name__", "_")
    packet = None if name.endswith("_") else getattr(torch.ops.aten, name, None)
    overloads = [] if packet is None else [getattr(packet, each) for each in packet.overloads()]
    tags = {tag for each in overloads for tag in each.tags}
    return torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags


def _is_constant_number(tensor: torch.Tensor) -> bool:
    return tensor.numel() == 1 and tensor.dim() == 0 and not tensor.requires_grad


def _expanded(mask: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Returns a mask that broadcasts over the trailing axes of a tensor.

    Raises:
        IndexError: the mask does not have the sizes of the leading axes.
    """
    if mask.shape != tensor.shape[: mask.dim()]:
        raise IndexError(
            f"The shape of the mask {list(mask.shape)} does not match the indexed tensor "
            f"{list(tensor.shape)}."
        )
    return mask.reshape(*mask.shape, *(1 for _ in range(tensor.dim() - mask.dim())))


def _state(mask: torch.Tensor) -> tuple[fx.Node | int, int]:
    """Returns a value that identifies a mask and changes if the mask is changed in place."""
    recorder = current().recorder
    node = recorder.find(mask)
    writers = filter(is_mutating, recorder.graph.operations)
    memory = None if node is None else memory_of(node)
    return id(mask) if node is None else node, sum(
        memory in written_memory(each) for each in writers
    )
