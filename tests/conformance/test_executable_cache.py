"""The cache of executables (api.md 5 and 18): hits, misses, and calls that must never hit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.forked_programs import ForkedProgram, end
from support.models import FAMILIES
from support.processors import AMD_AVX2, INTEL_AVX512, compiling_for
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.compile.stored import cache, container

pytestmark = pytest.mark.feature("enableExecutableCaching", fidelity="exact")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Records each executable that is written to a cache."""
    kept: list[object] = []
    real = cache.keep

    def keep(executable: object) -> None:
        kept.append(executable)
        real(executable)

    monkeypatch.setattr(cache, "keep", keep)
    return kept


def options(folder: Path) -> poptorch.Options:
    opts = poptorch.Options().showCompilationProgressBar(False).randomSeed(2)
    return opts.enableExecutableCaching(str(folder))


def executables(folder: Path) -> list[Path]:
    return list(folder.glob("*.executable"))


def network() -> nn.Module:
    torch.manual_seed(4)
    return FAMILIES["mlp"].make(1)


def batch(rows: int = 4) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(7)
    return FAMILIES["mlp"].batch(rows)


def train(
    folder: Path,
    change: Callable[[poptorch.Options], object] = lambda opts: None,
    model: nn.Module | None = None,
    data: tuple[torch.Tensor, ...] | None = None,
    **hypers: object,
) -> list[torch.Tensor]:
    """Trains two steps; returns outputs and weights."""
    opts = options(folder)
    change(opts)
    model = network() if model is None else model
    optimizer = poptorch.optim.SGD(model.parameters(), **{"lr": 0.1, **hypers})
    training = poptorch.trainingModel(model, opts, optimizer)
    results = [value for _ in range(2) for value in training(*(data or batch()))]
    return [*results, *model.state_dict().values()]


def assert_same(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)


def test_same_model_when_compiled_again_then_is_loaded_and_runs_the_same(
    tmp_path: Path, lowered: list[object]
) -> None:
    first = train(tmp_path)
    assert len(lowered) == 1 and len(executables(tmp_path)) == 1
    assert_same(train(tmp_path), first)
    assert len(lowered) == 1


@pytest.mark.parametrize("family", ["resnet", "transformer", "lstm"])
def test_families_when_loaded_then_run_bit_for_bit_the_same(
    family: str, tmp_path: Path, lowered: list[object]
) -> None:
    torch.manual_seed(8)
    data = FAMILIES[family].batch(8)

    def run() -> list[torch.Tensor]:
        torch.manual_seed(9)
        return train(
            tmp_path, lambda o: o.Training.gradientAccumulation(4), FAMILIES[family].make(2), data
        )

    assert_same(run(), run())
    assert len(lowered) == 1


def other_weights() -> nn.Module:
    model = network()
    for parameter in model.parameters():
        parameter.data.mul_(2)
    return model


@pytest.mark.parametrize(
    "settings",
    [
        {"model": other_weights},
        {"lr": 0.2},
        {"change": lambda opts: opts.randomSeed(11)},
        {"change": lambda opts: opts.modelName("another")},
    ],
    ids=["weights", "variable learning rate", "seed", "name"],
)
def test_what_the_program_does_not_depend_on_when_changed_then_hit(
    settings: dict, tmp_path: Path, lowered: list[object]
) -> None:
    train(tmp_path)
    made = {key: value() if key == "model" else value for key, value in settings.items()}
    train(tmp_path, **made)
    assert len(lowered) == 1


def frozen() -> nn.Module:
    model = network()
    model.parts[2][0].bias.requires_grad_(False)
    return model


