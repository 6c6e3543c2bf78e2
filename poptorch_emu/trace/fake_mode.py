"""The mode of PyTorch in which operations make fake tensors, without what that seldom needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from poptorch_emu.torch_versions import FakeTensorMode, TorchDispatchMode, TorchDispatchModeKey


class FakeMode(FakeTensorMode):
    """Becomes whole when PyTorch is first asked what an operation makes of fake tensors.

    PyTorch's mode loads its compiler for a few settings: 75 MiB and a second of a process. The
    memo of a trace knows the most common operations' results without PyTorch's mode.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Traces are not compiled by Dynamo, so the guard against it is only slow."""
        return False

    def __init__(self) -> None:
        """Sets what entering the mode and making fake tensors in it reads, as PyTorch would."""
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]
        self._mode_key = TorchDispatchModeKey.FAKE
        self.enter_stack = []
        self.in_kernel_invocation = False
        self.allow_meta = False
        self.shape_env = None
        self._allow_unsafe_data_ptr_access = True
        self._is_whole = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Returns what PyTorch says `func` makes of fake tensors."""
        self._complete()
        return super().__torch_dispatch__(func, types, args, kwargs or {})

    def _complete(self) -> None:
        if self._is_whole:
            return
        entered = dict(self.__dict__)  # The mode is active, and its own state belongs to that.
        super().__init__(allow_non_fake_inputs=True)
        self.__dict__.update(entered)
        self.cache_enabled = False  # The recorder has a memory of its own.
        self._is_whole = True
