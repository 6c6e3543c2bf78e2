"""Records a function on fake tensors of device `ipu:0`, and runs the recording on the CPU."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

_BOOKKEEPING = ("prim.device.default", "aten.detach.default")


class Recorder(TorchDispatchMode):
    """Holds the names of the operations that reach the dispatcher below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if str(operation) not in _BOOKKEEPING:
            self.names.append(str(operation).removesuffix(".default"))
        return operation(*args, **(kwargs or {}))

    def take(self) -> list[str]:
        """Returns what was recorded since the last call."""
        names, self.names = self.names, []
        return names


def fake(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, device="ipu:0", dtype=dtype, requires_grad=dtype.is_floating_point)


def record(make: Callable[[], tuple[Callable[..., Any], Sequence[torch.Tensor]]]):
    """Returns the operations of forward and of the gradients by the tensors that `make` gives.

    `make` runs among fakes and returns a function and its arguments; the first result of the
    function, if it has several, is differentiated.
    """
    with torch.autograd.set_multithreading_enabled(False), FakeTensorMode(), Recorder() as recorder:
        function, inputs = make()
        recorder.take()
        result = function(*inputs)
        forward = recorder.take()
        output = result[0] if isinstance(result, tuple) else result
        seed = torch.empty_like(output)
        recorder.take()
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        torch.autograd.grad(output, wanted, seed, allow_unused=True)
        return forward, recorder.take()


class _OnCpu(fx.Interpreter):
    def call_function(self, target, args, kwargs):
        kwargs = {**kwargs, "device": "cpu"} if "device" in kwargs else kwargs
        with torch._C._AutoDispatchBelowAutograd():
            return super().call_function(target, args, kwargs)


def run_recorded(function: Callable[..., Any], *inputs: torch.Tensor):
    """Records `function` on fakes that look like `inputs`, then runs the recording on `inputs`."""
    with torch.autograd.set_multithreading_enabled(False), FakeTensorMode():
        fakes = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="ipu:0").requires_grad_(
                x.requires_grad
            )
            for x in inputs
        ]
        graph = make_fx(function)(*fakes)
    return _OnCpu(graph).run(*(tensor.detach() for tensor in inputs))
