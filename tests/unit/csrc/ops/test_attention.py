"""Attention on `ipu`: one fused node if eager PyTorch fuses it, and the same numbers."""

import pytest
import torch
from recorder import fake, record, run_recorded
from torch.nn.functional import scaled_dot_product_attention

import poptorch_emu._C  # noqa: F401

FUSED = "aten._scaled_dot_product_flash_attention_for_cpu"
BATCH, HEADS, STEPS, SIZE = 2, 4, 6, 8

BOOLEAN_MASK = torch.arange(STEPS * STEPS).view(STEPS, STEPS) % 5 != 1
FLOAT_MASK = torch.linspace(-2, 2, STEPS * STEPS).view(STEPS, STEPS)

# Heads of key and value, options and whether the mask goes in as a tensor.
FUSED_CASES = {
    "plain": (HEADS, {}, None),
    "causal": (HEADS, {"is_causal": True}, None),
    "scaled": (HEADS, {"scale": 0.3}, None),
    "boolean mask": (HEADS, {}, BOOLEAN_MASK),
    "additive mask": (HEADS, {}, FLOAT_MASK),
    "grouped queries": (2, {"enable_gqa": True}, None),
}


def attention(options):
    def attend(query, key, value, mask=None):
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, **options)

    return attend


def with_gradients(function):
    """Returns a function that returns the result of `function` and its gradients."""

    def differentiate(*inputs):
        result = function(*inputs)
        weights = torch.arange(result.numel(), device=result.device).view(result.shape).sin()
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        return (result, *torch.autograd.grad((result * weights).sum(), wanted))

    return differentiate


def operands(key_heads=HEADS, mask=None, dtype=torch.float32):
    query = torch.randn(BATCH, HEADS, STEPS, SIZE, dtype=dtype, requires_grad=True)
    key, value = (
        torch.randn(BATCH, key_heads, STEPS, SIZE, dtype=dtype, requires_grad=True) for _ in "kv"
    )
    return [query, key, value] if mask is None else [query, key, value, mask]


def recorded_nodes(options, *inputs):
    def make():
        fakes = [fake(*tensor.shape, dtype=tensor.dtype) for tensor in inputs]
        for ours, theirs in zip(fakes, inputs, strict=True):
            ours.requires_grad_(theirs.requires_grad)
        return attention(options), fakes

    return record(make)


@pytest.mark.parametrize("case", FUSED_CASES)
def test_attention_on_ipu_where_eager_fuses_records_the_fused_node(case):
    key_heads, options, mask = FUSED_CASES[case]
    forward, backward = recorded_nodes(options, *operands(key_heads, mask))
    assert FUSED in forward
    assert f"{FUSED}_backward" in backward
    # A boolean mask is first made additive: two scalars and a choice.
    assert len(forward) == (4 if mask is BOOLEAN_MASK else 1)


@pytest.mark.parametrize("case", FUSED_CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_attention_recorded_on_ipu_equals_eager(case, dtype):
    key_heads, options, mask = FUSED_CASES[case]
    if mask is FLOAT_MASK:
        mask = mask.to(dtype)
    inputs = operands(key_heads, mask, dtype)
    function = with_gradients(attention(options))
    for ours, theirs in zip(run_recorded(function, *inputs), function(*inputs), strict=True):
        assert torch.equal(ours, theirs)


def learned_mask():
    return operands(mask=FLOAT_MASK.clone().requires_grad_())


def three_dimensions():
    return [torch.randn(HEADS, STEPS, SIZE, requires_grad=True) for _ in "qkv"]


def masks_of_heads():
    return [*three_dimensions(), torch.randn(HEADS, STEPS, STEPS)]


def wide_value():
    return [*operands()[:2], torch.randn(BATCH, HEADS, STEPS, SIZE + 3, requires_grad=True)]


# Cases that some version of PyTorch composes. For example, only 2.14 and newer have a kernel for
# three dimensions.
CASES_OF_EAGER = {
    "mask with gradient": learned_mask,
    "three dimensions": three_dimensions,
    "three dimensions and a mask": masks_of_heads,
    "wider value": wide_value,
}


def is_fused_by_eager(inputs):
    """Returns whether the kernel is in autograd's graph of plain PyTorch."""
    seen, nodes = set(), [scaled_dot_product_attention(*inputs).grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [each for each, _ in node.next_functions]
    return any("FlashAttentionForCpu" in node.name() for node in seen)


@pytest.mark.parametrize("case", CASES_OF_EAGER)
def test_attention_on_ipu_is_composed_where_eager_composes_and_equals_eager(case):
    inputs = CASES_OF_EAGER[case]()
    forward, _ = recorded_nodes({}, *inputs)
    is_fused = is_fused_by_eager(inputs)
    assert (FUSED in forward, "aten._safe_softmax" in forward) == (is_fused, not is_fused)
    function = with_gradients(attention({}))
    torch.testing.assert_close(run_recorded(function, *inputs), function(*inputs))


def test_attention_with_dropout_on_ipu_drops_by_one_node():
    forward, backward = recorded_nodes({"dropout_p": 0.3}, *operands())
    assert forward.count("aten.native_dropout") == 1
    assert backward.count("aten.native_dropout_backward") == 1
    assert not any("bernoulli" in name for name in forward)
