"""Keras 3 programs on virtual IPUs: `from poptorch_emu.keras import ipu`.

A thin layer over the executor of PyTorch models. Keras keeps its own `fit`, `evaluate`, `predict`,
callbacks, metrics and files; only the function that runs batches is replaced. The rest of the
package does not import Keras, which is optional: `pip install 'poptorch_emu[keras]'`.
"""

from poptorch_emu.keras import keras_version as keras_version  # First, to report a missing Keras.

keras_version.check()
