"""Exported programs on their own: saved, over networks, on a GPU; and their messages."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.exported_models import (
    FAMILIES,
    NUM_MICRO_BATCHES,
    NUM_UPDATES,
    Case,
    free_port,
    run_in_processes,
    train_exported,
    train_on_emulator,
)
from support.helpers import assert_near
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import poptorch_emu as poptorch
from poptorch_emu import emulator

CASE = Case("mlp", 2)
LIMIT_SECONDS = 120


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder with the exported program of `CASE`, and its batches."""
    return saved_program(CASE, tmp_path_factory.mktemp("saved"))


def saved_program(case: Case, folder: Path) -> Path:
    executor, batches = case.executor(), case.batches()
    executor.compile(*batches[0])
    emulator.export_pipeline(executor).save(folder / "program")
    torch.save(batches, folder / "batches.pt")
    executor.destroy()
    return folder / "program"


def bare_environment(**others: str) -> dict[str, str]:
    """Returns an environment without this package on its path."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return {**kept, "OMP_NUM_THREADS": "1", **others}


def assert_trained_alike(program: Path, printed: str, case: Case = CASE) -> None:
    losses, state = train_on_emulator(case)
    found = sorted(float(word) for word in printed.split())  # Replicas print at the same time.
    assert_near(torch.tensor(found), torch.tensor(sorted(losses)), "losses")
    weights = {}
    for stage in range(case.num_stages):
        file = program / f"trained_{stage}.pt"
        weights.update(torch.load(file))
        file.unlink()  # The next test must write its own.
    for name, value in state.items():
        assert_near(weights[name], value, name)


@pytest.mark.slow
def test_saved_program_when_run_by_torchrun_then_trains_as_the_emulator(program: Path) -> None:
    for file in program.glob("*.py"):
        assert "import poptorch" not in file.read_text() and "from poptorch" not in file.read_text()
    assert_trained_alike(program, printed_by_torchrun(program))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        Case("tied", 2, optimizer="LAMB"),
        Case("tied", 4, order="zero_bubble_v", optimizer="half states"),
        Case("tied", 2, num_replicas=2, optimizer="clipped"),
    ],
    ids=str,
)
def test_saved_program_when_weights_are_shared_then_trains_as_the_emulator(
    case: Case, tmp_path: Path
) -> None:
    program = saved_program(case, tmp_path)
    printed = run_in_processes(2, run_program, (program,), tmp_path, is_group=False)
    assert_trained_alike(program, "".join(printed), case)


def run_program(program: Path) -> str:
    """Returns the output of the program in this process, which has already loaded PyTorch."""
    sys.argv = ["run.py", str(program.parent / "batches.pt")]
    sys.path.insert(0, str(program))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(program / "run.py"), run_name="__main__")
    return printed.getvalue()


def printed_by_torchrun(program: Path) -> str:
    run = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *("--master-port", str(free_port()), "run.py", str(program.parent / "batches.pt")),
        ],
        cwd=program,
        env=bare_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


ADDRESSES = ("10.213.7.1", "10.213.7.2")


@pytest.fixture
def namespaces() -> Any:
    """Creates two network namespaces with one link between them and no other connection."""
    names = [f"export{os.getpid()}_{end}" for end in "ab"]
    ends = [f"ex{os.getpid() % 100000}{end}" for end in "ab"]
    commands = [f"netns add {name}" for name in names]
    commands.append(f"link add {ends[0]} type veth peer name {ends[1]}")
    for name, end, address in zip(names, ends, ADDRESSES, strict=True):
        commands += [
            f"link set {end} netns {name}",
            f"-n {name} addr add {address}/24 dev {end}",
            f"-n {name} link set {end} up",
            f"-n {name} link set lo up",
        ]
    try:
        for command in commands:
            try:
                subprocess.run(["ip", *command.split()], check=True, capture_output=True, text=True)
            except FileNotFoundError:
                pytest.skip("the command ip is not installed")
            except subprocess.CalledProcessError as failure:
                pytest.skip(f"network namespaces need root: ip {command}: {failure.stderr.strip()}")
        yield list(zip(names, ends, strict=True))
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.mark.slow
def test_saved_program_when_hosts_are_two_namespaces_then_trains_as_the_emulator(
    program: Path, namespaces: Any
) -> None:
    port = str(free_port())
    processes = []
    for rank, (name, end) in enumerate(namespaces):
        environment = bare_environment(
            MASTER_ADDR=ADDRESSES[0], MASTER_PORT=port, RANK=str(rank), WORLD_SIZE="2",
            GLOO_SOCKET_IFNAME=end,
        )  # fmt: skip
        command = ["ip", "netns", "exec", name, sys.executable, "run.py"]
        processes.append(
            subprocess.Popen(
                [*command, str(program.parent / "batches.pt")],
                cwd=program,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    results = [process.communicate(timeout=LIMIT_SECONDS) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    assert_trained_alike(program, results[-1][0])


def sent_shapes(case: Case) -> list[tuple[torch.Size, torch.dtype]]:
    """Trains a model and returns what this process has sent to its neighbours."""
    sent = []
    start = dist.P2POp.__init__

    def init(self: Any, op: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if op is dist.isend:
            sent.append((tensor.shape, tensor.dtype))
        start(self, op, tensor, *args, **kwargs)

    dist.P2POp.__init__ = init
    try:
        train_exported(case)
    finally:
        dist.P2POp.__init__ = start
    return sent


def bad_inputs() -> dict[str, str]:
    """Returns the messages for mistakes that only a group of processes can make."""
    family = FAMILIES["mlp"]
    executor = family.executor(2)
    batch = family.batches()[0]
    executor.compile(*batch)
    pipeline = emulator.export_pipeline(executor)
    rank = dist.get_rank()
    alone = [dist.new_group([index]) for index in range(2)][rank]
    stage = pipeline.stage(rank, "cpu")
    schedule = pipeline.schedule(stage)
    attempts = {
        "another rank's": lambda: pipeline.stage(1 - rank, "cpu"),
        "unknown kind": lambda: pipeline.schedule(stage, "zigzag"),
        "missing stage": lambda: pipeline.schedule([pipeline.stage(0, "cpu", alone)]),
        "two stages": lambda: pipeline.schedule(
            [pipeline.stage(0, "cpu", alone), pipeline.stage(1, "cpu", alone)], "1f1b"
        ),
        "rows": lambda: pipeline.step(schedule, *(value[:-1] for value in batch)),
        "too few": lambda: pipeline.step(schedule, batch[0]),
    }
    inference = exported_inference()
    attempts["two stages that infer"] = lambda: inference.schedule(
        [inference.stage(index, "cpu", alone) for index in range(2)]
    )
    return {name: failure_of(attempt) for name, attempt in attempts.items()}


def failure_of(attempt: Callable[[], Any]) -> str:
    """Returns the message of a failing action."""
    try:
        attempt()
    except (ValueError, RuntimeError) as failure:
        return str(failure)
    return "nothing"


def exported(case: Case) -> Any:
    executor = case.executor()
    executor.compile(*case.batches()[0])
    return emulator.export_pipeline(executor)


def bad_replicas() -> dict[str, str]:
    """Returns the messages for groups of the wrong size, and for wrapped stages."""
    several, single = exported(Case("mlp", 2, num_replicas=2)), exported(Case("mlp", 2))
    group = several.replica_group()
    wrapped = [
        several.stage(index, "cpu", module=DistributedDataParallel(module, process_group=group))
        for index, module in enumerate(map(several.stage_module, range(2)))
    ]
    return {
        "a group": failure_of(lambda: several.own_stages(dist.group.WORLD)),
        "one replica": failure_of(single.replica_group),
        "four": failure_of(exported(Case("mlp", 2, num_replicas=4)).own_stages),
        "split": failure_of(lambda: several.schedule(wrapped, "zero_bubble_h1")),
    }


class Inferred(torch.nn.Module):
    """Two layers on two IPUs; the output of the first is returned, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        value = self.first(x)
        poptorch.Block.start("second", ipu_id=1)
        return self.second(value), value


