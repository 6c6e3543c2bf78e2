"""What all optimisers of `poptorch.optim` share: constness of attributes and the device's state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from poptorch_emu.log import logger

ACCUM_TYPES = (torch.float32, torch.float16)


class VariableAttributes:
    """Which hyper-parameters may change after compilation (exact)."""

    def __init__(
        self, variable_attributes: Iterable[str], allowed_attributes: Iterable[str]
    ) -> None:
        """Starts with `variable_attributes` variable and the rest of the allowed ones constant."""
        self._variable = set(variable_attributes)
        self._allowed = list(allowed_attributes)

    def isConstant(self, attr: str) -> bool:
        """Returns whether `attr` is compiled in."""
        return attr not in self._variable

    def markAsConstant(self, attr: str) -> None:
        """Makes `attr` a constant of the next compilation.

        Raises:
            AssertionError: there is no such attribute.
        """
        self._check(attr)
        self._variable.discard(attr)

    def markAsVariable(self, attr: str) -> None:
        """Lets `attr` change after the next compilation.

        Raises:
            AssertionError: there is no such attribute.
        """
        self._check(attr)
        self._variable.add(attr)

    def _check(self, attr: str) -> None:
        assert attr in self._allowed, (
            f"Unknown attribute {attr}, allowed values: {self._allowed}"
        )


class Optimizer:
    """Mixed into each optimiser beside PyTorch's class (exact).

    Attributes:
        variable_attrs: which attributes may change after compilation.
        ipu_state_is_dirty: the device's state is newer than the cached one.
        host_state_is_dirty: a loaded state waits to be uploaded.
    """

    variable_attrs: VariableAttributes

    def _init_state(self) -> None:
        self.ipu_state_is_dirty = False
        self.host_state_is_dirty = False
        self._state_dict: dict[str, Any] = {"ipu_state": None, "ipu_param": None}

    def state_dict(self) -> dict[str, Any]:
        """Returns the device's state ("ipu_state", "ipu_param") and PyTorch's own (exact)."""
        torch_state = torch.optim.Optimizer.state_dict(self)  # type: ignore[arg-type]
        return {**self.get_state_dict(), **torch_state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads hyper-parameters now and the device's state at the next upload (exact).

        Raises:
            RuntimeError: the state is empty or lacks the device's part.
        """
        known = {key: state[key] for key in ("state", "param_groups") if key in state}
        if "param_groups" in known:
            torch.optim.Optimizer.load_state_dict(self, known)  # type: ignore[arg-type]
        self.set_state_dict(state)

    def get_state_dict(self) -> dict[str, Any]:
        """Returns the cached state of the device."""
        return dict(self._state_dict)

    def set_state_dict(self, state: dict[str, Any]) -> None:
        """Takes a state that the next upload sends to the device.

        Raises:
            RuntimeError: the state is empty or lacks the device's part.
        """
        if not state:
            raise RuntimeError("Cannot load optimizer state dictionary because it is empty.")
        if "ipu_state" not in state or "ipu_param" not in state:
            raise RuntimeError(
                "Only IPU optimizer states can be loaded onto the IPU. The keys ipu_state and "
                f"ipu_param are missing from {sorted(map(str, state))}."
            )
        self._state_dict = {key: state[key] for key in ("ipu_state", "ipu_param")}
        self.ipu_state_is_dirty = False
        self.host_state_is_dirty = True

    def has_state(self) -> bool:
        """Returns whether a state of the device is known."""
        return all(value is not None for value in self._state_dict.values())

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the optimiser with its state of the device, freshly read if it is newer there."""
        state = dict(self.__dict__)
        if "state_dict" in state:
            current = state.pop("state_dict")()
            state["_state_dict"] = {key: current[key] for key in ("ipu_state", "ipu_param")}
        state["host_state_is_dirty"] = all(v is not None for v in state["_state_dict"].values())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a pickled optimiser."""
        torch.optim.Optimizer.__setstate__(self, state)  # type: ignore[arg-type]


def check_accum_types(*dtypes: torch.dtype) -> None:
    """Checks the types of accumulators and optimiser state.

    Raises:
        AssertionError: one is neither float32 nor float16.
    """
    for dtype in dtypes:
        assert dtype in ACCUM_TYPES, (
            f"Accumulation types must be either torch.float32 or torch.float16, not {dtype}."
        )


def given(**values: Any) -> dict[str, Any]:
    """Returns the arguments that are not `None`."""
    return {name: value for name, value in values.items() if value is not None}


def warn_velocity_scaling() -> None:
    """Says that a velocity scaling has no effect here."""
    logger.warning(
        "velocity_scaling value ignored when using the separate variant of SGD "
        "(use_combined_accum=False). Set use_combined_accum=True to use it."
    )
