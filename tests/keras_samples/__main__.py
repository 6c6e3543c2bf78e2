"""Compares all samples, or those of some rooms or classes, with Keras on TensorFlow.

Usage: python -m keras_samples [layers] [losses] [metrics] [initializers] [optimizers] [CLASS ...]
[N], where N takes every Nth sample.
"""

from __future__ import annotations

import os
import sys
from collections import Counter

os.environ["KERAS_BACKEND"] = "torch"

from keras_samples.samples import ROOMS, all_samples


def main() -> int:
    """Prints each difference; returns whether there are any."""
    from keras_samples.check import differences

    rooms = [each for each in sys.argv[1:] if each in ROOMS] or list(ROOMS)
    names = {each for each in sys.argv[1:] if each not in ROOMS and not each.isdigit()}
    every = next((int(each) for each in sys.argv[1:] if each.isdigit()), 1)
    samples = [each for each in all_samples(rooms) if not names or each.name in names][::every]
    found = differences(samples)
    shown: Counter[str] = Counter()
    for text in found:
        name = text.partition("(")[0]
        shown[name] += 1
        if shown[name] <= 3:
            print(text, flush=True)
    classes = {(each.room, each.name) for each in samples}
    for room, count in Counter(room for room, _ in classes).items():
        print(f"{room}: {count} classes")
    print(f"{len(samples)} calls, {len(found)} differ: {dict(shown)}")
    return len(found) > 0


if __name__ == "__main__":
    raise SystemExit(main())
