"""The elementwise operations of an update form one instruction, with the same bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu.engine.layout import fused_update

MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.5, centered=True),
    "LAMB": lambda p: poptorch.optim.LAMB(p, lr=1e-2),
    "half states": lambda p: poptorch.optim.AdamW(
        p, lr=1e-2, first_order_momentum_accum_type=torch.float16
    ),
}


def trained(
    make: MakeOptimizer, dtype: torch.dtype = torch.float32
) -> tuple[dict[str, torch.Tensor], str]:
    """Returns the weights after some updates, and the text of the program."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.Tanh(), torch.nn.Linear(60, 1))
    model = model.to(dtype)

    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.body(x).float().square(), reduction="mean")

    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    wrapped = poptorch.trainingModel(WithLoss(), options, make(list(model.parameters())))
    for _ in range(4):
        wrapped(torch.randn(8, 40).to(dtype))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    executable = wrapped._executable
    assert executable is not None
    return state, executable.program.text()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_update_when_fused_then_has_the_same_bits(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused, text = trained(OPTIMIZERS[name], dtype)
    monkeypatch.setattr(fused_update, "fuse", lambda code, places=None: code)
    plain, plain_text = trained(OPTIMIZERS[name], dtype)
    for key, value in plain.items():
        assert torch.equal(fused[key], value), key
    # LAMB is not fused, because its norms depend on earlier results.
    assert ("poptorch_emu::elementwise" in text) == (name != "LAMB")
    assert "poptorch_emu::elementwise" not in plain_text


@pytest.mark.parametrize("name", ["SGD", "SGD momentum"])
def test_update_of_several_weights_then_it_is_one_instruction_and_its_scalars_are_computed_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four weights share their hyper-parameters; an optimiser without steps has nothing else.

    Weights that seem to have hyper-parameters of their own have an instruction each.
    """
    once, text = trained(OPTIMIZERS[name])
    update = text[text.index("update 0") :]
    monkeypatch.setattr(fused_update, "_without_repetitions", lambda code, kept: code)
    repeated, repeated_text = trained(OPTIMIZERS[name])
    repeated_update = repeated_text[repeated_text.index("update 0") :]
    assert update.count("::elementwise(") == 1
    assert repeated_update.count("::elementwise(") == 4
    assert repeated_update.count("= aten::") == 4 * update.count("= aten::") > 0
    for key, value in repeated.items():
        assert torch.equal(once[key], value), key
