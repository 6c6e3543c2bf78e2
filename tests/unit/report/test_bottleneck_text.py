"""What limits a step, in words."""

import pytest

from poptorch_emu.plan.time.time_plan import Bottleneck, Limit, SpreadWeight
from poptorch_emu.report.bottleneck_text import bottleneck_text

pytestmark = pytest.mark.feature("emulator.estimate", fidelity="modelled")


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Bottleneck(Limit.HOST), "the host's own work: load data faster"),
        (Bottleneck(Limit.UPDATE, 0.4), "the update (40% of the time): accumulate more"),
        (Bottleneck(Limit.RAMP, 0.5), "filling and emptying the pipeline (50%): accumulate more"),
        (Bottleneck(Limit.NO_OVERLAP), "one IPU works at a time: use a pipeline"),
        (
            Bottleneck(Limit.SLOWEST_IPU, 0.75, 2, 1.5, "link_cycles"),
            "IPU 2, which takes 1.50 times the mean: 75% of its time is copies from other IPUs",
        ),
        (
            Bottleneck(Limit.SLOWEST_IPU, 0.75, 0, None, "compute_cycles"),
            "IPU 0: 75% of its time is computing",
        ),
        (
            Bottleneck(
                Limit.SPREAD_WEIGHT, 0.5, 0, weight=SpreadWeight("words.weight", (0, 2, 3), 64, 8.0)
            ),
            "the gradient of a weight (50% of IPU 0's time): IPUs 0, 2 and 3 use the weight "
            "words.weight, which a real system refuses; put all its uses on one IPU",
        ),
    ],
    ids=lambda value: value.limit.value if isinstance(value, Bottleneck) else "",
)
def test_bottleneck_then_says_what_limits_and_what_to_do(found: Bottleneck, text: str) -> None:
    assert bottleneck_text(found).startswith(text)
