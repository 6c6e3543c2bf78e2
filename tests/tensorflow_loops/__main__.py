"""Compares all small programs with TensorFlow: `python -m tensorflow_loops [--golden] [NAME]`.

With `--golden`, plain TensorFlow runs the programs, and the results are stored.
"""

from __future__ import annotations

import os
import sys

os.environ["KERAS_BACKEND"] = "tensorflow" if "--golden" in sys.argv else "torch"

from tensorflow_loops.bench import DeviceBench
from tensorflow_loops.check import difference, golden, write_golden
from tensorflow_loops.programs import PROGRAMS


def main() -> int:
    """Runs all programs, or those that are named."""
    if "--golden" in sys.argv:
        write_golden([each for each in sys.argv[1:] if each != "--golden"])
        return 0
    from support.tensorflow_programs import strategy

    from poptorch_emu.keras import ipu

    wanted, num_different = golden(), 0
    names = sys.argv[1:] or list(PROGRAMS)
    for name in names:
        with (found := strategy()).scope():
            text = difference(
                name,
                wanted.get(name, []),
                DeviceBench(found, ipu.ipu_outfeed_queue.IPUOutfeedQueue),
            )
        num_different += bool(text)
        print(text or f"{name}: as in TensorFlow", flush=True)
    print(f"{len(names)} programs, {num_different} differ")
    return num_different > 0


if __name__ == "__main__":
    raise SystemExit(main())
