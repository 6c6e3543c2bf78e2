"""Folders of the cache that cannot be written, and files of other users in one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.forked_programs import run_forked
from torch import nn

import poptorch_emu as poptorch
from poptorch_emu.compile.stored.cache import only_one
from poptorch_emu.compile.stored.key import Key

pytestmark = pytest.mark.feature("enableExecutableCaching", fidelity="exact")

X = torch.ones(2, 3)
NOBODY = 54321  # A number that no user has.


def result(folder: Path | str) -> torch.Tensor:
    torch.manual_seed(1)
    opts = poptorch.Options().showCompilationProgressBar(False)
    opts.enableExecutableCaching(str(folder))
    return poptorch.inferenceModel(nn.Linear(3, 2), opts)(X)


def expected() -> torch.Tensor:
    torch.manual_seed(1)
    return nn.Linear(3, 2)(X)


def warnings(logged: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in logged.records if r.levelname == "WARNING"]


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none", "x" * 5000, "loop"])
def test_folder_that_takes_no_files_then_one_warning_and_it_works(
    place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    for _ in range(2):
        torch.testing.assert_close(result(tmp_path / place), expected())
    (warning,) = warnings(caplog)
    assert warning.startswith(f"Cache folder {tmp_path / place} is not writable: ")
    assert "compiled each time" in warning and "POPTORCH_CACHE_DIR" in warning
    assert (tmp_path / "file").read_text() == "mine"


def test_folder_that_takes_no_files_when_there_are_several_processes_then_assertion(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(AssertionError, match=f"Cache folder {tmp_path}/file is not writable"),
        only_one(str(tmp_path / "file"), Key({}), 2),
    ):
        pass


# Without its capabilities, root has only the rights that files grant, as other users have.
PROGRAM = """
import ctypes, os, pwd, sys
ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
assert not os.access(".", os.W_OK)

def no_user(number):
    raise KeyError(number)

if sys.argv[1] == "none":
    pwd.getpwuid = no_user
    del os.environ["HOME"]
else:
    os.environ["HOME"] = sys.argv[1]

import torch, poptorch_emu as poptorch
options = poptorch.Options().showCompilationProgressBar(False).deviceIterations(2)
if sys.argv[2]:
    options.enableExecutableCaching(sys.argv[2]).enableProfiling(sys.argv[2])
loader = poptorch.DataLoader(
    options, torch.utils.data.TensorDataset(torch.ones(8, 4)), batch_size=2,
    mode=poptorch.DataLoaderMode.Async, async_options={"sharing_strategy": sys.argv[3]},
)
for _ in range(2):
    model = poptorch.inferenceModel(torch.nn.Linear(4, 1), options)
    for (x,) in loader:
        print("DONE", tuple(model(x).shape))
    model.destroy()
"""


@pytest.mark.parametrize(
    ("home", "folder", "strategy"),
    [
        *((home, folder, "Fork") for home in ("none", "nowhere", ".") for folder in ("cache", "")),
        ("none", "", "ForkServer"),
    ],
)
def test_home_that_takes_no_files_then_it_works(
    home: str, folder: str, strategy: str, tmp_path: Path
) -> None:
    """One worker is started anew, and looks for a home itself."""
    tmp_path.chmod(0o555)
    try:
        done = run_forked(["-c", PROGRAM, home, folder, strategy], folder=tmp_path)
    finally:
        tmp_path.chmod(0o755)
    assert done.stdout.count("DONE (4, 1)") == 4, done.stderr
    assert done.stderr.count("Cache folder cache is not writable") == bool(folder)
    assert done.stderr.count(
        "The profile cannot be written; the model runs without one"
    ) == 2 * bool(folder)
    assert done.stderr.count("[warning]") == 3 * bool(folder), done.stderr


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def link(path: Path) -> None:
    moved = path.rename(path.with_name("target"))
    path.symlink_to(moved.name)


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def of_another_user(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("Only root can make a file of another user.")
    os.chown(path, NOBODY, -1)


@pytest.mark.parametrize("make", [fifo, link, device, of_another_user])
@pytest.mark.parametrize("suffix", [".executable", ".metadata"])
def test_file_when_another_thing_is_in_its_place_then_compiled_again_and_replaced(
    make: Callable[[Path], None], suffix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result(tmp_path)
    (path,) = tmp_path.glob(f"*{suffix}")
    genuine = path.read_bytes()
    make(path)
    torch.testing.assert_close(result(tmp_path), expected())
    (warning,) = warnings(caplog)
    assert f"{path} cannot be used and will be replaced" in warning
    if suffix == ".executable":  # Metadata files are written only when there is new metadata.
        status = path.lstat()
        assert path.read_bytes() == genuine
        assert not path.is_symlink() and status.st_uid == os.geteuid()


@pytest.mark.parametrize("make", [fifo, device])
def test_lock_when_another_thing_is_in_its_place_then_says_so(make, tmp_path: Path) -> None:
    with only_one(str(tmp_path), Key({}), 2):
        pass
    (lock,) = tmp_path.iterdir()
    make(lock)
    with (
        pytest.raises(AssertionError, match=r"\.lock is a (FIFO|link), where a regular file"),
        only_one(str(tmp_path), Key({}), 2),
    ):
        pass


def test_lock_when_a_link_is_in_its_place_then_what_it_leads_to_stays(tmp_path: Path) -> None:
    with only_one(str(tmp_path), Key({}), 2):
        pass
    (lock,) = tmp_path.iterdir()
    (tmp_path / "precious").write_text("thesis")
    lock.unlink()
    lock.symlink_to("precious")
    with pytest.raises(AssertionError, match="is a link"), only_one(str(tmp_path), Key({}), 2):
        pass
    assert (tmp_path / "precious").read_text() == "thesis"


@pytest.mark.parametrize("load", [poptorch.load, poptorch.importPoptorchMetadataFromFile])
def test_saved_file_when_it_is_a_fifo_then_error_at_once(load, tmp_path: Path) -> None:
    fifo(tmp_path / "model.poptorch")
    with pytest.raises(OSError, match="is a FIFO"):
        load(tmp_path / "model.poptorch")
