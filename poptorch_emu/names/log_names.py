"""Names that programs use from `poptorch._logging`."""

from poptorch_emu.log import logger
from poptorch_emu.log import set_log_level as setLogLevel  # noqa: N812
from poptorch_emu.log import set_popart_log_level as setPopartLogLevel  # noqa: N812

__all__ = ["logger", "setLogLevel", "setPopartLogLevel"]
