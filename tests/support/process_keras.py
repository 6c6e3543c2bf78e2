"""Trains a Keras model in this process, one of several, and saves its weights.

Usage: process_keras.py FOLDER; each process takes its own batches in turn.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch

from poptorch_emu.companions import popdist
from poptorch_emu.companions.popdist import tensorflow as popdist_tensorflow
from poptorch_emu.keras import ipu

ROWS, BATCHES, RATE = 4, 12, 0.05


def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(BATCHES * ROWS, 5)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def trained(x: np.ndarray, y: np.ndarray, method: str) -> list[np.ndarray]:
    """Returns the weights after one epoch in the strategy of this process."""
    strategy = ipu.distributed.popdist_strategy.PopDistStrategy()
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6), keras.layers.Dense(1)])
        model.set_gradient_accumulation_options(2, method)
        model.compile(keras.optimizers.SGD(RATE), "mse", steps_per_execution=2)
        model.fit(x, y, batch_size=ROWS, shuffle=False, verbose=0)
    return model.get_weights()


def main() -> None:
    popdist_tensorflow.set_ipu_config(ipu.config.IPUConfig())
    index, count = popdist.getInstanceIndex(), popdist.getNumInstances()
    x, y = (each.reshape(BATCHES, ROWS, -1)[index::count] for each in data())
    rows = len(x) * ROWS
    found = {
        method: trained(x.reshape(rows, -1), y.reshape(rows, -1), method)
        for method in ("sum", "mean")
    }
    torch.save(
        {method: list(map(torch.from_numpy, weights)) for method, weights in found.items()},
        Path(sys.argv[1]) / f"result_{index}.pt",
    )


if __name__ == "__main__":
    main()
