"""A program for each section of docs/troubleshooting.md, which causes the section's message."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.forked_programs import run_forked
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.names import foreign_libraries
from poptorch_emu.runtime import devices

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])


@dataclass
class Place:
    """The folder and the patches of a program with a mistake."""

    folder: Path
    patch: pytest.MonkeyPatch


class Calls(nn.Module):
    """A model with a weight and a layer, whose forward calls a function of itself and its
    inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(1))
        self.norm = nn.BatchNorm1d(2)

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(self, *tensors)


def summed(model: Calls, x: torch.Tensor) -> torch.Tensor:
    return poptorch.identity_loss(x * model.weight, "sum")


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def pipelined() -> poptorch.Options:
    return options().setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))


def inference(function: Callable[..., Any], opts: poptorch.Options | None = None):
    return poptorch.inferenceModel(Calls(function), opts or options())


def unlike_values(_: Place) -> None:
    guarded = options()
    poptorch.emulator.set_value_guards(guarded, max_programs=1)
    model = inference(lambda _, x: x[x > 0], guarded)
    model(X)
    model(-X)


def training(function: Callable[..., Any] = summed, opts: poptorch.Options | None = None):
    model = Calls(function)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    return poptorch.trainingModel(model, opts or options(), optimizer)


def on_ipus(*ipus: int) -> Callable[..., Any]:
    """Returns a forward that computes on these IPUs, in this order."""

    def forward(model: Calls, x: torch.Tensor) -> torch.Tensor:
        for index, ipu in enumerate(ipus):
            with poptorch.Block(str(index), ipu_id=ipu):
                x = x * model.weight
        with poptorch.Block("loss", ipu_id=ipus[-1]):
            return poptorch.identity_loss(x, "sum")

    return forward


def several_losses(model: Calls, x: torch.Tensor) -> Any:
    y = x * model.weight
    return poptorch.identity_loss(y, "sum"), poptorch.identity_loss(y * y, "sum")


def frozen_batch_norm(_: Place) -> None:
    executor = training(lambda m, x: poptorch.identity_loss(m.norm(x), "sum"))
    executor.model.norm.eval()
    executor(X)


def reassigned(model: Calls, x: torch.Tensor) -> torch.Tensor:
    model.seen = model.seen + 1
    return x + model.seen


def left_tensor(model: Calls, x: torch.Tensor) -> torch.Tensor:
    model.last = x
    return x + 1


def host_parameter(_: Place) -> None:
    kept: list[torch.Tensor] = []
    executor = training(lambda m, x: poptorch.identity_loss(x * kept[0], "sum"))
    kept.append(executor.model.weight)
    executor(X)


def strict_mode(place: Place) -> None:
    place.patch.setenv("POPTORCH_EMU_STRICT", "error")
    inference(lambda _, x: torch.digamma(x))(X)


def integer_state(_: Place) -> None:
    model = Calls(lambda m, x: x + m.order)
    model.register_buffer("order", torch.arange(2))
    poptorch.inferenceModel(model, options())(X)


def my_loss_differs(_: Place) -> None:
    against = emulator.compare(
        inference(lambda _, x: x.exp()), X, against=inference(lambda _, x: x.sin())
    )
    assert against.verdict <= emulator.Verdict.REORDERED, str(against)


def floating_point(_: Place) -> None:
    opts = options()
    opts.Precision.enableFloatingPointExceptions(True)
    inference(lambda _, x: x.log(), opts)(X)


def accumulating(count: int, opts: poptorch.Options | None = None) -> poptorch.Options:
    opts = opts or options()
    opts.Training.gradientAccumulation(count)
    return opts


def changed_inputs(_: Place) -> None:
    executor = inference(lambda _, x: x + 1)
    executor(X)
    executor(torch.ones(3, 5))


def loader(num_rows: int, **settings: Any) -> poptorch.DataLoader:
    data = torch.utils.data.TensorDataset(torch.ones(num_rows))
    return poptorch.DataLoader(options(), data, batch_size=4, **settings)


