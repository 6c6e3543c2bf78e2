"""What programs ask of the system, and the configuration of releases before 2021."""

from __future__ import annotations

from typing import Any

from poptorch_emu.keras.ipu.config import (
    DeviceConnectionType,
    IPUConfig,
    configure_ipu_system,
    set_seed,
    system_settings,
)
from poptorch_emu.options.base import note_accepted

__all__ = [
    "DeviceConnectionType",
    "IPUConfig",
    "auto_select_ipus",
    "configure_ipu_system",
    "create_ipu_config",
    "get_num_of_ipus_in_device",
    "move_variable_initialization_to_cpu",
    "reset_ipu_seed",
    "running_on_ipu_model",
]


def reset_ipu_seed(seed: int, device: str = "/device:IPU:0", cpu_device: str = "cpu") -> None:
    """Seeds the random numbers of programs that are made from now on (exact).

    Args:
        seed: an integer.
        device: accepted.
        cpu_device: accepted.
    """
    set_seed(seed)


def get_num_of_ipus_in_device(ipu_device: str, device: str = "cpu") -> int:
    """Returns how many IPUs the process has configured (exact).

    Args:
        ipu_device: accepted.
        device: accepted.
    """
    return system_settings().num_ipus or 1


def running_on_ipu_model(device: str = "cpu") -> bool:
    """Returns whether the IPU Model runs the program: never (exact).

    Args:
        device: accepted.
    """
    return False


def move_variable_initialization_to_cpu(*args: Any, **kwargs: Any) -> None:
    """Does nothing: variables are made on the host (accepted)."""


def create_ipu_config(**settings: Any) -> IPUConfig:
    """Returns a configuration; settings of releases before 2021 are recorded (accepted).

    Args:
        settings: by name.
    """
    for name in settings:
        note_accepted(f"create_ipu_config({name}=...)")
    return IPUConfig()


def auto_select_ipus(opts: IPUConfig, num_ipus: Any) -> IPUConfig:
    """Returns a configuration with so many IPUs (exact).

    Args:
        opts: from `create_ipu_config`; it is changed.
        num_ipus: how many.
    """
    opts.auto_select_ipus = num_ipus
    return opts
