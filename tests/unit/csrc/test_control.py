"""Loops, branches and host calls in the engine, on programs built by hand."""

import pytest
import torch
from hand_built import ALL, Reg, executor, one_segment

import poptorch_emu as poptorch
from poptorch_emu import _C

IN_EACH_ORDER = True


def body(name="body", parameters=(0,), results=(1,), iteration=-1):
    """Returns a body that doubles its first parameter."""
    made = _C.Body(name, 4, list(parameters), iteration, list(results))
    made.add_instruction("aten::mul", "Tensor", [Reg(0), 2.0], {}, [1], [], _C.Debug("inner"), [])
    return made


def loop_program(
    body, *, count=3, num_inputs=1, carried=None, scanned=(), outputs=(1,), is_reversed=False
):
    program, segment = one_segment(num_inputs, is_batched=False)
    collected = ["float32[]"] * (len(outputs) - 1)
    lists = [carried or [Reg(0)], [Reg(index) for index in scanned], []]
    arguments = ["body", count, is_reversed, *lists, collected]
    program.add_instruction(
        segment, "poptorch_emu::for_loop", "", arguments, {}, list(outputs), [],
        _C.Debug("loop"), [body],
    )  # fmt: skip
    for output in outputs:
        program.store_output(segment, output, ALL, 1)
    return program


def test_loop_when_run_then_carries_its_results() -> None:
    (result,) = executor(loop_program(body())).run([torch.tensor(3.0)], 1)
    assert result.item() == 24


def test_loop_when_it_begins_with_constants_then_carries_them() -> None:
    program = loop_program(body(), carried=[torch.tensor(2.0)])
    assert executor(program).run([torch.tensor(0.0)], 1)[0].item() == 16


def scanning_body():
    """Adds a row of the scanned tensor to the carried one and returns (sum, sum * iteration)."""
    made = _C.Body("scan", 5, [0, 1], 4, [2, 3])
    debug = _C.Debug("inner")
    made.add_instruction("aten::add", "Tensor", [Reg(0), Reg(1)], {}, [2], [0], debug, [])
    made.add_instruction("aten::mul", "Tensor", [Reg(2), Reg(4)], {}, [3], [], debug, [])
    return made


@pytest.mark.parametrize(
    ("is_reversed", "products"), [(False, [0.0, 3.0, 14.0]), (True, [0.0, 6.0, 8.0])]
)
def test_loop_when_it_scans_then_rows_come_in_order_and_results_are_stacked(
    is_reversed, products
) -> None:
    program = loop_program(
        scanning_body(), num_inputs=2, scanned=[1], outputs=[2, 3], is_reversed=is_reversed
    )
    last, stacked = executor(program).run([torch.tensor(0.0), torch.tensor([1.0, 2.0, 4.0])], 1)
    assert last.item() == 7
    assert stacked.tolist() == products


def test_text_when_there_is_a_body_then_it_is_listed() -> None:
    text = loop_program(body("inner_body")).text()
    assert "inner_body: 4 registers" in text
    assert "aten::mul" in text


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (lambda: loop_program(body(), count=0), "Loop 'loop'.*runs less than once"),
        (lambda: loop_program(body(parameters=(0, 2))), "takes 2 tensors.*is given 1"),
        (lambda: loop_program(body(results=(1, 1))), "returns 2.*is to return 1"),
        (lambda: loop_program(body(results=()), outputs=()), "carries 1 tensors, .* returns 0"),
        (
            lambda: loop_program(body(parameters=(0, 2)), carried=[torch.ones(1), torch.ones(1)]),
            "carries 2 tensors, .* returns 1",
        ),
        (lambda: loop_program(body(results=(3,))), "in body 'body' reads register 3"),
        (lambda: loop_program(body(results=(9,))), "in body 'body' names register 9 of 4"),
        (lambda: loop_program(body(iteration=0)), "'the iteration' in body 'body' writes register"),
    ],
)
def test_validate_when_a_body_is_wrong_then_error(program, text) -> None:
    with pytest.raises(poptorch.Error, match=text):
        program().validate()


