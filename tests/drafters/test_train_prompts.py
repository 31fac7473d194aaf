"""Training prompts: none resembles a workload, the held-out ones stand apart, and building them again gives the same."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from drafters.train import prompts as prompts_module
from drafters.train.disjoint import Index, workload_texts
from drafters.train.grammar import fill as fill_template
from drafters.train.prompts import COUNTS, HELD_OUT, SOURCES, WORKLOADS, Prompt, problems, read_prompts


@pytest.fixture(scope="module")
def shipped() -> list[Prompt]:
    return read_prompts()


def test_no_shipped_training_prompt_resembles_a_workload_and_no_held_out_group_is_trained_on(shipped: list[Prompt]) -> None:
    assert problems(shipped) == []


def test_a_planted_workload_prompt_a_repeated_one_and_a_shared_group_are_found(shipped: list[Prompt]) -> None:
    few = shipped[:20]
    text = next(text for text in workload_texts(WORKLOADS) if len(text) > 200)
    held = next(p for p in shipped if p.split == "held_out")
    planted = [
        replace(few[0], text="Please help me with this. " + text[20:180]),
        replace(few[0], prompt_id="x/1", text="one"),
        replace(few[0], prompt_id="x/2", text="one"),
        held,
        replace(held, split="train", text="twin"),
    ]
    found = problems([*few[1:], *planted])
    assert len(found) == 3
    assert "shares the words" in found[0]
    assert "occurs 2 times" in found[1]
    assert "is trained on" in found[2]


@pytest.mark.parametrize(
    ("text", "clashes"),
    [
        ("Tell me: how DO noise-cancelling headphones work?", True),  # a short prompt as a part
        ("How would you explain the work of noise cancelling headphones?", True),  # other words around the same content
        ("Please answer: one two three four five six seven eight, quickly.", True),  # a run of eight words
        ("Seven words, one two three four five six seven, then barn sofa rain hill moss fern lake pond", False),
        ("How do electric bicycles work?", False),
    ],
)
def test_likeness_is_a_run_of_eight_words_a_whole_short_text_or_the_same_content(text: str, clashes: bool) -> None:
    index = Index(["How do noise-cancelling headphones work?", "zero one two three four five six seven eight nine ten"])
    assert (index.clash(text) is not None) == clashes


def test_every_text_of_the_workloads_is_compared() -> None:
    texts = list(workload_texts(WORKLOADS))
    assert len(texts) > sum(1 for file in WORKLOADS.glob("*.jsonl") for _ in file.open(encoding="utf-8"))
    index = Index(texts)
    assert all(index.clash(text) for text in random.Random(1).sample(texts, 40))


def test_every_class_has_its_share_of_prompts_and_its_held_out_ones(shipped: list[Prompt]) -> None:
    found = Counter((p.content_class, p.split) for p in shipped)
    assert 6000 <= len(shipped) <= sum(COUNTS.values())
    for name, wanted in COUNTS.items():
        assert 0.8 * wanted <= found[name, "train"] <= wanted
        assert found[name, "held_out"] == HELD_OUT
    assert len({p.prompt_id for p in shipped}) == len(shipped)


def test_any_beginning_of_the_prompts_is_a_balanced_sample(shipped: list[Prompt]) -> None:
    start = Counter(p.content_class for p in shipped[:1000])
    assert all(abs(start[name] - 1000 * n / sum(COUNTS.values())) < 60 for name, n in COUNTS.items())


def test_building_twice_gives_the_same_prompts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "Explain volcanoes in simple terms."}\n')
    library = prompts_module.stdlib.functions
    monkeypatch.setattr(prompts_module.stdlib, "functions", lambda: (f for f, _ in zip(library(), range(60), strict=False)))
    counts = dict.fromkeys(COUNTS, 30)
    first = prompts_module.build(tmp_path, counts, 4)
    assert first == prompts_module.build(tmp_path, counts, 4)
    assert {p.content_class for p in first if p.split == "held_out"} == set(counts)
    assert "Explain volcanoes in simple terms." not in {p.text for p in first}


def test_a_template_repeats_equal_slots_and_never_draws_the_same_entry_twice() -> None:
    lists = {"who": ["A", "B"]}
    for seed in range(20):
        text, values = fill_template("{who} {who2} {n=2..6/2} {who} {n} {x: 1}", lists, random.Random(seed))
        assert {values["who"], values["who2"]} == {"A", "B"}
        assert text == f"{values['who']} {values['who2']} {values['n']} {values['who']} {values['n']} {{x: 1}}"
    with pytest.raises(ValueError, match=r"slot 'whom' of .* add it to words\.yaml"):
        fill_template("{whom}", lists, random.Random(0))


def test_every_source_file_is_read_by_a_class() -> None:
    assert {path.stem for path in SOURCES.glob("*.yaml")} - {"words"} <= set(COUNTS)
