"""Arms can be told apart by anyone, on either paper, and an arm looks the same in every run."""

from itertools import combinations

import numpy as np
import pytest
import yaml

from harness.report.figures.style import INK, LOOKS, MUTED, PAPER, PARTS, SPARE, looks, variables
from harness.report.html.swatch import swatch
from harness.rigs import RIGS

# Machado, Oliveira and Fernandes 2009, full severity, on linear RGB.
SEEN_BY = {
    "anyone": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_LMS = np.array(
    [[0.41222147, 0.53633254, 0.05144599], [0.2119035, 0.68069955, 0.10739696], [0.08830246, 0.28171884, 0.6299787]]
)
TO_LAB = np.array(
    [[0.21045426, 0.79361779, -0.00407205], [1.9779985, -2.42859221, 0.45059371], [0.02590404, 0.78277177, -0.80867577]]
)


def linear(colour):
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def oklab(colour, seen_by):
    return TO_LAB @ np.cbrt(TO_LMS @ np.clip(np.asarray(SEEN_BY[seen_by]) @ linear(colour), 0, 1))


def contrast(one, other):
    low, high = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(c)) for c in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("seen_by", SEEN_BY)
@pytest.mark.parametrize("paper", ["light", "dark"])
def test_no_two_arms_have_colours_that_look_alike(paper, seen_by):
    colours = {name: oklab(getattr(look, paper), seen_by) for name, look in LOOKS.items()}
    distances = {pair: np.linalg.norm(colours[pair[0]] - colours[pair[1]]) for pair in combinations(colours, 2)}
    assert min(distances.values()) > 0.04, min(distances, key=distances.get)


@pytest.mark.parametrize("paper", ["light", "dark"])
def test_every_arm_and_every_word_stands_out_from_the_paper(paper):
    ground = getattr(PAPER, paper)
    assert all(contrast(getattr(look, paper), ground) >= 3 for look in LOOKS.values())
    assert all(contrast(getattr(tone, paper), ground) >= 4.5 for tone in (INK, MUTED))
    assert all(contrast(getattr(INK, paper), getattr(part, paper)) > 1.5 for part in PARTS)


def test_markers_and_hatches_tell_arms_apart_without_colour():
    assert len({look.marker for look in LOOKS.values()}) == len(LOOKS)
    assert len({look.hatch for look in LOOKS.values()}) == len(LOOKS)


def test_an_arm_looks_the_same_in_every_run():
    assert looks(["plain", "eagle3"])["eagle3"] == looks(["plain", "mtp", "mine", "eagle3"])["eagle3"]


def test_the_a_a_arm_is_no_other_drafter_and_not_plain_itself():
    assert looks(["plain", "plain2"]) == {"plain": LOOKS["plain"], "plain2": LOOKS["plain2"]}
    assert looks(["plain", "plain3"])["plain3"] == LOOKS["plain2"]
    assert "plain2" not in SPARE


def test_unknown_arms_get_looks_of_their_own():
    found = looks(["plain", "mine", "yours", "ngram"])
    assert len({look.light for look in found.values()}) == 4


def test_more_arms_than_looks_are_refused():
    with pytest.raises(ValueError, match="told apart"):
        looks([f"arm-{i}x" for i in range(len(SPARE) + 1)])


def test_every_arm_and_method_that_is_shipped_has_a_look_that_no_other_has():
    files = sorted((RIGS / "arm").glob("*.yaml"))
    shipped = {file.stem for file in files} | {str(yaml.safe_load(file.read_text("utf-8"))["method"]) for file in files}
    assert shipped > {"plain", "plain_best", "draft_model", "machinery"}
    assert shipped <= LOOKS.keys()
    found = looks([*sorted(shipped), "plain2"])
    assert {name: found[name] for name in shipped} == {name: LOOKS[name] for name in shipped}
    assert len(set(found.values())) == len(shipped) + 1


def test_plain_at_its_best_is_neither_plain_nor_the_a_a_arm_and_lends_its_look_to_nobody():
    found = looks(["plain", "plain_best", "plain2", "mine"])
    greys = [found[name] for name in ("plain", "plain_best", "plain2")]
    for paper in ("light", "dark"):
        assert min(contrast(*pair) for pair in combinations([getattr(g, paper) for g in greys], 2)) > 1.3
    assert found["mine"] not in greys
    assert "plain_best" not in SPARE


def test_every_look_has_a_small_picture_for_the_legend():
    pictures = {name: swatch(look) for name, look in LOOKS.items()}
    assert len({picture.replace(f"--arm-{name}", "") for name, picture in pictures.items()}) == len(LOOKS)
    assert all(f"--arm-{name})" in picture for name, picture in pictures.items())


def test_both_papers_define_the_same_variables():
    assert variables(dark=False).keys() == variables(dark=True).keys()
