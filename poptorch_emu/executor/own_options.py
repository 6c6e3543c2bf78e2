"""The frozen options of an executor."""

from __future__ import annotations

from poptorch_emu.enums import OutputMode
from poptorch_emu.optim.device_link import OptimizerLink
from poptorch_emu.options import Options
from poptorch_emu.options.optimizer_settings import with_running_mean


def own_options(options: Options, *, is_training: bool) -> Options:
    """Returns a frozen copy with the default output mode of training or inference."""
    options._freeze()
    own = options.clone()
    if own.defaultOutputMode():
        own.outputMode(OutputMode.Final if is_training else OutputMode.All)
    own._freeze()
    return own


def options_of(options: Options, link: OptimizerLink | None) -> Options:
    """Returns a copy of options, with a running mean of gradients if the optimiser needs one."""
    own = own_options(options, is_training=link is not None)
    return with_running_mean(own) if link is not None and link.needs_running_mean else own
