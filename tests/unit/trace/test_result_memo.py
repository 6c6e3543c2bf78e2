"""Compares stored fake results with those that PyTorch computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from poptorch_emu.trace.fakes.result_memo import ResultMemo

aten = torch.ops.aten
IPU = torch.device("ipu:0")


def fake(mode: FakeTensorMode, *shape: int, dtype: torch.dtype = torch.float32) -> FakeTensor:
    return FakeTensor(mode, torch.empty(shape, dtype=dtype, device="meta"), IPU)


def metadata(value: torch.Tensor) -> tuple[Any, ...]:
    return value.dtype, value.shape, value.stride(), value.storage_offset()


CASES = [
    (aten.mm.default, lambda x: (x, x.t())),
    (aten.add.Tensor, lambda x: (x, 1)),
    (aten.gt.Scalar, lambda x: (x, 0.5)),
    (aten.view.default, lambda x: (x, [3, 4])),
    (aten.slice.Tensor, lambda x: (x, 1, 1, 5, 2)),
    (aten.select.int, lambda x: (x, 1, -1)),
    (aten.expand.default, lambda x: (x, [5, 2, 6])),
    (aten._unsafe_view.default, lambda x: (x, [12])),
    (aten.cat.default, lambda x: ([x, x], 1)),
]


@pytest.mark.parametrize(("func", "arguments"), CASES, ids=[str(case[0]) for case in CASES])
def test_result_when_asked_twice_is_that_of_a_real_tensor(func: Any, arguments: Any) -> None:
    mode, memo = FakeTensorMode(), ResultMemo(IPU)
    expected = func(*arguments(torch.zeros(2, 6)))

    with mode:
        args = arguments(fake(mode, 2, 6))
        first, second = (memo.run(func, args, {}) for _ in range(2))

    assert metadata(first) == metadata(second) == metadata(expected)
    assert first is not second
    assert second.device == IPU


def test_view_shares_the_memory_of_its_base_and_other_results_do_not() -> None:
    mode, memo = FakeTensorMode(), ResultMemo(IPU)
    x = fake(mode, 2, 6)
    with mode:
        view = memo.run(aten.t.default, (x,), {})
        sums = [memo.run(aten.add.Tensor, (x, x), {}) for _ in range(2)]

    places = [value.untyped_storage()._cdata for value in (x, view, *sums)]
    assert places[0] == places[1]
    assert len(set(places)) == 3


def test_several_results_are_remembered_together() -> None:
    mode, memo = FakeTensorMode(), ResultMemo(IPU)
    expected = aten.topk.default(torch.zeros(2, 6), 3)
    with mode:
        x = fake(mode, 2, 6)
        results = [memo.run(aten.topk.default, (x, 3), {}) for _ in range(2)]

    for values, indices in results:
        assert (metadata(values), metadata(indices)) == (
            metadata(expected[0]),
            metadata(expected[1]),
        )


def test_literals_of_another_type_make_another_result() -> None:
    mode, memo = FakeTensorMode(), ResultMemo(IPU)
    with mode:
        x = fake(mode, 4, dtype=torch.int64)
        whole, fraction = (memo.run(aten.mul.Tensor, (x, by), {}) for by in (1, 1.0))

    assert (whole.dtype, fraction.dtype) == (torch.int64, torch.float32)


def test_operation_in_place_returns_its_argument_each_time() -> None:
    mode, memo = FakeTensorMode(), ResultMemo(IPU)
    with mode:
        x, y = fake(mode, 4), fake(mode, 4)
        results = [memo.run(aten.add_.Tensor, (each, 1), {}) for each in (x, y)]

    assert results[0] is x
    assert results[1] is y
