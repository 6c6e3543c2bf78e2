"""Times of transfers between an IPU and the host or streaming memory, in seconds.

Sources and evidence are in `time_numbers.py`.
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
    """Returns the time that the host needs to send a replica its input.

    Args:
        num_bytes: size of the input of one micro-batch.
        system: system of the IPUs.
        ipus_per_replica: number of IPUs of a replica. Replicas on one machine share its network.
        is_overlapped: whether tiles for I/O receive the input while the other tiles compute. The
            input then arrives at the speed of the network.
        numbers: constants of the time model.
    """
    if system.card is not None:
        return num_bytes / _CARD_BYTES_PER_SECOND
    if is_overlapped:
        sharing = max(1, MACHINE_IPUS // ipus_per_replica)
        return num_bytes * sharing / _MACHINE_BYTES_PER_SECOND
    return num_bytes / numbers.host_bytes_per_second


def output_seconds(num_bytes: int, numbers: TimeNumbers = NUMBERS) -> float:
    """Returns the time to send a result to the host."""
    return num_bytes / numbers.output_bytes_per_second


def remote_seconds(
    num_bytes: int, num_ipus: int, num_transfers: int = 1, numbers: TimeNumbers = NUMBERS
) -> float:
    """Returns the time that an IPU needs to load or store `num_bytes` in streaming memory.

    Args:
        num_bytes: bytes of one IPU.
        num_ipus: number of IPUs that do so at once. The IPUs of a machine share its memory.
        num_transfers: number of transfers, one after another, each with its own synchronisation.
        numbers: constants of the time model.
    """
    if not num_bytes:
        return 0.0
    sharing = min(num_ipus, MACHINE_IPUS)
    rate = min(numbers.remote_bytes_per_second, numbers.machine_remote_bytes_per_second / sharing)
    return num_transfers * numbers.remote_sync_seconds + num_bytes / rate
