"""Models that would not fit on the machine (hardware.md 3.7): a warning, or PopTorch's error."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.report import out_of_memory

pytestmark = pytest.mark.feature("POPTORCH_EMU_OOM", fidelity="modelled")

SIDE = 17_000  # Side of a square of floats that takes 1.2 GB; an IPU has 0.94 GB.
WORDS = r"Out of memory on tile 0: \d+ bytes used but tiles only have 638976 bytes of memory"


@pytest.fixture(autouse=True)
def _default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POPTORCH_EMU_OOM", "POPTORCH_EMU_SYSTEM", "POPTORCH_IPU_MODEL"):
        monkeypatch.delenv(name, raising=False)
    out_of_memory._warn.cache_clear()


class Square(torch.nn.Module):
    """A model with a large temporary value; no test runs it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x[:, None] * x[None, :]).sum()


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def compiled(side: int = SIDE, opts: poptorch.Options | None = None):
    model = poptorch.inferenceModel(Square(), opts or options())
    model.compile(torch.zeros(side))
    return model


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == level]


def test_model_when_it_would_not_fit_then_one_line_of_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = compiled()
    (text,) = messages(caplog, logging.WARNING)
    assert text.startswith("Memory allocation error : Out of memory on tile 0: ")
    assert len(text.splitlines()) == 1
    assert "it runs here all the same" in text
    assert "POPTORCH_EMU_OOM=error" in text
    assert not emulator.tile_memory(model).fits


def test_model_when_more_is_wanted_then_the_table_at_level_info(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "poptorch:cpp"):
        model = compiled()
    assert str(emulator.tile_memory(model)) in messages(caplog, logging.INFO)


def test_model_when_compiled_again_then_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        compiled()
    assert len(messages(caplog, logging.WARNING)) == 1


def test_pipeline_when_several_ipus_do_not_fit_then_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stages(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for ipu in range(2):
                poptorch.Block.start(f"{ipu}", ipu_id=ipu)
                x = x + (x[:, None] * x[None, :]).sum(1)
            return x

    opts = options().setExecutionStrategy(poptorch.ShardedExecution())
    model = poptorch.inferenceModel(Stages(), opts)
    model.compile(torch.zeros(SIDE))
    (text,) = messages(caplog, logging.WARNING)
    assert "2 IPUs would hold too much." in text


def test_model_when_it_fits_then_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    model = compiled(100)
    assert not messages(caplog, logging.WARNING)
    assert emulator.tile_memory(model).fits


def test_model_when_it_must_fit_then_poplars_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_EMU_OOM", "error")
    model = poptorch.inferenceModel(Square(), options())
    with pytest.raises(poptorch.Error, match=f"Memory allocation error : {WORDS}") as caught:
        model.compile(torch.zeros(SIDE))
    assert caught.value.type == "graph_memory_allocation_error"
    assert not model.isCompiled()
    torch.testing.assert_close(model(torch.arange(3.0)), torch.tensor(9.0))


def test_model_when_nobody_wants_to_know_then_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("POPTORCH_EMU_OOM", "off")
    compiled()
    assert not messages(caplog, logging.WARNING)


def test_variable_when_it_has_another_value_then_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_EMU_OOM", "maybe")
    with pytest.raises(poptorch.Error, match="POPTORCH_EMU_OOM is 'maybe'.*warn, error and off"):
        compiled(3)


def test_ipu_model_then_has_no_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("POPTORCH_EMU_OOM", "error")
    compiled(opts=options().useIpuModel(True))
    assert not messages(caplog, logging.WARNING)


def test_model_when_profiled_then_what_is_known_is_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("POPTORCH_EMU_OOM", "error")
    folder = tmp_path / "inference"
    with pytest.raises(poptorch.Error, match=f"Profile saved to: {folder}"):
        compiled(opts=options().enableProfiling(str(tmp_path)))
    (text,) = messages(caplog, logging.ERROR)
    assert text == f"Out of memory, the graph profile is available here: {folder}"
    assert "fullest tile" in (folder / "memory.txt").read_text()


def test_cached_model_then_is_judged_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    for _ in range(2):
        out_of_memory._warn.cache_clear()
        compiled(opts=options().enableExecutableCaching(str(tmp_path)))
    assert len(list(tmp_path.glob("*.executable"))) == 1
    first, second = messages(caplog, logging.WARNING)
    assert first == second
    monkeypatch.setenv("POPTORCH_EMU_OOM", "error")
    with pytest.raises(poptorch.Error, match=WORDS):
        compiled(opts=options().enableExecutableCaching(str(tmp_path)))


def test_mk1_when_half_of_it_is_needed_on_mk2_then_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    side = 10_000  # 0.4 GB
    assert emulator.tile_memory(compiled(side)).fits
    monkeypatch.setenv("POPTORCH_EMU_SYSTEM", "mk1-pod16")
    assert not emulator.tile_memory(compiled(side)).fits
