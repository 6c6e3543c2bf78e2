"""Checks the plan in a file: its types, and its agreement with the model.

The digest of a file detects damage. These checks find faults in a whole file that was made by hand
or by an error. The engine checks the program itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from poptorch_emu.compile.executable import Executable
from poptorch_emu.errors import make_error
from poptorch_emu.ir.graph import SinkKind
from poptorch_emu.segments.variables import VariableInfo
from poptorch_emu.trace.capture.tracer import Forward
from poptorch_emu.troubleshooting import Topic
from poptorch_emu.untrusted.json_types import type_fault

# Types of the plan's entries, in the notation of `type_fault`.
_TYPES: dict[str, Any] = {
    "schedule": {
        "ipu_of_stage": [int],
        "num_micro_batches": int,
        "is_training": bool,
        "level_of_stage": [int],
        "rows": [[[str]]],
    },
    "num_outputs": int,
    "written_inputs": [int],
    "variables": [
        {
            "index": int,
            "name": str,
            "shape": [int],
            "dtype": str,
            "is_per_replica": bool,
            "initial": (float, int, None),
            "group_of_replica": [int],
            "reads_all": bool,
            "is_sharded": bool,
        }
    ],
    "scalars": [[str, int, int]],
    "segment_names": [str],
    "ipus_per_replica": int,
    "is_random": bool,
    "anchors": [str],
    "tensor_names": [str],
    "shortages": [str],
}
_MAX_IPUS = 2**16


def check_types(plan: Any) -> None:
    """Checks that a plan has all entries with the right types.

    Raises:
        Error: an entry is missing or has another type; the text names it.
    """
    fault = type_fault(plan, _TYPES, "plan")
    if fault:
        raise make_error(
            f"Invalid executable: {fault}. Compile the model again; {Topic.INVALID_FILE}"
        )


def check_agreement(executable: Executable, forward: Forward) -> None:
    """Checks a plan with correct types against the model's recorded `forward`.

    Raises:
        Error: the plan cannot belong to `forward`.
    """
    replicas = executable.config.replication_factor
    num_outputs = sum(sink.kind is SinkKind.OUTPUT for sink, _ in forward.results)
    variables = executable.variables.values()
    claims = {
        "the number of outputs": executable.num_outputs == num_outputs,
        "the number of IPUs": executable.schedule.num_ipus
        <= executable.ipus_per_replica
        <= _MAX_IPUS,
        "the numbers of the variables": _is_numbered(v.index for v in variables),
        "the numbers of the hyper-parameters": _is_numbered(executable.scalars.values()),
        "the shapes of the variables": all(
            size >= 0 for variable in variables for size in variable.shape
        ),
        "the groups of replicas": all(_has_groups(v, replicas) for v in variables),
    }
    for claim, holds in claims.items():
        if not holds:
            raise make_error(
                f"Invalid executable: {claim} cannot be what the file says. Compile the model "
                f"again; {Topic.INVALID_FILE}"
            )


def _is_numbered(indices: Iterable[int]) -> bool:
    """Returns whether the indices are 0, 1, 2, ... in any order."""
    found = sorted(indices)
    return found == list(range(len(found)))


def _has_groups(variable: VariableInfo, replicas: int) -> bool:
    groups = variable.group_of_replica
    return not groups or (len(groups) == replicas and _is_numbered(set(groups)))
