"""Changes on the host that a compiled model does not see: each kind is said once.

They are no errors in PopTorch, which takes what it has, so a program goes on and trains something
else than its author thinks. Nothing here reads a value: versions, flags and hyper-parameters tell.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from poptorch_emu.log import logger


class Once:
    """Says each kind of warning once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def warn(self, kind: str, message: str, *args: object) -> None:
        """Logs a warning, unless one of this kind was logged before."""
        if kind not in self._said:
            self._said.add(kind)
            logger.warning(message, *args)


class HostVersions:
    """The versions that the host's tensors had when host and device agreed last."""

    def __init__(self) -> None:
        self._tensors: dict[str, tuple[torch.Tensor, int]] = {}

    def note(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Notes that the device has these values."""
        self._tensors.update((name, (value, _version(value))) for name, value in tensors.items())

    def forget(self) -> None:
        """Notes that no device has any."""
        self._tensors.clear()

    def edited(self) -> list[str]:
        """Returns the names of those that were changed on the host since."""
        return [name for name, (value, seen) in self._tensors.items() if _version(value) != seen]


class CompiledFlags:
    """What `train`, `eval` and `requires_grad_` had set when a model was compiled."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._modes = [(name, each, each.training) for name, each in model.named_modules()]
        self._gradients = [
            (name, each, _requires_grad(each)) for name, each in model.named_parameters()
        ]

    def difference(self) -> str:
        """Returns the first flag that is another one now, in words, or ""."""
        for name, module, was_training in self._modes:
            if module.training is not was_training:
                before, now = ("train", "eval") if was_training else ("eval", "train")
                return f"{name or 'the model'} was compiled after {before}() and is in {now}() now"
        for name, parameter, was_trained in self._gradients:
            if _requires_grad(parameter) is not was_trained:
                return f"requires_grad of {name} was {was_trained} when it was compiled"
        return ""


# Of tensors that are wrapped for training, every ordinary look would bring the weights home first.
def _version(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        if torch.Tensor.is_inference(tensor):
            return 0
        version: int = torch.Tensor._version.__get__(tensor)  # type: ignore[attr-defined]
        return version


def _requires_grad(tensor: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        is_trained: bool = torch.Tensor.requires_grad.__get__(tensor)  # type: ignore[attr-defined]
        return is_trained
