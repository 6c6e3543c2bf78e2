"""Compares the answers that programs get about Keras's results with those on TensorFlow.

Usage: python -m keras_samples.answers [PLACE ...] [NAME ...] [N] [--all] [--record=FILE]

PLACE is a method of `answer_places.Places`; a NAME is a part of expressions; N takes every Nth
expression. It prints three differences of each kind, or all, and counts for each place. The record
of Keras on TensorFlow is read from FILE, if it is there, or written to it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import numpy as np
from keras_samples import answer_names
from keras_samples.answer_evaluation import Expressions
from keras_samples.answer_limits import reason
from keras_samples.answer_places import PLACES, Answers, all_answers

from poptorch_emu.keras import ipu

_REFUSED = (
    "has other results in TensorFlow", "not supported by the PyTorch backend",
    "which runs on the host. Override compute_loss",
)  # fmt: skip
_WITH_VALUES = ("host", "layer_on_host")
_OF_SHAPES = (
    "x.shape", "x.shape == [...]", "x.shape == (...)", "x.shape.as_list()", "type(x.shape[0])",
)  # fmt: skip
# Results that are drawn, or not set, or depend on those.
_DRAWN = (
    "random", "Random", "glorot", "Normal(", "Uniform(", "empty", "Orthogonal", "Scaling(",
    "argpartition", "dropout", "Dropout", "Noise", "gaussian", "elastic", "clone_model", "seeds",
    "Seed", "drawn(", "early_normal",
    "normed",
)  # fmt: skip


class Comparison:
    """Counts and texts of differences.

    Attributes:
        counts: for each place, how many answers are the same, differ, are refused here, are
            known to differ, or errors in TensorFlow.
        texts: for each kind of difference the expressions, and where they differ.
        refused: expressions that are refused here, with the reason.
        known: numbers of differences that are known, by reason.
    """

    def __init__(self, wanted: Answers, found: Answers) -> None:
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.texts: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        self.refused: dict[str, str] = {}
        self.known: Counter[str] = Counter()
        for key, answer in wanted.items():
            place, form, text = key
            status = "errors in TensorFlow"
            if "error" not in answer:
                # Runs may end before they ask, or at the end.
                end = found[place, "end", "of run 0"]
                status = self._compared(key, answer, found.get(key, end))
            self.counts[place][status] += 1

    def _compared(self, key: tuple[str, str, str], wanted: Any, found: Any) -> str:
        place, form, text = key
        if "error" in found:
            is_known = any(each in found.get("text", "") for each in _REFUSED)
            if found.get("is_refusal") or is_known:
                self.refused.setdefault(text, found["error"])
                return "refused"
            return self._differ(key, f"error: {found['error'].partition(' (at ')[0]}", "")
        # The states of objects at other places depend on what the device ran.
        is_drawn = place not in _WITH_VALUES or any(each in text for each in _DRAWN)
        differences = list(_differences(wanted, found, is_drawn))
        if "given" in wanted:
            given = found.get("given", {"structure": "nothing", "leaves": []})
            differences += [f"given: {x}" for x in _differences(wanted["given"], given, True)]
        if not differences:
            return "same"
        first = min(
            differences, key=lambda x: (bool(reason(x.partition(": ")[0], "")), "tf." not in x)
        )
        kind, _, more = first.partition(": ")
        return self._differ(key, kind, f": {more}")

    def _differ(self, key: tuple[str, str, str], kind: str, more: str) -> str:
        place, form, text = key
        why = reason(kind, text)
        if why:
            self.known[why] += 1
            return "known to differ"
        self.texts[kind][f"{text}{more}"].append(f"{place} of {form}")
        return "differ"


def _differences(wanted: Any, found: Any, is_drawn: bool) -> Iterator[str]:
    if wanted["structure"] != found["structure"]:
        yield f"structure: {found['structure']}, TensorFlow has {wanted['structure']}"
        return
    for leaf, other in zip(wanted["leaves"], found["leaves"], strict=True):
        for question, answer in leaf.items():
            if question == "value":
                if not is_drawn and not _is_near(answer, other.get("value")):
                    yield f"value: {_short(other.get('value'))}, TensorFlow has {_short(answer)}"
            elif question in _OF_SHAPES and None in leaf["x.shape"]:
                continue  # Graphs of TensorFlow do not know it, but devices do.
            elif question not in other:
                yield f"{question}: not asked, TensorFlow has {answer!r}"
            elif other[question] != answer:
                yield f"{question}: {other[question]!r}, TensorFlow has {answer!r}"


def _is_near(wanted: Any, found: Any) -> bool:
    if found is None:
        return True  # It is not known to be computed at once; another question finds that.
    one, other = np.asarray(wanted), np.asarray(found)
    if one.shape != other.shape or one.dtype.kind in "OSU":
        return one.shape == other.shape
    return bool(np.allclose(one, other, 1e-4, 1e-5, equal_nan=True))


def _short(value: Any) -> str:
    return " ".join(str(value).split())[:60]


def recorded(
    where: Sequence[str], only: Sequence[str], every: int, path: Path
) -> tuple[Expressions, Answers]:
    """Returns the expressions that Keras on TensorFlow accepts, and the answers there."""
    path.write_bytes(pickle.dumps((list(where), list(only), every)))
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command = [sys.executable, "-W", "ignore", "-m", "keras_samples.answer_places", str(path)]
    subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
    return pickle.loads(path.read_bytes())


def compared(
    where: Sequence[str], only: Sequence[str] = (), every: int = 1, record: str = ""
) -> tuple[Expressions, Comparison]:
    """Compares the answers at places with those of Keras on TensorFlow."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(record or Path(folder) / "answers")
        if path.exists():
            expressions, wanted = pickle.loads(path.read_bytes())
        else:
            expressions, wanted = recorded(where, only, every, path)
    wanted = {key: value for key, value in wanted.items() if key[0] in where}
    found = all_answers(where, expressions, ipu.ipu_strategy.IPUStrategy())
    return expressions, Comparison(wanted, found)


def main() -> int:
    """Prints the differences; returns whether there are any."""
    words = [each for each in sys.argv[1:] if not each.startswith("--")]
    where = [each for each in words if each in PLACES] or list(PLACES)
    only = [each for each in words if each not in PLACES and not each.isdigit()]
    every = next((int(each) for each in words if each.isdigit()), 1)
    record = next((x.partition("=")[2] for x in sys.argv if x.startswith("--record=")), "")
    expressions, comparison = compared(where, only, every, record)
    most = None if "--all" in sys.argv else 3
    for kind, listed in sorted(comparison.texts.items(), key=lambda each: -len(each[1])):
        print(f"## {len(listed)}: {kind}")
        for text, found in list(listed.items())[:most]:
            print(f"   {text} | {len(found)}: {', '.join(found[:4])}")
    print(f"## {len(comparison.refused)} refused")
    for text, why in list(comparison.refused.items())[:most]:
        print(f"   {text}: {why}")
    print(f"## {sum(comparison.known.values())} known: {dict(comparison.known)}")
    ops = [name for name in answer_names.functions() if name.startswith(answer_names.OPS)]
    called = {text.partition("(")[0] for text in expressions[0]}
    missing = [name for name in ops if name not in called]
    if not only:
        print(f"{len(ops) - len(missing)} of {len(ops)} functions of keras.ops; not: {missing}")
    for place, counts in comparison.counts.items():
        print(f"{place}: {dict(counts)}")
    return any(counts["differ"] for counts in comparison.counts.values())


if __name__ == "__main__":
    raise SystemExit(main())
