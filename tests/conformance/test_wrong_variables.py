"""Environment variables with meaningless values: an error or a warning names each of them."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.forked_programs import PYTORCH, run_forked

import poptorch_emu as poptorch
from poptorch_emu import log
from poptorch_emu.companions import libpvti
from poptorch_emu.compile.stored import folder
from poptorch_emu.distributed.launch_environment import launch_secret, read_launch
from poptorch_emu.distributed.launch_store import make_store
from poptorch_emu.distributed.message_store import MessageStore
from poptorch_emu.distributed.rendezvous import join_default_group, timeout_seconds
from poptorch_emu.names import foreign_libraries
from poptorch_emu.options.auto_report import report_directory
from poptorch_emu.runtime import devices

pytestmark = pytest.mark.feature("Environment variables", fidelity="exact")


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def run(opts: poptorch.Options | None = None) -> None:
    model = poptorch.inferenceModel(torch.nn.Linear(2, 2), opts or options())
    model(torch.ones(1, 2))


def load_library() -> None:
    before = ctypes.CDLL.__init__
    foreign_libraries.install()
    try:
        ctypes.CDLL("no_such_custom_ops.so")
    finally:
        ctypes.CDLL.__init__ = before


def run_with_logs() -> None:
    poptorch.setLogLevel("DEBUG")
    try:
        run()
    finally:
        poptorch.setLogLevel("WARN")


def run_on_a_busy_system() -> None:
    held = devices.acquire(16)
    try:
        run()
    finally:
        held.release()


def set_up_logs() -> None:
    loggers = (log.logger, log.compiler_logger)
    before = [(each, list(each.handlers)) for each in loggers]
    try:
        for each in loggers:
            each.handlers.clear()
        log._set_up()
        log.compiler_logger.warning("a line")
    finally:
        for each, handlers in before:
            each.handlers[:] = handlers


def join() -> None:
    join_default_group(0, 2)


def listen() -> None:
    make_store(["other"])


def connect() -> None:
    MessageStore(make_store([])[0])


def import_keras() -> None:
    """Runs a program, because Keras reads its backend only once."""
    if importlib.util.find_spec("keras") is None:
        pytest.skip("There is no Keras here.")
    code = "import poptorch_emu.keras.keras_version as it; it.check()"
    done = run_forked(["-c", code], loaded=PYTORCH)
    assert done.returncode
    raise ImportError(done.stderr.splitlines()[-1])


def load_digits() -> None:
    pytest.importorskip("keras")
    old_programs = importlib.import_module("poptorch_emu.keras.keras_2.old_programs")

    def download(*args: object, **kwargs: object) -> None:
        raise OSError("there is no network")

    old_programs._get_file("mnist", download, "mnist.npz")


NUMBERS = ("x", "", "1.5")
COUNTS = (*NUMBERS, "0", "-1")
INDICES = (*NUMBERS, "-1")
DEEP = "[" * 100_000
LAUNCHED = {"POPDIST_NUM_TOTAL_REPLICAS": "4", "POPDIST_NUM_LOCAL_REPLICAS": "1"}
BY_TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2"}
MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512"}

# For each variable: the action that reads it, wrong values, and further variables to set.
CASES: dict[str, tuple[Callable[[], object], tuple[str, ...], dict[str, str]]] = {
    "POPTORCH_EMU_SYSTEM": (run, ("mk9", "mk2-pod16 "), {}),
    "POPTORCH_EMU_OOM": (run, ("maybe", "WARN"), {}),
    "POPTORCH_EMU_STRICT": (run, ("maybe", "1"), {}),
    "POPTORCH_EMU_FOREIGN_LIBRARIES": (load_library, ("off", "ERROR"), {}),
    "POPTORCH_EMU_WORKERS": (run, ("abc", "1.5", "0", "-3"), {}),
    "POPTORCH_EMU_ORDER": (run, ("fastest",), {}),
    "POPTORCH_EMU_TIMEOUT": (timeout_seconds, ("", "x", "0", "-3", "nan", "inf", "1e300"), {}),
    "POPTORCH_EMU_LAUNCHER_ADDR": (listen, ("no.such.invalid", "a..b", "0.0.0.0"), {}),
    "POPTORCH_EMU_SECRET": (launch_secret, ("short", "x" * 15), {}),
    "POPTORCH_LOG_LEVEL": (set_up_logs, ("LOUD", "warn", "3"), {}),
    "POPTORCH_LOG_DEST": (set_up_logs, (".", "no/such/folder", "/proc/none"), {}),
    "POPTORCH_MAX_GRAPH_LEN": (run_with_logs, NUMBERS, {}),
    "POPTORCH_CACHE_DIR": (run, ("/proc/none", "/dev/null", "x" * 5000), {}),
    "POPTORCH_DEFAULT_OPTIONS": (
        options,
        (
            "{bad",
            "[1]",
            "1",
            "null",
            DEEP,
            '{"nope": 1}',
            '{"deviceIterations": "x"}',
            '{"replication_factor": 3}',
            '{"Training.nope.nope": []}',
            '{"": 1}',
        ),
        {},
    ),
    "POPTORCH_WAIT_FOR_IPU": (run_on_a_busy_system, NUMBERS, {}),
    "POPTORCH_IPU_MODEL": (run, NUMBERS, {}),
    "POPTORCH_SMALL_IPU_MODEL": (run, NUMBERS, {}),
    "POPTORCH_IPU_MODEL_VERSION": (run, ("", "ipu3", "2"), {"POPTORCH_IPU_MODEL": "1"}),
    "POPTORCH_EXPORT_PROTO_FILE": (run, ("no/such/folder/x", "/proc/none/x"), {}),
    "POPTORCH_EXPORT_PROTO_AS_BINARY": (run, NUMBERS, {"POPTORCH_EXPORT_PROTO_FILE": "x"}),
    "POPLAR_ENGINE_OPTIONS": (
        lambda: report_directory({}),
        (
            "{autoReport",
            '["autoReport"]',
            '"autoReport"',
            '["autoReport", ' + DEEP,
            '{"autoReport.all": "maybe"}',
            '{"autoReport.all": 1}',
            '{"autoReport.all": null}',
            '{"autoReport.all": "true", "autoReport.directory": 5}',
        ),
        {},
    ),
    "PVTI_OPTIONS": (libpvti.checkTracingEnabled, ("{bad", "[1]", "true", DEEP), {}),
    "POPDIST_NUM_TOTAL_REPLICAS": (read_launch, COUNTS, {}),
    "POPDIST_NUM_LOCAL_REPLICAS": (read_launch, (*COUNTS, "3"), LAUNCHED),
    "POPDIST_NUM_IPUS_PER_REPLICA": (read_launch, COUNTS, LAUNCHED),
    "POPDIST_REPLICA_INDEX_OFFSET": (read_launch, (*INDICES, "4", "99"), LAUNCHED),
    "POPDIST_LOCAL_INSTANCE_INDEX": (read_launch, INDICES, LAUNCHED),
    "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": (read_launch, (*NUMBERS, "0", "7"), LAUNCHED),
    "RANK": (read_launch, (*INDICES, "2"), BY_TORCHRUN),
    "WORLD_SIZE": (read_launch, COUNTS, BY_TORCHRUN),
    "LOCAL_RANK": (read_launch, INDICES, BY_TORCHRUN),
    "LOCAL_WORLD_SIZE": (read_launch, COUNTS, BY_TORCHRUN),
    "TORCHELASTIC_RESTART_COUNT": (connect, NUMBERS, {}),
    "OMPI_COMM_WORLD_RANK": (run, (*INDICES, "2"), {"OMPI_COMM_WORLD_SIZE": "2"}),
    "OMPI_COMM_WORLD_SIZE": (run, COUNTS, {}),
    "OMPI_COMM_WORLD_LOCAL_SIZE": (join, NUMBERS, {"OMPI_COMM_WORLD_SIZE": "2"}),
    "MASTER_ADDR": (join, ("", "no.such.host.invalid", "a..b", "x" * 300, "a b"), MEETING),
    "MASTER_PORT": (join, ("", "x", "0", "-1", "65536", "1.5"), MEETING),
    "GLOO_SOCKET_IFNAME": (join, ("none0", "x" * 300, "\x1b[2J"), MEETING),
    "KERAS_BACKEND": (import_keras, ("abc",), {}),
    "POPTORCH_EMU_DATASETS": (load_digits, ("", "no/such/folder"), {}),
}
# Variables without wrong values: lists of folders, variables that are only written, and flags that
# torch.distributed compares with "True".
WITHOUT_WRONG_VALUES = {
    *("PYTHONPATH", "RDMAV_FORK_SAFE", "TORCHELASTIC_USE_AGENT_STORE"),
    *("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS"),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, (_, values, _) in CASES.items() for value in values],
    ids=lambda text: ascii(text[:30]),
)
def test_variable_when_its_value_means_nothing_then_is_named(
    name: str, value: str, tmp_path: Path, monkeypatch, logged
) -> None:
    action, _, others = CASES[name]
    monkeypatch.chdir(tmp_path)
    for each in CASES:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    for each, text in {**others, name: value}.items():
        monkeypatch.setenv(each, text)
    # Each process warns about these only once, so the test forgets earlier warnings.
    libpvti._options_of.cache_clear()
    monkeypatch.setattr(folder, "_useless", set())
    said = []
    try:
        with logged.at_level(logging.WARNING):
            action()
    except (poptorch.Error, ValueError, ImportError, FileNotFoundError) as error:
        said.append(str(error))
    said += [record.getMessage() for record in logged.records]
    assert any(name in text for text in said), said


def test_variables_of_the_page_then_each_was_given_wrong_values() -> None:
    page = (Path(__file__).parents[2] / "docs" / "environment.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[A-Z].*?) \|", page, re.MULTILINE)
    listed = {name.strip("`") for row in rows for name in row.split(", ")}
    assert listed == CASES.keys() | WITHOUT_WRONG_VALUES


@pytest.mark.parametrize("destination", [".", "no/such/folder"])
def test_log_when_its_file_cannot_be_written_then_goes_to_stderr_after_one_warning(
    destination: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POPTORCH_LOG_DEST", destination)
    for _ in range(2):
        set_up_logs()
    shown = capsys.readouterr().err
    assert shown.count("a line") == 2
    assert shown.count("POPTORCH_LOG_DEST is no file that can be written") == 2
