"""The numbering of devices, and their reservation of IPUs."""

import gc

import pytest

from poptorch_emu.errors import Error
from poptorch_emu.machine.system import SYSTEMS, System
from poptorch_emu.runtime import devices
from poptorch_emu.runtime.devices import acquire, num_busy_ipus


@pytest.fixture(autouse=True)
def fresh_system(monkeypatch):
    monkeypatch.setenv("POPTORCH_EMU_SYSTEM", "mk2-pod4")
    monkeypatch.delenv("POPTORCH_WAIT_FOR_IPU", raising=False)
    monkeypatch.setattr(devices, "_manager", devices._Manager())


def test_devices_then_single_ipus_first_and_then_aligned_pairs_and_fours():
    expected = [[0], [1], [2], [3], [0, 1], [2, 3], [0, 1, 2, 3]]
    assert [list(device) for device in System("any", 4, 2).devices()] == expected
    assert System("empty", 0, 0).devices() == []


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=lambda system: system.name)
def test_systems_then_each_ipu_is_in_one_device_of_each_size(system):
    by_size = {}
    for device in system.devices():
        by_size.setdefault(len(device), []).extend(device)
    assert all(ids == list(range(system.num_ipus)) for ids in by_size.values())
    assert not by_size or max(by_size) == system.num_ipus


def test_acquire_then_lowest_free_ipus_and_release_twice_does_no_harm():
    first, second = acquire(1), acquire(2)
    assert (list(first.ipu_ids), list(second.ipu_ids)) == ([0], [2, 3])
    first.release()
    third = acquire(1)
    first.release()
    assert list(third.ipu_ids) == [0] and num_busy_ipus() == 3


def test_device_that_nobody_holds_then_is_free_again_also_in_a_circle():
    acquire(4)
    circle = [acquire(4)]
    circle.append(circle)
    gc.disable()
    try:
        del circle
        held = acquire(4)  # Collects before it gives up.
    finally:
        gc.enable()
    with pytest.raises(Error, match="Failed to acquire 1 IPU"):
        acquire(1)
    held.release()
    assert num_busy_ipus() == 0


def test_acquire_when_none_is_free_then_lenders_are_asked_until_there_is_one(monkeypatch):
    monkeypatch.setattr(devices, "_lenders", [])
    held = [acquire(1) for _ in range(4)]

    def give_back() -> bool:
        if held:
            held.pop().release()
            return True
        return False

    devices.add_lender(give_back)
    assert list(acquire(2).ipu_ids) == [2, 3] and len(held) == 2
