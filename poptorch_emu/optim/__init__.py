"""Optimisers whose arithmetic runs on the device: `poptorch.optim`."""

from typing import NoReturn

from poptorch_emu.near_names import no_attribute
from poptorch_emu.optim.lamb import LAMB
from poptorch_emu.optim.optimizer_base import Optimizer, VariableAttributes
from poptorch_emu.optim.optimizers import SGD, Adam, AdamW, RMSprop

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]


def __getattr__(name: str) -> NoReturn:
    raise no_attribute("poptorch.optim", name, __all__)
