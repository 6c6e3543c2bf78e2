"""`poptorch_experimental_addons`: collectives, distances, number formats and sparse products."""

from poptorch_emu.companions.poptorch_experimental_addons import (
    collectives as collectives,
)
from poptorch_emu.companions.poptorch_experimental_addons import (
    sharded as sharded,
)
from poptorch_emu.companions.poptorch_experimental_addons import (
    sparse as sparse,
)
from poptorch_emu.companions.poptorch_experimental_addons.proxies_and_distances import (
    autograd_proxy,
    distance_matrix,
    quantise_fpx,
    quantise_fpx_grad,
    quantise_fpx_ste,
)

__version__ = "0.1"

__all__ = [
    "autograd_proxy",
    "distance_matrix",
    "quantise_fpx",
    "quantise_fpx_grad",
    "quantise_fpx_ste",
]
