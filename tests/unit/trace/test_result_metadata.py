"""Stored metadata are used for exactly the same arguments, and rejected if damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import poptorch_emu as poptorch
from poptorch_emu.trace.fakes.result_memo import ResultMemo
from poptorch_emu.trace.fakes.result_metadata import (
    ResultMetadata,
    TensorMetadata,
    Written,
    from_json,
    to_json,
)

aten = torch.ops.aten
IPU = torch.device("ipu:0")

# Metadata of an earlier memo that no operation below can have.
PLANTED = TensorMetadata(torch.int16, (7, 7), (7, 1))


def stand_in(mode: FakeTensorMode, value: torch.Tensor) -> FakeTensor:
    like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return FakeTensor(mode, like, IPU)


def planted(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, ResultMetadata]:
    """Returns false metadata for exactly these arguments."""
    memo = ResultMemo(IPU)
    memo.run(func, args, kwargs)
    (text,) = memo.metadata
    return {text: PLANTED}


def metadata(value: torch.Tensor) -> tuple[Any, ...]:
    return value.dtype, tuple(value.shape), value.stride()


@contextmanager
def changed(setter: Callable[[Any], None], value: Any, former: Any) -> Iterator[None]:
    setter(value)
    try:
        yield
    finally:
        setter(former)


X = torch.zeros(2, 6)

OTHERS = {
    "operation": (aten.sub.Tensor, X, 1, {}),
    "overload": (aten.add.Scalar, X, 1, {}),
    "shape": (aten.add.Tensor, torch.zeros(3, 6), 1, {}),
    "order of sizes": (aten.add.Tensor, torch.zeros(6, 2), 1, {}),
    "stride": (aten.add.Tensor, torch.zeros(6, 2).t(), 1, {}),
    "type": (aten.add.Tensor, X.half(), 1, {}),
    "literal": (aten.add.Tensor, X, 2, {}),
    "type of the literal": (aten.add.Tensor, X, 1.0, {}),
    "truth": (aten.add.Tensor, X, True, {}),
    "named argument": (aten.add.Tensor, X, 1, {"alpha": 2}),
}


@pytest.mark.parametrize("other", OTHERS)
def test_metadata_when_anything_differs_then_is_not_used(other: str) -> None:
    func, value, number, kwargs = OTHERS[other]
    with FakeTensorMode() as mode:
        known = planted(aten.add.Tensor, (stand_in(mode, X), 1), {})
        result = ResultMemo(IPU, known).run(func, (stand_in(mode, value), number), kwargs)
    assert metadata(result) == metadata(func(value, number, **kwargs))


@pytest.mark.parametrize(
    "setting",
    [
        lambda: changed(torch.set_default_dtype, torch.float16, torch.float32),
        lambda: changed(torch.use_deterministic_algorithms, True, False),
        lambda: changed(torch._C._set_mkldnn_enabled, False, True),
    ],
    ids=["default type", "determinism", "oneDNN"],
)
def test_metadata_when_a_setting_differs_then_is_not_used(
    setting: Callable[[], AbstractContextManager[None]],
) -> None:
    with FakeTensorMode() as mode:
        known = planted(aten.add.Tensor, (stand_in(mode, X), 1), {})
        with setting():
            result = ResultMemo(IPU, known).run(aten.add.Tensor, (stand_in(mode, X), 1), {})
    assert metadata(result) == metadata(X + 1)


def test_metadata_when_all_is_the_same_then_is_used_and_nothing_learned() -> None:
    with FakeTensorMode() as mode:
        memo = ResultMemo(IPU, planted(aten.add.Tensor, (stand_in(mode, X), 1), {}))
        results = [memo.run(aten.add.Tensor, (stand_in(mode, X), 1), {}) for _ in range(2)]
    assert [metadata(result) for result in results] == [
        metadata(torch.zeros(7, 7, dtype=torch.int16))
    ] * 2
    assert results[0].untyped_storage()._cdata != results[1].untyped_storage()._cdata
    assert not memo.has_learned and list(memo.metadata.values()) == [PLANTED]


def test_operation_in_place_when_known_then_returns_its_argument() -> None:
    with FakeTensorMode() as mode:
        first = ResultMemo(IPU)
        first.run(aten.add_.Tensor, (stand_in(mode, X), 1), {})
        memo = ResultMemo(IPU, from_json(to_json(first.metadata), "f"))
        x = stand_in(mode, X)
        assert memo.run(aten.add_.Tensor, (x, 1), {}) is x
        assert not memo.has_learned


def test_operation_with_shared_memory_is_worked_out_although_its_metadata_is_known() -> None:
    with FakeTensorMode() as mode:
        x, y = stand_in(mode, X), stand_in(mode, X)
        memo = ResultMemo(IPU, planted(aten.add_.Tensor, (x, y), {}))
        assert memo.run(aten.add_.Tensor, (x, x), {}) is x
        assert not memo.metadata


def test_metadata_when_written_and_read_then_are_the_same() -> None:
    several = (
        TensorMetadata(torch.float16, (), ()),
        None,
        TensorMetadata(torch.bool, (0, 3), (3, 1)),
    )
    read = from_json(to_json({"one": PLANTED, "several": several, "in place": Written()}), "f")
    assert read["one"] == PLANTED and read["several"] == several
    assert isinstance(read["in place"], Written)


WHOLE = {"dtype": "float32", "shape": [2, 6], "stride": [6, 1]}


@pytest.mark.parametrize(
    "content",
    [
        [],
        "written",
        {"a": None},
        {"a": "other"},
        {"a": 3},
        {"a": [3]},
        {"a": {**WHOLE, "dtype": "Tensor"}},
        {"a": {**WHOLE, "dtype": "no_such_type"}},
        {"a": {**WHOLE, "dtype": 3}},
        {"a": {**WHOLE, "shape": [2]}},
        {"a": {**WHOLE, "shape": [2, -6]}},
        {"a": {**WHOLE, "shape": [2, 6.0]}},
        {"a": {**WHOLE, "shape": [2, True]}},
        {"a": {**WHOLE, "stride": "61"}},
        {"a": {**WHOLE, "stride": None}},
        {"a": {"dtype": "float32", "shape": [2, 6]}},
    ],
    ids=str,
)
def test_content_that_is_no_metadata_then_error_names_the_file(content: Any) -> None:
    with pytest.raises(
        poptorch.Error, match="Invalid file the/file: it does not hold the metadata"
    ):
        from_json(json.dumps(content).encode(), "the/file")


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"null", b"{'a': 1}"], ids=str)
def test_bytes_that_are_no_json_then_error(data: bytes) -> None:
    with pytest.raises(poptorch.Error, match="Invalid file f"):
        from_json(data, "f")
