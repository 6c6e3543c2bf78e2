"""Changes of the process by an import of the package: section 1 of the API reference."""

import json
import os
import sys
from pathlib import Path

import pytest
from support.forked_programs import PYTORCH, run_forked

from poptorch_emu.names import import_effects

pytestmark = pytest.mark.feature("Side effects of import", fidelity="exact")

PROGRAM = """
import faulthandler, gc, json, os, sys
before = faulthandler.is_enabled(), sys.excepthook
import poptorch_emu
from tqdm import tqdm
print(json.dumps({
    "faulthandler": [before[0], faulthandler.is_enabled()],
    "fork_safe": os.environ["RDMAV_FORK_SAFE"],
    "excepthook_is_ours": sys.excepthook is poptorch_emu.log.log_uncaught is not before[1],
    "tqdm_locks": tqdm.get_lock().locks,
    "collects": gc.isenabled(),
    "testing": "poptorch_emu.testing" in sys.modules,
    "companions": sorted(name for name in sys.modules if "companions." in name),
}))
"""


def test_import_then_has_the_documented_effects_and_loads_no_more_than_it_must():
    done = run_forked(["-c", PROGRAM], loaded=PYTORCH)
    assert json.loads(done.stdout) == {
        "faulthandler": [False, True],
        "fork_safe": "1",
        "excepthook_is_ours": True,
        "tqdm_locks": [],
        "collects": True,
        "testing": False,
        "companions": ["poptorch_emu.companions.libpvti"],
    }


def write_geometric(folder: Path, types: str) -> None:
    package = folder / "poptorch_geometric"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "types.py").write_text(types)


@pytest.fixture
def no_geometric(monkeypatch):
    """Forgets the package that a test has imported."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield monkeypatch
    for name in ("poptorch_geometric", "poptorch_geometric.types"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("types", "is_loaded"),
    [("", True), ("import poptorch", False)],
    ids=["without-poptorch", "with-poptorch"],
)
def test_geometric_parsers_when_installed_then_are_loaded_if_they_can_be(
    types, is_loaded, no_geometric, tmp_path
):
    write_geometric(tmp_path, types)
    no_geometric.syspath_prepend(tmp_path)
    import_effects._know_geometric_types()
    assert ("poptorch_geometric.types" in sys.modules) is is_loaded


def test_geometric_parsers_when_they_lack_another_package_then_import_says_so(
    no_geometric, tmp_path
):
    write_geometric(tmp_path, "import no_such_package")
    no_geometric.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        import_effects._know_geometric_types()


def test_fork_safety_when_the_user_has_chosen_then_stays(monkeypatch):
    monkeypatch.setenv("RDMAV_FORK_SAFE", "0")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    import_effects.apply()
    assert os.environ["RDMAV_FORK_SAFE"] == "0"


def test_import_when_nothing_is_collected_then_that_stays():
    program = "import gc; gc.disable(); import poptorch_emu; print(gc.isenabled())"
    done = run_forked(["-c", program], loaded=PYTORCH)
    assert done.stdout.split() == ["False"]
