"""Trains in one of several processes, while an attacker writes to the port of their store.

Usage: store_attack.py FORGERIES [FAULT]; forgeries are values by key, as JSON. "=KEY" stands for
the value that is stored under another key. The last process ends with the fault, if one is given.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import torch
from support.forked_programs import FORKED_PYTHON
from support.process_training import Model

import poptorch_emu as poptorch
from poptorch_emu.companions import popdist
from poptorch_emu.companions.popdist import poptorch as popdist_poptorch

ATTACKER = """
import json, os, sys
from torch._C._distributed_c10d import PrefixStore, TCPStore
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = PrefixStore("poptorch_emu/0", TCPStore(address, port))
for key, value in json.loads(sys.argv[1]).items():
    store.set(key, store.get(value[1:]) if value.startswith("=") else value)
"""


def attack(forgeries: str) -> None:
    """Forges messages in a process that does not have the secret."""
    others = {name: text for name, text in os.environ.items() if "SECRET" not in name}
    command = [*FORKED_PYTHON, "-c", ATTACKER, forgeries]
    subprocess.run(command, env=others, check=True, timeout=100)


def main() -> None:
    popdist.init()
    index = popdist.getInstanceIndex()
    if index == 0:
        attack(sys.argv[1])
    popdist.synchronize()
    time.sleep(0.5)  # Watchers check ten times a second.
    torch.manual_seed(0)
    model = Model(1, 0.0, False)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    trainer = poptorch.trainingModel(model, popdist_poptorch.Options(), optimizer)
    for _ in range(3):
        trainer(torch.ones(1, 5), torch.ones(1, 3))
    popdist.synchronize()
    if len(sys.argv) > 2 and index == popdist.getNumInstances() - 1:
        raise RuntimeError(sys.argv[2])
    print("DONE")


if __name__ == "__main__":
    main()
