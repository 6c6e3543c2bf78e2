"""`DataLoader` (api.md 14.5): the shares of several processes."""

import pytest
import torch
from support.loader_data import FORK, Pairs, Scalars, all_ids, process

import poptorch_emu as poptorch
from poptorch_emu import DataLoaderMode

pytestmark = [
    pytest.mark.feature("DataLoader", fidelity="exact"),
    # Newer versions of Python warn about the forks of PyTorch's own workers.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


PARTITIONS = {
    "two_exact": (2, 3, 12),
    "two_with_leftovers": (2, 3, 17),
    "three_with_leftovers": (3, 2, 20),
    "four_too_small": (4, 3, 11),
    "one": (1, 3, 8),
}


@pytest.mark.parametrize("mode", [DataLoaderMode.Sync, DataLoaderMode.Async], ids=["Sync", "Async"])
def test_shares_with_whole_steps_then_follow_each_other(mode):
    shares = []
    for rank in range(3):
        loader = poptorch.DataLoader(
            process(rank, 3, iterations=2), Pairs(29), 2, mode=mode, async_options=FORK
        )
        shares.append(all_ids(loader))
        assert len(loader) == 2
        loader.terminate()
    # A step is 4 rows; 29 // 12 = 2 steps for each of the processes.
    assert shares == [
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        [[8, 9, 10, 11], [12, 13, 14, 15]],
        [[16, 17, 18, 19], [20, 21, 22, 23]],
    ]


def test_shares_that_keep_all_then_the_first_have_one_more():
    shares = []
    for rank in range(3):
        loader = poptorch.DataLoader(process(rank, 3), Pairs(8), 2, drop_last=False)
        shares.append(all_ids(loader))
    assert shares == [[[0, 1], [2]], [[3, 4], [5]], [[6, 7]]]


@pytest.mark.parametrize(
    ("num_processes", "rows", "num_elements"), PARTITIONS.values(), ids=PARTITIONS
)
@pytest.mark.parametrize("drop_last", [True, False], ids=["drop", "keep"])
@pytest.mark.parametrize("shuffle", [True, False], ids=["shuffled", "in_order"])
def test_shares_then_are_disjoint_and_as_large_as_can_be(
    num_processes, rows, num_elements, drop_last, shuffle
):
    loaders = [
        poptorch.DataLoader(
            process(rank, num_processes, seed=11),
            Scalars(num_elements),
            rows,
            shuffle=shuffle,
            drop_last=drop_last,
        )
        for rank in range(num_processes)
    ]
    num_steps = num_elements // (rows * num_processes)
    expected = num_steps * rows * num_processes if drop_last else num_elements
    orders = []
    for _ in range(3):
        seen = [sum(all_ids(loader), []) for loader in loaders]
        flat = sum(seen, [])
        assert len(flat) == len(set(flat)) == expected
        assert max(map(len, seen)) - min(map(len, seen)) <= (0 if drop_last else 1)
        orders.append(flat)
    if shuffle and expected:
        assert orders[0] != orders[1] != orders[2]


def test_shuffled_shares_then_alternate_their_beginning_and_follow_the_seed():
    loader = poptorch.DataLoader(process(1, 2, seed=11), Scalars(11), 2, shuffle=True)
    generator = torch.Generator().manual_seed(11)
    # 4 elements for each process, and 11 % 4 = 3 left over: the block of the second begins at 4.
    for start in (4 + 3, 4, 4 + 3):
        order = torch.randperm(11, generator=generator).tolist()
        assert sum(all_ids(loader), []) == order[start : start + 4]


def test_shuffled_shares_in_a_worker_then_the_same_as_in_this_process():
    orders = []
    for mode in (DataLoaderMode.Sync, DataLoaderMode.Async):
        loader = poptorch.DataLoader(
            process(1, 2, seed=11), Scalars(11), 2, shuffle=True, mode=mode, async_options=FORK
        )
        orders.append([all_ids(loader) for _ in range(3)])
        loader.terminate()
    assert orders[0] == orders[1]
