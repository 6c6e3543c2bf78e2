"""Search of autograd's anomaly mode for the operation whose result is not finite.

PyTorch checks each gradient on the host, but here the gradients are on the device. So each call is
checked at its end. If it left NaN or infinity in the model or in the optimiser's state, which such
a gradient reaches, its window runs again and all values are checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from poptorch_emu.compile.compiler import Request
from poptorch_emu.errors import Error, make_error
from poptorch_emu.executor.compilation import Compilation
from poptorch_emu.executor.device_lock import DeviceLock, one_at_a_time
from poptorch_emu.numbers.engine_run import MakeObserved, Start, one_window
from poptorch_emu.numbers.nonfinite import first_nonfinite
from poptorch_emu.numbers.observed_window import observed_window
from poptorch_emu.numbers.updates import start_weights
from poptorch_emu.options import Options
from poptorch_emu.report.nonfinite_report import NonfiniteReport
from poptorch_emu.runtime.session import Session


class NanHunt:
    """Stores the state before a call, and finds the fault after it.

    Attributes:
        device_lock: lock that the thread that uses the device holds.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        session: Session,
        tensors: Sequence[torch.Tensor],
        device_lock: DeviceLock,
    ) -> None:
        """Copies weights, the optimiser's state and inputs before the call.

        Args:
            model: the user's model.
            session: session that will run the call.
            tensors: inputs of the call.
            device_lock: lock of the session's device.
        """
        self.device_lock = device_lock
        self._model = model
        self._session = session
        self._tensors = [tensor.detach().clone() for tensor in tensors]
        self._weights = start_weights(model)
        self._states = session.read_states()

    @one_at_a_time
    def check(self, compilation: Compilation, options: Options) -> None:
        """Checks the results of the call in weights, buffers and optimiser state.

        Raises:
            Error: a weight is no longer finite, or a buffer or the optimiser's state has a new NaN;
                the text names the operation.
        """
        spoilt = list(self._spoilt())
        if not spoilt:
            return
        assert compilation.arguments is not None, "a program was made for some arguments"
        asked = compilation.request(compilation.arguments, options)
        request = one_window(replace(asked, tensors=self._tensors))
        start = Start(self._weights, self._states, request.config.random_seed or 0)
        raise _anomaly(spoilt, request, start, compilation.observed)

    def _spoilt(self) -> Iterator[str]:
        """Yields the names of tensors that the call has spoilt."""
        before = self._weights
        for name, weight in self._model.named_parameters():
            if bool(before[name].isfinite().all()) and not bool(weight.isfinite().all()):
                yield name
        for old, new in (
            (before, dict(self._model.named_buffers())),
            (self._states, self._session.read_states()),
        ):
            yield from (name for name in new if _has_nan(new[name]) and not _has_nan(old[name]))


def _has_nan(tensor: torch.Tensor) -> bool:
    return bool(tensor.isnan().any())


def _anomaly(spoilt: Sequence[str], request: Request, start: Start, make: MakeObserved) -> Error:
    """Runs a window again, and returns an error about the first operation that is not finite."""
    more = f" and {len(spoilt) - 1} more" if len(spoilt) > 1 else ""
    text = (
        "Autograd's anomaly mode is on, and the call made NaN or infinity, which are in "
        f"{spoilt[0]}{more} now."
    )
    if request.config.num_processes > 1:
        return make_error(
            f"{text} The first operation that is not finite cannot be found, because no process "
            "has the values of all replicas. Run the model in one process."
        )
    with observed_window(request, start, make) as observed:
        report = NonfiniteReport.of(first_nonfinite(observed.graph, observed.run))
    found = (
        str(report)
        if report
        else (
            "All values of the first window of the call are finite. Call "
            "options.Precision.enableFloatingPointExceptions(True), which checks all windows."
        )
    )
    return make_error(f"{text}\n{found}")
