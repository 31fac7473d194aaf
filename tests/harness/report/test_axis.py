"""Ticks of a ratio scale: 1 is one of them, and no label touches its neighbour on the narrowest panel."""

from itertools import pairwise

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.report.figures.axis import ratio_axis
from harness.report.figures.chart import PANEL_INCHES
from harness.report.figures.style import styled

APART = 3  # pixels at 100 an inch


@pytest.mark.parametrize("low", [0.1, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("high", [1.1, 1.3, 1.6, 2.4, 3.5, 9])
def test_labels_of_a_ratio_scale_stand_apart_and_one_is_among_them(low, high):
    with styled():
        whole = Figure(figsize=PANEL_INCHES, layout="constrained")
        canvas, axes = FigureCanvasAgg(whole), whole.add_subplot()
        axes.set_yticks([0], ["structured"])
        ratio_axis(axes.xaxis, low, high)
        canvas.draw()
    labels = axes.get_xticklabels()
    assert "1x" in [label.get_text() for label in labels]
    assert len(labels) >= 3
    boxes = [label.get_window_extent() for label in labels]
    assert all(right.x0 - left.x1 >= APART for left, right in pairwise(boxes))
