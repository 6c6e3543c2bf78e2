"""What a captured function prints, logs and writes, which happens once; see also the small
programs that change objects of Python."""

from __future__ import annotations

import logging

import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("keras")

from support import tensorflow_programs as programs  # noqa: E402

import poptorch_emu as poptorch  # noqa: E402
from poptorch_emu.keras.ipu.ipu_outfeed_queue import IPUOutfeedQueue  # noqa: E402

pytestmark = pytest.mark.feature("TensorFlow: IPUStrategy.run", fidelity="exact")


def test_function_that_prints_logs_and_writes_then_does_so_once(tmp_path, capsys, caplog) -> None:
    strategy, queue = programs.strategy(), IPUOutfeedQueue()

    def loop(n):
        print("before")
        for _ in tf.range(n):
            print("inside", end=";")
            logging.getLogger("user").warning("logged")
            with (tmp_path / "log").open("a") as file:
                file.write("line\n")
            queue.enqueue(tf.constant(1.0))
        print("after")

    for _ in range(2):
        strategy.run(loop, args=[3])
    assert capsys.readouterr().out == "before\ninside;after\n"
    assert [each.message for each in caplog.records if each.name == "user"] == ["logged"]
    assert (tmp_path / "log").read_text() == "line\n"
    print("heard again")
    assert capsys.readouterr().out == "heard again\n"


def test_function_that_fails_in_its_second_pass_then_later_prints_are_heard(capsys) -> None:
    strategy, passes = programs.strategy(), []

    def loop(data):
        for _ in tf.range(3):
            print("inside")
            passes.append(1)
            next(data)
            print("read")
            raise RuntimeError("by the program")

    with strategy.scope():
        data = iter(programs.dataset())
    with pytest.raises(RuntimeError, match="by the program"):
        strategy.run(loop, args=[data])
    print("later")
    assert capsys.readouterr().out == "inside\nread\nlater\n"
    assert passes == [1]


def test_function_that_writes_to_an_open_file_then_is_refused(tmp_path) -> None:
    strategy = programs.strategy()
    with (tmp_path / "log").open("w") as file:

        def write(x):
            file.write("line\n")
            return x * 2.0

        with pytest.raises(poptorch.Error, match="writes to the file .*log"):
            strategy.run(write, args=[tf.constant(1.0)])


def test_loop_over_range_that_prints_then_warns_that_it_does_so_once(capsys, caplog) -> None:
    strategy, queue = programs.strategy(), IPUOutfeedQueue()

    def loop():
        for number in range(3):
            print("inside")
            queue.enqueue(tf.constant(1.0) * number)

    with caplog.at_level(logging.WARNING):
        strategy.run(loop)
    assert capsys.readouterr().out == "inside\n"
    assert "loop over range() prints, logs or draws" in caplog.text
    assert queue.dequeue().numpy().tolist() == [0.0, 1.0, 2.0]