def test_validate_when_a_branch_lacks_a_body_then_error() -> None:
    program, segment = one_segment(1, is_batched=False)
    arguments = [Reg(0), "a", "b", [], [], []]
    debug = _C.Debug("branch")
    program.add_instruction(segment, "poptorch_emu::cond", "", arguments, {}, [], [], debug)
    with pytest.raises(poptorch.Error, match="'branch'.*has 0 bodies instead of 2"):
        program.validate()


def host_program():
    program, segment = one_segment(1, is_batched=False)
    program.add_instruction(
        segment, "poptorch_emu::host_call", "", ["f", [Reg(0)], ["float32[]"]], {}, [1], [],
        _C.Debug("call"),
    )  # fmt: skip
    program.set_seen_outside(segment)
    program.store_output(segment, 1, ALL, 1)
    return program


def test_serialize_when_the_host_is_called_then_error() -> None:
    inner = body()
    inner.add_instruction(
        "poptorch_emu::host_call", "", ["f", [Reg(1)], []], {}, [], [], _C.Debug("call"), []
    )
    for program in (host_program(), loop_program(inner)):
        with pytest.raises(poptorch.Error, match="cannot be written to a file"):
            program.serialize()


def test_validate_when_a_host_call_is_not_marked_then_error() -> None:
    inner = body()
    inner.add_instruction(
        "poptorch_emu::host_call", "", ["f", [Reg(1)], []], {}, [], [], _C.Debug("call"), []
    )
    with pytest.raises(poptorch.Error, match="'only' calls a function of the host, but is not mar"):
        loop_program(inner).validate()


def test_host_call_when_no_function_is_known_then_error() -> None:
    with pytest.raises(poptorch.Error, match="host function 'f', which this executor was not giv"):
        executor(host_program()).run([torch.tensor(1.0)], 1)


@pytest.mark.parametrize(
    ("results", "text"),
    [
        ([], "returned 0 tensors, but 1 when"),
        ([torch.ones(2)], r"returned float32\[2\] as result 0, but float32\[\]"),
        ([torch.tensor(1)], r"returned int64\[\] as result 0, but float32\[\]"),
    ],
)
def test_host_call_when_results_are_not_as_compiled_then_error(results, text) -> None:
    ready = executor(host_program())
    ready.set_host_function("f", lambda inputs: results)
    with pytest.raises(poptorch.Error, match=text):
        ready.run([torch.tensor(1.0)], 1)
    ready.set_host_function("f", lambda inputs: [inputs[0] + 1])
    assert ready.run([torch.tensor(1.0)], 1)[0].item() == 2


@pytest.mark.parametrize("workers", [1, 3])
def test_host_function_that_works_in_place_then_no_variable_changes(workers) -> None:
    program, segment = one_segment(1, is_batched=False)
    weight = program.add_variable("weight", [], torch.float32, False)
    program.load_variable(segment, 1, weight)
    program.add_instruction(
        segment, "poptorch_emu::host_call", "", ["f", [Reg(0), Reg(1)], ["float32[]"]], {}, [2],
        [], _C.Debug("call"),
    )  # fmt: skip
    program.set_seen_outside(segment)
    program.store_output(segment, 2, ALL, 1)
    ready = executor(program, replicas=2, workers=workers)
    ready.write_variable(weight, 0, torch.tensor(3.0))
    ready.set_host_function("f", lambda inputs: [inputs[1].mul_(inputs[0].add_(1.0))])
    x = torch.tensor(4.0)
    for _ in range(2):
        assert ready.run([x], 1)[0].tolist() == [15.0, 15.0]
    assert ready.read_variable(weight, 0).item() == 3.0
    assert x.item() == 4.0


def test_host_function_that_returns_its_own_tensor_then_earlier_results_stay() -> None:
    program, segment = one_segment(1, is_batched=False)
    for result in (1, 2):
        program.add_instruction(
            segment, "poptorch_emu::host_call", "", ["f", [Reg(0)], ["float32[]"]], {}, [result],
            [], _C.Debug("call"),
        )  # fmt: skip
        program.store_output(segment, result, ALL, 1)
    program.set_seen_outside(segment)
    ready = executor(program)
    count = torch.zeros(())
    ready.set_host_function("f", lambda inputs: [count.add_(inputs[0])])
    assert [value.item() for value in ready.run([torch.tensor(1.0)], 1)] == [1.0, 2.0]
