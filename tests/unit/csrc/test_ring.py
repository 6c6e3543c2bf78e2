"""The ring of running sums: the bits of one process with all replicas, for any shapes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.forked_programs import python_path
from support.processes import finish, start

# The largest values are sent from their own memory, in one packet or several. The others are sent
# together.
SIZES = [(1,), (3, 5), (7,), (64, 33), (0,), (1000,), (300_001,), (1100, 1300)]
TYPES = [torch.float32, torch.float16]
SHAPES = [(2, 1), (2, 4), (3, 2), (4, 1)]

# Each process creates the values of all processes, and passes its own to the ring.
CODE = """
import sys, torch
from test_ring import exchange
exchange(*sys.argv[1:])
"""


def values(num_replicas: int) -> list[list[torch.Tensor]]:
    """Returns, for each tensor, the values of each replica, with very different magnitudes."""
    generator = torch.Generator().manual_seed(1)
    return [
        [
            (torch.randn(size, generator=generator) * 4.0 ** (replica % 3)).to(dtype)
            for replica in range(num_replicas)
        ]
        for dtype in TYPES
        for size in SIZES
    ]


def expected(summands: list[torch.Tensor]) -> torch.Tensor:
    """Returns the sums by definition: part k of N is the sum of k+1, ..., N-1, 0, ..., k."""
    count = len(summands)
    flat = [tensor.flatten() for tensor in summands]
    length = -(-flat[0].numel() // count)
    result = torch.empty_like(flat[0])
    for part in range(count):
        here = slice(part * length, (part + 1) * length)
        total = flat[(part + 1) % count][here].clone()
        for step in range(2, count + 1):
            total = total + flat[(part + step) % count][here]
        result[here] = total
    return result.reshape(summands[0].shape)


def spoil_others(flat: torch.Tensor, first: int, num_local: int, num_processes: int) -> None:
    """Sets parts to NaN, except those of replicas `first`, ..., `first` + `num_local` - 1."""
    length = -(-flat.numel() // (num_processes * num_local))
    flat[: first * length] = torch.nan
    flat[(first + num_local) * length :] = torch.nan


def exchange(folder: str, num_local_text: str) -> None:
    """Runs in each process."""
    from poptorch_emu import _C
    from poptorch_emu.companions import popdist

    num_local = int(num_local_text)
    num_processes, index = popdist.getNumInstances(), popdist.getInstanceIndex()
    dist.init_process_group("gloo", rank=index, world_size=num_processes)
    ring = _C.Ring(dist.group.WORLD.group_name, 3, 60.0)
    own = slice(index * num_local, (index + 1) * num_local)
    all_mine = [of_tensor[own] for of_tensor in values(num_processes * num_local)]
    sums = []
    for number in range(4):  # The buffers of the first time are used again.
        mine = [[tensor.clone() for tensor in of_tensor] for of_tensor in all_mine]
        first = [summands[0] for summands in mine]
        if number % 2 == 0:
            ring.all_reduce(number, mine)
        else:
            ring.reduce_scatter(number, mine)
            for tensor in first:
                spoil_others(tensor.view(-1), index * num_local, num_local, num_processes)
            ring.all_gather(10 + number, first, num_local)
        sums.append(first)
    # The gradient of a sum has a stride of 0.
    alone = [torch.tensor(1.0 + replica).expand(1) for replica in range(own.start, own.stop)]
    ring.all_reduce(20, [alone])
    torch.save((sums, alone[0]), Path(folder) / f"result_{index}.pt")
    dist.barrier()


@pytest.mark.parametrize(("num_processes", "num_local"), SHAPES)
def test_ring_whole_or_in_two_halves_then_sums_have_the_bits_of_the_definition(
    num_processes, num_local, tmp_path
):
    path = {"PYTHONPATH": os.pathsep.join([python_path(), str(Path(__file__).parent)])}
    ended = finish(
        start(CODE, [str(tmp_path), str(num_local)], num_processes, num_local, path), seconds=100
    )
    wanted = [expected(of_tensor) for of_tensor in values(num_processes * num_local)]
    assert all(each.status == 0 for each in ended), "\n".join(each.text for each in ended)
    for index in range(num_processes):
        assert (tmp_path / f"result_{index}.pt").exists(), ended[index].text
        all_sums, alone = torch.load(tmp_path / f"result_{index}.pt")
        assert alone.tolist() == [sum(range(1, num_processes * num_local + 1))]
        for sums in all_sums:
            for found, right in zip(sums, wanted, strict=True):
                assert found.dtype == right.dtype
                assert torch.equal(found, right)
