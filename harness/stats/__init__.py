"""How sure a number is, and what may be said of it: intervals, resampling as a check, claims."""

from harness.stats.bootstrap import crossed_bootstrap, ratio_of_medians
from harness.stats.claim import SMALLEST_EFFECT, Finding, equivalence, holm, judge, minimum_detectable, noise_floor
from harness.stats.interval import (
    CLAIM_BLOCKS,
    CONFIDENCE,
    Array,
    Interval,
    Speedup,
    block_speedup,
    paired_speedup,
    ratio_interval,
    standard_errors,
    t_interval,
    variance_components,
)

__all__ = [
    "CLAIM_BLOCKS",
    "CONFIDENCE",
    "SMALLEST_EFFECT",
    "Array",
    "Finding",
    "Interval",
    "Speedup",
    "block_speedup",
    "crossed_bootstrap",
    "equivalence",
    "holm",
    "judge",
    "minimum_detectable",
    "noise_floor",
    "paired_speedup",
    "ratio_interval",
    "ratio_of_medians",
    "standard_errors",
    "t_interval",
    "variance_components",
]
