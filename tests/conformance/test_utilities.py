"""Profiling, testing, printing and internals that programs use: sections 1, 20 and 21."""

import gc
import json
import re

import pytest
import torch
from support.forked_programs import run_forked

import poptorch_emu as poptorch
import poptorch_emu.testing
from poptorch_emu.ops import attribute_lists

ONE = torch.tensor([1.0, 2.0])
NEAR = ONE + 1e-7
FAR = ONE + 1


@pytest.mark.feature("poptorch.testing.allclose", fidelity="exact")
@pytest.mark.parametrize(
    ("expected", "actual", "is_close"),
    [
        (ONE, NEAR, True),
        (ONE, FAR, False),
        ((ONE, [ONE]), (NEAR, [NEAR]), True),
        ((ONE, [ONE]), (NEAR, [FAR]), False),
        ([ONE], (ONE,), False),
        ([ONE], [ONE, ONE], False),
        ([], [], True),
    ],
)
def test_allclose_then_compares_values_and_containers(expected, actual, is_close):
    assert poptorch.testing.allclose(expected, actual) is is_close


@pytest.mark.feature("poptorch.testing.allclose", fidelity="exact")
def test_allclose_when_a_leaf_is_no_tensor_then_raises():
    with pytest.raises(TypeError, match="not float"):
        poptorch.testing.allclose((1.0,), (1.0,))


class Worker:
    def add(self, a: int, b: int = 0) -> int:
        """Returns the sum."""
        return a + b


@pytest.mark.feature("poptorch.profiling.Channel", fidelity="accepted")
@pytest.mark.parametrize("options", [None, '{"enable":"false"}', "not json", '{"enable":"true"}'])
def test_channel_then_methods_work_on_and_are_logged_when_asked_for(options, monkeypatch, caplog):
    if options is not None:
        monkeypatch.setenv("PVTI_OPTIONS", options)
    caplog.set_level("DEBUG", logger="poptorch::python")
    channel = poptorch.profiling.Channel("loader")
    worker = Worker()
    assert channel.instrument(worker, "add") is worker
    with channel.tracepoint("outer"):
        assert worker.add(2, b=3) == 5
    assert worker.add.__doc__ == "Returns the sum."
    names = re.findall(r"loader: (\w+) took [\d.]+ ms", "\n".join(caplog.messages))
    assert names == (["add", "outer"] if options == '{"enable":"true"}' else [])
    # A value that is not JSON causes one warning.
    assert len(caplog.messages) == len(names) + (options == "not json")


@pytest.mark.feature("poptorch.print", fidelity="exact")
def test_print_when_a_module_then_shows_its_blocks_and_then_itself(capsys):
    layer = poptorch.BeginBlock(torch.nn.Linear(2, 3), "first", ipu_id=1)
    poptorch.print(layer)
    plain = "Linear(in_features=2, out_features=3, bias=True)"
    assert capsys.readouterr().out == f"BeginBlock(user_id=first, ipu_id=1) {plain}\n{plain}\n"
    poptorch.print({"a": 1})
    assert capsys.readouterr().out == "{'a': 1}\n"


@pytest.mark.feature("poptorch.accessAttributes", fidelity="exact")
def test_access_attributes_then_reads_json_and_ids(monkeypatch):
    monkeypatch.setattr(attribute_lists, "attributes_lists", [{"x": 1}, {"y": 2}] * 9)
    assert poptorch.accessAttributes('{"alpha": 0.5}') == {"alpha": 0.5}
    assert poptorch.accessAttributes("attr:0") == {"x": 1}
    assert poptorch.accessAttributes("attr:0x11") == {"y": 2}


@pytest.mark.feature("poptorch.accessAttributes", fidelity="exact")
@pytest.mark.parametrize("text", ["attr:2", "attr:-1", "attr:", "attr:xyz", "{", ""])
def test_access_attributes_when_the_text_names_nothing_then_refuses(text, monkeypatch):
    monkeypatch.setattr(attribute_lists, "attributes_lists", [{}, {}])
    with pytest.raises(ValueError, match=f"^Invalid attribute_id_str: {text!r}"):
        poptorch.accessAttributes(text)


@pytest.mark.feature("poptorch.accessAttributes", fidelity="exact")
def test_access_attributes_when_not_text_then_refuses():
    with pytest.raises(ValueError, match="^Wrong type for attribute_id_str: int"):
        poptorch.accessAttributes(7)


class Inspected(torch.nn.Module):
    """A model that calls a function on its input and on a result during the trace."""

    def __init__(self, look):
        super().__init__()
        self.layer = torch.nn.Linear(2, 3)
        self.look = look

    def forward(self, x):
        y = self.layer(x)
        self.look(x, y)
        return y


def look_inside(look) -> None:
    poptorch.inferenceModel(Inspected(look)).compile(torch.ones(4, 2))


@pytest.mark.feature("poptorch.getIpuTensorId", fidelity="exact")
def test_ipu_tensor_id_then_is_a_number_that_a_tensor_keeps():
    seen = []
    look_inside(lambda x, y: seen.extend(map(poptorch.getIpuTensorId, (x, y, x))))
    assert all(type(number) is int for number in seen)
    assert seen[0] == seen[2] != seen[1]


