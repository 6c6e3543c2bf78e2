"""The documentation site: the names in its API reference, its index, and the check of its links."""

import importlib
import importlib.util
import inspect
import json
import re
import sys
from pathlib import Path

import pytest

from poptorch_emu.names.aliases import MODULES, STAND_INS
from poptorch_emu.report.page.lab_view import unpacked

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
ADDONS = "poptorch_experimental_addons"
# Modules whose names the reference has in full, beside those of docs/features.md.
MODULES_IN_FULL = {
    "poptorch_emu.emulator": "poptorch_emu.emulator",
    "poptorch_emu.emulator.schedules": "poptorch_emu.emulator.schedules",
    **{name: MODULES[name] for name in ("gcipuinfo", "libpvti", "popart", "popdist", "pva")},
    "popdist.poptorch": f"{MODULES['popdist']}.poptorch",
    "popdist.tensorflow": f"{MODULES['popdist']}.tensorflow",
    **{
        f"ipu_tensorflow_addons.keras.{part}": f"{MODULES['ipu_tensorflow_addons']}.keras.{part}"
        for part in ("layers", "optimizers")
    },
    "horovod.torch": f"{STAND_INS['horovod']}.torch",
    "cppimport": STAND_INS["cppimport"],
    "cppimport.importer": f"{STAND_INS['cppimport']}.importer",
    "examples_utils": STAND_INS["examples_utils"],
    **{
        f"{ADDONS}{part}": f"{MODULES[ADDONS]}{part}"
        for part in ("", ".collectives", ".sharded", ".sparse")
    },
}
# Modules without names for programs: PopTorch's own files, whose names are also at the top level,
# and the front end for TensorFlow, which the reference lists under its own name.
NOT_LISTED = {"poptorch"} | {
    name for name in MODULES if name.startswith("poptorch.") or "keras" in MODULES[name]
}


def tool(name):
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "tools"))


api_entries, check_site = tool("api_entries"), tool("check_site")


@pytest.fixture(scope="module")
def listed():
    if importlib.util.find_spec("keras") is None:
        pytest.skip("Keras is not installed, so one page has no entries")
    pages = [page.read_text() for page in PAGES]
    return [entry for page in pages for entry in api_entries.entries_of_page(page)]


def test_public_names_then_each_has_one_entry(listed):
    wanted = {f"poptorch_emu.{name}" for name in api_entries.public_names.names()}
    for name, target in MODULES_IN_FULL.items():
        module = importlib.import_module(target)
        values = [each for each in module.__all__ if not inspect.ismodule(getattr(module, each))]
        wanted |= {f"{name}.{each}" for each in values}
    assert not wanted - set(listed)
    assert len(listed) == len(set(listed))


def test_modules_that_programs_import_then_the_reference_has_them():
    tops = {name.split(".")[0] for name in MODULES_IN_FULL}
    assert {*MODULES, *STAND_INS} - NOT_LISTED <= tops


def is_defined_in(module, value):
    is_named = isinstance(value, type) or inspect.isfunction(value)
    return is_named and value.__module__ == module.__name__


def test_names_of_keras_programs_then_each_has_an_entry(listed):
    keras_ipu = importlib.import_module("poptorch_emu.keras.ipu")
    for part in keras_ipu.__all__:
        module = getattr(keras_ipu, part)
        own = [name for name, value in vars(module).items() if is_defined_in(module, value)]
        names = [name for name in getattr(module, "__all__", own) if name[0] != "_"]
        assert names
        assert {f"poptorch_emu.keras.ipu.{part}.{name}" for name in names} <= set(listed)


def test_entry_when_there_is_no_such_name_then_fails():
    with pytest.raises(AttributeError, match="nowhere"):
        api_entries.text_of_page("```{api}\npoptorch_emu.Options.nowhere\n```\n")


def test_entries_of_a_page_without_its_package_then_the_page_says_so():
    page = "before\n\n```{api}\npoptorch_emu.not_there.Name\n```\n\nafter\n"
    assert "no entries here: No module named" in api_entries.text_of_page(page)
    assert api_entries.entries_of_page(page) == {}


def test_entry_then_has_word_signature_members_and_fields():
    text = "\n".join(api_entries.text_of("poptorch_emu.Options"))
    assert "{py:class} poptorch_emu.Options()\n\n{fidelity}`exact` All options of a model" in text
    method = "{py:method} outputMode(output_mode: OutputMode, output_return_period: int"
    assert method in text
    assert "\n:param output_mode: selection of the outputs.\n" in text
    assert "\n:raises AssertionError: `output_mode` is not an `OutputMode`" in text
    assert "{py:method} gradientAccumulation(" not in text  # The group has an entry of its own.


def test_entry_when_the_docstring_has_no_word_then_names_it(monkeypatch):
    monkeypatch.setattr(importlib.import_module("poptorch_emu").nop, "__doc__", "Does nothing.")
    with pytest.raises(
        ValueError, match=r"No fidelity word in the docstrings of poptorch_emu\.nop"
    ):
        api_entries.entries("poptorch_emu.nop")


