"""Discovery of the loss (semantics §5), loss scaling (§5.1) and the built-in losses (§5.3)."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
import torch.nn.functional as F
from support.helpers import Setting, assert_same_training
from support.small_models import Function, options, run, trained
from torch import nn

import poptorch_emu as poptorch

pytestmark = pytest.mark.feature("Losses", fidelity="exact")

ROWS, CLASSES = 6, 5
CLASS_WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 0.0, 1.5])


def _labels() -> torch.Tensor:
    return torch.tensor([0, 3, 4, 1, 2, 2])


def _signs() -> torch.Tensor:
    return torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, -1.0])


# Function of (x, target, reduction), and the target; x is ROWS x CLASSES and comes from a weight.
_LOSSES = {
    "l1": (lambda x, t, r: F.l1_loss(x, t, reduction=r), torch.randn(ROWS, CLASSES)),
    "mse": (lambda x, t, r: F.mse_loss(x, t, reduction=r), torch.randn(ROWS, CLASSES)),
    "smooth_l1": (
        lambda x, t, r: F.smooth_l1_loss(x, t, reduction=r, beta=0.5),
        torch.randn(ROWS, CLASSES),
    ),
    "soft_margin": (
        lambda x, t, r: F.soft_margin_loss(x, t, reduction=r),
        torch.randn(ROWS, CLASSES).sign(),
    ),
    "hinge_embedding": (
        lambda x, t, r: F.hinge_embedding_loss(x, t, reduction=r),
        torch.randn(ROWS, CLASSES).sign(),
    ),
    "margin_ranking": (
        lambda x, t, r: F.margin_ranking_loss(x[:, 0], x[:, 1], t, 0.3, reduction=r),
        _signs(),
    ),
    "nll": (lambda x, t, r: F.nll_loss(x.log_softmax(1), t, reduction=r), _labels()),
    "nll_ignore": (
        lambda x, t, r: F.nll_loss(x.log_softmax(1), t, ignore_index=2, reduction=r),
        _labels(),
    ),
    "nll_2d": (
        lambda x, t, r: F.nll_loss(
            x.reshape(2, 3, CLASSES).transpose(1, 2).log_softmax(1), t.reshape(2, 3), reduction=r
        ),
        _labels(),
    ),
    "cross_entropy": (lambda x, t, r: F.cross_entropy(x, t, reduction=r), _labels()),
    "cross_entropy_ignore": (
        lambda x, t, r: F.cross_entropy(x, t, ignore_index=3, reduction=r),
        _labels(),
    ),
    "nll_weighted": (
        lambda x, t, r: F.nll_loss(x.log_softmax(1), t, CLASS_WEIGHTS, reduction=r),
        _labels(),
    ),
    "cross_entropy_weighted": (
        lambda x, t, r: F.cross_entropy(x, t, CLASS_WEIGHTS, ignore_index=1, reduction=r),
        _labels(),
    ),
    "cross_entropy_smoothed": (
        lambda x, t, r: F.cross_entropy(x, t, label_smoothing=0.2, ignore_index=4, reduction=r),
        _labels(),
    ),
    "cross_entropy_weighted_and_smoothed": (
        lambda x, t, r: F.cross_entropy(x, t, CLASS_WEIGHTS, label_smoothing=0.3, reduction=r),
        _labels(),
    ),
    "bce": (
        lambda x, t, r: F.binary_cross_entropy(x.sigmoid(), t, reduction=r),
        torch.rand(ROWS, CLASSES),
    ),
    "bce_weight": (
        lambda x, t, r: F.binary_cross_entropy(x.sigmoid(), t, weight=t + 0.5, reduction=r),
        torch.rand(ROWS, CLASSES),
    ),
    "bce_logits": (
        lambda x, t, r: F.binary_cross_entropy_with_logits(
            x, t, weight=t + 0.5, pos_weight=t[0] + 1, reduction=r
        ),
        torch.rand(ROWS, CLASSES),
    ),
    "kl_div": (
        lambda x, t, r: F.kl_div(x.log_softmax(1), t, reduction=r),
        torch.rand(ROWS, CLASSES).softmax(1),
    ),
    "kl_div_log_target": (
        lambda x, t, r: F.kl_div(x.log_softmax(1), t, reduction=r, log_target=True),
        torch.rand(ROWS, CLASSES).log_softmax(1),
    ),
    "poisson_nll": (
        lambda x, t, r: F.poisson_nll_loss(x, t, reduction=r),
        torch.randint(4, (ROWS, CLASSES)).float(),
    ),
    "poisson_nll_full": (
        lambda x, t, r: F.poisson_nll_loss(x.exp(), t, log_input=False, full=True, reduction=r),
        torch.randint(4, (ROWS, CLASSES)).float(),
    ),
    "cosine_embedding": (
        lambda x, t, r: F.cosine_embedding_loss(x, x.flip(0) * x, t, 0.1, reduction=r),
        _signs(),
    ),
    "triplet_margin": (
        lambda x, t, r: F.triplet_margin_loss(x, t, t.flip(0), reduction=r),
        torch.randn(ROWS, CLASSES),
    ),
    "multilabel_soft_margin": (
        lambda x, t, r: F.multilabel_soft_margin_loss(x, t, reduction=r),
        torch.randint(2, (ROWS, CLASSES)).float(),
    ),
    # Functions that count as a loss only inside `identity_loss` (ops-coverage.md 3.13).
    "multi_margin": (
        lambda x, t, r: poptorch.identity_loss(F.multi_margin_loss(x, t, reduction=r), "none"),
        _labels(),
    ),
    "multilabel_margin": (
        lambda x, t, r: poptorch.identity_loss(F.multilabel_margin_loss(x, t, reduction=r), "none"),
        torch.tensor([[0, 2, -1, 1, 1]]).expand(ROWS, CLASSES),
    ),
    "huber": (
        lambda x, t, r: poptorch.identity_loss(F.huber_loss(x, t, r, 0.5), "none"),
        torch.randn(ROWS, CLASSES),
    ),
    "gaussian_nll": (
        lambda x, t, r: poptorch.identity_loss(
            F.gaussian_nll_loss(x, t, x.exp(), reduction=r), "none"
        ),
        torch.randn(ROWS, CLASSES),
    ),
}


def plain_update(function, weight: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
    """Returns the weight after one step of lr 0.1 on the sum of the function's results."""
    leaf = weight.clone().requires_grad_()
    function(*inputs, leaf).sum().backward()
    return leaf.detach() - 0.1 * leaf.grad


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", _LOSSES)
def test_built_in_loss_when_trained_then_equals_pytorch(name: str, reduction: str) -> None:
    loss, target = _LOSSES[name]
    weight, x = torch.randn(ROWS, CLASSES), torch.randn(ROWS, CLASSES)

    def function(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return loss(x * w, t, reduction)

    (after,) = trained(function, [weight], [(x, target)])
    expected = plain_update(function, weight, x, target)
    torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(after, weight)


aten, _nn = torch.ops.aten, torch._C._nn
_OPERATORS = {
    "cross entropy": (lambda x, t: aten.cross_entropy_loss.default(x, t, None, 1, 2), _labels()),
    "cross entropy, any overload": (
        lambda x, t: aten.cross_entropy_loss(x, t, label_smoothing=0.1, reduction=2),
        _labels(),
    ),
    "nll": (lambda x, t: aten.nll_loss_nd(x.log_softmax(1), t), _labels()),
    "first result of nll": (
        lambda x, t: aten.nll_loss_forward.default(x.log_softmax(1), t, None, 2, -100)[0],
        _labels(),
    ),
    "mse": (lambda x, t: aten.mse_loss.default(x, t), torch.randn(ROWS, CLASSES)),
    "l1": (lambda x, t: _nn.l1_loss(x, t, 2), torch.randn(ROWS, CLASSES)),
    "smooth l1": (
        lambda x, t: aten.smooth_l1_loss.default(x, t, beta=0.5),
        torch.randn(ROWS, CLASSES),
    ),
    "kl": (
        lambda x, t: torch.kl_div(x.log_softmax(1), t, 0, log_target=True),
        torch.rand(ROWS, CLASSES).log_softmax(1),
    ),
    "ranking": (
        lambda x, t: aten.margin_ranking_loss.default(x[:, 0], x[:, 1], t, 0.3),
        _signs(),
    ),
    "logits": (
        lambda x, t: torch.binary_cross_entropy_with_logits(x, t, None, x.detach().exp(), 1),
        torch.rand(ROWS, CLASSES),
    ),
}


@pytest.mark.parametrize("name", _OPERATORS)
def test_operator_of_a_loss_when_trained_then_equals_pytorch(name: str) -> None:
    loss, target = _OPERATORS[name]
    weight, x = torch.randn(ROWS, CLASSES), torch.randn(ROWS, CLASSES)

    def function(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return loss(x * w, t)

    (after,) = trained(function, [weight], [(x, target)])
    expected = plain_update(function, weight, x, target)
    torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-6)
    assert not torch.equal(after, weight)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_exported_program_when_it_computes_its_loss_then_trains_like_plain_pytorch() -> None:
    """The operators of the program are called, and one of them asks for the device of a tensor."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(ROWS, CLASSES))

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return F.mse_loss(x * self.weight, F.one_hot(labels, CLASSES).to(torch.float32))

    x, labels = torch.randn(ROWS, CLASSES), _labels()
    module = torch.export.export(Model(), (x, labels)).module()
    plain = copy.deepcopy(module)
    plain(x, labels).backward()
    expected = plain.weight.detach() - 0.1 * plain.weight.grad
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.1)
    training = poptorch.trainingModel(module, options(), optimizer)
    training(x, labels)
    training.destroy()
    torch.testing.assert_close(module.weight.detach(), expected)


def test_kl_div_when_batchmean_then_equals_pytorch() -> None:
    target, weight = torch.rand(ROWS, CLASSES).softmax(1), torch.randn(ROWS, CLASSES)

    def function(t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.kl_div(w.log_softmax(1), t, reduction="batchmean")

    (after,) = trained(function, [weight], [(target,)])
    torch.testing.assert_close(after, plain_update(function, weight, target))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ctc_loss_when_trained_then_equals_pytorch(reduction: str) -> None:
    weight = torch.randn(8, 2, CLASSES)
    targets = torch.tensor([[1, 2, 3], [2, 4, 0]])

    def function(t: torch.Tensor, ins: torch.Tensor, outs: torch.Tensor, w: torch.Tensor):
        return F.ctc_loss(w.log_softmax(2), t, ins, outs, reduction=reduction)

    inputs = (targets, torch.tensor([8, 7]), torch.tensor([3, 2]))
    (after,) = trained(function, [weight], [inputs])
    torch.testing.assert_close(after, plain_update(function, weight, *inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x, w: F.ctc_loss(
                (w * x[0, 0]).log_softmax(2),
                torch.ones(2, 3, dtype=torch.int64),
                torch.tensor([8, 8]),
                torch.tensor([3, 3]),
                reduction="none",
            ),
            'CTCLoss with reduction="none" is currently not supported',
        ),
        (lambda x, w: (x * w[0, 0]).sum(), "Couldn't find a loss in graph!"),
        (
            lambda x, w: F.cross_entropy(x * w[0, 0], x.softmax(1)),
            "Couldn't find a loss in graph!",
        ),
        (  # "batchmean" calls this operator, and divides afterwards.
            lambda x, w: torch.kl_div((x * w[0, 0]).log_softmax(1), x, 2) / ROWS,
            "Couldn't find a loss in graph!",
        ),
        (
            lambda x, w: (F.mse_loss(x * w[0, 0], x), F.l1_loss(x * w[0, 1], x)),
            r"Multiple independent losses found in graph.*poptorch\.identity_loss",
        ),
    ],
    ids=["ctc none", "no loss", "ce probabilities", "kl sum", "independent"],
)
def test_loss_when_refused_then_message_says_why(function, message: str) -> None:
    with pytest.raises(poptorch.Error, match=message):
        trained(function, [torch.randn(8, 2, CLASSES)], [(torch.randn(2, CLASSES),)])


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_identity_loss_when_reduced_then_value_and_gradient_follow(reduction: str) -> None:
    weight, x = torch.randn(4), torch.randn(4)
    (after,) = trained(lambda x, w: poptorch.identity_loss(x * w, reduction), [weight], [(x,)])
    gradient = x / 4 if reduction == "mean" else x
    torch.testing.assert_close(after, weight - 0.1 * gradient)
    value = run(lambda x: poptorch.identity_loss(x, reduction), x)
    torch.testing.assert_close(value, {"sum": x.sum(), "mean": x.mean(), "none": x}[reduction])


def test_loss_when_scaled_afterwards_then_gradients_are_of_the_unscaled_and_a_warning_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    weight, x = torch.randn(4), torch.randn(4)
    with caplog.at_level(logging.WARNING, logger="poptorch::python"):
        (after,) = trained(lambda x, w: F.mse_loss(w, x) * 3, [weight], [(x,)])
    torch.testing.assert_close(after, weight - 0.1 * (weight - x) / 2)
    assert "no part in the gradients" in caplog.text and "mul" in caplog.text


def test_cross_entropy_when_scaled_afterwards_then_the_warning_names_it(
    logged: pytest.LogCaptureFixture,
) -> None:
    trained(lambda t, w: F.cross_entropy(w, t) * 3, [torch.randn(ROWS, CLASSES)], [(_labels(),)])
    assert "The loss that drives back-propagation is cross_entropy at" in logged.text
    assert "where_self" not in logged.text.partition("cross_entropy at")[0]


def test_losses_when_combined_in_identity_loss_then_all_count() -> None:
    weight, x = torch.randn(4), torch.randn(4)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return poptorch.identity_loss(F.mse_loss(w, x) + 0.5 * F.l1_loss(w, x), "mean")

    (after,) = trained(function, [weight], [(x,)])
    expected = plain_update(lambda x, w: F.mse_loss(w, x) + 0.5 * F.l1_loss(w, x), weight, x)
    torch.testing.assert_close(after, expected)


def test_nested_loss_when_it_flows_into_the_last_then_that_one_drives() -> None:
    weight, x = torch.randn(4), torch.randn(4)
    (after,) = trained(lambda x, w: F.l1_loss(F.mse_loss(w, x), x[0] - 100), [weight], [(x,)])
    expected = plain_update(lambda x, w: F.l1_loss(F.mse_loss(w, x), x[0] - 100), weight, x)
    torch.testing.assert_close(after, expected)


@pytest.mark.parametrize("detach", ["no_grad", "detach"])
def test_loss_when_detached_then_nothing_is_trained(detach: str) -> None:
    weight = torch.randn(4)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if detach == "detach":
            return F.mse_loss((w * 2).detach(), x)
        with torch.no_grad():
            return F.mse_loss(w * 2, x)

    (after,) = trained(function, [weight], [(torch.randn(4),)])
    assert torch.equal(after, weight)


@pytest.mark.parametrize("layer", [nn.CrossEntropyLoss, nn.NLLLoss])
def test_class_weights_when_a_buffer_of_the_loss_then_training_equals_the_plain_loop(layer) -> None:
    weights = torch.tensor([0.5, 1.0, 2.0, 0.0, 1.5])
    assert_same_training(
        Classifier(layer(weights)),
        lambda rows: (torch.randn(rows, 4), torch.randint(CLASSES, (rows,))),
        Setting("sharded", accumulation=2),
        rows=6,
        num_updates=4,
    )


class Classifier(nn.Module):
    """A layer and its loss."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.layer, self.loss = nn.Linear(4, CLASSES), loss

    def forward(self, x: torch.Tensor, labels: torch.Tensor):
        x = self.layer(x).log_softmax(1)
        return x, self.loss(x, labels)


@pytest.mark.parametrize("loss", [F.nll_loss, F.cross_entropy])
def test_class_weights_when_strict_then_refused(loss, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_EMU_STRICT", "error")
    weights = torch.ones(CLASSES)
    with pytest.raises(poptorch.Error, match='Parameter "weight" is unsupported for aten::nll_lo'):
        run(lambda x, t: loss(x, t, weights.to("ipu")), torch.randn(ROWS, CLASSES), _labels())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_label_smoothing_when_computed_then_value_is_pytorchs(reduction: str) -> None:
    x, labels = torch.randn(ROWS, CLASSES), _labels()

    def function(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, t, label_smoothing=0.3, reduction=reduction, ignore_index=2)

    torch.testing.assert_close(run(function, x, labels), function(x, labels))


@pytest.mark.parametrize("function", [F.nll_loss, F.cross_entropy])
def test_mean_when_every_target_is_ignored_then_is_zero(function) -> None:
    value = run(
        lambda x, t: function(x, t, ignore_index=1), torch.randn(3, 4), torch.ones(3, dtype=int)
    )
    assert value.item() == 0.0


@pytest.mark.parametrize("is_variable", [False, True], ids=["constant", "variable"])
def test_loss_scaling_when_set_then_only_the_size_of_gradients_changes(is_variable: bool) -> None:
    """A gradient of 2^-30 vanishes in float16 unless it is scaled (§5.1)."""
    weight, x = torch.ones(3).half(), torch.full((3,), 2.0**-12).half()

    def after(scaling: float) -> torch.Tensor:
        def make(parameters) -> torch.optim.Optimizer:
            optimizer = poptorch.optim.SGD(parameters, lr=2.0**20, loss_scaling=scaling)
            if not is_variable:
                optimizer.variable_attrs.markAsConstant("loss_scaling")
            return optimizer

        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss((w * x) * x * 2.0**-6, "sum")

        return trained(function, [weight], [(x,)], optimizer=make)[0]

    assert torch.equal(after(1.0), weight)
    assert torch.equal(after(2.0**14), weight - 2.0**-10)


def test_loss_when_scaled_by_the_optimiser_then_value_is_not() -> None:
    model = Function(lambda x, w: poptorch.identity_loss(w * x, "sum"), torch.ones(2))
    training = poptorch.trainingModel(
        model, options(), poptorch.optim.SGD(model.parameters(), lr=0.1, loss_scaling=64.0)
    )
    assert training(torch.tensor([1.0, 2.0])).item() == 3.0
    training.destroy()


class Transcriber(nn.Module):
    """A layer and the loss that aligns its output with a shorter text."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.layer, self.loss = nn.Linear(4, 6), nn.CTCLoss(reduction=reduction)

    def forward(self, x: torch.Tensor, targets: torch.Tensor, *lengths: torch.Tensor):
        x = self.layer(x)
        return x, self.loss(x.transpose(0, 1).log_softmax(-1), targets, *lengths)


def _texts(rows: int) -> tuple[torch.Tensor, ...]:
    lengths = torch.randint(7, 10, (rows,)), torch.randint(1, 5, (rows,))
    return torch.randn(rows, 9, 4), torch.randint(1, 6, (rows, 4)), *lengths


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ctc_loss_when_targets_are_padded_then_training_equals_the_plain_loop(reduction) -> None:
    assert_same_training(
        Transcriber(reduction), _texts, Setting("sharded", accumulation=2), rows=3, num_updates=6
    )


def test_ctc_loss_when_targets_are_concatenated_then_refused_with_the_way_out() -> None:
    model = Transcriber("mean")
    training = poptorch.trainingModel(
        model, options(), poptorch.optim.SGD(model.parameters(), lr=0.1)
    )
    x, targets, *lengths = _texts(2)
    with pytest.raises(
        poptorch.Error, match=r"targets of two dimensions.* but was given \[8\]"
    ) as e:
        training(x, targets.flatten(), *lengths)
    assert "torch.nn.utils.rnn.pad_sequence" in str(e.value)
