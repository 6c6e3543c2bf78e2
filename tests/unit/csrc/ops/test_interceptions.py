"""Recording of PyTorch's composite operators on `ipu`."""

import pytest
import torch
from recorder import fake, record
from torch.nn import functional

import poptorch_emu._C  # noqa: F401


def nodes_of(function, *shapes):
    return record(lambda: (function, [fake(*shape) for shape in shapes]))


def test_dropout_in_training_records_one_node_each_way():
    forward, backward = nodes_of(lambda x: functional.dropout(x, 0.3, True), (4, 5))
    assert forward == ["aten.native_dropout"]
    assert backward == ["aten.native_dropout_backward"]


@pytest.mark.parametrize(
    ("p", "training"), [(0.5, False), (0.0, True)], ids=["evaluation", "zero probability"]
)
def test_dropout_that_drops_nothing_records_nothing(p, training):
    forward, _ = nodes_of(lambda x: functional.dropout(x, p, training), (4, 5))
    assert forward == []


@pytest.mark.parametrize("name", ["dropout1d", "alpha_dropout", "feature_alpha_dropout"])
def test_other_dropouts_record_one_bernoulli_draw(name):
    forward, backward = nodes_of(lambda x: getattr(functional, name)(x, 0.3, True), (2, 3, 4))
    assert [node for node in forward if "bernoulli" in node] == ["aten.bernoulli_.float"]
    assert backward == ["aten.mul.Tensor"]


@pytest.mark.parametrize(
    "rrelu",
    [
        lambda x: functional.rrelu(x, training=True),
        lambda x: functional.rrelu_(x.clone(), training=True),
    ],
    ids=["functional", "in place"],
)
def test_rrelu_in_training_draws_its_slopes_by_uniform(rrelu):
    """PyTorch's rrelu_with_noise writes into its argument in a way that does not functionalise."""
    forward, _ = nodes_of(rrelu, (4, 5))
    assert forward.count("aten.uniform_") == 1
    assert not any("rrelu" in name for name in forward)


def test_rrelu_in_evaluation_is_a_leaky_relu():
    forward, backward = nodes_of(lambda x: functional.rrelu(x, 0.1, 0.3), (4, 5))
    assert forward == ["aten.leaky_relu"]
    assert backward == ["aten.leaky_relu_backward"]


WHOLE = {
    "max_pool2d": (
        lambda x: functional.max_pool2d(x, 2), [(4, 5, 6, 6)], "max_pool2d_with_indices",
    ),
    "convolution": (functional.conv2d, [(4, 5, 6, 6), (7, 5, 3, 3), (7,)], "convolution"),
    "layer_norm": (
        lambda x, w, b: functional.layer_norm(x, (5,), w, b), [(4, 5), (5,), (5,)],
        "native_layer_norm",
    ),
    "group_norm": (
        lambda x, w, b: functional.group_norm(x, 2, w, b), [(4, 6, 3), (6,), (6,)],
        "native_group_norm",
    ),
    "gelu": (functional.gelu, [(4, 5)], "gelu"),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_common_operation_on_ipu_records_whole_nodes(name):
    function, shapes, node = WHOLE[name]
    forward, backward = nodes_of(function, *shapes)
    assert forward == [f"aten.{node}"]
    assert f"aten.{node}_backward" in backward


def test_embedding_on_ipu_records_whole_nodes():
    forward, backward = record(
        lambda: (functional.embedding, [fake(3, 4, dtype=torch.int64), fake(10, 5)])
    )
    assert forward == ["aten.embedding"]
    assert backward == ["aten.embedding_dense_backward"]


def test_cross_entropy_on_ipu_records_softmax_and_loss():
    forward, backward = record(
        lambda: (functional.cross_entropy, [fake(4, 5), fake(4, dtype=torch.int64)])
    )
    assert forward == ["aten._log_softmax", "aten.nll_loss_forward"]
    assert backward == ["aten.nll_loss_backward", "aten._log_softmax_backward_data"]
