"""Exporting and loading executables (api.md 16.3 and 18, semantics.md 20)."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from support.forked_programs import run_forked
from support.models import FAMILIES
from support.processors import compiling_for
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.compile.stored import container
from poptorch_emu.executor import saving
from poptorch_emu.ir.text import to_text

pytestmark = pytest.mark.feature("save, load, loadExecutable", fidelity="exact")

ROOT = Path(__file__).parents[2]


def options(**settings: int) -> poptorch.Options:
    opts = poptorch.Options().showCompilationProgressBar(False).randomSeed(3)
    opts.Training.gradientAccumulation(settings.get("accumulation", 1))
    return opts.deviceIterations(settings.get("iterations", 1))


def wrapped(model: nn.Module, opts: poptorch.Options | None = None) -> poptorch.PoplarExecutor:
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
    return poptorch.trainingModel(model, opts or options(), optimizer)


def noisy() -> nn.Module:
    """Returns a model with dropout, so that the random state matters."""
    torch.manual_seed(5)
    model = FAMILIES["mlp"].make(1)
    model.parts[0].append(nn.Dropout(0.5))
    return model


def batch(rows: int = 4) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(6)
    return FAMILIES["mlp"].batch(rows)


def assert_same(actual: object, expected: object) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)


def assert_same_weights(first: nn.Module, second: nn.Module) -> None:
    others = second.state_dict()
    for name, value in first.state_dict().items():
        assert torch.equal(value, others[name]), name


def in_other_process(code: str, *args: object) -> str:
    done = run_forked(["-c", code, *map(str, args)])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_training_when_saved_and_loaded_then_goes_on_bit_for_bit(tmp_path: Path) -> None:
    training = wrapped(noisy())
    for _ in range(3):
        training(*batch())
    training.save(tmp_path / "deep" / "model.poptorch")
    loaded = poptorch.load(tmp_path / "deep" / "model.poptorch")
    assert loaded.isCompiled() and loaded.isAttachedToDevice()
    for _ in range(3):
        assert_same(loaded(*batch()), training(*batch()))
    assert_same_weights(loaded.model, training.model)


def test_inference_when_saved_and_loaded_then_gives_the_same(tmp_path: Path) -> None:
    inference = poptorch.inferenceModel(noisy().eval(), options(iterations=2))
    expected = inference(*batch(8))
    inference.save(tmp_path / "model.poptorch")
    assert_same(poptorch.load(str(tmp_path / "model.poptorch"))(*batch(8)), expected)


def test_file_of_another_processor_when_its_kernels_run_here_then_gives_the_same(
    tmp_path: Path,
) -> None:
    with compiling_for("of nobody", 0):
        inference = poptorch.inferenceModel(noisy().eval(), options(iterations=2))
        expected = inference(*batch(8))
        inference.save(tmp_path / "model.poptorch")
    assert_same(poptorch.load(str(tmp_path / "model.poptorch"))(*batch(8)), expected)


@pytest.mark.parametrize("family", ["mnist", "resnet", "transformer", "lstm", "embedding"])
def test_pipeline_when_exported_and_loaded_then_equals_a_fresh_compilation(
    family: str, tmp_path: Path
) -> None:
    make = FAMILIES[family]
    torch.manual_seed(1)
    model, data = make.make(2), make.batch(8)
    twin = copy.deepcopy(model)
    exported = wrapped(model, options(accumulation=4))
    exported.compileAndExport(tmp_path / "model.poptorch", *data)
    fresh = wrapped(twin, options(accumulation=4))
    loaded = poptorch.load(tmp_path / "model.poptorch")
    for _ in range(2):
        assert_same(loaded(*data), fresh(*data))
    assert_same_weights(loaded.model, fresh.model)


def test_torch_optimizer_when_loaded_then_its_state_on_the_device_is_kept(tmp_path: Path) -> None:
    model = noisy()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    training = poptorch.trainingModel(model, options(), sgd)
    training(*batch())
    training.save(tmp_path / "f")
    loaded = poptorch.load(tmp_path / "f")
    assert_same(loaded(*batch()), training(*batch()))
    assert_same_weights(loaded.model, training.model)


def test_file_when_loaded_in_another_process_then_goes_on_bit_for_bit(tmp_path: Path) -> None:
    training = wrapped(noisy())
    training(*batch())
    training.save(tmp_path / "model.poptorch")
    code = """
