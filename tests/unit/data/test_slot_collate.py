"""`SlotCollate`: the values of PyTorch's `default_collate`, in a slot where they fit."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from poptorch_emu.data.slot_collate import SlotCollate

Pair = namedtuple("Pair", "x y")


class Subclass(torch.Tensor):
    pass


def image(value=0.0):
    return torch.full((2, 3), value)


SAMPLES = {
    # (samples, whether each tensor of the batch is built in the slot)
    "tensors": ([image(1), image(2)], [True]),
    "numbers": ([torch.tensor(1), torch.tensor(2)], [True]),
    "not contiguous": ([image(1).t(), image(2).t()], [True]),
    "tuples": ([(image(1), torch.tensor(1)), (image(2), torch.tensor(2))], [True, True]),
    "labels": ([(image(1), 1), (image(2), 2)], [True, False]),
    "labels first": ([(1, image(1)), (2, image(2))], [False, True]),
    "arrays": ([(np.ones(2), image(1)), (np.zeros(2), image(2))], [False, True]),
    "lists": ([[image(1)], [image(2)]], [False]),
    "dicts": ([{"a": image(1)}, {"a": image(2)}], [False]),
    "named": ([Pair(image(1), 1), Pair(image(2), 2)], [False, False]),
    "subclass": ([image(1), image(2).as_subclass(Subclass)], [False]),
    "empty": ([torch.empty(0), torch.empty(0)], [True]),
    "in a graph": ([image(1.0), image(2.0).requires_grad_()], [False]),
    "conjugate": ([torch.ones(2) * 1j, (torch.ones(2) * 1j).conj()], [True]),
}


def tensors_of(batch):
    if isinstance(batch, torch.Tensor):
        return [batch]
    return list(batch.values() if isinstance(batch, dict) else batch)


@pytest.mark.parametrize(("samples", "in_place"), SAMPLES.values(), ids=SAMPLES)
def test_batch_then_is_that_of_pytorch(samples, in_place):
    expected = default_collate(samples)
    slot = [
        torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors_of(expected)
    ]
    collate = SlotCollate(lambda: slot)

    batch = collate(samples)

    assert type(batch) is type(expected)
    torch.testing.assert_close(batch, expected, rtol=0, atol=0)
    is_there = [a is b for a, b in zip(tensors_of(batch), slot, strict=True)]
    assert is_there == in_place
    assert (collate.made is batch) == all(in_place)


MISFITS = {
    "fewer rows": [image()],
    "more rows": [image()] * 3,
    "another shape": [torch.zeros(3, 2)] * 2,
    "another type": [image().double()] * 2,
    "mixed types": [image(), image().double()],
}


@pytest.mark.parametrize("samples", MISFITS.values(), ids=MISFITS)
def test_batch_that_does_not_fit_then_is_made_elsewhere(samples):
    (place,) = slot = [torch.full((2, 2, 3), 7.0)]
    collate = SlotCollate(lambda: slot)
    collate([image(), image()])
    place.fill_(7)

    batch = collate(samples)

    torch.testing.assert_close(batch, default_collate(samples), rtol=0, atol=0)
    assert batch.dtype == default_collate(samples).dtype
    assert collate.made is None
    assert (place == 7).all()


def test_number_of_tensors_that_changes_then_is_made_elsewhere():
    slot = [torch.empty(2, 2, 3)]
    samples = [(image(1), image(2))] * 2
    torch.testing.assert_close(SlotCollate(lambda: slot)(samples), default_collate(samples))
    torch.testing.assert_close(
        SlotCollate(lambda: slot * 2)([image(1)] * 2), default_collate([image(1)] * 2)
    )


def test_samples_of_different_length_then_the_error_is_pytorchs():
    samples = [(image(), image()), (image(),)]
    with pytest.raises(RuntimeError) as expected:
        default_collate(samples)
    with pytest.raises(RuntimeError) as caught:
        SlotCollate(lambda: [torch.empty(2, 2, 3)] * 2)(samples)
    assert str(caught.value) == str(expected.value)


def test_no_free_slot_then_is_made_elsewhere():
    collate = SlotCollate(lambda: None)
    torch.testing.assert_close(collate([image(1)]), image(1)[None])
    assert collate.made is None
