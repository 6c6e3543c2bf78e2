"""`DataLoader`: batch-size algebra, modes, what it refuses and warns of, shares of processes."""

import multiprocessing

import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, SequentialSampler

import poptorch_emu as poptorch
from poptorch_emu import DataLoaderMode

pytestmark = [
    pytest.mark.feature("DataLoader", fidelity="exact"),
    # Newer Pythons warn of the forks of PyTorch's own workers.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

MODES = list(DataLoaderMode)
# Starts at once; mode `Sync` has no use for it.
FORK = {"sharing_strategy": poptorch.SharingStrategy.Fork}


class Pairs(Dataset):
    """Element i is (i, [i, i + 0.5])."""

    def __init__(self, num_elements):
        self.num_elements = num_elements

    def __len__(self):
        return self.num_elements

    def __getitem__(self, index):
        return torch.tensor(index), torch.tensor([index, index + 0.5])


class Dicts(Pairs):
    """Element i as a dict."""

    def __getitem__(self, index):
        first, second = super().__getitem__(index)
        return {"id": first, "values": second}


class Scalars(Pairs):
    """Element i is one tensor."""

    def __getitem__(self, index):
        return torch.tensor(index)


class Stream(IterableDataset):
    """The elements of `Pairs`, without indices."""

    def __init__(self, num_elements):
        self.num_elements = num_elements

    def __iter__(self):
        return (Pairs(self.num_elements)[index] for index in range(self.num_elements))

    def __len__(self):
        return self.num_elements


KINDS = [Pairs, Dicts, Scalars, Stream]


class StartMethods(Scalars):
    """Every element says how the process that made it would start others."""

    def __getitem__(self, index):
        return torch.tensor(START_METHODS.index(multiprocessing.get_start_method()))


START_METHODS = ["fork", "forkserver", "spawn"]


def do_nothing(worker_id):
    """Stands for a worker_init_fn; a compile makes `torch.manual_seed` impossible to pickle."""


def options(iterations=1, replicas=1, accumulation=1, group=1, seed=None):
    result = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    result.Training.gradientAccumulation(accumulation)
    if group > 1:
        result.inputReplicaGrouping(group, poptorch.CommGroupType.Consecutive)
    if seed is not None:
        result.randomSeed(seed)
    return result


def process(process_id, num_processes, **kwargs):
    result = options(**kwargs)
    result.Distributed.configureProcessId(process_id, num_processes)
    return result


def ids_of(batch):
    """Returns the element numbers of a batch, after a check that the rest belongs to them."""
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    ids, values = batch.values() if isinstance(batch, dict) else batch
    assert torch.equal(values, torch.stack([ids, ids + 0.5], dim=1))
    return ids.tolist()


def all_ids(loader):
    return [ids_of(batch) for batch in loader]


def chunks(num_elements, size, drop_last):
    whole = [list(range(i, min(i + size, num_elements))) for i in range(0, num_elements, size)]
    return [chunk for chunk in whole if len(chunk) == size or not drop_last]


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


def batches(num_elements, size, drop_last=False):
    return BatchSampler(SequentialSampler(range(num_elements)), size, drop_last)


class Unsized:
    """A batch sampler that does not know its length."""

    def __iter__(self):
        return iter([[0, 1], [2, 3], [4, 5]])


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


def test_batch_sampler_of_one_batch_a_step_then_passes_them_on():
    loader = poptorch.DataLoader(options(), Pairs(5), batch_sampler=batches(5, 2))
    assert all_ids(loader) == [[0, 1], [2, 3], [4]]


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


REFUSED = {
    "sampler_and_batch_size": (
        {"batch_sampler": batches(8, 2), "batch_size": 2},
        poptorch.Error,
        "`batch_sampler` option is mutually exclusive with batch_size, shuffle.",
    ),
    "sampler_and_shuffle": (
        {"batch_sampler": batches(8, 2), "shuffle": True},
        poptorch.Error,
        "`batch_sampler` option is mutually exclusive with batch_size, shuffle.",
    ),
    "rebatched_worker_too_large": (
        {"batch_size": 4, "mode": DataLoaderMode.AsyncRebatched, "rebatched_worker_size": 5},
        AssertionError,
        r"The rebatched_worker_size \(5\) must be <= to the combined batch size \(4\)",
    ),
    "rebatched_size": (
        {"mode": DataLoaderMode.AsyncRebatched, "async_options": {"rebatched_size": 4}},
        AssertionError,
        "You cannot use DataLoaderMode.AsyncRebatched.*rebatched_size in async_options",
    ),
    "rebatched_size_async": (
        {"mode": DataLoaderMode.Async, "async_options": {"rebatched_size": 4}},
        AssertionError,
        "You cannot use DataLoaderMode.AsyncRebatched.*rebatched_size in async_options",
    ),
    "no_options": ({"options": {}}, AssertionError, "poptorch.Options"),
}


@pytest.mark.parametrize(("arguments", "kind", "message"), REFUSED.values(), ids=REFUSED)
def test_contradicting_arguments_then_raise(arguments, kind, message):
    arguments = {"options": options(), "dataset": Pairs(8), **arguments}
    with pytest.raises(kind, match=message):
        poptorch.DataLoader(**arguments)


REFUSED_PARTITION = {
    "batch_sampler": (
        {"batch_sampler": batches(8, 2)},
        poptorch.Error,
        "`batch_sampler` option is mutually exclusive with auto_distributed_partitioning=True.",
    ),
    "sampler": (
        {"sampler": [1, 2]},
        poptorch.Error,
        "`sampler` option is mutually exclusive with auto_distributed_partitioning=True.",
    ),
    "iterable": (
        {"dataset": Stream(8)},
        AssertionError,
        "auto_distributed_partitioning not supported for IterableDataset",
    ),
    "shuffle_without_seed": (
        {"shuffle": True},
        AssertionError,
        r"When using auto_distributed_partitioning.*poptorch.Options.randomSeed\(\)",
    ),
    "no_batching": (
        {"batch_size": None},
        AssertionError,
        "batch_size=None not allowed when using auto_distributed_partitioning.",
    ),
}


@pytest.mark.parametrize(
    ("arguments", "kind", "message"), REFUSED_PARTITION.values(), ids=REFUSED_PARTITION
)
def test_arguments_that_no_processes_can_share_then_raise_unless_partitioning_is_off(
    arguments, kind, message
):
    arguments = {"dataset": Pairs(8), "drop_last": False, **arguments}
    with pytest.raises(kind, match=message):
        poptorch.DataLoader(process(0, 2), **arguments)
    poptorch.DataLoader(process(0, 2), auto_distributed_partitioning=False, **arguments)
    poptorch.DataLoader(process(0, 1), **arguments)


WARNED = {
    "rows": (
        {"dataset": Pairs(13)},
        r"The number of elements in the dataset \(13\).*\b6\b.*drop_last=False",
    ),
    "rows_fit": ({"dataset": Pairs(12)}, None),
    "rows_dropped": ({"dataset": Pairs(13), "drop_last": True}, None),
    "stream": ({"dataset": Stream(13)}, None),
    "batches": (
        {"batch_size": 1, "batch_sampler": batches(8, 2)},
        r"The number of batches generated by the batch sampler \(4\).*\b3\b.*drop_last=False",
    ),
    "batches_fit": ({"batch_size": 1, "batch_sampler": batches(12, 2)}, None),
    "batches_unknown": (
        {"batch_size": 1, "batch_sampler": Unsized()},
        r"The `batch_sampler` __len__ method is not implemented.*drop_last=False",
    ),
    "duplicates": (
        {"dataset": Stream(12), "num_workers": 2},
        r"IterableDataset used with num_workers=2",
    ),
    "one_worker": ({"dataset": Stream(12), "num_workers": 1}, None),
    "worker_init_fn": (
        {"dataset": Stream(12), "num_workers": 2, "worker_init_fn": do_nothing},
        None,
    ),
}


@pytest.mark.parametrize(("arguments", "message"), WARNED.values(), ids=WARNED)
def test_doubtful_arguments_then_warn_once(arguments, message, caplog):
    defaults = {"dataset": Pairs(12), "batch_size": 2, "drop_last": False}
    poptorch.DataLoader(options(iterations=3), **{**defaults, **arguments})
    found = [record.getMessage() for record in caplog.records]
    if message is None:
        assert found == []
    else:
        assert len(found) == 1
        caplog.clear()
        with pytest.raises(AssertionError, match=message):
            raise AssertionError(found[0])


def test_rows_of_several_processes_then_all_of_them_count_for_the_warning(caplog):
    poptorch.DataLoader(process(0, 2), Pairs(6), 3, drop_last=False)
    assert caplog.records == []
    poptorch.DataLoader(process(0, 2), Pairs(9), 3, drop_last=False)
    assert "The number of elements in the dataset (9)" in caplog.records[0].getMessage()


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
