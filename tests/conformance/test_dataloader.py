"""`DataLoader` (api.md 14): batch-size algebra, modes, order of rows."""

import multiprocessing

import pytest
import torch
from support.loader_data import (
    FORK,
    KINDS,
    MODES,
    START_METHODS,
    Dicts,
    Pairs,
    Scalars,
    StartMethods,
    Stream,
    Unsized,
    all_ids,
    batches,
    chunks,
    do_nothing,
    ids_of,
    options,
)
from torch.utils.data import BatchSampler, SequentialSampler

import poptorch_emu as poptorch
from poptorch_emu import DataLoaderMode

pytestmark = [
    pytest.mark.feature("DataLoader", fidelity="exact"),
    # Newer versions of Python warn about the forks of PyTorch's own workers.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@pytest.mark.parametrize(
    ("setting", "batch_size", "expected"),
    [
        ({}, 1, 1),
        ({}, 3, 3),
        ({"iterations": 3, "replicas": 4, "accumulation": 5}, 2, 120),
        ({"iterations": 3, "replicas": 4, "accumulation": 5, "group": 2}, 2, 60),
        ({"replicas": 4, "group": 4}, 2, 2),
        ({"iterations": 3}, None, None),
    ],
    ids=["default", "batch", "all", "two_groups", "one_group", "no_batching"],
)
def test_combined_batch_size_then_counts_the_rows_of_a_step(setting, batch_size, expected):
    given = options(**setting)
    loader = poptorch.DataLoader(given, Pairs(7), batch_size, drop_last=batch_size is not None)
    assert loader.combinedBatchSize == expected
    assert loader.options is given


def test_loader_then_freezes_the_options():
    given = options()
    poptorch.DataLoader(given, Pairs(3))
    with pytest.raises(AttributeError, match="frozen"):
        given.deviceIterations(2)


def test_positional_arguments_then_follow_poptorch_not_torch():
    loader = poptorch.DataLoader(options(), Pairs(10), 4, False, 0, False, False)
    assert (loader.batch_size, loader.num_workers, loader.drop_last) == (4, 0, False)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("drop_last", [True, False], ids=["drop", "keep"])
@pytest.mark.parametrize("num_elements", [24, 29], ids=["fits", "remainder"])
def test_iteration_then_yields_whole_steps_in_order_twice(mode, kind, drop_last, num_elements):
    loader = poptorch.DataLoader(
        options(iterations=2, accumulation=3),
        kind(num_elements),
        batch_size=2,
        drop_last=drop_last,
        mode=mode,
        async_options=FORK,
    )
    expected = chunks(num_elements, 12, drop_last)
    for _ in range(2):
        assert all_ids(loader) == expected
    assert len(loader) == len(expected)
    loader.terminate()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("drop_last", [True, False], ids=["drop", "keep"])
def test_iteration_with_workers_then_the_same(mode, drop_last):
    loader = poptorch.DataLoader(
        options(iterations=3),
        Pairs(17),
        2,
        num_workers=2,
        drop_last=drop_last,
        mode=mode,
        async_options=FORK,
    )
    for _ in range(2):
        assert all_ids(loader) == chunks(17, 6, drop_last)
    loader.terminate()


def test_iterable_with_workers_then_their_remainders_are_rebatched_together():
    loader = poptorch.DataLoader(
        options(),
        Stream(7),
        4,
        num_workers=2,
        worker_init_fn=do_nothing,
        mode=DataLoaderMode.AsyncRebatched,
    )
    batches = all_ids(loader)
    # Each worker yields all seven; one loader would drop three of each, rebatching two in all.
    assert [len(batch) for batch in batches] == [4, 4, 4]
    loader.terminate()


def test_worker_then_its_helpers_start_as_they_would_without_it():
    loader = poptorch.DataLoader(options(), StartMethods(1), mode=DataLoaderMode.Async)
    assert all_ids(loader) == [[START_METHODS.index(multiprocessing.get_start_method())]]
    loader.terminate()


