"""Functions that tell programs about the system, and the configuration before 2021."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from poptorch_emu.keras.ipu.config import (
    DeviceConnectionType,
    IPUConfig,
    configure_ipu_system,
    set_seed,
    system_settings,
)
from poptorch_emu.near_names import did_you_mean
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

_OF_2020 = (
    "always_rearrange_copies_on_the_host", "disable_graph_outlining",
    "enable_experimental_remote_buffer_embedding", "enable_poplar_serialized_graph",
    "max_cross_replica_sum_buffer_size", "max_inter_ipu_copies_buffer_size",
    "max_reduce_scatter_buffer_size", "max_report_size", "max_scheduler_lookahead_depth",
    "max_scheduler_search_space_size", "max_send_recv_cluster_size", "merge_infeed_io_copies",
    "minimum_remote_tensor_size", "prefetch_data_streams", "profile_execution", "profiling",
    "report_directory", "report_every_nth_execution", "scheduler_selection", "selection_order",
    "use_poplar_cbor_report", "use_poplar_text_report",
)  # fmt: skip


def reset_ipu_seed(seed: int, device: str = "/device:IPU:0", cpu_device: str = "cpu") -> None:
    """Seeds the random numbers of programs that are made from now on (exact).

    Args:
        seed: seed, an integer of 64 bits.
        device: accepted.
        cpu_device: accepted.

    Raises:
        ValueError: the seed is not such an integer.
    """
    is_integer = isinstance(seed, Integral) and not isinstance(seed, bool)
    if not is_integer or not -(2**63) <= seed < 2**64:
        raise ValueError(f"seed must be an integer of 64 bits, not {seed!r}.")
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

    Raises:
        TypeError: a setting did not exist then.
    """
    for name in settings:
        if name not in _OF_2020:
            hint = did_you_mean(name, _OF_2020)
            raise TypeError(f"create_ipu_config has no argument {name!r}.{hint}")
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
