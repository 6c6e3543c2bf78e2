"""Compares samples here and with Keras on TensorFlow, each in a process of its own."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from keras_samples.samples import Sample

# Relative and absolute tolerance; of random values, of their statistics, and of optimisers.
_NEAR, _ABOUT = (1e-4, 2e-5), (0.05, 0.05)
# TensorFlow takes cubic kernels from a table of 1024 places; spectra add up many products.
_WIDER = {"UpSampling2D": (1e-3, 2e-3), "MelSpectrogram": (1e-3, 1e-4)}

_REFUSED = (
    "has other results in TensorFlow",
    "not supported by the PyTorch backend",
)


def differences(samples: Sequence[Sample]) -> list[str]:
    """Returns a text for each sample whose values differ from those of Keras on TensorFlow.

    Samples that Keras refuses on TensorFlow are no differences, nor are refusals by name here.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / name for name in ("torch", "tensorflow")}
        running = {name: _begun(name, path, samples) for name, path in files.items()}
        for name, process in running.items():
            assert process.wait() == 0, f"Keras on {name} failed"
        found, wanted = (pickle.loads(path.read_bytes()) for path in files.values())
    texts = map(_difference, samples, found, wanted)
    return [f"{each}: {text}" for each, text in zip(samples, texts, strict=True) if text]


def _begun(backend: str, path: Path, samples: Sequence[Sample]) -> subprocess.Popen[bytes]:
    """Starts a process that computes samples with a backend of Keras, from and into a file."""
    path.write_bytes(pickle.dumps(list(samples)))
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command = [sys.executable, "-W", "ignore", "-m", "keras_samples.compute", str(path)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def _difference(sample: Sample, found: dict[str, Any], wanted: dict[str, Any]) -> str:
    if "error" in wanted:
        return ""
    if "error" in found:
        is_refusal = any(text in found["error"] for text in _REFUSED)
        return "" if is_refusal else found["error"]
    for name in wanted:
        if name not in found:
            return f"no {name}"
        near = _ABOUT if name.startswith("about") else _WIDER.get(sample.name, _NEAR)
        text = _compared(found[name], wanted[name], near)
        if text:
            return f"{name}: {text}"
    return ""


def _compared(found: np.ndarray, wanted: np.ndarray, near: tuple[float, float]) -> str:
    if found.shape != wanted.shape:
        return f"shape {found.shape}, TensorFlow has {wanted.shape}"
    if found.dtype != wanted.dtype:
        return f"type {found.dtype}, TensorFlow has {wanted.dtype}"
    wrong = ~np.isclose(found, wanted, *near, equal_nan=True)
    if not wrong.any():
        return ""
    places = np.flatnonzero(wrong)[:3]
    return f"{found.flat[places]}, TensorFlow has {wanted.flat[places]} at {places}"
