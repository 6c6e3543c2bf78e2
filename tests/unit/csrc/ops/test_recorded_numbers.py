"""Operations recorded on `ipu` compute the numbers of eager PyTorch, also random ones."""

import pytest
import torch
from recorder import Recorder, run_recorded
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as attention

import poptorch_emu._C  # noqa: F401

FUSED = "aten._scaled_dot_product_flash_attention_for_cpu"


def with_gradients(function):
    """Returns a function that returns the result of `function` and its gradients."""

    def differentiate(*inputs):
        result = function(*inputs)
        weights = torch.arange(result.numel(), device=result.device).view(result.shape).sin()
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        return (result, *torch.autograd.grad((result * weights).sum(), wanted))

    return differentiate


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


DROPOUTS = {
    "dropout": (lambda x: functional.dropout(x, 0.3), leaf(50, 7)),
    "dropout of all": (lambda x: functional.dropout(x, 1.0), leaf(5, 7)),
    "dropout2d": (lambda x: functional.dropout2d(x, 0.3), leaf(6, 5, 4, 3)),
    "alpha_dropout": (lambda x: functional.alpha_dropout(x, 0.3, True), leaf(50, 7)),
    "feature_alpha_dropout": (
        lambda x: functional.feature_alpha_dropout(x, 0.3, True),
        leaf(6, 5, 4),
    ),
    "attention": (lambda q: attention(q, q, q, dropout_p=0.4), leaf(2, 3, 5, 4)),
}


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_recorded_on_ipu_equals_eager_for_the_same_draws(name):
    function, x = DROPOUTS[name]
    function = with_gradients(function)
    torch.manual_seed(1)
    expected = function(x)
    torch.manual_seed(1)
    torch.testing.assert_close(run_recorded(function, x), expected)


def test_dropout_with_p_outside_its_range_names_it():
    with pytest.raises(ValueError, match=r"p is 1\.5"):
        run_recorded(lambda x: torch.dropout(x, 1.5, True), leaf(3, 4))


@pytest.mark.parametrize(
    "rrelu",
    [functional.rrelu, lambda x, **options: functional.rrelu_(x * 1, **options)],
    ids=["functional", "in place"],
)
def test_rrelu_recorded_on_ipu_scales_negatives_within_its_bounds(rrelu):
    x = leaf(200)
    function = with_gradients(lambda x: rrelu(x, lower=0.2, upper=0.6, training=True))
    output, gradient = run_recorded(function, x)
    slope = output / x.detach()
    negatives = slope[x <= 0]
    assert torch.equal(slope[x > 0], torch.ones_like(slope[x > 0]))
    assert negatives.min() >= 0.2 and negatives.max() <= 0.6 and negatives.std() > 0.05
    torch.testing.assert_close(gradient, slope * torch.arange(200).sin())


def test_batch_norm_recorded_on_ipu_equals_eager_with_running_statistics():
    def function(x, weight, bias, mean, variance):
        mean, variance = mean.clone(), variance.clone()
        output = functional.batch_norm(x, mean, variance, weight, bias, training=True)
        return (mean, variance, *with_gradients(lambda *_: output)(x, weight, bias))

    inputs = [leaf(4, 5, 6, 6), leaf(5), leaf(5), torch.randn(5), torch.rand(5)]
    for ours, theirs in zip(run_recorded(function, *inputs), function(*inputs), strict=True):
        assert torch.equal(ours, theirs)


def qkv(**options):
    return [leaf(2, 4, 6, 8, **options), *(leaf(2, 4, 5, 8, **options) for _ in "kv")]


def triangle():
    return torch.ones(6, 5, dtype=torch.bool).tril()


ATTENTIONS = {
    "float32": (attention, qkv()),
    "float16": (attention, qkv(dtype=torch.float16)),
    "bool mask": (attention, [*qkv(), triangle()]),
    "bool mask of a batch": (attention, [*qkv(), triangle().expand(2, 1, 6, 5)]),
    "mask that hides a row": (attention, [*qkv(), triangle().tril(-1)]),
    "mask with gradient": (attention, [*qkv(), leaf(2, 1, 6, 5)]),
    "other value size": (attention, [*qkv()[:2], leaf(2, 4, 5, 3)]),
    "three dimensions": (attention, [leaf(4, 6, 8), leaf(4, 5, 8), leaf(4, 5, 8)]),
    "two dimensions": (attention, [leaf(6, 8), leaf(5, 8), leaf(5, 8)]),
    "grouped queries": (
        lambda q, k, v: attention(q, k, v, enable_gqa=True),
        [leaf(2, 4, 6, 8), leaf(2, 2, 5, 8), leaf(2, 2, 5, 8)],
    ),
    "transposed heads": (
        lambda q, k, v: attention(*(x.transpose(1, 2) for x in (q, k, v))),
        [leaf(2, 6, 4, 8), leaf(2, 5, 4, 8), leaf(2, 5, 4, 8)],
    ),
    "only the query learns": (attention, [leaf(2, 4, 6, 8), *(x.detach() for x in qkv()[1:])]),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_recorded_on_ipu_equals_eager_and_chooses_its_kernel(name):
    function, inputs = ATTENTIONS[name]
    with Recorder() as eager:
        function(*inputs)
    with Recorder() as recorded:
        ours = run_recorded(with_gradients(function), *inputs)
    torch.testing.assert_close(ours, with_gradients(function)(*inputs), equal_nan=True)
    assert (FUSED in eager.names) == (FUSED in recorded.names)
