"""The counter-based random operators: their numbers, and everything that may change them."""

from itertools import product

import pytest
import torch
from support.philox import UINT32, philox, words
from torch import distributions

import poptorch_emu._C  # noqa: F401

ops = torch.ops.poptorch_emu

FLOATING = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def rng(seed=0, micro_batch=0, replica=0):
    return torch.tensor([seed, micro_batch, replica, 0])


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000",
         "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
    ids=["zeros", "ones", "digits of pi"],
)  # fmt: skip
def test_reference_on_published_vectors_gives_published_answers(counter, key, answer):
    """Random123, kat_vectors; the C++ header asserts the same when it is compiled."""
    counter, key, answer = (
        [int(word, 16) for word in text.split()] for text in (counter, key, answer)
    )
    assert list(philox(counter, key)) == answer


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"seed": 0x299F31D0A4093822, "op_id": 0x85A308D3},
        {"micro_batch": 0x7344_13198A2E, "replica": 0x0370},
        {"micro_batch": 2**48 - 1, "replica": 2**16 - 1, "op_id": UINT32, "seed": 2**63 - 1},
    ],
    ids=["zeros", "seed and operation", "micro-batch and replica", "largest"],
)
def test_uniform_on_float32_holds_the_high_24_bits_of_each_word(state):
    expected = [(word >> 8) / 2**24 for word in words(43, **state)]
    op_id = state.pop("op_id", 0)
    drawn = ops.uniform(rng(**state), op_id, [43], torch.float32, 0.0, 1.0)
    assert drawn.tolist() == expected


def test_uniform_on_float64_holds_the_high_53_bits_of_two_words():
    pairs = words(10, seed=5)
    expected = [
        ((low | high << 32) >> 11) / 2**53
        for low, high in zip(pairs[::2], pairs[1::2], strict=True)
    ]
    assert ops.uniform(rng(5), 0, [5], torch.float64, 0.0, 1.0).tolist() == expected


@pytest.mark.parametrize("p", [0.0, 0.25, 0.9, 1.0])
def test_dropout_keeps_words_below_the_threshold_and_scales_them(p):
    x = torch.randn(11, 7)
    output, mask = ops.dropout(rng(3), 1, x, p)
    expected = torch.tensor([word < (1 - p) * 2**32 for word in words(77, seed=3, op_id=1)])
    assert torch.equal(mask, expected.view(11, 7))
    assert torch.equal(output, x * mask * (1 / (1 - p) if p < 1 else 0.0))


def test_dropout_on_channels_last_equals_dropout_on_contiguous():
    x = torch.randn(2, 3, 4, 5)
    expected = ops.dropout(rng(), 0, x, 0.4)
    actual = ops.dropout(rng(), 0, x.contiguous(memory_format=torch.channels_last), 0.4)
    assert torch.equal(actual[0], expected[0]) and torch.equal(actual[1], expected[1])


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_uniform_on_unit_interval_stays_below_one(dtype):
    drawn = ops.uniform(rng(), 0, [20000], dtype, 0.0, 1.0)
    assert drawn.dtype is dtype
    assert drawn.min() >= 0 and drawn.max() < 1


