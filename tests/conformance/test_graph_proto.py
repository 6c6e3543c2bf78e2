"""The proto that `POPTORCH_EXPORT_PROTO_FILE` asks for, read again with the package `onnx`."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import onnx
import pytest
import torch
from support.models import FAMILIES

import poptorch_emu as poptorch

pytestmark = [
    pytest.mark.feature("POPTORCH_EXPORT_PROTO_FILE", fidelity="exact"),
    pytest.mark.feature("POPTORCH_EXPORT_PROTO_AS_BINARY", fidelity="exact"),
]


def options() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def trained(opts: poptorch.Options | None = None):
    """Returns a compiled training wrapper of a model with a loss on two IPUs."""
    torch.manual_seed(3)
    model = FAMILIES["mlp"].make(2)
    opts = options() if opts is None else opts
    opts.Training.gradientAccumulation(4)
    training = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.1))
    training.compile(*FAMILIES["mlp"].batch(8))
    return training


def assert_is_whole(graph: onnx.GraphProto) -> None:
    """Checks that each value is computed once, before its readers, and that bodies are closed."""
    known = {value.name for value in graph.input}
    assert len(known) == len(graph.input)
    for node in graph.node:
        assert known.issuperset(node.input), node.name
        assert known.isdisjoint(node.output), node.name
        known.update(node.output)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                assert_is_whole(attribute.g)
    assert known.issuperset(value.name for value in graph.output)


def read(path: Path, *, is_binary: bool) -> onnx.ModelProto:
    return onnx.load_model(path, format="protobuf" if is_binary else "textproto")


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize("is_folder", [False, True])
def test_proto_when_asked_for_then_holds_the_graph_that_was_compiled(
    is_binary: bool, is_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ("model.proto" if is_folder else "net.onnx")
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", str(tmp_path if is_folder else path))
    if is_binary:
        monkeypatch.setenv("POPTORCH_EXPORT_PROTO_AS_BINARY", "1")
    training = trained()
    model = read(path, is_binary=is_binary)
    onnx.checker.check_model(model)
    assert_is_whole(model.graph)
    graph = training._executable.graph
    found = Counter(node.op_type for node in model.graph.node)
    expected = Counter(node.target._schema.name.partition("::")[2] for node in graph.operations)
    assert found == expected + Counter(alias=len(graph.results))
    shapes = {
        value.doc_string: [size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }
    for name, weight in training.model.named_parameters():
        assert shapes[f"variable {name}"] == list(weight.shape)
    ipus = {
        attribute.i
        for node in model.graph.node
        for attribute in node.attribute
        if attribute.name == "__ipu_number"
    }
    assert ipus == {0, 1}


def test_proto_when_the_executable_comes_from_the_cache_then_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protos = []
    for name in ("first", "second"):
        monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", str(tmp_path / name))
        trained(options().enableExecutableCaching(str(tmp_path / "cache")))
        protos.append((tmp_path / name).read_text())
    assert protos[0] == protos[1]


def test_proto_when_there_are_loops_and_several_results_then_has_their_bodies_and_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Looping(torch.nn.Module):
        def forward(self, x):
            values, indices = torch.topk(x, 2)
            (x,) = poptorch.for_loop(3, lambda value: torch.tanh(value), [values])
            return x, indices

    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", str(tmp_path))
    poptorch.inferenceModel(Looping(), options()).compile(torch.randn(2, 5))
    model = read(tmp_path / "model.proto", is_binary=False)
    assert_is_whole(model.graph)
    (topk,) = [node for node in model.graph.node if node.op_type == "topk"]
    assert len(topk.output) == 2
    bodies = [a.g for n in model.graph.node for a in n.attribute if a.name == "body"]
    assert [[node.op_type for node in body.node][-2:] for body in bodies] == [["tanh", "alias"]]


def test_proto_when_not_asked_for_then_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", "")
    trained()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("file", "as_binary", "phrase"),
    [
        ("missing/model.proto", "0", "cannot be written"),
        ("model.proto", "yes", "POPTORCH_EXPORT_PROTO_AS_BINARY must be an integer"),
    ],
)
def test_proto_when_it_cannot_be_written_then_error(
    file: str, as_binary: str, phrase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", str(tmp_path / file))
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_AS_BINARY", as_binary)
    with pytest.raises(poptorch.Error, match=phrase):
        trained()


def test_proto_when_the_package_is_missing_then_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", str(tmp_path))
    with pytest.raises(poptorch.Error, match="pip install onnx"):
        trained()
