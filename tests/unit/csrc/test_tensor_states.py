"""Checks of many tensors and dictionaries in one call, compared with single checks in Python."""

import pytest
import torch

from poptorch_emu import _C


def states(tensors):
    """Returns the versions and the addresses of tensors, read by Python."""
    versions = [0 if tensor.is_inference() else tensor._version for tensor in tensors]
    return versions, [tensor.data_ptr() for tensor in tensors]


def make_tensors():
    with torch.inference_mode():
        of_inference = torch.zeros(3)
    changed = torch.zeros(2).add_(1)
    return [torch.zeros(4), torch.nn.Parameter(torch.zeros(2, 3)), of_inference, changed]


def test_states_when_nothing_changed_then_are_the_same():
    tensors = make_tensors()
    assert _C.have_states(tensors, *states(tensors))
    assert _C.have_states([], [], [])


@pytest.mark.parametrize("index", [0, 1, 3])
def test_states_when_a_value_changed_then_differ(index):
    tensors = make_tensors()
    seen = states(tensors)
    with torch.no_grad():
        tensors[index].add_(1)
    assert not _C.have_states(tensors, *seen)
    assert _C.have_states(tensors, *states(tensors))


@pytest.mark.parametrize("index", [0, 1, 3])
def test_states_when_the_memory_is_another_then_differ(index):
    tensors = make_tensors()
    seen = states(tensors)
    tensors[index].data = tensors[index].data.clone()
    assert not _C.have_states(tensors, *seen)


@pytest.mark.parametrize("index", [0, 1])
def test_flags_when_one_is_switched_then_differ(index):
    tensors = make_tensors()[:2]
    flags = [False, True]
    assert _C.have_flags(tensors, flags)
    tensors[index].requires_grad_(not flags[index])
    assert not _C.have_flags(tensors, flags)


def test_objects_in_dicts_when_one_is_another_or_gone_then_are_not_held():
    one, other = torch.zeros(1), torch.zeros(1)
    first, second = {"a": one, "training": True}, {"b": other}
    looked = [first, first, second], ["a", "training", "b"], [one, True, other]
    assert _C.are_held(*looked)
    first["training"] = False
    assert not _C.are_held(*looked)
    first["training"] = True
    second["b"] = other.clone()  # An equal tensor is another object.
    assert not _C.are_held(*looked)
    del second["b"]
    assert not _C.are_held(*looked)


def test_lists_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="differ in length"):
        _C.have_states([torch.zeros(1)], [0], [])
    with pytest.raises(ValueError, match="differ in length"):
        _C.are_held([{}], [], [])
    with pytest.raises(TypeError, match="Tensors are expected"):
        _C.have_flags([1], [True])
