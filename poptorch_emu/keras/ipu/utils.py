"""Functions that tell programs about the system, and the configuration before 2021."""

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
        seed: seed, an integer.
        device: accepted.
        cpu_device: accepted.
    """
    set_seed(seed)


def get_num_of_ipus_in_device(ipu_device: str, device: str = "cpu") -> int:
    """Returns the number of IPUs that the process has configured (exact).

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
    """Does nothing, because variables are created on the host (accepted)."""


def create_ipu_config(**settings: Any) -> IPUConfig:
    """Returns a configuration; settings of releases before 2021 are recorded (accepted).

    Args:
        settings: settings by name.
    """
    for name in settings:
        note_accepted(f"create_ipu_config({name}=...)")
    return IPUConfig()


def auto_select_ipus(opts: IPUConfig, num_ipus: Any) -> IPUConfig:
    """Sets the number of IPUs in a configuration, and returns the configuration (exact).

    Args:
        opts: configuration from `create_ipu_config`, which is changed.
        num_ipus: number of IPUs.
    """
    opts.auto_select_ipus = num_ipus
    return opts
