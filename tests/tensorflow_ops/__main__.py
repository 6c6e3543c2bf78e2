"""Compares all raw operators that the device serves with the installed TensorFlow.

Prints each difference, and the operators for which there are no samples.
"""

from __future__ import annotations

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

from tensorflow_ops.check import difference
from tensorflow_ops.samples import samples_of

from poptorch_emu.keras import ipu
from poptorch_emu.keras.tensorflow.functions.device_graph import ROWS


def main() -> int:
    """Runs all samples, or those of the operators that are named."""
    ipu.ipu_strategy.IPUStrategy()
    names = sys.argv[1:] or sorted(ROWS)
    count = num_different = 0
    for name in names:
        samples = samples_of(name)
        if not samples:
            print(f"{name}: no samples")
        found = [text for text in map(difference, samples) if text]
        count += len(samples)
        num_different += len(found)
        for text in found[:3]:
            print(text, flush=True)
        if len(found) > 3:
            print(f"  ... and {len(found) - 3} more of {name}")
    print(f"{count} calls of {len(names)} operators, {num_different} differ")
    return num_different > 0


if __name__ == "__main__":
    raise SystemExit(main())