class Cut(nn.Module):
    """Differs from the plain model in autograd's graph only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.parts = model.parts

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        with torch.no_grad():
            x = self.parts[0](x)
        for part in self.parts[1:]:
            x = part(x)
        return x, nn.functional.cross_entropy(x, labels)


class Whole(Cut):
    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        for part in self.parts:
            x = part(x)
        return x, nn.functional.cross_entropy(x, labels)


@pytest.mark.parametrize(
    "settings",
    [
        {"model": frozen},
        {"data": lambda: batch(6)},
        {"momentum": 0.5},
        {"change": lambda opts: opts.Training.gradientAccumulation(2)},
        {"change": lambda opts: opts.replicationFactor(2)},
    ],
    ids=["frozen parameter", "shape", "constant momentum", "accumulation", "replicas"],
)
def test_what_the_program_depends_on_when_changed_then_miss(
    settings: dict, tmp_path: Path, lowered: list[object]
) -> None:
    train(tmp_path)
    made = {k: value() if k in ("model", "data") else value for k, value in settings.items()}
    train(tmp_path, **made)
    assert len(lowered) == 2


def test_processor_when_it_is_another_then_miss(tmp_path: Path, lowered: list[object]) -> None:
    for processor in (AMD_AVX2, INTEL_AVX512, AMD_AVX2):
        with compiling_for(*processor):
            train(tmp_path)
    assert len(lowered) == 2


def test_no_grad_when_operations_are_the_same_then_miss(
    tmp_path: Path, lowered: list[object]
) -> None:
    whole = train(tmp_path, model=Whole(network()))
    cut = train(tmp_path, model=Cut(network()))
    assert len(lowered) == 2
    assert torch.equal(cut[4], network().parts[0][0].weight)
    assert not torch.equal(whole[4], cut[4])


class Scaled(torch.autograd.Function):
    """Returns its argument, and multiplies the gradient by `factor`."""

    factor = 1.0

    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient * Scaled.factor


class WithFunction(Whole):
    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        return super().forward(Scaled.apply(self.parts[0][0].weight).sum() * 0 + x, labels)


class WithHook(Whole):
    factor = 1.0

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        x = self.parts[0](x)
        factor = self.factor
        x.register_hook(lambda gradient: gradient * factor)
        for part in self.parts[1:]:
            x = part(x)
        return x, nn.functional.cross_entropy(x, labels)


@pytest.mark.parametrize(("cls", "owner"), [(WithFunction, Scaled), (WithHook, WithHook)])
def test_code_of_the_user_in_backward_when_it_changes_then_miss(
    cls, owner, tmp_path: Path, lowered: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train(tmp_path, model=cls(network()))
    assert_same(train(tmp_path, model=cls(network())), first)
    assert len(lowered) == 1
    monkeypatch.setattr(owner, "factor", 3.0)
    train(tmp_path, model=cls(network()))
    assert len(lowered) == 2


class Doubled(Whole):
    """Saves twice the right values for backward, by a hook on the tensors that autograd saves."""

    factor = 1.0

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        factor = self.factor
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * factor):
            x = torch.tanh(self.parts[0](x))
        for part in self.parts[1:]:
            x = part(x)
        return x, nn.functional.cross_entropy(x, labels)


def test_hook_on_saved_tensors_when_it_changes_then_miss(
    tmp_path: Path, lowered: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, model=Doubled(network()))
    monkeypatch.setattr(Doubled, "factor", 2.0)
    train(tmp_path, model=Doubled(network()))
    assert len(lowered) == 2


def test_constant_of_the_model_when_changed_then_miss(
    tmp_path: Path, lowered: list[object]
) -> None:
    class Shifted(nn.Module):
        def __init__(self, shift: int) -> None:
            super().__init__()
            self.register_buffer("shift", torch.tensor([shift, 0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.shift

    for shift in (1, 5):
        inference = poptorch.inferenceModel(Shifted(shift), options(tmp_path))
        assert inference(torch.zeros(1, 2)).tolist() == [[shift, 0]]
    assert len(lowered) == 2


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data[:-1] + b"\x00"],
    ids=["cut", "empty", "changed"],
)
def test_damaged_file_then_warning_and_a_new_one(
    damage, tmp_path: Path, lowered: list[object], logged
) -> None:
    expected = train(tmp_path)
    (file,) = executables(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert_same(train(tmp_path), expected)
    assert "cannot be used and will be replaced" in logged.text
    assert file.name in logged.text
    assert file.read_bytes() == whole
    assert_same(train(tmp_path), expected)
    assert len(lowered) == 2


@pytest.mark.parametrize("versioned", [container, torch], ids=["package", "PyTorch"])
def test_file_of_another_version_then_is_a_miss_without_warning(
    versioned: object,
    tmp_path: Path,
    lowered: list[object],
    logged,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(versioned, "__version__", "0.0.7")
        expected = train(tmp_path)
    assert_same(train(tmp_path), expected)
    assert "WARNING" not in logged.text
    assert len(lowered) == 2


def test_file_of_another_model_under_this_name_then_is_not_used(
    tmp_path: Path, lowered: list[object]
) -> None:
    expected = train(tmp_path)
    (file,) = executables(tmp_path)
    train(tmp_path / "other", momentum=0.9)
    (other,) = executables(tmp_path / "other")
    file.write_bytes(other.read_bytes())
    assert_same(train(tmp_path), expected)
    assert len(lowered) == 3


def test_hit_and_miss_then_are_logged_with_the_file(tmp_path: Path, logged) -> None:
    poptorch.setLogLevel("INFO")
    try:
        train(tmp_path)
        (file,) = executables(tmp_path)
        assert f"there is no {file} yet" in logged.text and f"wrote {file}" in logged.text
        logged.clear()
        train(tmp_path)
        assert f"loaded {file}" in logged.text
    finally:
        poptorch.setLogLevel("WARN")


def test_environment_then_sets_the_folder(
    tmp_path: Path, lowered: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path / "made"))
    inference = poptorch.inferenceModel(
        nn.Linear(2, 2), poptorch.Options().showCompilationProgressBar(False)
    )
    inference(torch.ones(1, 2))
    assert len(lowered) == 1 and len(executables(tmp_path / "made")) == 1


@pytest.mark.parametrize("variable", ["", "POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"])
def test_ipu_model_then_warning_and_no_cache(
    variable: str, tmp_path: Path, logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    opts = options(tmp_path / "cache")
    if variable:
        monkeypatch.setenv(variable, "1")
    else:
        opts.useIpuModel(True)
    inference = poptorch.inferenceModel(nn.Linear(2, 2), opts)
    inference(torch.ones(1, 2))
    assert "enableExecutableCaching doesn't work with the IPU model" in logged.text
    assert not (tmp_path / "cache").exists()


_PROGRAM = """
import sys, torch
import poptorch_emu as poptorch
from support.models import FAMILIES
opts = poptorch.Options().showCompilationProgressBar(False).randomSeed(2)
opts.Training.gradientAccumulation(4)
opts.enableExecutableCaching(sys.argv[1])
torch.manual_seed(3)
model, batch = FAMILIES["resnet"].make(2), FAMILIES["resnet"].batch(8)
training = poptorch.trainingModel(model, opts)
torch.save([*training(*batch), *model.state_dict().values()], sys.argv[2])
"""


def test_processes_when_they_share_a_folder_then_one_file_and_equal_results(
    tmp_path: Path,
) -> None:
    def start(name: str) -> ForkedProgram:
        return ForkedProgram(["-c", _PROGRAM, str(tmp_path / "cache"), str(tmp_path / name)])

    for names in (("a", "b"), ("c",)):
        processes = [start(name) for name in names]
        try:
            for process in processes:
                _, errors = process.communicate(300)
                assert process.returncode == 0, errors
        finally:
            end(processes)
    assert len(executables(tmp_path / "cache")) == 1
    assert_same(torch.load(tmp_path / "b"), torch.load(tmp_path / "a"))
    assert_same(torch.load(tmp_path / "c"), torch.load(tmp_path / "a"))
