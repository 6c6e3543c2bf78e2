"""The blocks of a page in docs/ run from top to bottom, and print the text below them.

`pytest tests/documents --update-golden` writes what it prints into the pages.
"""

import importlib.util
import re
import socket
import sys
import types
from pathlib import Path

import pytest
from support.pages import blocks_of, printed_by, with_output
from support.tensorboard_runs import use_stub

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
WITH_CODE = [name for name, page in zip(NAMES, PAGES, strict=True) if blocks_of(page.read_text())]
# Optional packages that a page needs.
NEEDED = {
    "docs/guide/keras.md": "keras",
    "docs/keras.md": "keras",
    "docs/guide/tensorflow.md": "tensorflow",
    "docs/guide/timelines.md": "tensorboard",
}
# Names that mean modules of this package where a program is run by it.
POPDIST = ("popdist", "popdist.poptorch")
# A file of the repository, or a folder, written as seen from one of these folders.
FILE = re.compile(r"`((?!build/)[\w.*-]+/[\w.*/-]*(?:\.(?:py|h|cpp|md|js|csv)|/))`")
FOLDERS = (ROOT, ROOT / "poptorch_emu", ROOT / "csrc")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize("name", WITH_CODE)
def test_page_when_its_code_runs_then_it_prints_what_the_page_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    use_stub(monkeypatch)
    if name in NEEDED and importlib.util.find_spec(NEEDED[name]) is None:
        pytest.skip(f"this page is about {NEEDED[name]}, which is not installed")
    monkeypatch.setenv("COLUMNS", "80")
    for module_name in POPDIST:
        target = f"poptorch_emu.companions.{module_name}"
        monkeypatch.setitem(sys.modules, module_name, importlib.import_module(target))
    # Variables that torchrun sets for a single process.
    launcher = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    if name == "docs/export.md":
        for variable, value in launcher.items():
            monkeypatch.setenv(variable, str(value))
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(f"page_{Path(name).stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    page = ROOT / name
    printed = printed_by(page, module)
    if request.config.getoption("--update-golden"):
        text = page.read_text(encoding="utf-8")
        page.write_text(with_output(text, [output for _, output in printed]), encoding="utf-8")
        return
    for block, output in printed:
        hint = f"of the block in line {block.line} of {name}; --update-golden writes it"
        assert block.agrees(output) or output == block.output, hint


@pytest.mark.parametrize("name", NAMES)
def test_page_then_its_links_lead_to_files(name: str) -> None:
    page = ROOT / name
    found = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in found if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("name", NAMES)
def test_page_then_the_files_that_it_names_exist(name: str) -> None:
    found = FILE.findall((ROOT / name).read_text(encoding="utf-8"))
    assert [file for file in found if not any([*f.glob(file)] for f in FOLDERS)] == []


@pytest.mark.parametrize("name", [name for name in NAMES if "/guide/" in name])
def test_page_of_the_guide_then_it_is_short_and_shows_code(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert blocks_of(text) != []
    assert len(text.splitlines()) <= 140


@pytest.mark.parametrize("name", ["README.md", "docs/index.md", "docs/getting_started.md"])
def test_page_that_lists_the_guide_then_names_each_page_of_it(name: str) -> None:
    linked = re.findall(r"guide/(\w+)\.md\)", (ROOT / name).read_text(encoding="utf-8"))
    assert set(linked) == {page.stem for page in ROOT.glob("docs/guide/*.md")}


def test_page_about_the_architecture_then_it_is_short() -> None:
    assert (ROOT / "docs" / "architecture.md").stat().st_size <= 14 * 1024


def test_getting_started_then_ends_with_the_three_reports_and_what_they_print() -> None:
    text = (ROOT / "docs" / "getting_started.md").read_text(encoding="utf-8")
    code = blocks_of(text)[-1].code
    assert re.findall(r"^print\(emulator\.(\w+)\(", code, re.M) == ["schedule", "estimate", "page"]
    assert text.endswith("page.html\n```\n")


def test_readme_then_has_two_screens_before_its_documents() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = text.partition("## Documents")[0].splitlines()
    assert len(lines) <= 90


def test_output_when_it_differs_then_it_is_found_and_written(tmp_path: Path) -> None:
    """A page of two blocks; the output that is written below the second one is wrong."""
    page = tmp_path / "page.md"
    page.write_text(
        "# P\n\n```python\nx = 6\n```\n\nThen\n\n```python\nprint(x * 7)\n```\n\n```text\n41\n```\n"
    )
    printed = printed_by(page, types.ModuleType("page_of_a_test"))
    assert [(block.line, block.output, output) for block, output in printed] == [
        (4, None, ""),
        (10, "41\n", "42\n"),
    ]
    assert [block.agrees(output) for block, output in printed] == [True, False]
    text = with_output(page.read_text(), [output for _, output in printed])
    assert "```text\n42\n```\n" in text and text.count("```") == 6


def test_output_of_a_model_when_its_words_differ_then_it_is_found() -> None:
    page = "```python\nprint(1)\n```\n\n<!-- modelled -->\n\n```text\n2.5 ms   yes\n```\n"
    (block,) = blocks_of(page)
    assert block.agrees("13 ms yes\n") and not block.agrees("2.5 ms   no\n")
    assert with_output(page, ["3 ms\n"]) == page.replace("2.5 ms   yes", "3 ms")
