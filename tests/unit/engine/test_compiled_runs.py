"""Segments whose operations TorchInductor compiled: same numbers, a way back from failures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.product_sums import assert_alike
from torch._inductor import config as inductor_config

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.engine import inductor
from poptorch_emu.engine.rewrites import packed_weights

CALL = "poptorch_emu::compiled_code"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where libraries lie: what the models have in common is compiled once."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module", autouse=True)
def _soon_compiled() -> Iterator[None]:
    """Optimises the loops as ever, but not the code around them, which is most of a library."""
    with inductor_config.patch({"aot_inductor.compile_wrapper_opt_level": "O0"}):
        yield


class TwoStages(torch.nn.Module):
    """An MLP with dropout, in two stages."""

    def __init__(self, first: Callable[[torch.Tensor], torch.Tensor] = torch.tanh) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(6, 16)
        self.second = torch.nn.Linear(16, 3)
        self.activation = first

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with poptorch.Block("first", ipu_id=0):
            x = self.activation(self.first(x))
        with poptorch.Block("second", ipu_id=1):
            scores = self.second(x.view(-1, 16))
            return scores, torch.nn.functional.cross_entropy(scores, labels)


def options_of(backend: str, folder: Path) -> poptorch.Options:
    """Returns options with a cache in `folder`."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    options.enableExecutableCaching(str(folder))
    options.randomSeed(3)
    emulator.set_backend(options, backend)
    return options


def trained(
    model: TwoStages, options: poptorch.Options
) -> tuple[dict[str, torch.Tensor], torch.Tensor, str]:
    """Returns weights, scores and the program's text after three updates."""
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    torch.manual_seed(1)
    for _ in range(3):
        scores, _ = training(torch.randn(20, 6), torch.randint(3, (20,)))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    assert training._executable is not None
    return weights, scores, training._executable.program.text()


def plainly_trained(model: TwoStages) -> dict[str, torch.Tensor]:
    """Returns the weights after the same updates by PyTorch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    for _ in range(3):
        x, labels = torch.randn(20, 6), torch.randint(3, (20,))
        scores = model.second(torch.tanh(model.first(x)))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(scores, labels).backward()
        optimizer.step()
    return dict(model.state_dict())


def test_model_when_compiled_then_trains_like_pytorch_and_its_libraries_are_found_again(
    compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, scores, text = trained(TwoStages(), options_of("inductor", compiled))
    assert CALL in text
    for name, value in plainly_trained(TwoStages()).items():
        torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-6)

    def fail(*args: object) -> None:
        raise AssertionError("a library that is on disk was compiled again")

    monkeypatch.setattr(inductor, "_compile", fail)
    again, same_scores, text = trained(TwoStages(), options_of("inductor", compiled))
    assert CALL in text
    assert torch.equal(scores, same_scores)
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert not list(compiled.glob("*.executable"))


def test_operations_when_not_compiled_then_run_one_by_one_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("no compiler here\nmore")

    # The engine's layers, which are for its own backend alone, may have other bits.
    monkeypatch.setattr(packed_weights, "_FEWEST_PRODUCTS", 100)
    monkeypatch.setattr(inductor, "_compile", fail)
    with caplog.at_level(logging.WARNING):
        weights, _, text = trained(TwoStages(), options_of("inductor", tmp_path))
    assert CALL not in text
    assert "run one by one instead: no compiler here" in caplog.text
    plain, _, _ = trained(TwoStages(), options_of("aten", tmp_path))
    for name, value in plain.items():
        assert_alike(weights[name], value, name)


def test_library_when_made_for_another_processor_then_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inductor, "_compile", lambda _, __, path, ___: asked_for.append(path))
    graph = torch.fx.symbolic_trace(lambda x: x + 1).graph
    asked_for: list[Path] = []
    for flags in ("fpu", "fpu avx512_fp16", "fpu"):
        monkeypatch.setattr(inductor, "processor", {"model name": "one", "flags": flags}.get)
        inductor.InductorCompiler(str(tmp_path), 1).library(graph, [torch.ones(2)])
    assert asked_for[0] == asked_for[2] != asked_for[1]


def interrupted(x: torch.Tensor) -> torch.Tensor:
    """Operations with random numbers and with a loop between them."""
    x = torch.nn.functional.dropout(torch.tanh(x) * 2, 0.5).sigmoid() + 1
    (x,) = poptorch.for_loop(3, lambda y: [y * 0.5 + 1], [x])
    return x.sigmoid() + 1


def test_segment_when_only_parts_can_be_compiled_then_the_rest_stays_as_it_is(
    compiled: Path, tmp_path: Path
) -> None:
    weights, _, text = trained(TwoStages(interrupted), options_of("inductor", compiled))
    plain, _, plain_text = trained(TwoStages(interrupted), options_of("aten", tmp_path))
    assert CALL in text
    for operation in ("poptorch_emu::for_loop", "poptorch_emu::dropout"):
        assert text.count(operation) == plain_text.count(operation)
    for name, value in plain.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-6)


def test_floating_point_checks_when_asked_for_then_nothing_is_compiled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = options_of("inductor", tmp_path)
    options.Precision.enableFloatingPointExceptions(True)
    with caplog.at_level(logging.WARNING):
        _, _, text = trained(TwoStages(), options)
    assert CALL not in text
    assert "floating-point checks" in caplog.text


def test_executable_when_compiled_then_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inductor.InductorCompiler, "library", lambda *args: None)
    model = TwoStages()
    options = options_of("inductor", tmp_path)
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    training.compile(torch.randn(20, 6), torch.randint(3, (20,)))
    with pytest.raises(poptorch.Error, match="backend 'aten'"):
        training.save(str(tmp_path / "model.poptorch"))


def test_backend_when_unknown_then_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(poptorch.Error, match=r"Unknown backend: 'xla'.*aten"):
        emulator.set_backend(poptorch.Options(), "xla")
    monkeypatch.setenv("POPTORCH_EMU_BACKEND", "xla")
    with pytest.raises(poptorch.Error, match=r"POPTORCH_EMU_BACKEND must be one of"):
        poptorch.Options()
    monkeypatch.setenv("POPTORCH_EMU_BACKEND", "inductor")
    assert poptorch.Options()._engine_backend.value == "inductor"
