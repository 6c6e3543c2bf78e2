"""What the host and streaming memory give to an IPU and take from it, in seconds.

Sources and evidence are those of `time_numbers.py`.
"""

from __future__ import annotations

from poptorch_emu.machine.links import MACHINE_IPUS
from poptorch_emu.machine.system import System
from poptorch_emu.machine.time_numbers import NUMBERS, TimeNumbers

# Assumed for a PCIe card, each way; published for the network of a machine.
_CARD_BYTES_PER_SECOND = 12e9
_MACHINE_BYTES_PER_SECOND = 12.5e9


def input_seconds(
    num_bytes: int,
    system: System,
    ipus_per_replica: int,
    is_overlapped: bool,
    numbers: TimeNumbers = NUMBERS,
) -> float:
    """Returns how long the host takes to send a replica its input.

    Args:
        num_bytes: of one micro-batch.
        system: whose IPUs they are.
        ipus_per_replica: replicas that share a machine share its network.
        is_overlapped: whether tiles set apart for I/O receive it; then it goes at the network's
            speed, while the others compute.
        numbers: of the model.
    """
    if system.card is not None:
        return num_bytes / _CARD_BYTES_PER_SECOND
    if is_overlapped:
        sharing = max(1, MACHINE_IPUS // ipus_per_replica)
        return num_bytes * sharing / _MACHINE_BYTES_PER_SECOND
    return num_bytes / numbers.host_bytes_per_second


def output_seconds(num_bytes: int, numbers: TimeNumbers = NUMBERS) -> float:
    """Returns how long a result takes to the host."""
    return num_bytes / numbers.output_bytes_per_second


def remote_seconds(
    num_bytes: int, num_ipus: int, num_transfers: int = 1, numbers: TimeNumbers = NUMBERS
) -> float:
    """Returns how long an IPU takes to load or store so much in streaming memory.

    Args:
        num_bytes: of one IPU.
        num_ipus: that do so at once; those of a machine share its memory.
        num_transfers: one after another, in each of which the IPU meets the memory.
        numbers: of the model.
    """
    if not num_bytes:
        return 0.0
    sharing = min(num_ipus, MACHINE_IPUS)
    rate = min(numbers.remote_bytes_per_second, numbers.machine_remote_bytes_per_second / sharing)
    return num_transfers * numbers.remote_sync_seconds + num_bytes / rate
