"""Optimisers whose arithmetic runs on the device: `poptorch.optim`."""

from poptorch_emu.optim.lamb import LAMB
from poptorch_emu.optim.optimizer_base import Optimizer, VariableAttributes
from poptorch_emu.optim.optimizers import SGD, Adam, AdamW, RMSprop

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]
