"""Datasets and helpers for the tests of the loader."""

import multiprocessing

import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, SequentialSampler

import poptorch_emu as poptorch
from poptorch_emu import DataLoaderMode

MODES = list(DataLoaderMode)
# A forked loader process starts at once. Mode `Sync` ignores this argument.
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
    """Yields the start method of the process that created each element."""

    def __getitem__(self, index):
        return torch.tensor(START_METHODS.index(multiprocessing.get_start_method()))


START_METHODS = ["fork", "forkserver", "spawn"]


def do_nothing(worker_id):
    """Stands for a worker_init_fn, because a compile makes `torch.manual_seed` unpicklable."""


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
    """Returns the element numbers of a batch, after checking that all values belong to them."""
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


def batches(num_elements, size, drop_last=False):
    return BatchSampler(SequentialSampler(range(num_elements)), size, drop_last)


class Unsized:
    """A batch sampler without a length."""

    def __iter__(self):
        return iter([[0, 1], [2, 3], [4, 5]])
