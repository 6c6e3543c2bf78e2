"""Replacements in PyTorch during a trace, which modules imported meanwhile do not see."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch
from support.forked_programs import PYTORCH, run_forked

from poptorch_emu.trace.pytorch.patches import once_imported, patched

PROBE = "torch.probe_of_patches"


@pytest.fixture
def _probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds a module to PyTorch that stores the functions it finds at import."""
    (tmp_path / "probe_of_patches.py").write_text(
        "import torch\n"
        "as_subclass, range = torch.Tensor.as_subclass, torch.range\n"
        "device = (torch.ones(1) + 1).device\n"
    )
    monkeypatch.setattr(torch, "__path__", [*torch.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, PROBE, raising=False)
    yield
    sys.modules.pop(PROBE, None)
    if hasattr(torch, "probe_of_patches"):
        del torch.probe_of_patches


def replacement(*_: object) -> str:
    return "replaced"


def are_replaced() -> bool:
    return torch.range() == torch.ones(1).as_subclass(torch.Tensor) == "replaced"


def test_attribute_when_patched_then_is_replaced_and_put_back() -> None:
    before = torch.range, torch.Tensor.as_subclass, list(sys.meta_path)
    with patched(torch, range=replacement), patched(torch.Tensor, as_subclass=replacement):
        assert are_replaced()
    assert (torch.range, torch.Tensor.as_subclass, list(sys.meta_path)) == before
    assert "as_subclass" not in vars(torch.Tensor)  # The method is inherited.


def test_function_when_another_thread_calls_it_then_is_the_original() -> None:
    found: list[torch.Tensor] = []
    with patched(torch, full=replacement):
        thread = threading.Thread(target=lambda: found.append(torch.full((2,), 3.0)))
        thread.start()
        thread.join()
        assert torch.full() == "replaced"
    assert found[0].tolist() == [3.0, 3.0]


def test_attribute_when_the_context_fails_then_is_put_back() -> None:
    before = torch.range
    with pytest.raises(KeyError), patched(torch, range=replacement):
        raise KeyError
    assert torch.range is before


@pytest.mark.usefixtures("_probe")
def test_module_when_imported_in_the_middle_then_sees_pytorch_as_it_was() -> None:
    before = torch.range, torch.Tensor.as_subclass
    with patched(torch, range=replacement), patched(torch.Tensor, as_subclass=replacement):
        __import__(PROBE)
        assert are_replaced()
    probe = sys.modules[PROBE]
    assert (probe.range, probe.as_subclass) == before
    assert type(probe.__loader__).__name__ == "SourceFileLoader"


@pytest.mark.usefixtures("_probe")
def test_action_when_the_module_is_imported_then_runs_once() -> None:
    runs: list[bool] = []
    with once_imported(PROBE, lambda: runs.append(PROBE in sys.modules)):
        assert runs == []
        __import__(PROBE)
        __import__(PROBE)
        assert runs == [True]
    with once_imported(PROBE, lambda: runs.append(True)):
        assert runs == [True, True]


MODEL = """
import sys
import threading
import torch
from torch import nn
import poptorch_emu as poptorch

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        x = torch.utils.checkpoint.checkpoint(self.layer, x, use_reentrant=False)
        return torch.compile(self.layer)(x) + torch.linalg.vector_norm(x)

torch.manual_seed(0)
model, x = Model(), torch.ones(2, 4)
assert "torch._dynamo" not in sys.modules
ours = poptorch.inferenceModel(model)(x)
assert "torch._dynamo" in sys.modules
y = model.layer(x)
torch.testing.assert_close(ours, model.layer(y) + torch.linalg.vector_norm(y))
compiled = torch.compile(lambda x: x.as_subclass(torch.Tensor) * 2, backend="eager")
torch.testing.assert_close(compiled(x), x * 2)
"""


def test_compiler_of_pytorch_when_forward_loads_it_then_works_there_and_afterwards() -> None:
    done = run_forked(["-c", MODEL], loaded=PYTORCH, timeout=120)
    assert done.returncode == 0, done.stderr