ROWS = torch.arange(32.0).reshape(8, 4)


def inference_executor() -> Any:
    torch.manual_seed(3)
    options = poptorch.Options().deviceIterations(4).showCompilationProgressBar(False)
    return poptorch.inferenceModel(Inferred(), options)


def exported_inference() -> Any:
    executor = inference_executor()
    executor.compile(ROWS)
    return emulator.export_pipeline(executor)


def infer() -> Any:
    """Returns the outputs of this process's stage."""
    pipeline = exported_inference()
    return pipeline.step(pipeline.schedule([pipeline.stage(dist.get_rank(), "cpu")]), ROWS)


def in_a_pair() -> dict[str, Any]:
    return {
        "sent": sent_shapes(Case("transformer", 2)),
        "sent by a decoder": sent_shapes(Case("decoder", 4)),
        "said": bad_inputs(),
        "said of replicas": bad_replicas(),
        "inferred": infer(),
    }


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results of several exports in one pair of processes."""
    return run_in_processes(2, in_a_pair, (), tmp_path_factory.mktemp("pair"))


@pytest.mark.slow
def test_pipeline_when_run_then_only_activations_and_their_gradients_are_sent(pair: Any) -> None:
    activation = (torch.Size([2, 4, 8]), torch.float32)
    start_up = {(torch.Size([1]), torch.float32), (torch.Size([]), torch.float32)}
    for process in pair:
        assert set(process["sent"]) - start_up == {activation}


@pytest.mark.slow
def test_pipeline_when_all_stages_read_a_mask_and_tables_then_the_mask_alone_is_sent_once(
    pair: Any,
) -> None:
    # Numbers of links from each process to the other: stages 0 to 1 and 2 to 3, and stages 1 to 2.
    num_micro_batches, links = NUM_UPDATES * NUM_MICRO_BATCHES, (2, 1)
    for process, num_links in zip(pair, links, strict=True):
        sent = Counter(process["sent by a decoder"])
        assert sent[torch.Size([2, 4, 4]), torch.bool] == num_links * num_micro_batches
        # Each link is used forward and backward. Tables, whose shape is [4, 4], are not sent.
        assert sent[torch.Size([2, 4, 8]), torch.float32] == sum(links) * num_micro_batches
        assert {len(shape) for shape, _ in sent} <= {0, 1, 3}


@pytest.mark.slow
def test_replicas_when_used_wrongly_then_says_what_was_expected(pair: Any) -> None:
    said = pair[0]["said of replicas"]
    assert "2 replicas of this pipeline have groups of their own. Leave `group`" in said["a group"]
    assert "has one replica. Compile it with options.replicationFactor" in said["one replica"]
    assert "2 processes do not divide into 4 replicas" in said["four"]
    assert "which DistributedDataParallel does not sum" in said["split"]


@pytest.mark.slow
def test_pipeline_when_used_wrongly_then_says_what_was_expected(pair: Any) -> None:
    said = pair[1]["said"]
    assert "belongs to rank 0 of 2, but this is rank 1" in said["another rank's"]
    assert "Unknown kind of schedule: 'zigzag'" in said["unknown kind"]
    assert "runs the stages [0, 1], but was given [0]" in said["missing stage"]
    assert "Choose 'interleaved' or 'sequential'" in said["two stages"]
    assert "Input 0 has the shape (15, 8), but (16, 8) was expected" in said["rows"]
    assert "takes 2 input tensors, but 1 were given" in said["too few"]
    expected = "one stage in each process, but this one has 2. Start 2 processes"
    assert expected in said["two stages that infer"]


@pytest.mark.slow
def test_pipeline_when_model_infers_then_the_last_rank_has_the_outputs(pair: Any) -> None:
    first, second = (process["inferred"] for process in pair)
    assert first is None
    for found, value in zip(second, inference_executor()(ROWS), strict=True):
        # The engine adds up small layers in another order than PyTorch's library.
        assert_near(found, value, "outputs")


@pytest.mark.slow
def test_pipeline_when_processes_do_not_divide_stages_then_is_refused() -> None:
    family = FAMILIES["mlp"]
    executor = family.executor(4)
    executor.compile(*family.batches()[0])
    pipeline = emulator.export_pipeline(executor)
    dist.init_process_group("fake", rank=0, world_size=3, store=FakeStore())
    try:
        with pytest.raises(ValueError, match="4 stages cannot be shared by 3 processes"):
            pipeline.stage(0, "cpu")
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pipeline_when_stages_are_on_one_gpu_then_trains_nearly_as_the_emulator(
    tmp_path: Path,
) -> None:
    (result,) = run_in_processes(1, train_exported, (CASE, "cuda"), tmp_path)
    losses, state = train_on_emulator(CASE)
    assert result["losses"] == pytest.approx(losses, rel=1e-4)
    for name, value in [item for state in result["weights"] for item in state.items()]:
        torch.testing.assert_close(value, state[name], rtol=1e-4, atol=1e-5)
