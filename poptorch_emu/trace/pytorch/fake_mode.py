"""PyTorch's mode for fake tensors, without the parts that a trace rarely needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from poptorch_emu.torch_versions import FakeTensorMode, TorchDispatchMode, TorchDispatchModeKey


class FakeMode(FakeTensorMode):
    """A `FakeTensorMode` that initialises itself fully when PyTorch must compute a fake result.

    PyTorch's constructor loads its compiler, which costs 75 MiB and a second. Most traces do not
    need that, because the memo of a trace has the results of the most common operations.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Returns False. Dynamo never compiles a trace, so its guard would only cost time."""
        return False

    def __init__(self) -> None:
        """Sets the attributes that are read on entry and when fake tensors are made."""
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
        """Returns the fake results that PyTorch computes for `func`."""
        self._complete()
        return super().__torch_dispatch__(func, types, args, kwargs or {})

    def _complete(self) -> None:
        if self._is_whole:
            return
        entered = dict(self.__dict__)  # State of the active mode.
        super().__init__(allow_non_fake_inputs=True)
        self.__dict__.update(entered)
        self.cache_enabled = False  # The recorder has its own memo.
        self._is_whole = True