def unsendable(_: Place) -> None:
    class Local(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.ones(1)

    poptorch.DataLoader(options(), Local(), mode=poptorch.DataLoaderMode.Async)


def unguarded(place: Place) -> None:
    script = place.folder / "program.py"
    script.write_text(
        "import poptorch_emu as poptorch, torch\n"
        "poptorch.AsynchronousDataAccessor([torch.ones(100_000)], sharing_strategy='ForkServer')\n"
    )
    raise RuntimeError(run_forked([str(script)]).stderr)


def no_block(model: Calls, x: torch.Tensor) -> torch.Tensor:
    with poptorch.Block("first", ipu_id=0):
        x = x * model.weight
    return x + 1


def unknown_block(_: Place) -> None:
    strategy = poptorch.PipelinedExecution(poptorch.Stage("encoder"), poptorch.Stage("decoder"))
    inference(on_ipus(0, 1), options().setExecutionStrategy(strategy))(X)


def stage_order(_: Place) -> None:
    training(on_ipus(0, 1, 0), accumulating(2, pipelined()))(X)


def replica_buffers(_: Place) -> None:
    def forward(model: Calls, x: torch.Tensor) -> torch.Tensor:
        model.seen.add_(x.sum())
        return x + model.seen

    inference(forward, options().replicationFactor(2))(X)


def fresh_system(place: Place, name: str) -> None:
    place.patch.setenv("POPTORCH_EMU_SYSTEM", name)
    place.patch.setattr(devices, "_manager", devices._Manager())


def no_free_ipu(place: Place) -> None:
    fresh_system(place, "mk2-pod4")
    opts = options().replicationFactor(4)
    first, second = inference(lambda _, x: x + 1, opts), inference(lambda _, x: x + 1, opts.clone())
    rows = torch.ones(4, 2)
    first(rows)
    second(rows)


def too_many_ipus(place: Place) -> None:
    fresh_system(place, "mk2-pod4")
    inference(lambda _, x: x + 1, options().replicationFactor(16))(torch.ones(16, 2))


def power_of_two(_: Place) -> None:
    opts = options().setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.SameAsIpu))
    inference(on_ipus(0, 1, 2), opts.autoRoundNumIPUs(False))(X)


def out_of_memory(place: Place) -> None:
    place.patch.setenv("POPTORCH_EMU_OOM", "error")
    place.patch.setenv("POPTORCH_EMU_SYSTEM", "mk2-pod16")
    executor = inference(lambda _, x: (x[:, None] * x[None, :]).sum())
    executor.compile(torch.zeros(17_000))


def wrapped_twice(_: Place) -> None:
    model = Calls(summed)
    poptorch.trainingModel(model, options())
    poptorch.trainingModel(model, options())


def weights_not_on_host(_: Place) -> None:
    model = Calls(lambda m, x: m.layer(x))
    model.layer = nn.LazyLinear(3)
    poptorch.inferenceModel(model, options())(X)


def edited_weights(_: Place) -> None:
    executor = training()
    executor(X)
    with torch.no_grad():
        executor.model.weight.zero_()
    executor(X)


def changed_flags(_: Place) -> None:
    executor = training()
    executor(X)
    executor.model.eval()
    executor(X)


def trained() -> tuple[Any, torch.optim.Optimizer]:
    model = Calls(summed)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, options(), optimizer)
    executor(X)
    return executor, optimizer


def optimizer_values(_: Place) -> None:
    executor, optimizer = trained()
    optimizer.param_groups[0]["lr"] = 0.5
    executor(X)


def optimizer_mismatch(_: Place) -> None:
    executor, _optimizer = trained()
    executor.setOptimizer(poptorch.optim.Adam(executor.model.parameters()))
    executor(X)


def optimizer_step(_: Place) -> None:
    _executor, optimizer = trained()
    optimizer.step()


def wrong_executable(place: Place) -> None:
    path = str(place.folder / "model.poptorch")
    inference(lambda _, x: x + 1).compileAndExport(path, X, export_model=False)
    other = inference(lambda _, x: x * 3)
    other.loadExecutable(path)
    other(X)


def invalid_file(place: Place) -> None:
    path = place.folder / "model.poptorch"
    path.write_bytes(b"a picture of an IPU")
    poptorch.load(str(path))


def cache_folder(place: Place) -> None:
    path = place.folder / "a file"
    path.write_text("")
    inference(lambda _, x: x + 1, options().enableExecutableCaching(str(path / "cache")))(X)


def foreign_library(place: Place) -> None:
    # Setting the attribute makes the test restore it at its end.
    place.patch.setattr(ctypes.CDLL, "__init__", ctypes.CDLL.__init__)
    foreign_libraries.install()
    ctypes.cdll.LoadLibrary(str(place.folder / "custom_ops.so"))


Mistake = Callable[[Place], object]