import sys, torch
from support.models import FAMILIES
import poptorch_emu as poptorch
loaded = poptorch.load(sys.argv[1])
torch.manual_seed(6)
torch.save([*loaded(*FAMILIES["mlp"].batch(4)), loaded.model.state_dict()], sys.argv[2])
"""
    in_other_process(code, tmp_path / "model.poptorch", tmp_path / "results")
    *outputs, weights = torch.load(tmp_path / "results")
    assert_same(outputs, training(*batch()))
    assert_same(weights.values(), training.model.state_dict().values())


def test_file_without_model_when_given_to_load_then_says_what_to_do(tmp_path: Path) -> None:
    training = wrapped(noisy())
    training.compileAndExport(tmp_path / "f", *batch(), export_model=False)
    with pytest.raises(AssertionError, match="is a valid PopTorch file") as error:
        poptorch.load(tmp_path / "f")
    for phrase in ("'export_model=False'", "poptorch.inferenceModel", "poptorch.trainingModel"):
        assert phrase in str(error.value)
    assert "poptorch_model.loadExecutable(" in str(error.value)


def test_file_without_model_when_given_to_a_wrapper_then_runs(tmp_path: Path) -> None:
    first = wrapped(noisy())
    first.compileAndExport(tmp_path / "f", *batch(), export_model=False)
    second = wrapped(noisy())
    second.loadExecutable(tmp_path / "f")
    assert second.isCompiled()
    assert_same(second(*batch()), first(*batch()))


def test_load_then_traces_forward_again_with_hooks(tmp_path: Path) -> None:
    training = wrapped(noisy())
    training.compileAndExport(tmp_path / "f", *batch())
    seen: list[str] = []
    handles = [
        poptorch.registerPreCompileHook(lambda: seen.append("pre")),
        poptorch.registerPostCompileHook(lambda: seen.append("post")),
    ]
    poptorch.load(tmp_path / "f")
    for handle in handles:
        handle.remove()
    assert seen == ["pre", "post"]


def other_width() -> nn.Module:
    model = noisy()
    model.parts[1] = nn.Linear(16, 13)
    model.parts[2] = nn.Linear(13, 10)
    return model


def other_function() -> nn.Module:
    model = noisy()
    model.parts[1][1] = nn.Sigmoid()
    return model


def frozen_part() -> nn.Module:
    model = noisy()
    model.parts[0][0].weight.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("make", "difference"),
    [
        (other_width, "parameters and buffers differ"),
        (other_function, "operations differ: .*tanh.* there, .*sigmoid.* here"),
        (frozen_part, "parameters and buffers differ: .*trained"),
    ],
)
def test_other_model_when_file_is_loaded_then_error_names_the_difference(
    make, difference: str, tmp_path: Path
) -> None:
    wrapped(noisy()).compileAndExport(tmp_path / "f", *batch(), export_model=False)
    other = wrapped(make())
    with pytest.raises(poptorch.Error, match=difference):
        other.loadExecutable(tmp_path / "f")
    assert not other.isCompiled()


def test_other_options_when_file_is_loaded_then_error_names_the_option(tmp_path: Path) -> None:
    wrapped(noisy()).compileAndExport(tmp_path / "f", *batch(), export_model=False)
    other = wrapped(noisy(), options(accumulation=2))
    with pytest.raises(poptorch.Error, match="gradient_accumulation=1' there"):
        other.loadExecutable(tmp_path / "f")


def test_other_optimizer_when_file_is_loaded_then_error(tmp_path: Path) -> None:
    wrapped(noisy()).compileAndExport(tmp_path / "f", *batch(), export_model=False)
    model = noisy()
    other = poptorch.trainingModel(model, options(), poptorch.optim.SGD(model.parameters(), lr=1))
    with pytest.raises(poptorch.Error, match="optimizers differ: 'kind="):
        other.loadExecutable(tmp_path / "f")


def test_other_shapes_when_model_runs_after_loading_then_refused(tmp_path: Path) -> None:
    wrapped(noisy()).compileAndExport(tmp_path / "f", *batch())
    with pytest.raises(poptorch.Error, match="Shape mismatch for x"):
        poptorch.load(tmp_path / "f")(*batch(6))


def test_options_when_edited_then_hold_where_the_program_allows(tmp_path: Path) -> None:
    wrapped(noisy()).compileAndExport(tmp_path / "f", *batch())
    loaded = poptorch.load(tmp_path / "f", lambda opts: opts.modelName("again"))
    assert loaded.options.model_name == "again"
    with pytest.raises(poptorch.Error, match="device_iterations=1' there, .*2' here"):
        poptorch.load(tmp_path / "f", lambda opts: opts.deviceIterations(2))


def test_file_when_cut_or_changed_anywhere_then_error(tmp_path: Path) -> None:
    path = tmp_path / "f"
    inference = poptorch.inferenceModel(nn.Linear(2, 2), options())
    inference.compileAndExport(path, torch.ones(1, 2))
    data = path.read_bytes()
    for size in {*range(64), *range(64, len(data), 97), len(data) - 1}:
        path.write_bytes(data[:size])
        with pytest.raises(poptorch.Error, match="Invalid file .*f: it is"):
            poptorch.load(path)
    for position in {*range(64), *range(64, len(data), 97)}:
        path.write_bytes(data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
        with pytest.raises(poptorch.Error, match="Invalid file .*f: "):
            poptorch.load(path)


def test_file_of_another_version_when_loaded_then_mismatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "__version__", "0.0.7")
    wrapped(noisy()).compileAndExport(tmp_path / "f", *batch())
    monkeypatch.undo()
    phrase = "Invalid file .*f: PopTorch version mismatch.*0.0.7.*" + poptorch.__version__
    with pytest.raises(AssertionError, match=phrase):
        poptorch.load(tmp_path / "f")
    with pytest.raises(poptorch.Error, match=phrase):
        wrapped(noisy()).loadExecutable(tmp_path / "f")


def test_save_when_not_compiled_then_error(tmp_path: Path) -> None:
    with pytest.raises(poptorch.Error, match="Model has not been compiled or has been destroyed."):
        wrapped(noisy()).save(tmp_path / "f")


def test_save_into_a_folder_then_names_the_file(tmp_path: Path, caplog) -> None:
    training = wrapped(noisy())
    training.compile(*batch())
    poptorch.logger.propagate = True
    training.save(tmp_path)
    poptorch.logger.propagate = False
    file = tmp_path / "model.poptorch"
    assert f"save(): {tmp_path} is a directory, saving model to {file}" in caplog.text
    assert poptorch.load(file).isCompiled()


def test_save_below_a_file_then_assertion(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    training = wrapped(noisy())
    training.compile(*batch())
    with pytest.raises(AssertionError, match="plain is a file, not a directory"):
        training.save(tmp_path / "plain" / "sub" / "f")


def test_metadata_then_has_the_documented_fields(tmp_path: Path) -> None:
    training = wrapped(noisy())
    training.compileAndExport(tmp_path / "f", *batch())
    fields = pickle.loads(poptorch.importPoptorchMetadataFromFile(tmp_path / "f"))
    documented = {
        "version", "executable_inputs", "options", "training", "model", "optimizer",
        "optimizer_state", "rng_state",
    }  # fmt: skip
    assert set(fields) == documented
    assert fields["version"] == poptorch.__version__
    assert type(fields["model"]) is type(noisy())
    training.save(tmp_path / "g", export_model=False, save_rng_state=False)
    less = pickle.loads(poptorch.importPoptorchMetadataFromFile(tmp_path / "g"))
    assert set(less) == {"version", "executable_inputs", "options"}


def test_program_in_a_file_then_is_no_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped(noisy()).compileAndExport(tmp_path / "f", *batch(), export_model=False)
    target = wrapped(noisy())
    unpickled: list[bytes] = []
    real = pickle.loads

    def loads(data: bytes) -> object:
        unpickled.append(data)
        return real(data)

    monkeypatch.setattr(saving.pickle, "loads", loads)
    target.loadExecutable(tmp_path / "f")
    assert unpickled == [poptorch.importPoptorchMetadataFromFile(tmp_path / "f")]


def test_loaded_executable_when_looked_at_then_has_graph_and_schedule(tmp_path: Path) -> None:
    opts = options(accumulation=4)
    training = wrapped(FAMILIES["resnet"].make(2), opts)
    training.compileAndExport(tmp_path / "f", *FAMILIES["resnet"].batch(8))
    one, two = training._executable, poptorch.load(tmp_path / "f")._executable
    assert two.schedule == one.schedule
    assert two.program.text() == one.program.text()
    assert to_text(two.graph) == to_text(one.graph)
    ports = {node.name: port for node, port in one.partition.port_of.items()}
    assert {node.name: port for node, port in two.partition.port_of.items()} == ports


def test_offline_target_then_compiles_and_exports_but_does_not_run(tmp_path: Path) -> None:
    training = wrapped(noisy(), options().useOfflineIpuTarget())
    training.compileAndExport(tmp_path / "f", *batch())
    assert not training.isAttachedToDevice()
    with pytest.raises(AssertionError, match="Trying to run a model on an offline device") as error:
        training(*batch())
    assert "ConnectionType.Never" in str(error.value)
    assert "model.compile(inputs)" in str(error.value)
    fields = pickle.loads(poptorch.importPoptorchMetadataFromFile(tmp_path / "f"))
    assert fields["optimizer_state"] is None


def test_offline_export_when_loaded_then_runs_like_a_fresh_model(tmp_path: Path) -> None:
    wrapped(noisy(), options().useOfflineIpuTarget()).compileAndExport(tmp_path / "f", *batch())
    loaded, fresh = poptorch.load(tmp_path / "f"), wrapped(noisy())
    assert not loaded.options.exists("ipu_version")
    assert loaded.options.connection_type == poptorch.ConnectionType.Always.value
    assert_same(loaded(*batch()), fresh(*batch()))
    assert_same_weights(loaded.model, fresh.model)


def test_model_that_cannot_be_pickled_then_error_says_way_out(tmp_path: Path) -> None:
    class Local(nn.Linear):
        pass

    inference = poptorch.inferenceModel(Local(2, 2), options())
    inference.compile(torch.ones(1, 2))
    with pytest.raises(poptorch.Error, match="cannot be pickled.*export_model=False"):
        inference.save(tmp_path / "f")
    inference.save(tmp_path / "f", export_model=False)


class Noise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


@pytest.mark.parametrize("is_attached", [True, False], ids=["attached", "detached"])
def test_random_numbers_when_saved_between_calls_then_the_loaded_model_goes_on(
    is_attached: bool, tmp_path: Path
) -> None:
    x = torch.zeros(4)
    expected = poptorch.inferenceModel(Noise(), options())
    numbers = [expected(x) for _ in range(2)]
    executor = poptorch.inferenceModel(Noise(), options())
    assert torch.equal(executor(x), numbers[0])
    if not is_attached:
        executor.detachFromDevice()
    executor.save(tmp_path / "noise.poptorch")
    assert torch.equal(poptorch.load(tmp_path / "noise.poptorch")(x), numbers[1])


def test_random_numbers_when_never_attached_then_the_loaded_model_begins_with_its_seed(
    tmp_path: Path,
) -> None:
    x = torch.zeros(4)
    offline = poptorch.inferenceModel(Noise(), options().useOfflineIpuTarget())
    offline.compileAndExport(tmp_path / "noise.poptorch", x)
    expected = poptorch.inferenceModel(Noise(), options())(x)
    assert torch.equal(poptorch.load(tmp_path / "noise.poptorch")(x), expected)
