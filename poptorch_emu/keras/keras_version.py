"""Imports Keras, and rejects versions that cannot run on virtual IPUs."""

from __future__ import annotations

import re

from poptorch_emu.troubleshooting import Topic

try:
    import keras
except (ImportError, ValueError) as error:  # ValueError: Keras does not know its backend.
    raise ImportError(
        f"poptorch_emu.keras needs Keras 3.15 or newer on its torch backend, but importing it "
        f"failed: {error}. Run pip install 'poptorch_emu[keras]', and set the environment variable "
        f"KERAS_BACKEND=torch before the first import of keras; {Topic.KERAS_BACKEND}"
    ) from error

MINIMUM = (3, 15)


def check(version: str = keras.__version__, backend: str = keras.backend.backend()) -> None:
    """Checks a version and a backend of Keras; by default those of the imported Keras.

    Raises:
        ImportError: Keras is too old, or runs on another backend.
    """
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if found < MINIMUM:
        raise ImportError(
            f"poptorch_emu.keras needs Keras 3.15 or newer, but found {version}. Run "
            "pip install --upgrade keras."
        )
    if backend != "torch":
        raise ImportError(
            f"poptorch_emu.keras needs Keras on its torch backend, but it runs on {backend!r}. Set "
            "the environment variable KERAS_BACKEND=torch before the first import of keras, or "
            f'"backend": "torch" in ~/.keras/keras.json; {Topic.KERAS_BACKEND}'
        )
