"""Keras 3 programs on virtual IPUs: `from poptorch_emu.keras import ipu`.

A thin layer over the executor of PyTorch models: Keras keeps its own `fit`, `evaluate` and
`predict`, its callbacks, metrics and files; only what runs batches is another function. Nothing
else in the package knows Keras, which is an extra: `pip install 'poptorch_emu[keras]'`.
"""

from poptorch_emu.keras import keras_version as keras_version  # First: it says what is missing.

keras_version.check_installed()