def test_index_then_has_each_document_and_each_tutorial_once():
    index = (ROOT / "docs" / "index.md").read_text()
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```$", index, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line and line[0] != ":"]
    pages = [path.stem for path in (ROOT / "docs").glob("*.md") if path.stem != "index"]
    pages += [f"guide/{path.stem}" for path in (ROOT / "docs" / "guide").glob("*.md")]
    pages += [
        f"../tutorials/{path.parent.name}/{path.stem}" for path in ROOT.glob("tutorials/*/*.ipynb")
    ]
    assert [page for page in pages if lines.count(page) != 1] == []


def page(body):
    return f"<html><body><h1 id='top'>Title</h1>{body}</body></html>"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("<a href='b.html#top'>b</a><a href='#top'>up</a>", None),
        ("<a href='https://example.org/page'>out</a>", None),
        ("<img src='data:image/png;base64,AAAA'>", None),
        ("<a href='c.html'>c</a>", "a.html links to c.html: there is no such file."),
        ("<a href='b.html#down'>b</a>", "a.html links to b.html#down: that page has no such place"),
        ("<a href='#down'>b</a>", "a.html links to #down: that page has no such place."),
        ("<a href='https://no host/'>out</a>", "which is no address"),
        ("<img src='missing.png'>", "a.html links to missing.png: there is no such file."),
        ("<script src='https://cdn.example.org/x.js'></script>", "which needs a network"),
        ("<script src='//cdn.example.org/x.js'></script>", "which needs a network"),
        ("<link rel='stylesheet' href='https://example.org/x.css'>", "which needs a network"),
        ("<img src='https://example.org/x.png'>", "which needs a network"),
    ],
)
def test_check_of_a_site_then_finds_what_is_wrong_with_a_page(body, problem, tmp_path):
    (tmp_path / "a.html").write_text(page(body))
    (tmp_path / "b.html").write_text(page(""))
    found = list(check_site.problems(tmp_path))
    assert len(found) == (problem is not None)
    assert not found or problem in found[0]


def test_check_of_a_site_when_a_style_loads_a_font_from_elsewhere_then_says_so(tmp_path):
    (tmp_path / "a.css").write_text("@font-face { src: url('https://example.org/font.woff') }")
    assert list(check_site.problems(tmp_path)) == [
        "a.css loads https://example.org/font.woff, which needs a network."
    ]


def test_entry_with_an_example_then_it_ends_with_its_code():
    text = "\n".join(api_entries.text_of("poptorch_emu.emulator.schedule"))
    code = text.partition("```pycon\n")[2].partition("\n```")[0]
    assert code.startswith(">>> class Model(torch.nn.Module):\n...     def forward(self, x):\n")
    assert "IPU 1        1F0   1F1   1F2\n\nstage 0" in code
    assert text.count("Example") == 0 and ":raises Error: the model is not compiled and " in text


def test_entry_of_a_class_with_attributes_then_each_has_an_entry_with_its_text():
    text = "\n".join(api_entries.text_of("poptorch_emu.emulator.HostWork"))
    items = [
        "{py:attribute} items_per_second\n\n{fidelity}`modelled` rows that the loader yields per ",
        "{py:attribute} seconds_per_update\n\n{fidelity}`modelled` ",
    ]
    assert [text.count(item) for item in items] == [1, 1]
    assert "Attributes:" not in text


def test_entry_of_a_class_then_it_says_what_the_constructor_takes():
    text = "\n".join(api_entries.text_of("poptorch_emu.DataLoader"))
    assert "\n:param batch_size: rows of one micro-batch; " in text
    assert "\n:raises Error: `batch_sampler` contradicts other arguments.\n" in text


def test_entry_of_a_name_without_a_docstring_then_it_has_words_of_its_own():
    names = ["poptorch_emu.BlockId", "poptorch_emu.logger", "horovod.torch.Sum"]
    texts = ["\n".join(api_entries.text_of(name)) for name in names]
    assert all("{py:data} " in text and "str(object" not in text for text in texts)
    assert set(api_entries.public_names.WORDS) == set(api_entries._TEXTS)


def test_entry_of_a_class_then_inherited_attributes_have_their_text_and_no_filler():
    text = "\n".join(api_entries.text_of("poptorch_emu.UnrecoverableError"))
    assert (
        "{py:attribute} message\n\n{fidelity}`exact` description of the error without prefix."
        in text
    )
    plan = "\n".join(api_entries.text_of("poptorch_emu.emulator.TimePlan"))
    assert "Initialize self" not in plan


def test_laboratory_of_the_site_then_it_has_the_tutorials_model_and_leads_nowhere(tmp_path):
    path = tmp_path / "laboratory.html"
    sweep = {"accumulation": [8, 16], "num_ipus": [1, 4]}
    tool("site_laboratory").write(path, sweep, exercises=False)
    text = path.read_text(encoding="utf-8")
    assert "The encoder of the pipelining tutorial" in text
    # A pipeline pays: four IPUs beat one, and the host takes a small part of the time.
    (bench,) = json.loads(text.partition('id="report-data">')[2].partition("<")[0])["benches"]
    one, four = (point["rows_per_second"] for point in list(unpacked(bench).values())[2:])
    shares = unpacked(bench)[3]["shares"]
    of_host = sum(shares.get(word, 0.0) for word in ("host input", "host output", "calls"))
    assert four > 1.5 * one and of_host < 0.1
    assert list(tool("check_site").problems(tmp_path)) == []
