"""Programs that import `poptorch` run unchanged: the runner, the one call, the pytest plugin."""

import importlib
import json
import multiprocessing.spawn
import os
import pickle
import subprocess
import sys
import types
from pathlib import Path

import pytest
from support.forked_programs import run_forked

import poptorch_emu
from poptorch_emu import __main__
from poptorch_emu.emulator import install
from poptorch_emu.names import aliases

ROOTS = {name.partition(".")[0] for name in (*aliases.MODULES, *aliases.STAND_INS)}


def aliased() -> dict[str, types.ModuleType]:
    return {key: value for key, value in sys.modules.items() if key.partition(".")[0] in ROOTS}


@pytest.fixture
def process(monkeypatch):
    """Restores everything that `install` and the runner change in this process."""
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    monkeypatch.setattr(sys, "argv", sys.argv[:])
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, sys.modules[name])
    spawn = multiprocessing.spawn
    monkeypatch.setattr(spawn, "get_preparation_data", spawn.get_preparation_data)
    for name in aliased():
        monkeypatch.delitem(sys.modules, name)
    yield monkeypatch
    for name in aliased():
        del sys.modules[name]


@pytest.fixture
def installed(process):
    install()


aliases_feature = pytest.mark.feature("poptorch_emu.emulator.install", fidelity="exact")


@aliases_feature
@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("poptorch", "poptorch_emu"),
        ("poptorch.optim", "poptorch_emu.optim"),
        ("poptorch.optim.lamb", "poptorch_emu.optim.lamb"),
        ("poptorch.ops", "poptorch_emu.ops"),
        ("poptorch.options", "poptorch_emu.options"),
        ("poptorch.enums", "poptorch_emu.enums"),
        ("poptorch.testing", "poptorch_emu.testing"),
        ("poptorch.profiling", "poptorch_emu.profiling"),
        ("poptorch.poptorch_core", "poptorch_emu.names.native_core"),
        ("poptorch._poplar_executor", "poptorch_emu.executor.executor"),
        ("poptorch._args_parser", "poptorch_emu.executor.args_parser"),
        ("poptorch._impl", "poptorch_emu.names.wrapping_names"),
        ("poptorch._logging", "poptorch_emu.names.log_names"),
        ("poptorch._utils", "poptorch_emu.executor.args_parser"),
        ("popart", "poptorch_emu.companions.popart"),
        ("popdist", "poptorch_emu.companions.popdist"),
        ("popdist.poptorch", "poptorch_emu.companions.popdist.poptorch"),
        ("gcipuinfo", "poptorch_emu.companions.gcipuinfo"),
        ("libpvti", "poptorch_emu.companions.libpvti"),
        ("pva", "poptorch_emu.companions.pva"),
        ("horovod.torch", "poptorch_emu.companions.horovod.torch"),
    ],
)
def test_name_when_imported_then_is_the_very_module(name, own, installed):
    module = importlib.import_module(name)
    assert module is importlib.import_module(own)
    assert module.__spec__.name == module.__name__ == own


@aliases_feature
def test_statements_of_programs_then_bind_our_objects(installed):
    names = {}
    exec(
        "import poptorch, poptorch.testing\n"
        "from poptorch.optim import SGD\n"
        "from poptorch import Options, optim, poptorch_core, _impl\n"
        "from poptorch.poptorch_core import Error\n"
        "import popdist.poptorch as distributed\n",
        names,
    )
    assert names["poptorch"] is poptorch_emu
    assert names["Options"] is poptorch_emu.Options
    assert names["optim"] is poptorch_emu.optim and names["SGD"] is poptorch_emu.optim.SGD
    assert names["Error"] is poptorch_emu.Error
    assert issubclass(names["distributed"].Options, poptorch_emu.Options)


@aliases_feature
@pytest.mark.parametrize("name", ["poptorch.nothing", "popart.nothing", "poptorch.options.nothing"])
def test_module_when_there_is_none_then_import_fails_as_usual(name, installed):
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'"):
        importlib.import_module(name)


