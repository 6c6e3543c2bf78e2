"""Links, rings, the host and streaming memory by hand: hardware.md 4.2, 4.3, 5.2 and 5.3."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poptorch_emu.machine.ipu import BOW, MK2
from poptorch_emu.machine.links import all_reduce_seconds, copy_cycles, gather_seconds
from poptorch_emu.machine.streams import input_seconds, output_seconds, remote_seconds
from poptorch_emu.machine.system import SYSTEMS
from poptorch_emu.machine.time_numbers import EVIDENCE, FITTED, NUMBERS, TimeNumbers

POD16 = SYSTEMS["bow-pod16"]


@pytest.mark.parametrize(
    ("source", "target", "rate"), [(0, 1, 58.4e9), (3, 2, 58.4e9), (1, 2, 29.2e9), (3, 0, 29.2e9)]
)
@pytest.mark.parametrize("chip", [MK2, BOW], ids=lambda chip: chip.name)
def test_copy_then_is_a_sync_and_the_bytes_over_the_links(chip, source, target, rate) -> None:
    cycles = copy_cycles(2_000_000, source, target, chip)
    assert cycles == pytest.approx(600 + 2e6 / rate * chip.clock_hz)
    assert copy_cycles(0, source, target, chip) == 0


@pytest.mark.parametrize(
    ("replicas", "seconds"),
    [
        (1, 0.0),
        (2, 2 * (0.5e8 / 58.4e9 + 1e-6)),
        (4, 2 * (0.75e8 / 58.4e9 + 3e-6)),
        # Over two machines, whose steps are slower.
        (8, 2 * (0.875e8 / 58.4e9 + 7 * 28e-6)),
    ],
)
def test_ring_of_single_ipus_then_is_by_hand(replicas, seconds) -> None:
    assert all_reduce_seconds(100_000_000, replicas, 1) == pytest.approx(seconds)
    assert gather_seconds(100_000_000, replicas, 1) == pytest.approx(seconds / 2)


def test_ring_of_larger_replicas_then_shares_the_rails() -> None:
    pair, four = (all_reduce_seconds(10**8, 4, size) for size in (2, 4))
    assert pair == pytest.approx(2 * (0.75e8 / 29.2e9 + 3 * 28e-6))
    assert four == pytest.approx(2 * (0.75e8 / 14.6e9 + 3 * 28e-6))
    # A full pod is a torus.
    assert all_reduce_seconds(10**8, 16, 4) == pytest.approx(
        2 * (15 / 16 * 1e8 / 29.2e9 + 15 * 28e-6)
    )


def test_reduction_over_two_pods_then_has_three_phases() -> None:
    inside = all_reduce_seconds(10**8, 16, 4)
    across = 2 * (10**8 / 16 / 2 / (21e9 / 4) + 5e-6)
    assert all_reduce_seconds(10**8, 32, 4) == pytest.approx(inside + across)


def test_streams_then_are_by_hand() -> None:
    assert input_seconds(3_000_000, POD16, 1, False) == pytest.approx(2e-3)
    assert input_seconds(12_500_000, POD16, 4, True) == pytest.approx(1e-3)
    assert input_seconds(12_500_000, POD16, 1, True) == pytest.approx(4e-3)
    assert input_seconds(12_000_000, SYSTEMS["c600"], 1, False) == pytest.approx(1e-3)
    assert output_seconds(5_500_000) == pytest.approx(1e-3)


def test_streaming_memory_then_is_shared_by_the_ipus_of_a_machine() -> None:
    meeting = 160_000 / BOW.clock_hz
    assert remote_seconds(55_000_000, 1) == pytest.approx(meeting + 0.01, abs=1e-6)
    assert remote_seconds(50_000_000, 16) == pytest.approx(meeting + 0.01, abs=1e-6)
    assert remote_seconds(50_000_000, 16, 3) == pytest.approx(3 * meeting + 0.01, abs=2e-6)
    assert remote_seconds(0, 16) == 0


def slower(numbers: TimeNumbers, factor: float) -> TimeNumbers:
    rates = {name: value / factor for name, value in vars(numbers).items() if "_per_second" in name}
    return replace(numbers, **rates)


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.floats(1.0, 10.0), st.integers(2, 64))
def test_transfers_when_there_is_more_or_all_is_slower_then_take_no_less_time(
    num_bytes, more, factor, replicas
) -> None:
    def times(count: int, numbers: TimeNumbers) -> list[float]:
        return [
            copy_cycles(count, 0, 2, BOW, numbers),
            all_reduce_seconds(count, replicas, 4, numbers),
            input_seconds(count, POD16, 4, False, numbers),
            output_seconds(count, numbers),
            remote_seconds(count, 4, numbers=numbers),
        ]

    usual = times(num_bytes, NUMBERS)
    for other in (times(num_bytes + more, NUMBERS), times(num_bytes, slower(NUMBERS, factor))):
        assert all(new >= old for new, old in zip(other, usual, strict=True))


def test_numbers_then_each_has_its_evidence_and_few_are_fitted() -> None:
    assert EVIDENCE.keys() == vars(NUMBERS).keys()
    assert len(FITTED) <= 4
