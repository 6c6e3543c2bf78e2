"""Exported models of the `transformers` package, if it is installed, train as the emulator does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.exported_models import Case, run_in_processes, train_on_emulator, train_plain

pytest.importorskip("transformers")

from support.exported_transformers import train_all

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CASES = (
    Case("llama", 4),
    Case("llama", 4, order="zero_bubble_v"),
    Case("bert", 2, optimizer="clipped"),
    Case("t5", 4),
    Case("t5", 4, order="zero_bubble_h1"),
)


def test_models_when_exported_to_two_processes_then_train_as_the_emulator_and_plain_pytorch(
    tmp_path: Path,
) -> None:
    results = run_in_processes(2, train_all, (CASES,), tmp_path)
    for index, case in enumerate(CASES):
        of_case = [result[index] for result in results]
        (losses,) = [result["losses"] for result in of_case if result["losses"]]
        emulated, state = train_on_emulator(case)
        plain, plain_state = train_plain(case)
        assert losses == pytest.approx(emulated, rel=1e-5), case
        assert losses == pytest.approx(plain, rel=1e-5), case
        weights = {k: v for each in of_case for one in each["weights"] for k, v in one.items()}
        assert weights.keys() == state.keys()
        for name, value in weights.items():
            torch.testing.assert_close(value, state[name], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(value, plain_state[name], rtol=1e-4, atol=1e-5)