@aliases_feature
def test_reload_then_is_the_same_module_under_both_names(installed):
    module = importlib.import_module("poptorch.profiling")
    module.Channel = None
    assert importlib.reload(module) is module is sys.modules["poptorch.profiling"]
    assert sys.modules["poptorch_emu.profiling"] is module
    assert module.Channel is not None


@aliases_feature
def test_pickle_when_written_under_one_name_then_loads_under_the_other(installed):
    options = poptorch_emu.Options().deviceIterations(3)
    loaded = pickle.loads(pickle.dumps(options))
    assert type(loaded) is poptorch_emu.Options and loaded.device_iterations == 3
    # As PopTorch itself would write the name of an enumeration.
    foreign = b"cpoptorch.enums\nOutputMode\n(I2\ntR."
    assert pickle.loads(foreign) is poptorch_emu.OutputMode.All


@aliases_feature
def test_install_when_called_twice_then_adds_one_finder(process):
    before = len(sys.meta_path)
    install()
    install()
    assert len(sys.meta_path) == before + 1


@aliases_feature
def test_names_when_nothing_was_installed_then_stay_unknown(process):
    assert importlib.util.find_spec("poptorch") is None


@aliases_feature
def test_install_when_another_poptorch_is_there_then_wins_over_it(process, tmp_path):
    (tmp_path / "poptorch.py").write_text("is_other = True")
    process.syspath_prepend(tmp_path)
    install()
    assert importlib.import_module("poptorch") is poptorch_emu


@aliases_feature
def test_install_when_horovod_is_there_then_leaves_it(process, tmp_path):
    (tmp_path / "horovod.py").write_text("is_other = True")
    process.syspath_prepend(tmp_path)
    install()
    assert importlib.import_module("horovod").is_other


@aliases_feature
def test_install_when_another_poptorch_is_imported_then_refuses(process):
    process.setitem(sys.modules, "poptorch", types.ModuleType("poptorch"))
    with pytest.raises(RuntimeError, match="poptorch has been imported already, from None. Call"):
        install()


@aliases_feature
def test_install_then_loads_the_geometric_parsers_which_import_poptorch(process, tmp_path):
    package = tmp_path / "poptorch_geometric"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "types.py").write_text("import poptorch\nfound = poptorch.ICustomArgParser\n")
    process.syspath_prepend(tmp_path)
    install()
    try:
        found = sys.modules["poptorch_geometric.types"].found
        assert found is poptorch_emu.ICustomArgParser
    finally:
        for name in ("poptorch_geometric", "poptorch_geometric.types"):
            sys.modules.pop(name, None)


SHOW = """
import json, pathlib, sys
import poptorch
from poptorch.optim import SGD
seen = [__name__, sys.argv, sys.path[0], poptorch.__name__, SGD.__module__]
pathlib.Path({out!r}).write_text(json.dumps(seen))
"""

runner_feature = pytest.mark.feature("python -m poptorch_emu", fidelity="exact")


@runner_feature
def test_runner_when_given_a_script_then_it_sees_what_python_would_show_it(process, tmp_path):
    out = tmp_path / "out"
    script = tmp_path / "a script.py"
    script.write_text(SHOW.format(out=str(out)))
    __main__.main([str(script), "-m", "--lr", "0.1", "-h"])
    assert json.loads(out.read_text()) == [
        "__main__",
        [str(script), "-m", "--lr", "0.1", "-h"],
        str(tmp_path),
        "poptorch_emu",
        "poptorch_emu.optim.optimizers",
    ]


@runner_feature
def test_runner_when_given_a_module_then_runs_it_with_its_arguments(process, tmp_path):
    out = tmp_path / "out"
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "__main__.py").write_text(SHOW.format(out=str(out)))
    process.syspath_prepend(tmp_path)
    __main__.main(["-m", "program", "-c", "x", "--version"])
    name, argv, *_ = json.loads(out.read_text())
    assert name == "__main__"
    assert argv == [str(tmp_path / "program" / "__main__.py"), "-c", "x", "--version"]


@runner_feature
def test_runner_when_given_code_then_runs_it(process, capsys):
    code = "import sys, popart, poptorch; print(__name__, sys.argv, poptorch.Options.__name__)"
    __main__.main(["-c", code, "-q"])
    assert capsys.readouterr().out == "__main__ ['-c', '-q'] Options\n"


