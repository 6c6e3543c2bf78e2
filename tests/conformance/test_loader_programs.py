"""Programs whose asynchronous loader cannot start or fails: one error, which names the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.forked_programs import run_forked

pytestmark = pytest.mark.feature("AsynchronousDataAccessor", fidelity="exact")


def said_by(arguments: list[str]) -> str:
    """Returns the errors of a program that fails."""
    done = run_forked(arguments)
    assert done.returncode == 1
    return done.stderr


def said_by_input(program: str) -> str:
    """Returns the errors of a program that an interpreter reads from its standard input."""
    paths = os.pathsep.join(path for path in sys.path if Path(path).is_dir())
    done = subprocess.run(
        [sys.executable, "-"],
        input=program,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize("strategy", ["ForkServer", "SharedMemory"])
def test_accessor_when_the_program_is_not_guarded_then_one_error_says_how(
    tmp_path: Path, strategy: str
) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import poptorch_emu as poptorch, torch\n"
        "data = [torch.ones(100_000)]  # More than a pipe holds.\n"
        f"poptorch.AsynchronousDataAccessor(data, sharing_strategy={strategy!r})\n"
    )
    text = said_by([str(script)])
    assert text.count("Traceback (most recent call last)") == 1
    assert text.rstrip().endswith(
        "Put its main part under `if __name__ == '__main__':`; see troubleshooting: unguarded-main"
    )


@pytest.mark.parametrize("strategy", ["ForkServer", "SharedMemory"])
def test_loader_when_the_dataset_is_defined_under_the_guard_then_error_says_where_to_put_it(
    tmp_path: Path, strategy: str
) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import poptorch_emu as poptorch, torch\n"
        "if __name__ == '__main__':\n"
        "    class Ones(torch.utils.data.Dataset):\n"
        "        def __getitem__(self, index):\n"
        "            return torch.ones(1)\n"
        f"    poptorch.AsynchronousDataAccessor(Ones(), sharing_strategy={strategy!r})\n"
    )
    text = said_by([str(script)])
    assert "Can't get attribute 'Ones'" in text
    assert text.rstrip().endswith(
        "failed while it imported the program and read the dataset. Define the dataset's classes "
        "and functions above `if __name__ == '__main__':`, or choose poptorch.SharingStrategy.Fork"
        "; see troubleshooting: unsendable-dataset"
    )


IN_A_CELL = """
import torch
import poptorch_emu as poptorch

class Ones(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.ones(1)

poptorch.DataLoader(poptorch.Options(), Ones(), mode=poptorch.DataLoaderMode.Async)
"""


@pytest.mark.parametrize("way", ["code", "pipe"])
def test_loader_when_the_dataset_is_defined_in_no_file_then_one_error_says_where_to_put_it(
    way: str,
) -> None:
    text = said_by(["-c", IN_A_CELL]) if way == "code" else said_by_input(IN_A_CELL)
    assert text.count("Traceback (most recent call last)") == 1
    assert "The dataset needs Ones, defined in a notebook" in text
    assert "Move it to a module" in text and "SharingStrategy.Fork" in text


FAILING_LOADER = """
import torch, poptorch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        raise OSError("no such image")

if __name__ == "__main__":
    for _ in poptorch.DataLoader(poptorch.Options(), Data(), {arguments}):
        pass
"""


@pytest.mark.parametrize("helpers", [0, 1])
@pytest.mark.parametrize("mode", ["Sync", "Async"])
def test_program_when_its_dataset_fails_then_that_is_told_once(
    tmp_path: Path, mode: str, helpers: int
) -> None:
    path = tmp_path / "program.py"
    arguments = f"num_workers={helpers}, mode=poptorch.DataLoaderMode.{mode}"
    path.write_text(FAILING_LOADER.format(arguments=arguments))
    text = said_by(["-m", "poptorch_emu", str(path)])
    assert text.count("OSError: no such image") == 1
    assert f'File "{path}", line 8, in __getitem__' in text
    assert "poptorch_emu/" not in text and "What to change" not in text