@pytest.mark.feature("poptorch.getIpuTensorId", fidelity="exact")
def test_ipu_tensor_id_when_on_the_cpu_then_refuses():
    with pytest.raises(poptorch.Error, match="You may only call getIpuTensorId on an IPU tensor"):
        poptorch.getIpuTensorId(ONE)


@pytest.mark.feature("Printing tensors in forward", fidelity="exact")
def test_ipu_tensor_when_printed_in_forward_then_shows_no_data():
    texts = []
    look_inside(lambda x, y: texts.extend([repr(x), str(y), f"{x.half()}", repr(y.sum())]))
    head = "tensor(<unavailable>, device='ipu:0', size="
    assert texts == [
        f"{head}(4, 2))",
        f"{head}(4, 3), grad_fn=<AddmmBackward0>)",
        f"{head}(4, 2), dtype=torch.float16)",
        f"{head}(), grad_fn=<SumBackward0>)",
    ]


@pytest.mark.feature("Printing tensors in forward", fidelity="exact")
def test_parameter_when_printed_in_forward_then_shows_no_data(capsys):
    model = Inspected(lambda x, y: print(model.layer.bias))
    poptorch.inferenceModel(model).compile(torch.ones(4, 2))
    printed = capsys.readouterr().out
    assert printed.startswith("Parameter containing:\ntensor(<unavailable>, device='ipu:0'")
    assert "requires_grad=True" in printed


@pytest.mark.feature("Printing tensors in forward", fidelity="exact")
def test_cpu_tensor_when_printed_then_is_as_in_pytorch():
    assert repr(ONE) == "tensor([1., 2.])"
    assert repr(torch.nn.Parameter(ONE)).startswith("Parameter containing:\ntensor([1., 2.]")


class Trained(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x):
        return poptorch.identity_loss(self.layer(x), "sum")


@pytest.mark.feature("poptorch._impl.unwrapModelIfNecessary", fidelity="exact")
def test_unwrap_then_model_is_plain_with_the_newest_weights_until_it_is_wrapped_again():
    model = Trained()
    before = model.layer.weight.detach().clone()
    training = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    training(torch.ones(3, 2))
    poptorch._impl.unwrapModelIfNecessary(model)
    assert type(model) is Trained and type(model.layer.weight) is torch.nn.Parameter
    # The gradient of a sum over three rows of ones is 3, the learning rate 1.
    torch.testing.assert_close(model.layer.weight.detach(), before - 3.0)
    poptorch._impl.rewrapModelIfNecessary(model)
    assert type(model).__name__ == "PoptorchTrained"
    training(torch.ones(3, 2))
    torch.testing.assert_close(model.layer.weight.detach().clone(), before - 6.0)


@pytest.mark.feature("poptorch._impl.unwrapModelIfNecessary", fidelity="exact")
def test_unwrap_when_not_wrapped_then_nothing_changes():
    model = Trained()
    poptorch._impl.unwrapModelIfNecessary(model)
    poptorch._impl.rewrapModelIfNecessary(model)
    assert type(model) is Trained


@pytest.mark.feature("Options.enableProfiling", fidelity="modelled")
@pytest.mark.parametrize("end", ["detachFromDevice", "destroy", "drop"])
def test_profile_when_the_model_ends_then_is_written(end, tmp_path):
    options = poptorch.Options().enableProfiling(str(tmp_path)).modelName("mine")
    model = poptorch.inferenceModel(
        torch.nn.Linear(2, 2), options.showCompilationProgressBar(False)
    )
    model(torch.ones(1, 2))
    # Figures that are known before a run are stored at once, in case the process is killed. The
    # database has a log beside it while it is written.
    names = {path.name for path in (tmp_path / "mine").iterdir()}
    assert {"profile.pop"} <= names <= {f"profile.pop{end}" for end in ("", "-wal", "-shm")}
    if end == "drop":
        del model
        gc.collect()
    else:
        getattr(model, end)()
    written = sorted(path.name for path in (tmp_path / "mine").iterdir())
    assert written == ["graph.txt", "memory.txt", "profile.pop", "schedule.txt", "trace.json"]
    trace = json.loads((tmp_path / "mine" / "trace.json").read_text())
    assert trace["traceEvents"] and trace["otherData"] == {"dropped_events": 0}


@pytest.mark.feature("Options.enableProfiling", fidelity="modelled")
def test_profile_when_the_program_ends_then_is_written(tmp_path):
    program = """
import sys, torch, poptorch_emu as poptorch
options = poptorch.Options().enableProfiling(sys.argv[1]).showCompilationProgressBar(False)
model = poptorch.inferenceModel(torch.nn.Linear(2, 2), options)
model(torch.ones(1, 2))
"""
    assert run_forked(["-c", program, str(tmp_path)]).returncode == 0
    assert json.loads((tmp_path / "inference" / "trace.json").read_text())["traceEvents"]
