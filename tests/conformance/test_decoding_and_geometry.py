"""Decoding and geometry: api.md section 12.7."""

import itertools
import math
from collections import defaultdict

import pytest
import torch
from support.flow_models import infer

import poptorch_emu as poptorch

decoder = pytest.mark.feature("ctc_beam_search_decoder", fidelity="exact")
sampling = pytest.mark.feature("fps", fidelity="exact")
nearest_feature = pytest.mark.feature("nearest", fidelity="exact")


def labelling(alignment, blank):
    return tuple(label for label, _ in itertools.groupby(alignment) if label != blank)


def all_labellings(probs, blank):
    """Sums the probabilities of all alignments; probs is (T, C)."""
    totals = defaultdict(float)
    for alignment in itertools.product(range(probs.size(1)), repeat=probs.size(0)):
        value = math.exp(sum(probs[t, c].item() for t, c in enumerate(alignment)))
        totals[labelling(alignment, blank)] += value
    return sorted(totals.items(), key=lambda item: -item[1])


@decoder
@pytest.mark.parametrize("blank", [0, 2])
def test_decoder_when_beam_is_wide_then_it_equals_brute_force(blank):
    probs = torch.randn(5, 3, 3).log_softmax(-1)
    lengths = torch.tensor([5, 3, 1])
    scores, sizes, paths = infer(
        lambda m, p, n: poptorch.ctc_beam_search_decoder(p, n, blank, 200, 4), probs, lengths
    )
    for n in range(3):
        expected = all_labellings(probs[: lengths[n], n], blank)[:4]
        for k, (labels, value) in enumerate(expected):
            assert math.isclose(scores[n, k].exp().item(), value, rel_tol=1e-4)
            assert tuple(paths[n, k, : sizes[n, k]].tolist()) == labels
            assert (paths[n, k, sizes[n, k] :] == blank).all()


@decoder
def test_decoder_when_fewer_labellings_exist_then_the_rest_is_empty():
    probs = torch.tensor([[[0.0, -math.inf]]])
    scores, sizes, paths = infer(
        lambda m, p, n: poptorch.ctc_beam_search_decoder(p, n, top_paths=2),
        probs,
        torch.tensor([1]),
    )
    assert scores.tolist() == [[0.0, -math.inf]]
    assert sizes.tolist() == [[0, 0]]
    assert paths.shape == (1, 2, 1)


@decoder
def test_decoder_when_the_beam_is_narrow_then_it_is_greedy_over_prefixes():
    probs = torch.tensor([[0.5, 0.4, 0.1], [0.5, 0.4, 0.1]]).log().reshape(2, 1, 3)
    wide, _, paths = infer(
        lambda m, p, n: poptorch.ctc_beam_search_decoder(p, n), probs, torch.tensor([2])
    )
    narrow, sizes, _ = infer(
        lambda m, p, n: poptorch.ctc_beam_search_decoder(p, n, 0, 1), probs, torch.tensor([2])
    )
    assert math.isclose(wide.exp().item(), 0.5 * 0.4 * 2 + 0.16, rel_tol=1e-5)
    assert paths[0, 0, 0] == 1
    assert math.isclose(narrow.exp().item(), 0.25, rel_tol=1e-5)
    assert sizes.item() == 0


@decoder
def test_decoder_when_called_as_custom_op_then_it_is_the_same():
    probs = torch.randn(4, 2, 3).log_softmax(-1)
    lengths = torch.tensor([4, 2])

    def forward(model, p, n):
        examples = [torch.zeros(2, 2), torch.zeros(2, 2).int(), torch.zeros(2, 2, 4).int()]
        return poptorch.custom_op(
            [p, n], "CtcBeamSearchDecoder", "ai.graphcore", 1, examples,
            {"blank": 1, "beam_width": 9, "top_paths": 2},
        )  # fmt: skip

    expected = infer(
        lambda m, p, n: poptorch.ctc_beam_search_decoder(p, n, 1, 9, 2), probs, lengths
    )
    for left, right in zip(infer(forward, probs, lengths), expected, strict=True):
        torch.testing.assert_close(left, right)


@decoder
def test_decoder_when_called_outside_a_trace_then_zeros():
    result = poptorch.ctc_beam_search_decoder(torch.randn(4, 2, 3), torch.tensor([4, 4]))
    assert [tuple(value.shape) for value in result] == [(2, 1), (2, 1), (2, 1, 4)]
    assert not any(value.any() for value in result)


