"""Messages of setup.py if it can't build the engine."""

import subprocess
from pathlib import Path

import pytest
from support.forked_programs import PYTORCH, run_forked

ROOT = Path(__file__).parents[2]


def build_with(stub: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Returns the last output of a build in `folder`; Python runs the code `stub` before it."""
    code = f"{stub}\nimport runpy\nrunpy.run_path('setup.py', run_name='__main__')"
    folders = ["--build-temp", str(folder / "objects"), "--build-lib", str(folder / "result")]
    arguments = ["-c", code, "-q", "build_ext", *folders]
    return run_forked(arguments, environment, ROOT, loaded=PYTORCH)


CASES = {
    "no PyTorch": ("import sys; sys.modules['torch'] = None", {}, "no module 'torch'"),
    "another PyTorch": (
        "import torch; torch.__version__ = '2.9.1+cpu'",
        {},
        "needs torch<2.16,>=2.13, but found PyTorch 2.9.1+cpu",
    ),
    "no compiler": ("", {"CXX": "no-such-compiler -m64"}, "no command 'no-such-compiler -m64'"),
    "no headers of Python": (
        "import sysconfig; sysconfig.get_path = lambda *args, **kwargs: '/no-such-folder'",
        {},
        "no /no-such-folder/Python.h",
    ),
}


@pytest.mark.parametrize(("stub", "environment", "found"), CASES.values(), ids=CASES)
def test_build_where_it_cannot_work_then_says_what_was_found(stub, environment, found, tmp_path):
    done = build_with(stub, tmp_path, **environment)
    assert done.returncode
    assert found in done.stderr
    assert "nstall" in done.stderr.partition(found)[2], "It doesn't say what to do."
    assert not list(tmp_path.rglob("*.o"))
