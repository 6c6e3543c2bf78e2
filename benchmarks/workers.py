"""What a second worker gives, and what is left beside a busy neighbour.

For each model three processes take turns: one worker of one thread, two workers, and two workers
beside a process that computes all the time. A model on one virtual IPU has threads instead. Run it
on two quiet cores. The lines show throughput with two workers over that with one, and beside the
neighbour over that without; medians of the ratios of each round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

from models import CASES
from speed import __file__ as speed_script

# It ends with this process, also where that is killed.
_BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


def throughput(name: str, num_workers: int, seconds: float) -> float:
    """Returns samples a second of a process of its own."""
    count = str(num_workers)
    command = [sys.executable, str(speed_script), "--measure", name, "poptorch_emu"]
    done = subprocess.run(
        [*command, "--seconds", str(seconds)],
        env={**os.environ, "POPTORCH_EMU_WORKERS": count, "OMP_NUM_THREADS": count},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-2])


def throughput_beside_a_neighbour(name: str, seconds: float) -> float:
    """Returns samples a second of two workers beside a process that computes all the time."""
    neighbour = subprocess.Popen([sys.executable, "-c", _BUSY])
    try:
        return throughput(name, 2, seconds)
    finally:
        neighbour.kill()
        neighbour.wait()


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each process")
    args = parser.parse_args()
    print("| model | two workers over one | beside a neighbour |\n|---|---:|---:|")
    for name in args.models:
        gains, shares = [], []
        for _ in range(args.rounds):
            one, two = (throughput(name, count, args.seconds) for count in (1, 2))
            gains.append(two / one)
            shares.append(throughput_beside_a_neighbour(name, args.seconds) / two)
        gain, share = statistics.median(gains), statistics.median(shares)
        print(f"| {name} | {gain:.2f} | {share:.2f} |", flush=True)


if __name__ == "__main__":
    main()
