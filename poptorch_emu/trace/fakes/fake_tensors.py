"""Makes fake tensors on one device from meta tensors, without PyTorch's checks of each tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from poptorch_emu.torch_versions import (
    FakeTensor,
    FakeTensorMode,
    make_subclass,
    no_dispatch,
    set_throw_on_mutable_data_ptr,
)
from poptorch_emu.trace.fakes import metadata_rules


class FakeMaker:
    """Makes fake tensors of one mode, whose common attributes are computed once."""

    def __init__(self, device: torch.device) -> None:
        """Prepares the maker for fake tensors on `device`."""
        self.device = device
        self._mode: FakeTensorMode | None = None
        self._state: dict[str, Any] = {}

    def empty(
        self,
        mode: FakeTensorMode,
        shape: Sequence[int],
        dtype: torch.dtype,
        stride: Sequence[int] | None = None,
    ) -> FakeTensor:
        """Returns a new fake tensor, contiguous unless a stride is given."""
        with no_dispatch():
            if stride is None:
                like = torch.empty(shape, dtype=dtype, device="meta")
            else:
                like = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        return self.wrap(mode, like)

    def laid(self, mode: FakeTensorMode, results: Any, strides: Sequence[Sequence[int]]) -> Any:
        """Returns new fake tensors like the results of an operation, with other strides."""
        is_one = not isinstance(results, (tuple, list))
        rest = iter(strides)
        made = [
            each if each is None else self.empty(mode, each.shape, each.dtype, next(rest))
            for each in ([results] if is_one else results)
        ]
        return made[0] if is_one else tuple(made)

    def wrap(self, mode: FakeTensorMode, like: torch.Tensor) -> FakeTensor:
        """Returns a fake tensor with the metadata and the storage of the meta tensor `like`."""
        if self._mode is not mode:
            with no_dispatch():
                first = FakeTensor(mode, torch.empty(0, device="meta"), self.device)
            self._mode, self._state = mode, dict(first.__dict__)
        fake: FakeTensor = make_subclass(
            FakeTensor,
            like,
            like.requires_grad,
            dispatch_device=True,
            device_for_backend_keys=self.device,
        )
        set_throw_on_mutable_data_ptr(fake)
        fake.__dict__.update(self._state)
        return fake


def fake_like(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns the result of `torch.empty_like`; for a fake tensor, without running the operation.

    Otherwise the operation would load PyTorch's compiler.
    """
    if not isinstance(value, FakeTensor):
        return torch.empty_like(value, dtype=dtype)
    with no_dispatch():
        on_meta = torch.empty_strided(value.shape, value.stride(), dtype=dtype, device="meta")
        like = metadata_rules.made_by(torch.ops.aten.empty_like.default, on_meta)
    return FakeMaker(value.device).wrap(value.fake_mode, like)
