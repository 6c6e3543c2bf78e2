"""`emulator.compare` with outputs of modules, as forward hooks give them."""

from __future__ import annotations

import pytest
import torch
from support.numbers_models import MISTAKES, Language, batch
from support.numbers_runs import (
    ROWS,
    options,
    suspects,
    training,
)

from poptorch_emu import emulator
from poptorch_emu.errors import Error
from poptorch_emu.numbers.verdicts import Verdict

pytestmark = pytest.mark.feature("emulator.compare", fidelity="exact")


def hooked(model, *inputs):
    """Returns the outputs of all modules, as forward hooks give them."""
    outputs = {}
    for path, module in model.named_modules():
        module.register_forward_hook(
            lambda _, __, output, path=path: outputs.__setitem__(path, output)
        )
    model(*inputs)
    return outputs


PATHS = ["attention.qkv", "attention", "norm", "mlp.square", "mlp", "head"]


def test_outputs_of_modules_when_hooks_give_them_then_they_agree():
    outputs = hooked(Language(), *batch(ROWS))
    report = emulator.compare(
        training(), *batch(ROWS), against={path: outputs[path] for path in PATHS}
    )
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)
    assert report.num_operations == len(PATHS)


def test_outputs_of_modules_when_all_micro_batches_are_joined_then_each_is_compared():
    outputs = hooked(Language(), *batch(3 * ROWS))
    report = emulator.compare(
        training(opts=options(3)), *batch(3 * ROWS), against={"norm": outputs["norm"]}
    )
    assert report.verdict in (Verdict.EQUAL, Verdict.REORDERED)
    assert [row.num_values for row in report.modules] == [3]


@pytest.mark.parametrize("mistake", ["wrong eps", "mask shifted", "another activation", "negated"])
def test_outputs_of_modules_when_one_is_wrong_then_it_is_the_first(mistake):
    outputs = hooked(Language(mistake), *batch(ROWS))
    report = emulator.compare(
        training(), *batch(ROWS), against={path: outputs[path] for path in PATHS}
    )
    assert report.verdict is Verdict.DIFFERENT
    module, _ = MISTAKES[mistake]
    assert any(value.module.split(".")[0] == module for value in suspects(report))


def test_outputs_of_modules_when_they_are_half_then_it_is_less_precision():
    outputs = hooked(Language(), *batch(ROWS))
    half = {path: outputs[path].half() for path in PATHS}
    report = emulator.compare(training(), *batch(ROWS), against=half)
    assert report.verdict is Verdict.LESS_PRECISION


@pytest.mark.parametrize(
    ("against", "text"),
    [
        ({"nowhere": torch.ones(2)}, "No operation of the model runs in a module 'nowhere'"),
        ({"head": torch.ones(2, 7)}, r"The output of 'head' has the shape \[2, 7\], and in a"),
        ({"head": "text"}, "The output of 'head' is of type str"),
    ],
)
def test_outputs_of_modules_when_they_cannot_be_then_the_error_says_why(against, text):
    with pytest.raises(Error, match=text):
        emulator.compare(training(), *batch(ROWS), against=against)
