"""`TransformersTarget` against transformers itself, on tiny random models.

Every claim is checked against a full pass of the same model over the same text, without a cache and without this target.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertLMHeadModel,
    T5Config,
)

from drafters.hybrid import Rollback, TransformersTarget
from tests.drafters.hybrid_targets import (
    CASES,
    CONFIGS,
    RECURRENT,
    SLIDING,
    TOLERANCE,
    VOCABULARY,
    WINDOW,
    close,
    count_passes,
    full_logits,
    model,
    target,
    tokens,
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("name", "rollback"), CASES)
def test_logits_equal_a_full_pass_after_any_sequence_of_commits_on_interleaved_slots(name: str, rollback: Rollback) -> None:
    draw = torch.Generator().manual_seed(1)
    subject = target(name, rollback)
    texts: list[list[int]] = [[], [], []]
    for step in range(10):
        slots = [slot for slot in (2, 0, 1) if torch.rand(1, generator=draw) < 0.8] or [1]
        counts = [3 if step % 3 == 0 else int(torch.randint(1, 6, (1,), generator=draw)) for _ in slots]
        rows_RT = tokens(draw, len(slots), 5)
        logits_RTV = subject.forward(slots, rows_RT, counts, False, ()).logits_RTV
        assert logits_RTV.shape == (len(slots), 5, VOCABULARY)
        for r, slot in enumerate(slots):
            kept = rows_RT[r, : counts[r]].tolist()
            close(logits_RTV[r, : counts[r]], full_logits(name, texts[slot] + kept, counts[r]))
        keep = [int(torch.randint(0, count + 1, (1,), generator=draw)) for count in counts]
        subject.commit(slots, keep)
        for r, slot in enumerate(slots):
            texts[slot] += rows_RT[r, : keep[r]].tolist()
            assert subject.length(slot) == len(texts[slot])
    assert max(map(len, texts)) > WINDOW + 1


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("rollback", ["replay", "snapshot"])
@pytest.mark.parametrize("keep", [0, 1, 3, 5])
def test_a_verification_can_be_committed_at_any_row(name: str, rollback: Rollback, keep: int) -> None:
    draw = torch.Generator().manual_seed(2)
    subject = target(name, rollback)
    prompt, block, after = tokens(draw, 1, 7), tokens(draw, 1, 5), tokens(draw, 1, 4)
    subject.forward([0], prompt, [7], True, ())
    subject.commit([0], [7])
    subject.forward([0], block, [5], False, ())
    subject.commit([0], [keep])
    logits = subject.forward([0], after, [4], False, ()).logits_RTV[0]
    close(logits, full_logits(name, prompt[0].tolist() + block[0, :keep].tolist() + after[0].tolist(), 4))


@pytest.mark.parametrize("name", SLIDING)
@pytest.mark.parametrize("keep", [0, 1, 5, 12])
def test_a_sliding_window_rolls_back_beyond_its_window(name: str, keep: int) -> None:
    draw = torch.Generator().manual_seed(3)
    subject = target(name)
    text: list[int] = []
    for rows, kept in ((WINDOW * 2 + 3, WINDOW * 2 + 3), (12, keep), (6, 6)):
        rows_RT = tokens(draw, 1, rows)
        logits = subject.forward([0], rows_RT, [rows], False, ()).logits_RTV[0]
        close(logits, full_logits(name, text + rows_RT[0].tolist(), rows))
        subject.commit([0], [kept])
        text += rows_RT[0, :kept].tolist()


def test_a_sliding_window_keeps_one_row_less_than_its_window_between_passes() -> None:
    subject = target("mistral")
    for _ in range(3):
        subject.forward([0], tokens(torch.Generator().manual_seed(4), 1, 20), [20], True, ())
        # Two tensors of 2 heads and 8 numbers in float32 for each of 4 layers.
        row_bytes = 4 * 2 * 2 * 8 * 4
        held = min(subject.length(0), WINDOW - 1) + 20
        subject.commit([0], [20])
        assert subject.memory()["kv"] == held * row_bytes


def test_replay_costs_one_pass_only_where_rows_are_rejected_and_snapshot_one_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows_RT = tokens(torch.Generator().manual_seed(5), 2, 4)
    shapes: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    cases: list[tuple[str, Rollback, int]] = [
        ("qwen3_next", "replay", 4),
        ("qwen3_next", "replay", 2),
        ("qwen3_next", "snapshot", 2),
        ("llama", "replay", 2),
    ]
    for name, rollback, keep in cases:
        subject = target(name, rollback)
        seen = count_passes(subject, monkeypatch)
        subject.forward([0, 1], rows_RT, [4, 4], False, ())
        subject.commit([0, 1], [keep, keep])
        shapes[name, rollback, keep] = seen
    assert shapes["qwen3_next", "replay", 4] == [(2, 4)]
    assert shapes["qwen3_next", "replay", 2] == [(2, 4), (2, 2)]
    assert shapes["qwen3_next", "snapshot", 2] == [(2, 1)] * 4
    assert shapes["llama", "replay", 2] == [(2, 4)]


@pytest.mark.parametrize("name", ["qwen3_next", "falcon_h1"])
def test_snapshot_prefills_in_one_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = target(name, "snapshot")
    seen = count_passes(subject, monkeypatch)
    subject.forward([0], tokens(torch.Generator().manual_seed(6), 1, 6), [6], True, ())
    assert seen == [(1, 6)]


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3_next", "qwen3_5"])
def test_slots_of_unequal_length_share_one_pass_when_their_rows_are_equal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(7)
    subject = target(name)
    texts = {0: tokens(draw, 1, 13), 2: tokens(draw, 1, 4)}
    for slot, text in texts.items():
        subject.forward([slot], text, [text.shape[1]], True, ())
        subject.commit([slot], [text.shape[1]])
    seen = count_passes(subject, monkeypatch)
    rows_RT = tokens(draw, 2, 3)
    logits_RTV = subject.forward([2, 0], rows_RT, [3, 3], False, ()).logits_RTV
    assert seen == [(2, 3)]
    for r, slot in enumerate((2, 0)):
        close(logits_RTV[r], full_logits(name, texts[slot][0].tolist() + rows_RT[r].tolist(), 3))


@pytest.mark.parametrize("name", list(CONFIGS))
def test_chunked_prefill_equals_one_shot(name: str) -> None:
    prompt = tokens(torch.Generator().manual_seed(8), 1, 21)
    subject = target(name)
    for start, stop in ((0, 8), (8, 9), (9, 21)):
        logits = subject.forward([1], prompt[:, start:stop], [stop - start], True, ()).logits_RTV
        subject.commit([1], [stop - start])
    assert logits.shape == (1, 1, VOCABULARY)
    close(logits[0], full_logits(name, prompt[0].tolist(), 1))


@pytest.mark.parametrize(("name", "rollback"), CASES)
def test_taps_equal_the_hidden_states_of_transformers_in_the_order_asked_for(name: str, rollback: Rollback) -> None:
    subject = target(name, rollback)
    text = tokens(torch.Generator().manual_seed(9), 1, 9)
    last_input: list[Tensor] = []
    with torch.no_grad():
        owner = next(m for m in model(name).modules() if hasattr(m, "layers") and hasattr(m, "embed_tokens"))
        hook = owner.layers[-1].register_forward_hook(lambda module, inputs, output: last_input.append(output))
        states = model(name)(input_ids=text, use_cache=False, output_hidden_states=True).hidden_states
        hook.remove()
    hooks = [len(module._forward_hooks) for module in owner.layers]
    hidden = subject.forward([0], text, [9], False, ("final", 0, 2, 3)).hidden_RTM
    assert hidden is not None
    before_norm = last_input[0] if isinstance(last_input[0], Tensor) else last_input[0][0]
    close(hidden, torch.cat([states[4], states[1], states[3], before_norm], -1))
    assert not torch.allclose(states[4], before_norm, atol=TOLERANCE)
    assert subject.forward([0], text, [9], True, ()).hidden_RTM is None
    assert hooks == [len(module._forward_hooks) for module in owner.layers]


def test_head_and_embedding_are_the_models_own() -> None:
    subject = target("qwen3_next")
    text = tokens(torch.Generator().manual_seed(10), 1, 5)
    out = subject.forward([0], text, [5], False, ("final",))
    assert out.hidden_RTM is not None
    close(subject.head(out.hidden_RTM), out.logits_RTV)
    assert subject.embedding.shape == (VOCABULARY, 32)


def test_last_only_takes_each_requests_last_real_row_and_projects_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(11)
    subject = target("llama")
    projected = []
    hook = model("llama").lm_head.register_forward_hook(lambda module, inputs, output: projected.append(output.shape[1]))
    rows_RT = tokens(draw, 2, 6)
    logits = subject.forward([1, 0], rows_RT, [6, 2], True, ()).logits_RTV
    hook.remove()
    assert projected == [1, 1]
    assert logits.shape == (2, 1, VOCABULARY)
    for r, count in enumerate((6, 2)):
        close(logits[r], full_logits("llama", rows_RT[r, :count].tolist(), 1))


@pytest.mark.parametrize("name", list(CONFIGS))
def test_greedy_decode_equals_generate_token_for_token(name: str) -> None:
    prompt = tokens(torch.Generator().manual_seed(12), 1, 6)
    with torch.no_grad():
        expected = model(name).generate(
            prompt,
            do_sample=False,
            max_new_tokens=20,
            eos_token_id=None,
            pad_token_id=0,
            attention_mask=torch.ones_like(prompt),
        )
    subject = target(name)
    rows, produced = prompt, []
    while len(produced) < 20:
        logits = subject.forward([0], rows, [rows.shape[1]], True, ()).logits_RTV
        subject.commit([0], [rows.shape[1]])
        produced.append(int(logits[0, -1].argmax()))
        rows = torch.tensor([produced[-1:]])
    assert produced == expected[0, 6:].tolist()


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3_next", "falcon_h1"])
def test_a_released_slot_starts_clean_and_leaves_its_neighbour_alone(name: str) -> None:
    draw = torch.Generator().manual_seed(13)
    subject = target(name)
    old = tokens(draw, 2, 9)
    subject.forward([0, 1], old, [9, 9], True, ())
    subject.commit([0, 1], [9, 9])
    subject.release(0)
    assert (subject.length(0), subject.length(1)) == (0, 9)
    fresh, more = tokens(draw, 1, 4), tokens(draw, 1, 4)
    both = subject.forward([0, 1], torch.cat([fresh, more]), [4, 4], False, ()).logits_RTV
    close(both[0], full_logits(name, fresh[0].tolist(), 4))
    close(both[1], full_logits(name, old[1].tolist() + more[0].tolist(), 4))
    subject.release(0)
    subject.release(1)
    assert subject.memory()["kv"] == 0


def test_a_second_forward_replaces_an_uncommitted_one() -> None:
    draw = torch.Generator().manual_seed(14)
    subject = target("qwen3_next")
    dropped, kept, after = tokens(draw, 1, 5), tokens(draw, 1, 3), tokens(draw, 1, 2)
    subject.forward([0], dropped, [5], False, ())
    subject.forward([0], kept, [3], False, ())
    subject.commit([0], [2])
    logits = subject.forward([0], after, [2], False, ()).logits_RTV[0]
    close(logits, full_logits("qwen3_next", kept[0, :2].tolist() + after[0].tolist(), 2))


def test_memory_counts_shared_weights_once_and_the_rows_promised() -> None:
    subject = target("gemma3")
    assert subject.memory()["weights"] == 4 * sum(weight.numel() for weight in model("gemma3").parameters())
    assert subject.memory()["kv"] == 0
    subject.forward([0], tokens(torch.Generator().manual_seed(15), 1, 4), [4], True, ())
    # Two tensors of 2 heads, 4 rows and 8 numbers in float32 for each of 4 layers.
    assert subject.memory()["kv"] == 4 * 2 * 2 * 4 * 8 * 4
    assert subject.memory()["kv_tokens"] == 3 * 96


def test_sizes_of_a_multimodal_wrapper_are_its_text_models() -> None:
    subject = target("qwen3_5")
    assert (subject.hidden_size, subject.num_layers, subject.vocab_size) == (32, 4, VOCABULARY)
    assert (subject.slots, subject.max_length, subject.dtype, subject.device.type) == (3, 96, torch.float32, "cpu")


@pytest.mark.parametrize("name", ["llama", "qwen3_next", "qwen3_5"])
def test_a_saved_folder_loads_to_the_same_logits(name: str, tmp_path: Any) -> None:
    model(name).save_pretrained(tmp_path)
    subject = TransformersTarget(tmp_path, torch.float32, torch.device("cpu"), 2, 64)
    text = tokens(torch.Generator().manual_seed(16), 1, 6)
    close(subject.forward([0], text, [6], False, ()).logits_RTV[0], full_logits(name, text[0].tolist(), 6))


def test_a_missing_folder_and_a_model_that_is_not_causal_are_refused_in_one_line(tmp_path: Any) -> None:
    place = (torch.float32, torch.device("cpu"), 1, 8)
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        TransformersTarget(tmp_path / "nowhere", *place)
    T5Config().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="'t5' is not a causal language model"):
        TransformersTarget(tmp_path, *place)
    small = BertConfig(vocab_size=97, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2)
    with pytest.raises(ValueError, match="BertLMHeadModel: attends both ways"):
        TransformersTarget.from_model(BertLMHeadModel(small), 1, 8)


def test_calls_that_do_not_fit_are_refused_before_anything_runs() -> None:
    subject = TransformersTarget.from_model(model("llama"), 2, 6)
    one = torch.ones(1, 4, dtype=torch.long)
    for match, slots, rows, counts, taps in (
        ("slot 2 is not in 0..1", [2], one, [4], ()),
        ("slot -1 is not in 0..1", [-1], one, [4], ()),
        ("name one twice", [1, 1], one.repeat(2, 1), [4, 4], ()),
        ("1 slots, 2 counts", [0], one, [4, 4], ()),
        ("counts 5 real rows of 4", [0], one, [5], ()),
        ("counts 0 real rows", [0], one, [0], ()),
        ("would hold 7 rows of 6", [0], one.repeat(1, 2), [7], ()),
        ("tap 4 is no layer output", [0], one, [4], (4,)),
    ):
        with pytest.raises(ValueError, match=match):
            subject.forward(slots, rows, counts, False, taps)
    with pytest.raises(ValueError, match="no rows to commit"):
        subject.commit([0], [1])
    subject.forward([0], one, [4], False, ())
    with pytest.raises(ValueError, match="would keep 5 of 4 rows"):
        subject.commit([0], [5])
    with pytest.raises(ValueError, match="1 slots but 2 counts"):
        subject.commit([0], [4, 4])
    subject.commit([0], [4])
    with pytest.raises(ValueError, match="would hold 8 rows of 6"):
        subject.forward([0], one, [4], False, ())
    with pytest.raises(ValueError, match="at least 1"):
        TransformersTarget.from_model(model("llama"), 0, 6)
