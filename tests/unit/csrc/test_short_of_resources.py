"""Calls without enough memory or threads end with an error and have no other effect."""

import subprocess
import sys
from pathlib import Path

import pytest

# Runs `engine` while the process may use only the given number of MiB more than now.
PROGRAM = """
import resource, sys, threading
sys.path[:0] = [{folder!r}, {tests!r}]
import torch
from hand_built import *

def run_short_of_memory(engine, inputs, room):
    has = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (has + (room << 20), before[1]))
    try:
        engine.run(inputs, 1)
    except Exception as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)

{code}
"""

# The arena for 16 MiB is made in the second run, when their lifetimes are known.
MEMORY = """
program, segment = one_segment()
add(program, segment, "mul.Tensor", [Reg(0), 2.0], [1])
add(program, segment, "add.Tensor", [Reg(1), 1.0], [2], dies=[1])
add(program, segment, "sum", [Reg(2)], [3], dies=[2])
program.store_output(segment, 3, ALL, 1)
engine = executor(program)
x = torch.ones(1, 1 << 22)
engine.run([x], 1)
assert "memory" in run_short_of_memory(engine, [x], 4)
assert torch.zeros(1 << 22).sum() == 0
assert engine.run([x], 1)[0] == 3 << 22
del engine, program
assert torch.zeros(1 << 16).sum() == 0
"""

# There is room for the stack of one thread, of eight MiB, beside the other workers' memory.
THREADS = """
engine = executor(pipeline(2, 8), workers=4)
engine.begin_stream(max_unread=8, micro_batches_per_step=1, num_outputs=1)
taken = []
reader = threading.Thread(target=lambda: taken.append(engine.take_result()), daemon=True)
reader.start()
x = torch.ones(8, 1)
message = run_short_of_memory(engine, [x], 13)
assert "of 3 threads beside the calling one could be started" in message, message
reader.join(60)
assert taken == [[]]
engine.end_stream()
assert engine.run([x], 1)[0].tolist() == [[5.0]] * 8
"""


@pytest.mark.parametrize("code", [MEMORY, THREADS], ids=["memory", "threads"])
def test_call_when_there_is_too_little_then_fails_and_the_next_one_runs(code: str) -> None:
    text = PROGRAM.format(
        folder=str(Path(__file__).parent), tests=str(Path(__file__).parents[2]), code=code
    )
    # Threads have stacks of this size in KiB, whatever the limit is here.
    command = ["sh", "-c", 'ulimit -S -s 8192 && exec "$@"', "sh", sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