@pytest.mark.parametrize("size", [1, 4, 5, 6], ids=lambda size: f"{size}_rows")
@pytest.mark.parametrize("drop_last", [True, False], ids=["drop", "keep"])
def test_rebatched_worker_size_then_changes_nothing_but_the_loading(size, drop_last):
    loader = poptorch.DataLoader(
        options(iterations=3),
        Pairs(20),
        2,
        drop_last=drop_last,
        mode=DataLoaderMode.AsyncRebatched,
        async_options=FORK,
        rebatched_worker_size=size,
    )
    assert loader.batch_size == size
    assert all_ids(loader) == chunks(20, 6, drop_last)
    loader.terminate()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("drop_last", [True, False], ids=["drop", "keep"])
def test_single_rows_then_nothing_is_rebatched(mode, drop_last):
    loader = poptorch.DataLoader(
        options(), Pairs(4), mode=mode, async_options=FORK, drop_last=drop_last
    )
    assert all_ids(loader) == [[0], [1], [2], [3]]
    loader.terminate()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_batch_size_none_then_elements_pass_unchanged(mode):
    loader = poptorch.DataLoader(
        options(iterations=3), Pairs(2), None, drop_last=False, mode=mode, async_options=FORK
    )
    first, values = next(iter(loader))
    assert (int(first), values.tolist()) == (0, [0, 0.5])
    loader.terminate()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_shuffle_then_every_epoch_is_another_order_that_the_seed_decides(mode):
    def epochs(seed):
        torch.manual_seed(seed)
        loader = poptorch.DataLoader(
            options(), Pairs(64), 8, shuffle=True, mode=mode, async_options=FORK
        )
        result = [sum(all_ids(loader), []) for _ in range(2)]
        loader.terminate()
        return result

    first, second = epochs(3)
    assert sorted(first) == sorted(second) == list(range(64))
    assert first != second
    assert epochs(3) == [first, second]
    assert epochs(4) != [first, second]


def test_shuffle_in_a_worker_then_does_not_depend_on_how_it_started():
    orders = []
    for strategy in (poptorch.SharingStrategy.Fork, poptorch.SharingStrategy.ForkServer):
        torch.manual_seed(3)
        loader = poptorch.DataLoader(
            options(),
            Pairs(64),
            shuffle=True,
            mode=DataLoaderMode.Async,
            async_options={"sharing_strategy": strategy},
        )
        orders.append(all_ids(loader))
        loader.terminate()
    assert orders[0] == orders[1]


def test_asynchronous_loader_then_yields_the_same_accessor_each_time():
    loader = poptorch.DataLoader(options(), Pairs(4), mode=DataLoaderMode.Async)
    assert iter(loader) is iter(loader)
    loader.terminate()


def test_terminate_then_synchronous_loader_works_on():
    loader = poptorch.DataLoader(options(), Pairs(2))
    loader.terminate()
    assert all_ids(loader) == [[0], [1]]


def test_temporary_loader_in_a_loop_then_its_worker_lives_to_the_end():
    given = options()
    ids = [ids_of(x) for x in poptorch.DataLoader(given, Pairs(9), 3, mode=DataLoaderMode.Async)]
    assert ids == chunks(9, 3, True)
    iterator = iter(poptorch.DataLoader(given, Pairs(9), 3, mode=DataLoaderMode.Async))
    assert len(list(iterator)) == 3


@pytest.mark.parametrize(
    ("num_workers", "given", "expected"),
    [(0, None, False), (2, None, True), (2, False, False)],
    ids=["no_workers", "workers", "explicit"],
)
def test_persistent_workers_then_default_to_whether_there_are_workers(num_workers, given, expected):
    loader = poptorch.DataLoader(
        options(), Pairs(2), num_workers=num_workers, persistent_workers=given
    )
    assert loader.persistent_workers is expected


def test_other_arguments_then_reach_torch():
    loader = poptorch.DataLoader(
        options(iterations=2), Pairs(6), sampler=[5, 4, 1, 0], collate_fn=lambda rows: len(rows)
    )
    assert list(loader) == [2, 2]


