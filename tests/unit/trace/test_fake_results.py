"""What the recorder makes of fake arguments is what PyTorch makes of them."""

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

from poptorch_emu.trace.result_memo import ResultMemo
from poptorch_emu.trace.result_metadata import from_json, to_json

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch warns of what it deprecated.

IPU = torch.device("ipu:0")


def metadata(value: Any) -> list[Any]:
    return [
        (each.dtype, each.shape, each.stride(), each.storage_offset(), each.requires_grad)
        if isinstance(each, torch.Tensor)
        else each
        for each in pytree.tree_leaves(value)
    ]


class Compared(TorchDispatchMode):
    """Asks the memory twice, one that read what it wrote, and PyTorch about each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.memo = ResultMemo(IPU)
        self.differences: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        expected = func(*args, **(kwargs or {}))
        for time in ("first", "second", "of a file"):
            result = self.asked(time, func, args, kwargs or {})
            if metadata(result) != metadata(expected):
                self.differences.append(
                    f"{func}, {time}: {metadata(result)}, not {metadata(expected)}"
                )
        return expected

    def asked(self, time: str, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        if time != "of a file":
            return self.memo.run(func, args, kwargs)
        reader = ResultMemo(IPU, from_json(to_json(self.memo.metadata), "a file"))
        result = reader.run(func, args, kwargs)
        assert not reader.has_learned, f"{func} was worked out anew"
        return result


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
            except Exception:  # What fakes cannot do is no matter of the memory.
                continue
    assert not compared.differences
