"""Trains in several processes, of which the last fails in the way that the first argument names.

Each process that receives an `Error` writes its text to `saw_<index>.json`, and whether a model
without other processes still trains.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from support.process_training import Model, on_linger

import poptorch_emu as poptorch
from poptorch_emu.companions import popdist
from poptorch_emu.companions.popdist import poptorch as popdist_poptorch

NUM_CALLS = 30
NUM_LINGERING = 20  # Number of slow micro-batches in a window; the link fails in the fifth.


def cut_in_window(interface: str, fault: Path) -> None:
    """Takes a network interface down in the middle of the next window."""
    lock, left = threading.Lock(), [5]

    def count() -> None:
        with lock:
            left[0] -= 1
            if left[0] == 0:
                subprocess.run(["ip", "link", "set", interface, "down"], check=True)
                fault.write_text(str(time.time()))

    on_linger.append(count)


def kill_in_window(fault: Path) -> None:
    """Ends this process in the middle of the next window, before it exchanges with the others."""

    def kill() -> None:
        fault.write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)

    on_linger.append(kill)


def go_wrong(way: str, fault: Path) -> None:
    if way == "kill before an exchange":
        return kill_in_window(fault)
    if way == "link":
        return cut_in_window(os.environ["TEST_INTERFACE"], fault)
    fault.write_text(str(time.time()))
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if way == "exception":
        raise RuntimeError("the disk is full\nand more")
    if way == "end":
        sys.exit(0)
    return None


def train_alone() -> float:
    options = poptorch.Options()
    options.Distributed.disable()
    model = Model(1, 0.0, False)
    trainer = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
    return float(trainer(torch.ones(1, 5), torch.ones(1, 3))[1])


def main(way: str, folder: Path) -> None:
    popdist.init()
    index = popdist.getInstanceIndex()
    is_culprit = index == popdist.getNumInstances() - 1
    torch.manual_seed(index if way == "weights" else 0)
    is_exchange = way == "kill before an exchange"
    lingers = is_exchange or way == "link"
    model = Model(1, 0.0, False, lingers=lingers, exchanges=is_exchange)
    options = popdist_poptorch.Options()
    if way == "option" and is_culprit:
        options.deviceIterations(2)
    rows = 2 if way == "option" and is_culprit else 1
    if way == "link":
        options.Training.gradientAccumulation(NUM_LINGERING)
        rows = NUM_LINGERING
    if way == "nan":
        options._Popart.set("enableFloatingPointChecks", True)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    fault = folder / "fault"
    try:
        trainer = poptorch.trainingModel(model, options, optimizer)
        for call in range(NUM_CALLS):
            x = torch.ones(rows * options.replication_factor, 5)
            if call == 3 and is_culprit:
                go_wrong(way, fault)
                if way == "nan":
                    x[0] = float("nan")
            trainer(x, torch.ones(rows * options.replication_factor, 3))
            time.sleep(0.02)
    except poptorch.Error as error:
        since = time.time() - float(fault.read_text()) if fault.exists() else 0.0
        saw = {"seconds": since, "message": error.message, "again": ""}
        try:
            trainer(x, torch.ones(rows, 3))
        except poptorch.Error as again:
            saw["again"] = again.message
        saw["loss_alone"] = train_alone()
        (folder / f"saw_{index}.json").write_text(json.dumps(saw))
        raise


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
