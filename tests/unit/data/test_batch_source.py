"""An accessor's use of a loader, and of any other iterable."""

from __future__ import annotations

import gc

import pytest
import torch
from support.accessor_data import Numbers
from support.loader_data import options
from torch.utils.data import default_collate

import poptorch_emu as poptorch
from poptorch_emu.data.batch_source import IterableSource, batch_source, num_elements
from poptorch_emu.data.loader_source import LoaderSource


class Foreign:
    """A foreign loader, with the public names that PopTorch looks for."""

    def __init__(self, drop_last: object = True, batch_size: int | None = 4) -> None:
        self.rebatched_drop_last, self.batch_size = drop_last, batch_size

    def __iter__(self):
        return iter([torch.zeros(4)] * len(self))

    def __len__(self) -> int:
        return 5


@pytest.mark.parametrize("drop_last", [True, False, None, 0])
def test_foreign_dataset_then_only_false_keeps_the_remainder(drop_last):
    source = batch_source(Foreign(drop_last), 3)
    assert isinstance(source, IterableSource)
    assert source.drops_remainder == (drop_last is not False)
    cut = [rows for rows in torch.zeros(20).split(3) if drop_last is False or len(rows) == 3]
    assert source.counter(3)() == len(cut)
    assert source.counter(None)() == 5


def test_foreign_dataset_without_batch_size_then_its_rows_are_not_known():
    with pytest.raises(TypeError, match="3 rows is not known, because .*Foreign"):
        batch_source(Foreign(batch_size=None), 3).counter(3)()
    assert num_elements(Foreign(batch_size=None), None, True) == 5


def test_foreign_dataset_then_makes_its_own_batches():
    assert batch_source(Foreign(), None).collate_into(lambda: None) is None


def test_loader_then_its_own_source_is_used_and_makes_batches_in_slots():
    loader = poptorch.DataLoader(options(iterations=2), Numbers(10), 2)
    source = batch_source(loader, None)
    assert isinstance(source, LoaderSource)
    assert batch_source(source, None) is source
    place = torch.zeros(4, 1, dtype=torch.int64)
    collate = source.collate_into(lambda: [place])
    batches = iter(source)
    assert next(batches) is place and collate.made is place
    assert place.tolist() == [[0], [1], [2], [3]]


def test_loader_with_its_own_collate_function_then_keeps_it():
    def reversed_collate(samples):
        return default_collate(samples[::-1])

    loader = poptorch.DataLoader(options(iterations=2), Numbers(4), 2, collate_fn=reversed_collate)
    source = batch_source(loader, None)
    assert source.collate_into(lambda: None) is None
    assert next(iter(source)).tolist() == [[3], [2], [1], [0]]


def test_loader_that_owns_its_accessor_then_is_counted_but_not_kept_alive():
    loader = poptorch.DataLoader(options(iterations=2), Numbers(10), 2)
    count = LoaderSource(loader, True, True, owns_accessor=True).counter(3)
    assert count() == 2
    del loader
    gc.collect()
    with pytest.raises(
        TypeError, match="The length is not known, because the DataLoader has been deleted"
    ):
        count()
