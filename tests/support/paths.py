"""The freest path that a program may have, found by trying: `validate` refuses all others."""

from __future__ import annotations

import re
from itertools import product

from poptorch_emu import _C
from poptorch_emu.errors import Error


def set_freest_path(program: _C.Program) -> None:
    """Gives the micro-batches of a program the freest path that it may have, or none."""
    text = program.text()
    found = re.findall(r"^(\S.*) on IPU \d+: .* stores(.*)$", text, re.MULTILINE)
    links = re.findall(r"^link (.+) -> (.+): \d+ tensors", text, re.MULTILINE)
    names = [name for name, _ in found]
    inside = [name for name, when in found if not re.search("once in|before a call|again", when)]
    turns: dict[str, _C.Turns] = {}
    while ready := [
        name
        for name in inside
        if name not in turns and all(sender in turns for sender, to in links if to == name)
    ]:
        turns[ready[0]] = _C.Turns.ONE_BY_ONE

    def accepts(turns: dict[str, _C.Turns]) -> bool:
        program.set_path([(names.index(name), each) for name, each in turns.items()])
        try:
            program.validate()
        except Error:
            return False
        return program.num_independent_micro_batches() > 1

    for name, freer in product(turns, (_C.Turns.IN_TURN, _C.Turns.ANY_ORDER)):
        if accepts({**turns, name: freer}):
            turns[name] = freer
    if not accepts(turns):
        program.set_path([])


def path_in(program: _C.Program) -> list[str]:
    """Returns the lines of a program's text about its path."""
    return [line for line in program.text().splitlines() if line.startswith("path ")]