@runner_feature
@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--version"], 0, f"poptorch_emu {poptorch_emu.__version__}\n"),
        (["--help"], 0, "(script | -m module | -c code) [argument ...]"),
        ([], 2, "name a script, or a module after -m, or code after -c"),
        (["-m"], 2, "name a script, or a module after -m, or code after -c"),
        (["--unknown", "x.py"], 2, "usage:"),
        (["no_such_file.py"], 2, "can't open file 'no_such_file.py'"),
    ],
    ids=["version", "help", "nothing", "no-module", "unknown", "no-file"],
)
def test_runner_when_asked_about_itself_then_answers_and_ends(arguments, status, text, capsys):
    with pytest.raises(SystemExit) as ended:
        __main__.main(arguments)
    assert ended.value.code == status
    assert text in "".join(capsys.readouterr())


@runner_feature
@pytest.mark.parametrize(
    ("code", "status"), [("raise SystemExit(7)", 7), ("exit()", None), ("1 / 0", 1)]
)
def test_runner_when_the_program_ends_itself_then_status_is_its_own(
    code, status, process, tmp_path, capsys
):
    script = tmp_path / "program.py"
    script.write_text(code)
    with pytest.raises(SystemExit) as ended:
        __main__.main([str(script)])
    assert ended.value.code == status


@runner_feature
def test_program_when_it_fails_then_traceback_begins_in_it(tmp_path):
    script = tmp_path / "program.py"
    script.write_text("import poptorch\ndef train():\n    raise ValueError('no data')\ntrain()\n")
    done = run_forked(["-m", "poptorch_emu", str(script)])
    assert done.returncode == 1
    assert done.stdout == ""
    frames = [line for line in done.stderr.splitlines() if line.startswith("  File")]
    assert frames == [
        f'  File "{script}", line 4, in <module>',
        f'  File "{script}", line 3, in train',
    ]
    assert done.stderr.rstrip().endswith("ValueError: no data")


@runner_feature
def test_program_when_it_starts_processes_then_they_know_poptorch_and_its_own_classes(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import multiprocessing, poptorch\n"
        "def work(queue):\n"
        "    queue.put(Mine(poptorch.Options.__module__))\n"
        "class Mine:\n"
        "    def __init__(self, value): self.value = value\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.SimpleQueue()\n"
        "    process = context.Process(target=work, args=(queue,))\n"
        "    process.start()\n"
        "    process.join()\n"
        "    print(process.exitcode, queue.get().value if process.exitcode == 0 else None)\n"
    )
    done = run_forked(["-m", "poptorch_emu", str(script)])
    assert done.stdout == "0 poptorch_emu.options.options\n", done.stderr


@pytest.mark.feature("pytest -p poptorch_emu.pytest_plugin", fidelity="exact")
def test_plugin_then_library_tests_run_quietly_with_the_same_random_state(tmp_path):
    (tmp_path / "conftest.py").write_text("import poptorch\n")
    (tmp_path / "test_library.py").write_text(
        "import random, sys\n"
        "import numpy, pytest, torch, poptorch\n"
        "@pytest.fixture(scope='module')\n"
        "def drawn(): return set()\n"
        "@pytest.mark.parametrize('time', [1, 2])\n"
        "def test_random(time, drawn):\n"
        "    drawn.add((random.random(), numpy.random.rand(), torch.rand(1).item()))\n"
        "    assert len(drawn) == 1\n"
        "def test_model(capfd):\n"
        "    model = poptorch.inferenceModel(torch.nn.Linear(2, 1))\n"
        "    assert model(torch.ones(3, 2)).shape == (3, 1)\n"
        "    assert model.compilationTime().total_seconds() > 0\n"
        "    assert capfd.readouterr() == ('', '')\n"
    )
    arguments = ["-m", "pytest", "-p", "poptorch_emu.pytest_plugin", "-p", "no:cacheprovider"]
    paths = [path for path in sys.path if Path(path).is_dir()]
    done = subprocess.run(
        [sys.executable, *arguments, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    version = poptorch_emu.__version__
    assert f"poptorch: poptorch_emu {version}, virtual IPUs, seed 0 for each test" in done.stdout
