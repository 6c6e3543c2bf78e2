"""`IPUConfig`: how many IPUs the process uses, and how."""

from __future__ import annotations

from typing import Any

from poptorch_emu.keras.run_settings import SystemSettings
from poptorch_emu.options.base import note_accepted

_configured = SystemSettings()


class _Section:
    """A group of settings; it has no others than those it starts with."""

    def __init__(self, path: str, **values: Any) -> None:
        vars(self).update(_path=path, **values)

    def __setattr__(self, name: str, value: Any) -> None:
        _check_known(self._path, vars(self), name)
        vars(self)[name] = value

    _path: str


class IPUConfig:
    """The IPUs of this process (exact, where a member says nothing else).

    Set attributes, then call `configure_ipu_system`.

    Attributes:
        auto_select_ipus: how many IPUs all replicas of a model take together; by default those of
            one replica. There are as many replicas as fit.
        allow_recompute: whether backward may compute activations again (modelled).
        convolutions, matmuls: `poplar_options`, of which "availableMemoryProportion" counts
            (modelled).
        floating_point_behaviour: `esr`, stochastic rounding; `inv`, `div0` and `oflo`, whether
            such results are errors.
        io_tiles: `num_io_tiles`, tiles of each IPU for input and output (modelled).
        norms: `use_stable_statistics` (accepted).
    """

    def __init__(self) -> None:
        """Starts with the defaults."""
        vars(self).update(
            auto_select_ipus=None,
            allow_recompute=False,
            convolutions=_Section("IPUConfig.convolutions", poplar_options={}),
            matmuls=_Section("IPUConfig.matmuls", poplar_options={}),
            floating_point_behaviour=_Section(
                "IPUConfig.floating_point_behaviour", esr=False, inv=False, div0=False, oflo=False
            ),
            io_tiles=_Section("IPUConfig.io_tiles", num_io_tiles=0),
            norms=_Section("IPUConfig.norms", use_stable_statistics=False),
        )

    auto_select_ipus: int | None
    allow_recompute: bool
    convolutions: _Section
    matmuls: _Section
    floating_point_behaviour: _Section
    io_tiles: _Section
    norms: _Section

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute.

        Raises:
            AttributeError: there is none of this name.
            ValueError: the value is out of range.
        """
        _check_known("IPUConfig", vars(self), name)
        if isinstance(vars(self)[name], _Section):
            raise AttributeError(f"IPUConfig.{name} is a group: set its attributes.")
        if name == "auto_select_ipus":
            _check_ipus(value)
        vars(self)[name] = value

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Makes these the settings of the process (exact).

        Programs that models have compiled already keep theirs until Keras compiles the model again.

        Args:
            device: accepted.

        Raises:
            ValueError: an option of a group is unknown or contradicts another.
        """
        global _configured
        behaviour = self.floating_point_behaviour
        if self.norms.use_stable_statistics:  # type: ignore[attr-defined]
            note_accepted("IPUConfig.norms.use_stable_statistics")
        checks = [getattr(behaviour, name) for name in ("inv", "div0", "oflo")]
        if any(checks) and not all(checks):
            raise ValueError(
                "IPUConfig.floating_point_behaviour: inv, div0 and oflo can be on or off only "
                "together, but they are {}, {} and {}.".format(*checks)
            )
        _configured = SystemSettings(
            num_ipus=self.auto_select_ipus,
            allow_recompute=bool(self.allow_recompute),
            available_memory_proportion=self._proportion(),
            num_io_tiles=int(self.io_tiles.num_io_tiles),  # type: ignore[attr-defined]
            uses_stochastic_rounding=bool(behaviour.esr),  # type: ignore[attr-defined]
            checks_floating_point=all(checks),
        )

    def _proportion(self) -> float | None:
        found: set[float] = set()
        for section in (self.convolutions, self.matmuls):
            for name, value in section.poplar_options.items():  # type: ignore[attr-defined]
                if name != "availableMemoryProportion":
                    raise ValueError(
                        f"{section._path}.poplar_options has {name!r}, but only "
                        "'availableMemoryProportion' has an effect on virtual IPUs. Leave it out."
                    )
                found.add(float(value))
        if len(found) > 1:
            raise ValueError(
                "availableMemoryProportion is the same for convolutions and matmuls here, but was "
                f"set to {sorted(found)}."
            )
        return found.pop() if found else None


def configure_ipu_system(config: IPUConfig, device: str = "cpu") -> None:
    """Makes `config` the settings of the process (exact); see `IPUConfig`."""
    config.configure_ipu_system(device)


def reset_ipu_configuration() -> None:
    """Gives the process the defaults again (exact)."""
    IPUConfig().configure_ipu_system()


def system_settings() -> SystemSettings:
    """Returns the settings of the process (exact)."""
    return _configured


def _check_known(path: str, values: dict[str, Any], name: str) -> None:
    known = [each for each in values if not each.startswith("_")]
    if name not in known:
        raise AttributeError(
            f"{path} has no attribute {name!r} on virtual IPUs. It has {', '.join(known)}."
        )


def _check_ipus(value: Any) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(
            f"IPUConfig.auto_select_ipus must be a positive number of IPUs, not {value!r}: one "
            "process has one device."
        )
