"""Writes the laboratory of the documentation: `python tools/site_laboratory.py FILE`.

The laboratory uses the encoder of the pipelining tutorial, which is large enough for a pipeline to
pay, and has the exercises.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tutorials" / "pipelining")]

import encoder_model  # noqa: E402

import poptorch_emu as poptorch  # noqa: E402
from poptorch_emu.compile.settings import SCHEDULES  # noqa: E402

SYSTEM, NAME = "bow-pod16", "The encoder of the pipelining tutorial"
# Fewer values than by default, because a plan of the encoder takes a tenth of a second.
SWEEP: Mapping[str, Sequence[Any]] = {
    "num_ipus": (1, 2, 4),
    "schedule": SCHEDULES,
    "micro_batch": (8, 16),
    "accumulation": (8, 12, 16, 20, 24, 32, 40, 48, 64, 96),
    "recomputation": ("pipeline", "none"),
    "offload": ("nothing", "optimizer"),
    "replicas": (1, 4),
    "system": ("mk2-pod16", "bow-pod16"),
}
# The page has the choices in which at most two settings differ from the start.
MOST_PLANS = 250


def write(
    path: Path, sweep: Mapping[str, Sequence[Any]] = SWEEP, *, exercises: bool = True
) -> None:
    """Writes the page, with choices of `sweep`, and the exercises."""
    model, batch = encoder_model.encoder(change=lambda options: options.modelName(NAME))
    keywords = {"exercises": exercises, "most_plans": MOST_PLANS, "system": SYSTEM}
    poptorch.emulator.lab(model, batch, path=path, sweep=sweep, **keywords)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