@decoder
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((3, torch.ones(1)), "ctc_beam_search_decoder: probs must be a torch.tensor argument"),
        ((torch.ones(1, 1, 1), 3), "ctc_beam_search_decoder: lengths must be a torch.tensor"),
        ((torch.ones(1, 1), torch.ones(1)), "Incorrect shape for first input to CTC beam search"),
    ],
)
def test_decoder_when_arguments_are_wrong_then_error(arguments, text):
    with pytest.raises(poptorch.Error, match=text):
        poptorch.ctc_beam_search_decoder(*arguments)


def brute_force_sampling(points, begin, end, count, first):
    chosen = [first]
    while len(chosen) < count:
        distance = torch.cdist(points[begin:end].double(), points[chosen].double()).amin(1)
        chosen.append(begin + int(distance.argmax()))
    return chosen


@sampling
@pytest.mark.parametrize("ratio", [0.3, 0.5, 1.0])
def test_fps_when_run_then_it_equals_brute_force(ratio):
    points = torch.randn(17, 3)
    result = infer(lambda m, p: poptorch.fps(p, [0, 7, 17], ratio), points)
    expected = []
    for begin, end in ((0, 7), (7, 17)):
        count = math.ceil(ratio * (end - begin))
        expected += brute_force_sampling(points, begin, end, count, begin)
    assert result.tolist() == expected


@sampling
def test_fps_when_start_is_random_then_the_first_point_varies_and_the_rest_follows():
    points = torch.randn(50, 2)
    result = infer(lambda m, p: poptorch.fps(p, [0, 50], 0.1, True), points)
    assert result.tolist() == brute_force_sampling(points, 0, 50, 5, int(result[0]))
    batched = infer(
        lambda m, p: poptorch.fps(p, [0, 50], 0.02, True), points.repeat(30, 1), deviceIterations=30
    )
    assert len(batched.unique()) > 10


@sampling
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((3, [0, 1]), "`fps` must take a torch.tensor input"),
        ((torch.ones(2, 2), (0, 2)), "`ptr` must be a list of integers"),
        ((torch.ones(2, 2), [0.0, 2]), "`ptr` must be a list of integers"),
        ((torch.ones(2, 2), [0]), "`ptr` must containt at least 2 elements"),
        ((torch.ones(2, 2), [0, 2], 1), "`ratio` must be of float type"),
        ((torch.ones(2, 2), [0, 2], 0.5, 1), "`random_start` must be of bool type"),
        ((torch.ones(2, 2), [0, 3]), "for 2 points"),
        ((torch.ones(2, 2), [-1, 2]), r"`ptr` is \[-1, 2\].*positions from 0"),
        ((torch.ones(2, 2), [0, 2], 1.5), "above 0 and at most 1"),
    ],
)
def test_fps_when_arguments_are_wrong_then_error(arguments, text):
    with pytest.raises(poptorch.Error, match=text):
        poptorch.fps(*arguments)


@nearest_feature
@pytest.mark.parametrize("kinds", [(None, None), (list, list), (list, None), (torch.tensor, list)])
def test_nearest_when_run_then_it_equals_brute_force_without_a_warning(kinds, caplog):
    x, y = torch.randn(9, 2), torch.randn(6, 2)
    batch_x, batch_y = [0, 0, 0, 1, 1, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2]
    if kinds == (list, None):
        batch_x, batch_y = [0] * 9, [0] * 6
    given = [kind and kind(batch) for kind, batch in zip(kinds, (batch_x, batch_y), strict=True)]

    class Model(torch.nn.Module):
        def forward(self, x, y):
            bx = given[0].to("ipu") if isinstance(given[0], torch.Tensor) else given[0]
            return poptorch.nearest(x, y, bx, given[1])

    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    result = poptorch.inferenceModel(Model(), options)(x, y)
    distances = torch.cdist(x, y)
    if kinds != (None, None):
        other = torch.tensor(batch_x)[:, None] != torch.tensor(batch_y)[None]
        distances[other] = math.inf
    assert result.tolist() == distances.argmin(1).tolist()
    assert caplog.text == ""


@nearest_feature
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((3, torch.ones(1)), "`nearest` must take a torch.tensor `x` input"),
        ((torch.ones(1), 3), "`nearest` must take a torch.tensor `y` input"),
        ((torch.ones(1), torch.ones(1), 3, [0]), "`batch_x` and `batch_y` must be torch.Tensors"),
    ],
)
def test_nearest_when_arguments_are_wrong_then_error(arguments, text):
    with pytest.raises(poptorch.Error, match=text):
        poptorch.nearest(*arguments)
