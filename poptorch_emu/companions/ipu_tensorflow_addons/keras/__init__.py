"""`ipu_tensorflow_addons.keras`: layers and optimisers on Keras 3."""

from poptorch_emu.companions.ipu_tensorflow_addons.keras import layers, optimizers

__all__ = ["layers", "optimizers"]
