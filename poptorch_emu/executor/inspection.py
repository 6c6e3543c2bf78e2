"""How an executor shows what is inside its model: tensors by name, and the graph."""

from __future__ import annotations

import json

import torch

from poptorch_emu.errors import require
from poptorch_emu.executor.executor_state import ExecutorState
from poptorch_emu.ir.dump import to_plain


class Inspection(ExecutorState):
    """The part of `PoplarExecutor` that looks into the compiled model."""

    def getTensorNames(self) -> list[str]:
        """Returns the names that `Options.anchorTensor` takes, sorted (exact in form).

        Parameters, gradients and optimiser states are called as in PopTorch; the results of
        operations after their module and their type, for example `fc1/Gemm:0`.

        Raises:
            AssertionError: the model is not compiled.
        """
        executable = self._executable
        if executable is None:
            raise AssertionError(
                "Model must be compiled before calling getTensorNames. Call compile(...) first."
            )
        return list(executable.tensor_names)

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """Returns what the last call left in a tensor of `Options.anchorTensor` (exact).

        Gathered by the anchor's own output mode; for what changes once for each weight update
        (`UpdatedVar___...`, states, `Accum___...`) updates count instead of micro-batches.

        Raises:
            AssertionError: there is no such anchor, or no call has been made.
        """
        require(
            short_name in self._anchored,
            f"No tensor with name {short_name} found. Anchored in the last call: "
            f"{', '.join(self._anchored) or 'none'}.",
        )
        return self._anchored[short_name]

    def _debugGetPopartIR(self) -> str:
        """Returns the compiled graph as JSON; its form is ours."""
        return json.dumps(to_plain(self._compiled().graph), indent=1)