CONTINUOUS = {
    "uniform": ((-2.0, 3.0), distributions.Uniform),
    "normal": ((1.5, 2.0), distributions.Normal),
    "log_normal": ((0.5, 0.25), distributions.LogNormal),
    "exponential": ((3.0,), distributions.Exponential),
    "cauchy": ((-1.0, 2.0), distributions.Cauchy),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_draws_follow_their_distribution(name, dtype):
    """Kolmogorov and Smirnov's test; 1.95 is its bound at one in a thousand."""
    parameters, distribution = CONTINUOUS[name]
    count = 20000
    drawn = getattr(ops, name)(rng(2), 3, [count], dtype, *parameters).double().sort().values
    below = distribution(*(torch.tensor(x, dtype=torch.float64) for x in parameters)).cdf(drawn)
    ranks = torch.arange(count + 1, dtype=torch.float64) / count
    distance = torch.maximum(ranks[1:] - below, below - ranks[:-1]).max()
    assert distance * count**0.5 < 1.95


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_normal_on_half_is_the_float32_draw_rounded(dtype):
    full = ops.normal(rng(), 0, [100], torch.float32, 0.0, 1.0)
    assert torch.equal(ops.normal(rng(), 0, [100], dtype, 0.0, 1.0), full.to(dtype))


@pytest.mark.parametrize(
    "draw",
    [
        lambda mean, std: ops.normal.tensor(rng(), 0, mean, std),
        lambda mean, std: (
            ops.normal.tensor_float(rng(), 0, mean, 2.0) * (std / 2) + mean * (1 - std / 2)
        ),
        lambda mean, std: (ops.normal.float_tensor(rng(), 0, 1.0, std) - 1) + mean,
    ],
    ids=["tensor mean and std", "tensor mean", "tensor std"],
)
def test_normal_with_tensors_shifts_and_scales_the_standard_draw(draw):
    mean, std = torch.randn(4, 6), torch.rand(4, 6) + 0.5
    standard = ops.normal(rng(), 0, [4, 6], torch.float32, 0.0, 1.0)
    torch.testing.assert_close(draw(mean, std), mean + std * standard, rtol=1e-5, atol=1e-5)


def test_normal_with_broadcast_tensors_has_the_broadcast_shape():
    drawn = ops.normal.tensor(rng(), 0, torch.zeros(3, 1), torch.ones(4))
    assert torch.equal(drawn, ops.normal(rng(), 0, [3, 4], torch.float32, 0.0, 1.0))


def assert_frequencies(drawn, expected):
    """Checks that each count is within five standard deviations of its expectation."""
    count = drawn.numel()
    for value, p in expected.items():
        hits = (drawn == value).sum().item()
        assert abs(hits - count * p) < 5 * (count * p * (1 - p)) ** 0.5 + 1e-9, (value, hits, p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool], ids=str)
def test_bernoulli_gives_ones_at_the_rate_p(dtype):
    drawn = ops.bernoulli(rng(), 0, [10000], dtype, 0.3)
    assert drawn.dtype is dtype
    assert_frequencies(drawn, {0: 0.7, 1: 0.3})


def test_bernoulli_with_tensor_uses_each_elements_probability():
    p = torch.tensor([0.0, 0.2, 0.75, 1.0]).expand(10000, 4)
    drawn = ops.bernoulli.tensor(rng(), 0, [10000, 4], torch.float32, p)
    for column, rate in zip(drawn.T, p[0].tolist(), strict=True):
        assert_frequencies(column, {0: 1 - rate, 1: rate})


def test_geometric_counts_trials_until_the_first_success():
    drawn = ops.geometric(rng(), 0, [10000], torch.float32, 0.4)
    assert drawn.min() == 1
    assert_frequencies(drawn, {k: 0.4 * 0.6 ** (k - 1) for k in range(1, 6)})


@pytest.mark.parametrize(
    ("low", "high"), [(0, 5), (-3, 4), (7, 8)], ids=["from zero", "negative", "single"]
)
def test_randint_draws_each_integer_of_its_range_alike(low, high):
    drawn = ops.randint(rng(), 0, [10000], torch.int64, low, high)
    assert_frequencies(drawn, {k: 1 / (high - low) for k in range(low, high)})
    assert drawn.min() == low and drawn.max() == high - 1


def test_randint_on_the_widest_range_stays_inside():
    low, high = -(2**63), 2**63 - 1
    drawn = ops.randint(rng(), 0, [4], torch.int64, low, high)
    pairs = words(8)
    expected = [
        low + ((a | b << 32) * (2**64 - 1) >> 64)
        for a, b in zip(pairs[::2], pairs[1::2], strict=True)
    ]
    assert drawn.tolist() == expected


