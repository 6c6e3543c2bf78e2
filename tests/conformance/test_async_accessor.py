"""`AsynchronousDataAccessor` (api.md 15): its elements and their order."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.accessor_data import (
    FORK,
    Logged,
    Make,
    Numbers,
    Point,
    PointParser,
    Points,
    values,
    wait_until,
)

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("AsynchronousDataAccessor", fidelity="exact")


@pytest.mark.parametrize("strategy", list(poptorch.SharingStrategy), ids=lambda s: s.name)
def test_elements_when_strategy_differs_then_are_the_same(
    make: Make, strategy: poptorch.SharingStrategy
) -> None:
    accessor = make(Numbers(7), sharing_strategy=strategy)

    assert values(accessor) == [[i] for i in range(7)]
    assert values(accessor) == [[i] for i in range(7)]
    assert len(accessor) == 7


@pytest.mark.parametrize("buffer_size", [1, 2, 3, 10], ids="{} slots".format)
@pytest.mark.parametrize("num_elements", [1, 3, 8], ids="{} elements".format)
@pytest.mark.parametrize("loads_indefinitely", [True, False], ids=["ahead", "on demand"])
def test_elements_when_ring_is_small_or_large_then_none_is_lost(
    make: Make, buffer_size: int, num_elements: int, loads_indefinitely: bool
) -> None:
    accessor = make(
        Numbers(num_elements), buffer_size=buffer_size, load_indefinitely=loads_indefinitely
    )

    for _ in range(3):
        assert values(accessor) == [[i] for i in range(num_elements)]


T = torch.tensor
ELEMENTS = {
    "tensor": (T([1.5]), T([1.5])),
    "list": ([T(1), T([2.0])], [T(1), T([2.0])]),
    "tuple becomes list": ((T(1), T([2.0])), [T(1), T([2.0])]),
    "dict": ({"b": T(1), "a": T([2, 3])}, {"b": T(1), "a": T([2, 3])}),
    "empty tensor": ([torch.empty(0, 4), T(1)], [torch.empty(0, 4), T(1)]),
    "not contiguous": (torch.arange(6).view(2, 3).t(), T([[0, 3], [1, 4], [2, 5]])),
    **{
        str(dtype): (torch.ones(3).to(dtype), torch.ones(3).to(dtype))
        for dtype in (torch.bool, torch.int8, torch.float16, torch.bfloat16, torch.complex64)
    },
}


@pytest.mark.parametrize(("element", "expected"), ELEMENTS.values(), ids=ELEMENTS)
def test_element_when_kind_differs_then_comes_back(make: Make, element: Any, expected: Any) -> None:
    (actual,) = make([element])

    assert type(actual) is type(expected)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_strategy_when_named_by_a_string_then_is_that_one(make: Make) -> None:
    class Local(Numbers):
        """A dataset that cannot be pickled, so that only a forked worker can receive it."""

    assert values(make(Local(3), sharing_strategy="Fork")) == [[0], [1], [2]]


def test_element_when_its_type_is_another_then_is_converted_with_one_warning(
    make: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    elements = [[T([0.5]), T([1])], [T([2]), T([3.9])], [T([4]).half(), T([True])]]
    seen = [[tensor.clone() for tensor in element] for element in make(elements)]

    expected = [[T([0.5]), T([1])], [T([2.0]), T([3])], [T([4.0]), T([1])]]
    torch.testing.assert_close(seen, expected, rtol=0, atol=0)
    text = capfd.readouterr().err
    assert text.count("its values are converted") == 1
    assert "Tensor at index 0 of an element is int64[1]" in text and "float32[1]" in text


def test_rows_when_rebatched_and_of_another_type_then_are_converted(make: Make) -> None:
    elements = [torch.zeros(3), torch.ones(3, dtype=torch.int64)]
    seen = [element.clone() for element in make(elements, rebatched_size=2)]

    torch.testing.assert_close(seen, [T([0.0, 0.0]), T([0.0, 1.0]), T([1.0, 1.0])])


def test_dict_when_keys_change_their_order_then_tensors_go_to_their_keys(make: Make) -> None:
    seen = [dict(e) for e in make([{"a": T(1), "b": T(2)}, {"b": T(4), "a": T(3)}], buffer_size=2)]

    assert seen[1] == {"a": T(3), "b": T(4)}


@pytest.mark.parametrize(
    "strategy", [FORK, poptorch.SharingStrategy.ForkServer], ids=lambda s: s.name
)
def test_element_when_type_has_a_parser_then_comes_back(
    make: Make, strategy: poptorch.SharingStrategy
) -> None:
    poptorch.registerCustomArgParser(Point, PointParser())
    try:
        accessor = make(Points(3), sharing_strategy=strategy)
        seen = [(type(p), p.name, p.x.item(), p.y.item()) for p in accessor]
    finally:
        poptorch.registerCustomArgParser(Point, None)

    assert seen == [(Point, "p", i, 10 * i) for i in range(3)]


def test_element_when_next_is_called_then_is_overwritten(make: Make) -> None:
    accessor = make(Numbers(20), buffer_size=1)
    iterator = iter(accessor)
    first = next(iterator)
    kept = first.clone()

    for _ in range(5):
        second = next(iterator)

    assert first.data_ptr() == second.data_ptr()
    assert (kept.item(), first.item()) == (0, 5)


def test_element_when_it_is_held_then_stays(make: Make) -> None:
    accessor = make(Numbers(50), buffer_size=2)
    iterator = iter(accessor)
    for _ in range(3):
        held = next(iterator)
    time.sleep(0.05)  # Gives the worker time to do something wrong.

    assert held.item() == 2


def test_iter_when_part_way_then_restarts(make: Make) -> None:
    accessor = make(Numbers(9), buffer_size=3)
    for taken in (1, 5, 3):
        iterator = iter(accessor)
        assert [next(iterator).item() for _ in range(taken)] == list(range(taken))

    assert values(accessor) == [[i] for i in range(9)]


def test_iter_when_unused_then_does_nothing(make: Make, tmp_path: Path) -> None:
    accessor = make(Logged(tmp_path / "log", 4))

    for _ in range(3):
        assert iter(accessor) is accessor

    assert values(accessor) == [[0], [1], [2], [3]]  # No element of epoch 0 is lost.


def test_next_when_data_has_ended_then_ends_again_until_iter(make: Make) -> None:
    accessor = make(Numbers(2))
    assert len(values(accessor)) == 2
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(accessor)
    assert len(values(accessor)) == 2


PRELOADING = {
    # (early_preload, number of elements that are loaded before iter() with 3 slots). The first
    # element is always loaded.
    "late": (False, 1),
    "early": (True, 4),  # One more element waits for a slot.
}


@pytest.mark.parametrize(("early", "expected"), PRELOADING.values(), ids=PRELOADING)
def test_preload_when_nobody_iterates_then_fills_the_ring_or_waits(
    make: Make, tmp_path: Path, early: bool, expected: int
) -> None:
    log = tmp_path / "log"
    make(Logged(log, 20), early_preload=early, buffer_size=3)

    assert wait_until(lambda: log.stat().st_size >= min(expected, 3))
    time.sleep(0.1)

    assert log.stat().st_size in {expected, max(1, expected - 1)}


@pytest.mark.parametrize("loads_indefinitely", [True, False], ids=["ahead", "on demand"])
def test_epoch_when_the_last_ended_then_is_loaded_at_once_or_on_demand(
    make: Make, tmp_path: Path, loads_indefinitely: bool
) -> None:
    log = tmp_path / "log"
    accessor = make(Logged(log, 4), load_indefinitely=loads_indefinitely, buffer_size=3)
    assert values(accessor) == [[0], [1], [2], [3]]

    if loads_indefinitely:
        assert wait_until(lambda: log.stat().st_size >= 7)
    else:
        time.sleep(0.1)
        assert log.stat().st_size == 4
    assert values(accessor) == [[100], [101], [102], [103]]


REBATCHED = {
    # (sizes of the elements, rebatched_size)
    "joins": ([1] * 7, 3),
    "cuts": ([10, 10], 4),
    "joins and cuts": ([5, 1, 7, 2, 2, 9], 4),
    "fits": ([2, 2, 2], 2),
    "too few": ([1, 1], 5),
}


@pytest.mark.parametrize("keeps", [True, False], ids=["keep", "drop"])
@pytest.mark.parametrize(("sizes", "rebatched_size"), REBATCHED.values(), ids=REBATCHED)
def test_rebatching_when_sizes_differ_then_all_rows_come_in_order(
    make: Make, sizes: list[int], rebatched_size: int, keeps: bool
) -> None:
    class Elements(list):  # type: ignore[type-arg]
        rebatched_drop_last = not keeps

    rows = torch.arange(sum(sizes))
    elements = Elements((part, part.double()[:, None] / 2) for part in rows.split(sizes))
    expected = [
        part.tolist() for part in rows.split(rebatched_size) if keeps or len(part) == rebatched_size
    ]

    accessor = make(elements, rebatched_size=rebatched_size)

    assert accessor.rebatched_size == rebatched_size
    for _ in range(2):
        seen = []
        for whole, half in accessor:
            assert torch.equal(half[:, 0] * 2, whole.double())
            seen.append(whole.tolist())
        assert seen == expected


def test_length_when_rebatched_alone_then_counts_the_joined(make: Make) -> None:
    loader = poptorch.DataLoader(poptorch.Options(), Numbers(10), batch_size=2)

    assert len(make(loader, rebatched_size=4)) == 10 // 4
    assert len(make(loader)) == 5


def test_loader_when_given_to_an_accessor_then_is_iterated_by_it(make: Make) -> None:
    options = poptorch.Options()
    options.deviceIterations(2)
    loader = poptorch.DataLoader(options, Numbers(10), batch_size=2, num_workers=2)

    assert values(make(loader)) == [[[0], [1], [2], [3]], [[4], [5], [6], [7]]]


def test_shuffle_when_loader_is_asynchronous_then_seed_decides(make: Make) -> None:
    orders = []
    for _ in range(2):
        torch.manual_seed(3)
        loader = poptorch.DataLoader(
            poptorch.Options(),
            Numbers(30),
            shuffle=True,
            mode=poptorch.DataLoaderMode.Async,
            async_options={"sharing_strategy": FORK},
        )
        orders.append(values(loader) + values(loader))
        loader.terminate()

    assert orders[0] == orders[1]
    assert orders[0][:30] != orders[0][30:]