def keras_part(name: str, needed: str = "keras") -> Any:
    """Returns a module of the Keras front end; skips the test if Keras is not installed."""
    pytest.importorskip(needed)
    return importlib.import_module(f"poptorch_emu.keras.{name}")


def uneven_loop(place: Place) -> None:
    ipu = keras_part("ipu")
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def loop() -> None:
        for number in range(4):
            if number % 2 == 0:
                queue.enqueue(number)

    ipu.ipu_strategy.IPUStrategy().run(loop)


def tensorflow_function(place: Place) -> None:
    strategy = keras_part("ipu", "tensorflow").ipu_strategy.IPUStrategy()
    tf = importlib.import_module("tensorflow")
    strategy.run(lambda x: tf.histogram_fixed_width(x, [0.0, 1.0], 10), args=[X.numpy()])


def added_gradients(place: Place) -> None:
    note = keras_part("settings.run_settings").note_default_reduction
    note.cache_clear()
    note()


MISTAKES: dict[str, Mistake] = {
    "no-loss": lambda _: training(lambda m, x: x * m.weight)(X),
    "several-losses": lambda _: training(several_losses)(X),
    "after-the-loss": lambda _: training(lambda m, x: F.l1_loss(x * m.weight, x) * 2)(X),
    "explicit-backward": lambda _: training()(X).backward(),
    "python-control-flow": lambda _: inference(lambda _, x: x if x.sum() > 0 else -x)(X),
    "data-dependent-shape": lambda _: inference(lambda _, x: x[x > 0])(X),
    "value-guards": unlike_values,
    "other-device": lambda _: inference(lambda _, x: x + torch.ones(2, device="cuda"))(X),
    "moved-to-cpu": lambda _: inference(lambda _, x: x.cpu() + 1)(X),
    "host-tensor": lambda _: inference(lambda _, x: x + X)(X),
    "host-parameter": host_parameter,
    "reassigned-state": lambda _: inference(reassigned)(X),
    "left-tensors": lambda _: inference(left_tensor)(X),
    "frozen-batch-norm": frozen_batch_norm,
    "unsupported-operator": lambda _: inference(lambda _, x: x.to_sparse())(X),
    "foreign-library": foreign_library,
    "strict-mode": strict_mode,
    "unsupported-type": lambda _: inference(lambda _, x: x)(torch.ones(2, dtype=torch.uint16)),
    "float64": lambda _: inference(lambda _, x: x + x.double().sum().double())(X),
    "int64-overflow": lambda _: inference(lambda _, x: x + torch.tensor([2**40, 1]).to(x.device))(
        X
    ),
    "integer-state": integer_state,
    "my-loss-differs": my_loss_differs,
    "floating-point-exception": floating_point,
    "batch-size": lambda _: training(opts=accumulating(3))(X),
    "changed-inputs": changed_inputs,
    "accumulation-in-inference": lambda _: inference(lambda _, x: x, accumulating(2)),
    "empty-loader": lambda _: loader(3),
    "odd-last-batch": lambda _: loader(9, drop_last=False),
    "unsendable-dataset": unsendable,
    "unguarded-main": unguarded,
    "too-few-micro-batches": lambda _: training(on_ipus(0, 1), pipelined())(X),
    "stage-order": stage_order,
    "no-block": lambda _: inference(no_block)(X),
    "block-names": unknown_block,
    "replica-buffers": replica_buffers,
    "no-free-ipu": no_free_ipu,
    "too-many-ipus": too_many_ipus,
    "power-of-two": power_of_two,
    "out-of-memory": out_of_memory,
    "not-a-module": lambda _: poptorch.inferenceModel(torch.relu),
    "already-wrapped": wrapped_twice,
    "not-compiled": lambda _: inference(lambda _, x: x).attachToDevice(),
    "weights-not-on-host": weights_not_on_host,
    "edited-weights": edited_weights,
    "changed-flags": changed_flags,
    "optimizer-values": optimizer_values,
    "optimizer-mismatch": optimizer_mismatch,
    "optimizer-step": optimizer_step,
    "wrong-executable": wrong_executable,
    "invalid-file": invalid_file,
    "cache-folder": cache_folder,
    "keras-backend": lambda _: keras_part("keras_version").check("3.15.0", "jax"),
    "added-gradients": added_gradients,
    "uneven-loop": uneven_loop,
    "tensorflow-function": tensorflow_function,
}
