"""Times of copies between IPUs, and of collectives between replicas over the same links.

A machine has two rungs of two IPUs each. Rails join the rungs to a ladder of up to 64 IPUs, a pod.
Gateways join pods. Sources and evidence are in `time_numbers.py`.
"""

from __future__ import annotations

from poptorch_emu.machine.ipu import Ipu
from poptorch_emu.machine.time_numbers import NUMBERS, TimeNumbers

# Source: the largest IPU-Link domain.
POD_IPUS = 64
MACHINE_IPUS = 4


def copy_cycles(
    num_bytes: int, source: int, target: int, chip: Ipu, numbers: TimeNumbers = NUMBERS
) -> float:
    """Returns the cycles of a copy from one IPU to another, including a sync of the two.

    Args:
        num_bytes: size of the copy; 0 takes no time.
        source: number of the sending IPU in its replica.
        target: number of the receiving IPU in its replica.
        chip: kind of the IPUs, whose clock converts seconds to cycles.
        numbers: constants of the time model.
    """
    if not num_bytes or source == target:
        return 0.0
    is_pair = source // 2 == target // 2
    rate = numbers.pair_bytes_per_second if is_pair else numbers.ladder_bytes_per_second
    return numbers.link_sync_cycles + num_bytes / rate * chip.clock_hz


def all_reduce_seconds(
    num_bytes: int, num_replicas: int, ipus_per_replica: int, numbers: TimeNumbers = NUMBERS
) -> float:
    """Returns the time that replicas need to add up a tensor so that each has the sum.

    Within a pod this is a ring: a reduce-scatter, then an all-gather of the same volume. Over
    several pods there are three phases: each pod does a reduce-scatter, the pods add up their parts
    over the gateways, and each pod does an all-gather.

    Args:
        num_bytes: bytes on one IPU of each replica; all IPUs exchange at the same time.
        num_replicas: number of replicas.
        ipus_per_replica: number of IPUs of a replica, whose rings share the links.
        numbers: constants of the time model.
    """
    if num_replicas < 2 or not num_bytes:
        return 0.0
    num_pods = max(1, -(-num_replicas * ipus_per_replica // POD_IPUS))
    in_pod = -(-num_replicas // num_pods)
    rate = ring_rate(in_pod * ipus_per_replica, ipus_per_replica, numbers)
    hop = hop_seconds(in_pod * ipus_per_replica, numbers)
    seconds = 2 * ring_seconds(num_bytes, in_pod, rate, hop)
    if num_pods == 1:
        return seconds
    # The four IPUs of a machine share its gateway.
    gateway = numbers.gateway_bytes_per_second / MACHINE_IPUS
    share = -(-num_bytes // in_pod)
    return seconds + 2 * ring_seconds(share, num_pods, gateway, numbers.gateway_hop_seconds)


def gather_seconds(
    num_bytes: int, num_replicas: int, ipus_per_replica: int, numbers: TimeNumbers = NUMBERS
) -> float:
    """Returns the time of an all-gather or a reduce-scatter, which is half of an all-reduce."""
    return all_reduce_seconds(num_bytes, num_replicas, ipus_per_replica, numbers) / 2


def ring_seconds(num_bytes: int, num_members: int, rate: float, hop_seconds: float) -> float:
    """Returns the time to send all parts but one around a ring."""
    if num_members < 2:
        return 0.0
    steps = num_members - 1
    return num_bytes * steps / num_members / rate + steps * hop_seconds


def ring_rate(num_ipus: int, ipus_per_replica: int, numbers: TimeNumbers) -> float:
    """Returns the rate of one ring. The rings of a replica's IPUs share the rails (assumed).

    A full pod closes the ladder to a torus, which doubles the rails.
    """
    if ipus_per_replica == 1:
        return numbers.ring_bytes_per_second
    share = numbers.ring_bytes_per_second / (2 if ipus_per_replica == 2 else 4)
    return share * (2 if num_ipus >= POD_IPUS else 1)


def hop_seconds(num_ipus: int, numbers: TimeNumbers) -> float:
    """Returns the latency of one step of a ring, without its bytes."""
    return numbers.hop_seconds if num_ipus <= MACHINE_IPUS else numbers.machine_hop_seconds