@pytest.mark.parametrize("mode", [DataLoaderMode.Sync, DataLoaderMode.Async], ids=["Sync", "Async"])
@pytest.mark.parametrize("drop_last", [True, False], ids=["drop", "keep"])
def test_batch_sampler_then_consecutive_batches_are_joined(mode, drop_last):
    loader = poptorch.DataLoader(
        options(iterations=3),
        Pairs(20),
        batch_sampler=batches(20, 2),
        drop_last=drop_last,
        mode=mode,
        async_options=FORK,
    )
    expected = chunks(20, 6, drop_last)
    assert loader.combinedBatchSize == 6
    assert all_ids(loader) == expected
    assert len(loader) == len(expected)
    loader.terminate()


def keys_in_turn(samples):
    """Collates to a dict that has its keys in another order for odd first elements."""
    ids, values = torch.utils.data.default_collate(samples)
    items = [("id", ids), ("values", values)]
    return dict(reversed(items) if ids[0] % 2 else items)


def test_batch_sampler_when_dicts_differ_in_order_then_tensors_are_joined_by_key():
    loader = poptorch.DataLoader(
        options(iterations=2), Pairs(6), batch_sampler=batches(6, 3), collate_fn=keys_in_turn
    )
    (step,) = loader
    assert step["id"].tolist() == list(range(6))
    assert step["values"].tolist() == [[i, i + 0.5] for i in range(6)]


def test_batch_sampler_of_one_batch_a_step_then_passes_them_on():
    loader = poptorch.DataLoader(options(), Pairs(5), batch_sampler=batches(5, 2))
    assert all_ids(loader) == [[0, 1], [2, 3], [4]]


class Batches:
    """Batches of the given sizes, one after the other."""

    def __init__(self, *sizes: int) -> None:
        self.sizes, self.batch_size = sizes, 4

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self):
        begin = 0
        for size in self.sizes:
            yield list(range(begin, begin + size))
            begin += size


def torch_batches(num_rows: int, drop_last: bool):
    return torch.utils.data.BatchSampler(range(num_rows), 4, drop_last)


@pytest.mark.parametrize("drop_last", [True, False], ids=["drop", "keep"])
@pytest.mark.parametrize(
    ("sampler", "num_rows", "sizes"),
    [
        (Batches(4, 4, 3), 11, [8, 3]),
        (Batches(3, 4, 2, 4), 13, [8, 5]),
        (Batches(2, 1), 3, [3]),
        (Batches(4, 4), 100, [8]),
        (torch_batches(19, True), 19, [8, 8]),
        (torch_batches(19, False), 19, [8, 8, 3]),
        (torch_batches(8, True), 30, [8]),
    ],
)
def test_batch_sampler_of_incomplete_batches_when_rebatched_then_no_row_is_lost(
    sampler, num_rows, sizes, drop_last
):
    loader = poptorch.DataLoader(
        options(iterations=2),
        Pairs(num_rows),
        batch_sampler=sampler,
        drop_last=drop_last,
        mode=DataLoaderMode.AsyncRebatched,
        async_options=FORK,
    )
    found = all_ids(loader)
    assert [len(step) for step in found] == sizes
    assert sum(found, []) == list(range(sum(sizes)))
    assert len(loader) == len(sizes)
    loader.terminate()


def test_batch_sampler_when_rebatched_then_the_remainder_is_kept():
    loader = poptorch.DataLoader(
        options(iterations=3),
        Dicts(20),
        batch_sampler=batches(20, 2),
        drop_last=True,
        mode=DataLoaderMode.AsyncRebatched,
    )
    assert all_ids(loader) == chunks(20, 6, drop_last=False)
    assert len(loader) == 4
    loader.terminate()


def test_batch_sampler_without_batch_size_then_counts_as_one():
    loader = poptorch.DataLoader(options(iterations=3), Pairs(6), batch_sampler=Unsized())
    assert loader.combinedBatchSize == 3
    assert all_ids(loader) == [[0, 1, 2, 3, 4, 5]]


