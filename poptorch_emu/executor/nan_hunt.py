"""What autograd's anomaly mode asks for: where the numbers of a call begin not to be finite.

PyTorch looks at each gradient on the host, where there is none. So a call is looked at when it has
ended: if it left something that is not a number, its window runs again and all values are looked
at.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from poptorch_emu.compile.compiler import Request
from poptorch_emu.errors import Error, make_error
from poptorch_emu.executor.args_parser import Call
from poptorch_emu.executor.compilation import Compilation
from poptorch_emu.numbers.engine_run import MakeObserved, Start, one_window, run_engine
from poptorch_emu.numbers.nonfinite import first_nonfinite
from poptorch_emu.numbers.run_file import RunWriter, opened
from poptorch_emu.numbers.updates import start_weights
from poptorch_emu.optim.device_link import OptimizerLink
from poptorch_emu.options import Options
from poptorch_emu.report.nonfinite_report import NonfiniteReport
from poptorch_emu.runtime.session import Session
from poptorch_emu.torch_versions import pytree


class NanHunt:
    """Keeps with what a call starts, and says where it went wrong."""

    def __init__(self, model: torch.nn.Module, link: OptimizerLink, session: Session) -> None:
        """Copies the weights and the optimiser's state, as they are before the call."""
        self._model = model
        self._weights = start_weights(model)
        saved = link.saved_state(session)
        states = {} if saved is None else saved["ipu_state"]
        self._states = {name: state.detach().clone() for name, state in states.items()}

    def check(self, outputs: Any, call: Call, compilation: Compilation, options: Options) -> None:
        """Looks at what a call has left.

        Raises:
            Error: there is NaN, or a weight is infinite; the text names the operation.
        """
        if not self._has_nan(outputs):
            return
        request = compilation.request(call.bound(), options)
        start = Start(self._weights, self._states, request.config.random_seed or 0)
        raise _anomaly(one_window(request), start, compilation.observed)

    def _has_nan(self, outputs: Any) -> bool:
        tensors = [v for v in pytree.tree_leaves(outputs) if isinstance(v, torch.Tensor)]
        if any(bool(tensor.isnan().any()) for tensor in tensors):
            return True
        before = self._weights
        weights = (p for n, p in self._model.named_parameters() if _is_finite(before[n]))
        return not all(map(_is_finite, weights))


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(tensor.detach().isfinite().all())


def _anomaly(request: Request, start: Start, make: MakeObserved) -> Error:
    """Runs a window again, and returns the error that says where it begins not to be finite."""
    text = (
        "Autograd's anomaly mode is on, and the call made NaN or infinity, which are in its "
        "results or in the weights now."
    )
    if request.config.num_processes > 1:
        return make_error(f"{text} Of several processes none has all numbers: run one alone.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with RunWriter(path) as writer:
            graph = run_engine(request, start, make, writer)
        with opened(path, "this run") as run:
            report = NonfiniteReport.of(first_nonfinite(graph, run))
    found = (
        str(report)
        if report
        else (
            "All is finite in the first window of the call, with the random numbers of its seed. "
            "options.Precision.enableFloatingPointExceptions(True) looks at all windows."
        )
    )
    return make_error(f"{text}\n{found}")
