"""Strategies of several processes, and the index and number of processes (exact).

`ipu.horovod` is an older name of this module.
"""

from poptorch_emu.companions import popdist
from poptorch_emu.keras.ipu.distributed import popdist_strategy

init = popdist.init
rank = popdist.getInstanceIndex
size = popdist.getNumInstances

__all__ = ["init", "popdist_strategy", "rank", "size"]