def test_randperm_is_a_permutation_and_first_place_is_fair():
    firsts = []
    for micro_batch in range(600):
        drawn = ops.randperm(rng(0, micro_batch), 0, 5, torch.int32)
        assert drawn.dtype is torch.int32
        assert drawn.sort().values.tolist() == [0, 1, 2, 3, 4]
        firsts.append(drawn[0])
    assert_frequencies(torch.stack(firsts), {k: 0.2 for k in range(5)})


@pytest.mark.parametrize(("n", "replacement"), [(1, False), (1, True), (4, True)])
def test_multinomial_draws_categories_in_proportion_to_their_weight(n, replacement):
    weights = torch.tensor([1.0, 0.0, 3.0, 4.0]).expand(5000, 4)
    drawn = ops.multinomial(rng(), 0, weights, n, replacement)
    assert drawn.shape == (5000, n)
    assert_frequencies(drawn, {0: 1 / 8, 1: 0.0, 2: 3 / 8, 3: 4 / 8})


def test_multinomial_without_replacement_draws_no_category_twice():
    drawn = ops.multinomial(rng(), 0, torch.rand(50, 6) + 0.1, 4, False)
    assert all(len(set(row)) == 4 for row in drawn.tolist())


DRAWS = {
    "uniform": lambda state, op_id: ops.uniform(state, op_id, [9001], torch.float32, 0.0, 1.0),
    "normal": lambda state, op_id: ops.normal(state, op_id, [9001], torch.float64, 0.0, 1.0),
    "randint": lambda state, op_id: ops.randint(state, op_id, [9001], torch.int64, 0, 1000),
    "dropout": lambda state, op_id: ops.dropout(state, op_id, torch.ones(30011), 0.5)[0],
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_with_one_or_two_threads_are_the_same_bits(name):
    before = torch.get_num_threads()
    try:
        drawn = []
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            drawn.append(DRAWS[name](rng(4), 2))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*drawn)


@pytest.mark.parametrize("name", DRAWS)
def test_draws_that_differ_in_one_part_of_the_state_are_unrelated(name):
    states = [(rng(*state), op_id) for *state, op_id in product((0, 1), repeat=4)]
    drawn = torch.stack([DRAWS[name](*state) for state in states]).double()
    correlation = torch.corrcoef(drawn) - torch.eye(len(states))
    assert correlation.abs().max() < 5 / 9001**0.5


def test_longer_draw_starts_with_the_shorter_one():
    short, long = (ops.normal(rng(), 0, [n], torch.float32, 0.0, 1.0) for n in (7, 5000))
    assert torch.equal(short, long[:7])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.uniform(torch.zeros(3, dtype=torch.int64), 0, [2], torch.float32, 0.0, 1.0),
         r"rng is Long\[3\]; expected int64\[4\]"),
        (lambda: ops.uniform(rng(replica=2**16), 0, [2], torch.float32, 0.0, 1.0),
         "replica 65536 .* do not fit"),
        (lambda: ops.uniform(rng(), 2**32, [2], torch.float32, 0.0, 1.0), "op_id 4294967296"),
        (lambda: ops.bernoulli(rng(), 0, [2], torch.float32, 1.5), "p is 1.5"),
        (lambda: ops.normal(rng(), 0, [2], torch.float32, 0.0, -1.0), "std is -1"),
        (lambda: ops.randint(rng(), 0, [2], torch.int64, 3, 3), r"\[3, 3\)"),
        (lambda: ops.multinomial(rng(), 0, torch.ones(3), 4, False), "4 of 3 categories"),
    ],
    ids=["rng shape", "replica", "op_id", "probability", "deviation", "empty range", "too many"],
)  # fmt: skip
def test_draw_with_a_bad_argument_names_it(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", DRAWS)
def test_draws_on_meta_infer_shape_and_type(name):
    real = DRAWS[name](rng(), 0)
    with torch.device("meta"):
        fake = DRAWS[name](torch.empty(4, dtype=torch.int64), 0)
    assert fake.is_meta and fake.shape == real.shape and fake.dtype is real.dtype