class ReadingAhead(poptorch.DataLoader):
    """A loader that creates the next batch before it returns one."""

    def __iter__(self):
        batches = super().__iter__()
        if self._accessor is not None:
            yield from batches
            return
        before = next(batches)
        for batch in batches:
            yield before
            before = batch
        yield before


LOADERS = {"loader": poptorch.DataLoader, "reading ahead": ReadingAhead}


@pytest.mark.parametrize("buffer_size", [1, 3, 20])
@pytest.mark.parametrize("kind", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("make", KINDS)
def test_async_batches_then_are_those_of_pytorchs_loader(make, kind, buffer_size):
    dataset = make(23)
    arguments = {**FORK, "buffer_size": buffer_size}
    loader = kind(
        options(iterations=2), dataset, 2, mode=DataLoaderMode.Async, async_options=arguments
    )
    for _ in range(2):
        expected = torch.utils.data.DataLoader(dataset, 4, drop_last=True)
        num_batches = 0
        for batch, plain in zip(loader, expected, strict=True):
            torch.testing.assert_close(batch, plain, rtol=0, atol=0)
            num_batches += 1
        assert num_batches == 5
    loader.terminate()


def test_async_batches_of_a_batch_sampler_then_are_joined_as_by_hand():
    sampler = BatchSampler(SequentialSampler(range(12)), 2, drop_last=True)
    given = options(iterations=3)
    loader = poptorch.DataLoader(
        given, Scalars(12), batch_sampler=sampler, mode=DataLoaderMode.Async, async_options=FORK
    )
    assert [batch.tolist() for batch in loader] == [list(range(6)), list(range(6, 12))]
    loader.terminate()


class Hundredfold:
    """A wrapper that forwards every attribute of a loader, but yields its own batches."""

    def __init__(self, loader):
        self.loader = loader

    def __getattr__(self, name):
        if name == "loader":
            raise AttributeError(name)  # Unpickling asks for it before it is set.
        return getattr(self.loader, name)

    def __iter__(self):
        return (100 * batch for batch in self.loader)


def test_accessor_when_a_wrapper_hands_on_attributes_then_iterates_the_wrapper():
    loader = poptorch.DataLoader(options(iterations=2), Scalars(8), 2)
    accessor = poptorch.AsynchronousDataAccessor(Hundredfold(loader), **FORK)
    assert [batch.tolist() for batch in accessor] == [[0, 100, 200, 300], [400, 500, 600, 700]]
    accessor.terminate()


class OwnIterator(poptorch.DataLoader):
    """A loader with its own class of iterators."""

    def _get_iterator(self):
        return map(torch.neg, super()._get_iterator())


def test_loader_when_it_has_iterators_of_its_own_then_they_are_asked():
    loader = OwnIterator(
        options(iterations=2), Scalars(8), 2, mode=DataLoaderMode.Async, async_options=FORK
    )
    assert [batch.tolist() for batch in loader] == [[0, -1, -2, -3], [-4, -5, -6, -7]]
    loader.terminate()


class Ending(Scalars):
    """A dataset that raises `StopIteration` from element 9 on."""

    def __getitem__(self, index):
        if index >= 9:
            raise StopIteration
        return super().__getitem__(index)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_epoch_when_the_dataset_stops_then_ends_as_pytorchs(mode):
    loader = poptorch.DataLoader(
        options(iterations=2), Ending(20), 2, mode=mode, async_options=FORK
    )
    plain = torch.utils.data.DataLoader(Ending(20), 4, drop_last=True)
    for _ in range(2):
        torch.testing.assert_close(list(map(torch.clone, loader)), list(plain), rtol=0, atol=0)
    if mode is not DataLoaderMode.Sync:
        loader.terminate()


def test_repr_then_tells_the_dataset_the_step_and_the_mode():
    options = poptorch.Options().deviceIterations(5)
    dataset = torch.utils.data.TensorDataset(torch.arange(60))
    loader = poptorch.DataLoader(options, dataset, batch_size=4)
    assert repr(loader) == (
        "DataLoader(TensorDataset, rows_per_step=20, num_steps=3, num_workers=0, "
        "mode=DataLoaderMode.Sync)"
    )
