"""All panels, texts and pictures take their words and colours from one table."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import to_hex

import poptorch_emu as poptorch
from poptorch_emu import emulator
from poptorch_emu.plan.memory.memory_plan import Content
from poptorch_emu.plan.time.step_parts import Part
from poptorch_emu.report import terms
from poptorch_emu.report.terms import TERMS, WORD_OF_EVENT, WORK

mpl.use("Agg")

PAGE = Path(terms.__file__).parent / "page"
ROOMS = Path(terms.__file__).parents[1]
COLOUR = re.compile(r"#[0-9a-fA-F]{6}\b")
STEP = [part.word for part in Part]
CONTENTS = [content.value for content in Content]


def lightness(colour: str) -> float:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return (0.299 * red + 0.587 * green + 0.114 * blue) / 255


@pytest.fixture(scope="module")
def training() -> poptorch.PoplarExecutor:
    """Returns a pipeline on two replicas with all kinds of work: streams, sends and reductions."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))

        def forward(self, x):
            for ipu, layer in enumerate(self.layers):
                poptorch.Block.start(f"block {ipu}", ipu_id=ipu)
                x = layer(torch.tanh(layer(x)))
            return x, poptorch.identity_loss(x, "sum")

    options = poptorch.Options().replicationFactor(2).showCompilationProgressBar(False)
    options.Training.gradientAccumulation(8)
    options.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().minElementsForOffChip(0).useOnChipStorage(False)
    )
    model = Model()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1)
    return poptorch.trainingModel(model, options, optimizer)


@pytest.fixture(scope="module")
def view(training):
    return emulator.summary(training, torch.randn(16, 64)).view


def test_colours_then_each_word_has_one_of_its_own_on_both_grounds() -> None:
    for grounds in ("colour", "colour_on_dark"):
        assert len({getattr(term, grounds) for term in TERMS.values()}) == len(TERMS)
    assert all(term.meaning for term in TERMS.values())


@pytest.mark.parametrize("words", [WORK, STEP, CONTENTS], ids=["work", "step", "memory"])
def test_words_of_one_picture_in_black_and_white_then_differ(words) -> None:
    for one, other in combinations((TERMS[word] for word in words), 2):
        difference = abs(lightness(one.colour) - lightness(other.colour))
        assert difference > 0.12 or one.hatch != other.hatch, (one, other)


def test_text_on_a_colour_then_can_be_read() -> None:
    for term in TERMS.values():
        assert abs(lightness(term.colour) - lightness(term.ink)) > 0.4, term


def test_letters_then_differ() -> None:
    letters = [TERMS[word].letter for word in (*WORD_OF_EVENT.values(), "bubble")]
    assert all(letters) and len(set(letters)) == len({*WORD_OF_EVENT.values(), "bubble"})


def test_word_when_unknown_then_is_other() -> None:
    assert terms.term("<img>") is TERMS["other"]


def test_panels_and_reports_then_have_no_colour_of_their_own() -> None:
    """Colours of text, backgrounds and lines come from the style sheet."""
    for path in [*PAGE.glob("*.js"), *ROOMS.glob("report/**/*.py"), *ROOMS.glob("emulator/*.py")]:
        if path.name != "terms.py":
            found = COLOUR.findall(path.read_text(encoding="utf-8"))
            assert not found or (path.name, set(found)) == ("pictures.py", {"#161b26"}), path
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    taken = {term.colour for term in TERMS.values()} | {t.colour_on_dark for t in TERMS.values()}
    assert not taken & set(COLOUR.findall(style)) - {TERMS["over the limit"].colour}


def test_page_of_a_model_then_all_its_words_are_in_the_table(view) -> None:
    (timeline,) = view["timelines"]
    drawn = {timeline["kinds"][kind] for kind in timeline["columns"]["kind"]}
    assert {
        "forward",
        "recompute",
        "backward",
        "link",
        "update",
        "all-reduce",
        "streaming",
    } <= drawn
    words = [*timeline["kinds"], *(stage["direction"] for stage in view["graph"]["stages"])]
    for ipu in view["ipus"]:
        words += ipu["parts"]
    for ipu in view["memory"]["ipus"]:
        words += [row["name"] for row in ipu["categories"]] + list(ipu["tiles"])
    assert set(words) - set(TERMS) == set()
    scripts = "".join(path.read_text(encoding="utf-8") for path in PAGE.glob("*.js"))
    given = re.findall(r"(?:itemStyle|termColour|inkOn|swatch|pattern)\(([^,)]*)", scripts)
    asked = [word for words in given for word in re.findall(r'"([^"]+)"', words)]
    assert asked and set(asked) - set(TERMS) == set()


def test_timeline_and_summary_then_agree_on_each_word(training, view) -> None:
    """The time of an IPU's events for a word is the time of that part of the step."""
    events = emulator.timeline(training, torch.randn(16, 64))
    plan = emulator.estimate(training, torch.randn(16, 64))
    for ipu, parts in ((ipu["ipu"], ipu["parts"]) for ipu in view["ipus"]):
        for word in ("link", "streaming", "update", "all-reduce"):
            seconds = sum(
                event.end_seconds - event.begin_seconds
                for event in events
                if event.ipu == ipu and WORD_OF_EVENT[event.kind] == word
            )
            assert parts[word] == pytest.approx(seconds * plan.num_windows), (ipu, word)
        assert sum(parts.values()) == pytest.approx(plan.step_seconds)


def test_pictures_then_have_the_colours_of_their_words(training) -> None:
    x = torch.randn(16, 64)
    training.compile(x)
    shown = {
        "estimate": emulator.estimate(training).plot(),
        "tiles": emulator.tile_memory(training).plot(),
        "memory": emulator.memory(training).plot(),
        "timeline": emulator.timeline(training).plot(),
        "schedule": emulator.schedule(training).plot(),
    }
    for name, axes in shown.items():
        legend = axes.get_legend()
        for patch, text in zip(legend.get_patches(), legend.get_texts(), strict=True):
            assert to_hex(patch.get_facecolor()) == TERMS[text.get_text()].colour, name
        plt.close(axes.figure)
