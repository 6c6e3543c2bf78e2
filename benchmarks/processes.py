"""Measures several processes: the ring against Gloo's all-reduce, and training against one process.

Usage: python benchmarks/processes.py [ring] [share] [train]. Figures are ratios of one run; all
processes share this host.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist

MEGABYTE = 1_000_000
REPEATS = 7


def median_seconds(work: object) -> float:
    """Returns the median time of several runs in seconds; all processes start together."""
    times = []
    for _ in range(REPEATS):
        dist.barrier()
        start = time.perf_counter()
        work()  # type: ignore[operator]
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def ring_beside_gloo(index: int) -> None:
    from poptorch_emu import _C

    dist.init_process_group("gloo", rank=index, world_size=2)
    group = dist.new_group()
    ring = _C.Ring(group.group_name, 0, 60.0)
    for megabytes in (1, 10, 100):
        value = torch.ones(megabytes * MEGABYTE // 4)
        ours = median_seconds(lambda value=value: ring.all_reduce(0, [[value]]))
        gloo = median_seconds(lambda value=value: dist.all_reduce(value))
        if index == 0:
            print(f"ring / Gloo, {megabytes} MB, P = 2: {ours / gloo:.2f} ({1e3 * ours:.1f} ms)")
    dist.destroy_process_group()


def share_of_exchange(index: int) -> None:
    """Prints the share of a step's time in which the engine exchanges gradients."""
    import poptorch_emu as poptorch

    class Model(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                *(torch.nn.Linear(width, width, bias=False) for _ in range(4))
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.layers(x).square(), "mean")

    for megabytes, width in ((1, 250), (10, 790), (100, 2500)):
        torch.manual_seed(0)
        options = poptorch.Options().deviceIterations(1)
        options.Training.gradientAccumulation(8)
        options.Distributed.configureProcessId(index, 2)
        model = Model(width)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        trainer = poptorch.trainingModel(model, options, optimizer)
        batch = torch.randn(8 * 16, width)
        trainer(batch)
        ring = trainer._session._peers.ring
        before, start = ring.seconds(), time.perf_counter()
        for _ in range(REPEATS):
            trainer(batch)
        share = (ring.seconds() - before) / (time.perf_counter() - start)
        if index == 0:
            print(f"share of the exchange in a step, {megabytes} MB, P = 2: {share:.2f}")
        trainer.destroy()


def train(index: int, num_processes: int) -> None:
    import poptorch_emu as poptorch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(
                torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.AvgPool2d(4),
                torch.nn.Flatten(), torch.nn.Linear(2048, 10),
            )  # fmt: skip

        def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            loss = torch.nn.functional.cross_entropy(self.net(x), target)
            return poptorch.identity_loss(loss, "none")

    torch.manual_seed(0)
    options = poptorch.Options().replicationFactor(2 // num_processes).deviceIterations(4)
    options.Distributed.configureProcessId(index, num_processes)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = poptorch.trainingModel(model, options, optimizer)
    rows = 16 * 4 * (2 // num_processes)
    batch = torch.randn(rows, 3, 32, 32), torch.zeros(rows, dtype=torch.long)
    trainer(*batch)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        trainer(*batch)
        times.append(time.perf_counter() - start)
    if index == 0:
        print(statistics.median(times), flush=True)


def in_processes(what: str, num_processes: int) -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, what, str(index), str(num_processes)],
            env={**environment, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(num_processes)
    ]
    return "".join(process.communicate()[0] for process in started)


def main(parts: list[str]) -> None:
    if "ring" in parts:
        print(in_processes("ring", 2), end="")
    if "share" in parts:
        print(in_processes("share", 2), end="")
    if "train" in parts:
        together, alone = (float(in_processes("train", count)) for count in (2, 1))
        print(f"images/s, P = 2 with R = 1 over P = 1 with R = 2: {alone / together:.2f}")


if __name__ == "__main__":
    if len(sys.argv) < 3 or not sys.argv[2].isdecimal():
        main(sys.argv[1:] or ["ring", "share", "train"])
    elif sys.argv[1] == "ring":
        ring_beside_gloo(int(sys.argv[2]))
    elif sys.argv[1] == "share":
        share_of_exchange(int(sys.argv[2]))
    else:
        train(int(sys.argv[2]), int(sys.argv[3]))
