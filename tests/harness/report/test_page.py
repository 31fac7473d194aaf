"""The page of a run is one file that says everything, needs nothing else, and is laid out right in a browser."""

import html
import re
from html.parser import HTMLParser
from urllib.parse import unquote

import chromium
import pytest
import six_arms
from synthetic import simulate, write_run

from harness import cli
from harness.report.html import render, write_html


@pytest.fixture(scope="module")
def page(six_arms_folder):
    return render(six_arms_folder)


class Tags(HTMLParser):
    """Tags with attributes, in order; text by the tag that holds it."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_the_verdict_comes_before_every_figure_and_table(page):
    assert page.index('class="verdict"') < page.index("<figure>") < page.index("<table")


def test_nothing_is_fetched_and_nothing_is_a_script(page):
    tags = Tags(page).found
    assert not {"script", "link-stylesheet", "img", "iframe", "object"} & {tag for tag, _ in tags}
    links = [attrs.get(name, "") for _, attrs in tags for name in ("href", "src", "xlink:href") if attrs.get(name)]
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "@import" not in page
    assert "url(http" not in page


def test_ids_are_unique_where_something_refers_to_them(page):
    tags = Tags(page).found
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    shapes = {found for found in ids if ids.count(found) > 1}
    assert not {i for i in shapes if i.endswith(("-t", "-d"))}
    anchors = {attrs["href"][1:] for tag, attrs in tags if tag == "a" and attrs["href"].startswith("#")}
    assert anchors <= set(ids)


def test_every_figure_carries_its_data_as_a_download(page):
    links = [attrs for tag, attrs in Tags(page).found if tag == "a" and "download" in attrs]
    assert len(links) == page.count("<figure>") == 8
    for attrs in links:
        lines = unquote(attrs["href"].partition(",")[2]).splitlines()
        assert len({line.count(",") for line in lines[:1]}) == 1
        assert len(lines) > 5


def test_control_rig_environment_and_replay_are_there(page):
    for words in ("CONTROLLED", "concurrency 2", "Test CPU", "humaneval"):
        assert words in page


def test_the_page_repeats_the_run_from_where_it_lies(tmp_path):
    folder = write_run(tmp_path / "shared results" / "run", simulate(1, ("plain", "ngram")))
    text = html.unescape(render(folder))
    assert f"samerig bench '{folder}/config.yaml'" in text
    assert f"samerig report '{folder}'" in text


def test_text_from_a_run_cannot_become_markup(tmp_path):
    rows = simulate(1, ("plain", "ngram"))
    for row in rows["servings"]:
        row["flags"] = ["<script>alert(1)</script>"]
    text = render(write_run(tmp_path / "run", rows))
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_a_run_without_rows_has_a_page_that_says_so(tmp_path):
    rows = {"servings": simulate(1)["servings"], "requests": [], "steps": [], "samples": []}
    text = render(write_run(tmp_path / "run", rows))
    assert "Nothing is measured yet." in text
    assert "<figure>" not in text


def test_the_command_line_writes_the_page_into_the_run(tmp_path, capsys):
    folder = write_run(tmp_path / "run", simulate(1, ("plain", "ngram")))
    assert cli.main(["report", str(folder), "--html"]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert (folder / "report.html").read_text("utf-8") == render(folder)
    assert write_html(folder).exists()


in_a_browser = pytest.mark.skipif(chromium.find() is None, reason="needs chromium (Debian: apt install chromium)")
# A sheet of US Letter, the lower of the usual two, within margins of a centimetre, in CSS pixels (96 an inch).
PAGE_WIDTH, PAGE_HEIGHT = 740, 980


@in_a_browser
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_figures_have_marks_whole_labels_and_room_in_a_browser(page, width, dark, tmp_path):
    found, logged = chromium.lay_out(page, width, dark, tmp_path)
    assert logged == []
    assert found["overflow"] <= 0
    assert {panel["figure"] for panel in found["panels"]} == set(
        re.findall(r'<section id="([^"]+)">\s*<h2>[^<]*</h2>\s*<figure>', page)
    )
    for panel in found["panels"]:
        assert panel["marks"] >= 1, panel
        assert panel["words"] > 20, panel
        assert (panel["cut"], panel["clash"]) == ([], []), panel
        assert panel["small"] >= 9, panel
    light = sum(map(int, re.findall(r"\d+", found["paper"])[:3])) > sum(map(int, re.findall(r"\d+", found["ink"])[:3]))
    assert light != dark


@pytest.fixture
def seven_panels(monkeypatch, tmp_path):
    """The page of a run of six content classes, so that its figures of classes have seven panels."""
    monkeypatch.setattr(six_arms, "CLASSES", {name: (name, 1.0) for name in ("code", "math", "chat", "prose", "json", "copy")})
    return render(six_arms.write(tmp_path / "run", six_arms.simulate(1, ("plain", "ngram"))))


@in_a_browser
def test_every_figure_is_on_one_printed_page_with_its_heading_and_its_caption(page, seven_panels, tmp_path):
    for most, text in ((6, page), (7, seven_panels)):
        found, logged = chromium.lay_out(chromium.as_printed(text), PAGE_WIDTH, False, tmp_path)
        panels = [panel["figure"] for panel in found["panels"]]
        assert max(map(panels.count, panels)) >= most
        assert logged == []
        assert len(found["figures"]) == text.count("<figure>")
        assert {f["figure"]: f["height"] for f in found["figures"] if f["height"] > PAGE_HEIGHT} == {}
