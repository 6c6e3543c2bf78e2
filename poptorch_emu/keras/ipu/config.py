"""`IPUConfig`: the number of IPUs of the process, and their settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from poptorch_emu.distributed.launch_environment import read_launch
from poptorch_emu.keras.settings.config_choices import (
    DeviceConnectionType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)
from poptorch_emu.keras.settings.original_options import checked_proportion, least_proportion
from poptorch_emu.keras.settings.run_settings import SystemSettings
from poptorch_emu.keras.settings.setting_tree import Group, Setting, Tree
from poptorch_emu.machine.system import SYSTEM_VARIABLE, current_system
from poptorch_emu.options.base import note_accepted

__all__ = [
    "DeviceConnectionType",
    "IPUConfig",
    "MergeRemoteBuffersBehaviour",
    "SchedulingAlgorithm",
    "SelectionOrder",
    "StochasticRoundingBehaviour",
    "configure_ipu_system",
    "get_ipu_config",
    "reset_ipu_configuration",
]

_EXCEPTIONS = ("inv", "div0", "oflo")


def _effective(default: Any, *types: type) -> Setting:
    return Setting(default, types, is_accepted=False)


_OPTIONS = Setting({})
_ON, _OFF, _ZERO = Setting(True), Setting(False), Setting(0)
_TREE: Tree = {
    "auto_select_ipus": _effective([], int, tuple, type(None)),
    "select_ipus": _effective([], int, tuple, type(None)),
    "allow_recompute": _effective(False),
    "selection_order": Setting(SelectionOrder.AUTO),
    "serialization_output_folder": Setting(""),
    "compilation_poplar_options": _OPTIONS,
    "gcl_poplar_options": _OPTIONS,
    "convolutions": {"poplar_options": _effective({})},
    "matmuls": {"poplar_options": _effective({}), "clear_pass_type": _OFF},
    "slices": {"poplar_options": _OPTIONS},
    "pooling": {"poplar_options": _OPTIONS},
    "device_connection": {
        "type": _effective(DeviceConnectionType.ALWAYS),
        "version": _effective(""),
        "enable_remote_buffers": _OFF,
    },
    "floating_point_behaviour": {
        "esr": _effective(StochasticRoundingBehaviour.OFF, bool),
        **dict.fromkeys(_EXCEPTIONS, _effective(False)),
        "nanoo": _OFF,
        "set_all": _effective(False),
    },
    "io_tiles": {
        "num_io_tiles": _effective(0),
        "place_ops_on_io_tiles": _effective(False),
        "available_memory_proportion": Setting(0.9),
    },
    "ipu_model": {
        "compile_ipu_code": _ON,
        "tiles_per_ipu": _ZERO,
        "version": Setting("ipu2"),
    },
    "norms": {
        "use_stable_statistics": _OFF,
        "experimental": {"distributed_batch_norm_replica_group_size": _effective(1)},
    },
    "scheduling": {
        "algorithm": Setting(SchedulingAlgorithm.CHOOSE_BEST),
        "maximum_scheduler_lookahead_depth": Setting(5),
        "maximum_scheduler_search_space_size": Setting(64),
    },
    "optimizations": {
        "math": {"fast": _OFF, "dot_strength": _ON},
        "enable_fast_math": _OFF,
        "prefetch_data_streams": _ON,
        "combine_embedding_lookups": _OFF,
        "combine_matmuls": _OFF,
        "enable_graph_outlining": _ON,
        "merge_infeed_io_copies": _OFF,
        "merge_remote_buffers": Setting(MergeRemoteBuffersBehaviour.IF_BENEFICIAL),
        "enable_gather_simplifier": _ON,
        "minimum_remote_tensor_size": Setting(128),
        "maximum_cross_replica_sum_buffer_size": _ZERO,
        "maximum_reduce_scatter_buffer_size": _ZERO,
        "maximum_inter_ipu_copies_buffer_size": _ZERO,
        "maximum_reduce_many_buffer_size": _ZERO,
        "maximum_all_gather_buffer_size": _ZERO,
        "maximum_send_recv_cluster_size": _ZERO,
        "triangular_solve_expander_block_size": _ZERO,
        "cholesky_block_size": _ZERO,
    },
    "experimental": {
        "always_rearrange_copies_on_the_host": _OFF,
        "enable_remote_buffer_embedding": _OFF,
        "enable_prng_stability": _OFF,
        "multi_replica_distribution": {
            "process_index": _effective(0),
            "process_count": _effective(0),
        },
    },
}


class IPUConfig(Group):
    """The IPUs of this process: exact, unless `docs/keras.md` says otherwise.

    Set attributes, then call `configure_ipu_system`. Attributes without effect here are accepted.

    Attributes:
        auto_select_ipus: number of IPUs for all replicas of a model together; by default those of
            one replica. As many replicas run as fit.
        select_ipus: instead, the number of a device that has as many IPUs. Devices are numbered as
            in `gcipuinfo`: each IPU, then each aligned group of 2, 4, 8, ...
        allow_recompute: whether backward may recompute activations (modelled).
        convolutions, matmuls: `poplar_options`, of which only "availableMemoryProportion" has an
            effect (modelled).
        device_connection: `type`; a process whose type is `PRE_COMPILE` or `NEVER` cannot run.
        floating_point_behaviour: `esr`, stochastic rounding; `inv`, `div0` and `oflo`, whether such
            results are errors (any of them turns all three on).
        io_tiles: `num_io_tiles`, tiles of each IPU for input and output (modelled).
    """

    def __init__(self) -> None:
        """Sets all defaults."""
        super().__init__("IPUConfig", _TREE)

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute.

        Raises:
            ValueError: the name does not exist, or the value is out of range.
            TypeError: the value has a wrong type.
        """
        if name == "auto_select_ipus":
            _check_ipus(value)
        super().__setattr__(name, value)

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Applies these settings to the process (exact).

        Programs that are already compiled keep their settings until Keras compiles the model again.

        Args:
            device: accepted.

        Raises:
            ValueError: settings contradict each other, or do not fit one process.
        """
        global _configured, _settings
        _check(self)
        settings = SystemSettings(
            num_ipus=_num_ipus(self),
            allow_recompute=self.allow_recompute,
            available_memory_proportion=least_proportion(
                self.convolutions.poplar_options, self.matmuls.poplar_options
            ),
            num_io_tiles=self.io_tiles.num_io_tiles,
            uses_stochastic_rounding=_rounds(self.floating_point_behaviour),
            checks_floating_point=_checks_floating_point(self.floating_point_behaviour),
            process=_processes(self)[0],
            num_processes=_processes(self)[1],
            can_run=self.device_connection.type
            in (DeviceConnectionType.ALWAYS, DeviceConnectionType.ON_DEMAND),
        )
        for name in self.accepted_changes():
            note_accepted(f"IPUConfig.{name}")
        _configured, _settings = self, replace(settings, seed=_settings.seed)


_configured: IPUConfig | None = None
_settings = SystemSettings()


def configure_ipu_system(
    config: IPUConfig, device: str = "cpu", reset_configuration: bool = True
) -> None:
    """Applies `config` to the process (exact); see `IPUConfig`."""
    config.configure_ipu_system(device)


def reset_ipu_configuration() -> None:
    """Resets the process to the defaults (exact)."""
    global _configured, _settings
    _configured, _settings = None, SystemSettings()


def get_ipu_config() -> IPUConfig:
    """Returns the configuration of the process (exact).

    Raises:
        RuntimeError: the process was not configured.
    """
    if _configured is None:
        raise RuntimeError(
            "No IPU devices configured. Call configure_ipu_system() of an IPUConfig first."
        )
    return _configured


def set_seed(seed: int) -> None:
    """Seeds the random numbers of programs that are created from now on (exact)."""
    global _settings
    _settings = replace(_settings, seed=seed)


def system_settings() -> SystemSettings:
    """Returns the settings of the process (exact)."""
    return _settings


def _check_ipus(value: Any) -> None:
    numbers = _listed(value)
    is_number = [isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in numbers]
    if len(numbers) > 1 or not all(is_number):
        raise ValueError(
            f"IPUConfig.auto_select_ipus must be a positive number of IPUs, not {value!r}: one "
            "process has one device."
        )


def _listed(value: Any) -> list[Any]:
    """Returns the entries of a setting that is a list, one value, or `None`."""
    if isinstance(value, (list, tuple)):
        return list(value)
    return [] if value is None else [value]


def _num_ipus(config: IPUConfig) -> int | None:
    """Returns the number of IPUs of the process; `None` if the configuration selects none.

    Raises:
        ValueError: the system does not have these IPUs.
    """
    system = current_system()
    counts, selected = _listed(config.auto_select_ipus), _listed(config.select_ipus)
    if counts and selected:
        raise ValueError(
            "IPUConfig.auto_select_ipus and select_ipus are both set. Set one of them."
        )
    if len(selected) > 1:
        raise ValueError(
            f"IPUConfig.select_ipus is {config.select_ipus!r}, but one process has one device. "
            "Give one entry, or set auto_select_ipus."
        )
    if counts and counts[0] > max(system.num_ipus, 1):
        raise ValueError(
            f"IPUConfig.auto_select_ipus is {counts[0]}, but the system {system.name!r} has "
            f"{system.num_ipus} IPUs. Select fewer, or set {SYSTEM_VARIABLE} to a larger system."
        )
    if not selected:
        return counts[0] if counts else None
    (device,), devices = selected, system.devices()
    if not isinstance(device, int) or isinstance(device, bool) or not 0 <= device < len(devices):
        raise ValueError(
            f"IPUConfig.select_ipus is {config.select_ipus!r}, but the system {system.name!r} has "
            f"{len(devices)} devices, which are numbered from 0: each IPU, then each group of 2, "
            "4, 8, ... Select one of them, or set auto_select_ipus to a number of IPUs."
        )
    return len(devices[device])


def _check(config: IPUConfig) -> None:
    """Checks that settings are consistent.

    Raises:
        ValueError: two settings contradict each other.
    """
    connection = config.device_connection
    is_offline = connection.type in (DeviceConnectionType.PRE_COMPILE, DeviceConnectionType.NEVER)
    if is_offline and connection.version not in ("ipu1", "ipu2"):
        raise ValueError(
            f"IPUConfig.device_connection.type is {connection.type.name}, which needs a version: "
            f"'ipu1' or 'ipu2', not {connection.version!r}."
        )
    checked_proportion(
        "IPUConfig.io_tiles.available_memory_proportion",
        config.io_tiles.available_memory_proportion,
    )
    num_io_tiles, num_tiles = config.io_tiles.num_io_tiles, current_system().chip.num_tiles
    if not 0 <= num_io_tiles < num_tiles:
        raise ValueError(
            f"IPUConfig.io_tiles.num_io_tiles is {num_io_tiles}, but an IPU has {num_tiles} tiles, "
            "of which some must compute. Give a smaller number, for example 32."
        )
    if config.io_tiles.place_ops_on_io_tiles and not config.io_tiles.num_io_tiles:
        raise ValueError(
            "IPUConfig.io_tiles.place_ops_on_io_tiles is True, but there are none: set "
            "num_io_tiles, too."
        )
    group = config.norms.experimental.distributed_batch_norm_replica_group_size
    if group != 1:
        raise ValueError(
            f"IPUConfig.norms.experimental.distributed_batch_norm_replica_group_size is {group}, "
            "but each replica computes its own statistics. Leave it at 1."
        )
    process, processes = _processes(config)
    launch = read_launch()
    if processes > 1 and (process, processes) != (launch.index, launch.num_instances):
        raise ValueError(
            "IPUConfig.experimental.multi_replica_distribution says that this is process "
            f"{process} of {processes}, but it is {launch.index} of {launch.num_instances}. Start "
            "the program with poprun, and call popdist.tensorflow.set_ipu_config(config)."
        )


def _processes(config: IPUConfig) -> tuple[int, int]:
    """Returns (index of this process, number of processes); (0, 1) for a single process."""
    distribution = config.experimental.multi_replica_distribution
    if distribution.process_count <= 1:
        return 0, 1
    return distribution.process_index, distribution.process_count


def _rounds(behaviour: Group) -> bool:
    return bool(behaviour.set_all) or behaviour.esr not in (StochasticRoundingBehaviour.OFF, False)


def _checks_floating_point(behaviour: Group) -> bool:
    checks = [getattr(behaviour, name) for name in _EXCEPTIONS]
    if any(checks) and not all(checks):
        note_accepted("that not all of inv, div0 and oflo are on")
    return any(checks) or behaviour.set_all
