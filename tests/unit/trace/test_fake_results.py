"""Compares fake results of the recorder with PyTorch's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from support.operator_database import op_db
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from poptorch_emu.ir.operator_traits import traits_of
from poptorch_emu.trace.fakes import kernel_strides
from poptorch_emu.trace.fakes.result_memo import ResultMemo
from poptorch_emu.trace.fakes.result_metadata import from_json, to_json

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch warns of deprecations.

IPU = torch.device("ipu:0")
CPU = torch.device("cpu")
OF_DEVICE = {torch.ops.prim.device.default}
# In inference, CPU kernels return no statistics, and no caller reads them.
NORMS = {torch.ops.aten.native_batch_norm.default}


def metadata(value: Any) -> list[Any]:
    return [
        (each.dtype, each.shape, each.stride(), each.storage_offset(), each.requires_grad)
        if isinstance(each, torch.Tensor)
        else each
        for each in pytree.tree_leaves(value)
    ]


class Compared(TorchDispatchMode):
    """Compares three results of each operation with PyTorch's: two of a memo, one from its file."""

    def __init__(self) -> None:
        super().__init__()
        self.memo = ResultMemo(IPU)
        self.differences: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result_on_ipu = func(*args, **(kwargs or {}))
        is_own = is_in_place(func) or func in OF_DEVICE
        expected = result_on_ipu if is_own else as_on_cpu(func, args, kwargs or {})
        for time in ("first", "second", "of a file"):
            result = self.asked(time, func, args, kwargs or {})
            if func in NORMS:
                result, wanted = result[:1], expected[:1]
            else:
                wanted = expected
            if metadata(result) != metadata(wanted):
                self.differences.append(
                    f"{func}, {time}: {metadata(result)}, not {metadata(wanted)}"
                )
        return result_on_ipu

    def asked(self, time: str, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        if time != "of a file":
            return self.memo.run(func, args, kwargs)
        reader = ResultMemo(IPU, from_json(to_json(self.memo.metadata), "a file"))
        result = reader.run(func, args, kwargs)
        assert not reader.has_learned, f"{func} was worked out anew"
        return result


def is_in_place(func: Any) -> bool:
    """Returns whether the result shares the memory of an argument."""
    return func._schema.is_mutable or traits_of(func).is_view


def as_on_cpu(func: Any, args: Any, kwargs: Any) -> Any:
    """Returns PyTorch's fake results for CPU tensors, because CPU kernels run the graph.

    If a kernel has other strides, `tests/opinfo/memory_order.py` makes the comparison.
    """

    def moved(value: Any, device: torch.device) -> Any:
        if isinstance(value, torch.device):
            return device
        like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return FakeTensor(value.fake_mode, like, device)

    kinds = (FakeTensor, torch.device)
    given = pytree.tree_map_only(kinds, lambda value: moved(value, CPU), (args, kwargs))
    result = func(*given[0], **given[1])
    strides = kernel_strides.corrected(func, args, result)
    if strides is None:
        return result
    rest = iter(strides)
    return pytree.tree_map_only(
        torch.Tensor,
        lambda x: torch.empty_strided(x.shape, next(rest), dtype=x.dtype, device="meta"),
        result,
    )


def stand_ins(mode: FakeTensorMode, sample: Any) -> Any:
    def fake(value: torch.Tensor) -> FakeTensor:
        like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return FakeTensor(mode, like, IPU)

    return sample.transform(lambda v: fake(v) if isinstance(v, torch.Tensor) else v)


def is_strided(sample: Any) -> bool:
    given = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return all(v.layout is torch.strided for v in given if isinstance(v, torch.Tensor))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64], ids=str)
@pytest.mark.parametrize("op", op_db[::20], ids=lambda op: op.formatted_name)
def test_metadata_of_results_are_those_of_pytorch(op: OpInfo, dtype: torch.dtype) -> None:
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip("PyTorch has no such operation for this type")
    compared = Compared()
    for sample in list(op.sample_inputs("cpu", dtype))[:6]:
        if not is_strided(sample):
            continue
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        given = stand_ins(mode, sample)
        with mode, compared:
            try:
                op(given.input, *given.args, **given.kwargs)
            except Exception:  # Fake tensors do not support it.
                continue
    assert not compared.differences
