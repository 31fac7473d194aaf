"""The memory planner: bytes from real headers and configs, sizes stated in a rig, and the 24 GB question."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from harness.compose import compose_run
from harness.config import Run, Size
from harness.engines.base import Memory
from harness.estimate_memory import (
    NOTHING,
    UNKNOWN,
    Needs,
    kv_bytes_per_token,
    needs_of,
    plan_memory,
    served_bytes,
    state_bytes_per_request,
    tensor_bytes,
)
from harness.plan import plan_run, room_line
from harness.rigs import ROOT

# Geometry of Qwen3.8-27B as published: 16 full-attention layers of 64, 4 KV heads of 256; 48 value heads of 128.
HYBRID = {
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_size": 5120,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
TARGET_Q4 = Size(weights_bytes=16_500_000_000, kv_bytes_per_token=65536, state_bytes_per_request=0)
DRAFT_KV = 20480  # five layers, 8 KV heads of 128


def _run(*overrides: str) -> Run:
    machine = [
        "machine.kind=cuda",
        "machine.gpu_count=1",
        "machine.memory_bytes=25757220864",
        "machine.reserved_bytes=1500000000",
    ]
    return compose_run("cpu_smollm2", ["target.dtype=bfloat16", "engine.kv_dtype=auto", *machine, *overrides]).run


def _room(drafter_bytes: int, *overrides: str) -> int:
    drafter = Needs(drafter_bytes, DRAFT_KV, 0, "stated")
    plan = plan_memory(_run(*overrides), needs_of(None, TARGET_Q4), drafter, 0, 0)
    assert plan.kv_room_tokens is not None
    return plan.kv_room_tokens


def test_a_24_gb_card_has_room_for_a_27b_at_q4_and_either_drafter_and_the_larger_one_costs_31_thousand_tokens() -> None:
    left = 25_757_220_864 - 1_500_000_000 - 16_500_000_000
    assert _room(1_140_000_000) == (left - 1_140_000_000) // (65536 + DRAFT_KV) == 76930
    assert _room(3_850_000_000) == (left - 3_850_000_000) // (65536 + DRAFT_KV) == 45424


def test_fp8_kv_has_twice_the_room_and_float32_half() -> None:
    assert abs(_room(10**9, "engine.kv_dtype=fp8") - 2 * _room(10**9)) <= 1
    assert abs(2 * _room(10**9, "engine.kv_dtype=float32") - _room(10**9)) <= 1


def test_the_plan_says_whether_it_fits_and_what_is_left() -> None:
    assert room_line(Memory(kv_tokens=32768)) == ""
    assert room_line(Memory(kv_tokens=32768, kv_room_tokens=45424)).endswith("room for 45424, so 12656 are left")
    assert "does not fit" in room_line(Memory(kv_tokens=32768, kv_room_tokens=30000))
    assert "room for 0 KV tokens" in room_line(Memory(kv_tokens=32768, kv_room_tokens=-5))


def test_states_that_undo_rejected_drafts_count_as_the_drafters() -> None:
    target, drafter = Needs(10, 100, 7, "t"), Needs(5, 20, 0, "d")
    plain = plan_memory(_run(), target, NOTHING, 32, 0)
    arm = plan_memory(_run(), target, drafter, 32, 264)
    assert plain.recurrent_state_bytes == arm.recurrent_state_bytes == 7 * 32
    assert plain.draft_state_bytes == 0
    assert arm.draft_state_bytes == 20 * 65536 + 7 * 264
    assert (plain.kv_bytes, plain.kv_tokens, plain.drafter_weights_bytes) == (100 * 65536, 65536, 0)


def test_a_pool_in_bytes_is_all_that_kv_and_states_take_and_the_states_come_first() -> None:
    target, drafter, pool = Needs(10, 100, 7, "t"), Needs(5, 20, 0, "d"), 10_000
    plain = plan_memory(_run(), target, NOTHING, 32, 0, pool)
    arm = plan_memory(_run(), target, drafter, 32, 264, pool)
    assert (plain.kv_tokens, arm.kv_tokens) == ((pool - 7 * 32) // 100, (pool - 7 * 296) // 120)
    for told in (plain, arm):
        parts = (told.kv_bytes, told.draft_state_bytes, told.recurrent_state_bytes)
        assert pool - 120 < sum(part or 0 for part in parts) <= pool
    assert arm.kv_room_tokens - arm.kv_tokens == pytest.approx((plain.kv_room_tokens - plain.kv_tokens) * 100 / 120, rel=1e-3)
    assert plan_memory(_run(), UNKNOWN, NOTHING, 32, 0, pool).kv_tokens is None


@pytest.mark.parametrize("overrides", [["machine.memory_bytes=null"], []])
def test_without_a_size_or_the_machines_memory_room_is_unknown_not_zero(overrides: list[str]) -> None:
    target = UNKNOWN if not overrides else needs_of(None, TARGET_Q4)
    plan = plan_memory(_run(*overrides), target, NOTHING, 32, 0)
    assert plan.kv_room_tokens is None
    assert plan_memory(_run(), UNKNOWN, NOTHING, 32, 0).kv_bytes is None


def test_kv_and_state_of_a_hybrid_count_each_kind_of_layer_once() -> None:
    assert kv_bytes_per_token(HYBRID) == 2 * 2 * 16 * 4 * 256 == 65536
    matrix, window = 48 * 128 * 128 * 4, 3 * (2 * 16 * 128 + 48 * 128) * 2
    assert state_bytes_per_request(HYBRID) == 48 * (matrix + window)
    assert state_bytes_per_request({"num_hidden_layers": 2}) == 0


def test_a_checkpoint_on_disk_is_read_from_its_headers_and_wins_over_what_the_rig_states(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(3, 5, dtype=torch.bfloat16), "b": torch.zeros(7)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert sorted(tensor_bytes(tmp_path / "model.safetensors")) == [28, 30]
    assert needs_of(tmp_path, TARGET_Q4).source == "stated in the rig"  # no config yet
    (tmp_path / "config.json").write_text(json.dumps({"text_config": HYBRID}))
    found = needs_of(tmp_path, TARGET_Q4)
    assert (found.weights_bytes, found.kv_bytes_per_token) == (58, 65536)
    assert found.source.startswith("headers")


def test_served_in_another_dtype_floats_are_counted_in_it_and_packed_weights_as_stored(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(3, 5, dtype=torch.bfloat16), "b": torch.zeros(7), "q": torch.zeros(9, dtype=torch.uint8)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert served_bytes(tmp_path, 4) == 22 * 4 + 9
    assert served_bytes(tmp_path, 2) == 22 * 2 + 9
    assert served_bytes(tmp_path / "nowhere", 4) is None


def test_what_the_plan_says_of_every_arm_of_the_sample_is_what_its_servings_measured() -> None:
    sample = next((ROOT / "results" / "sample").glob("cpu_smollm2-*")) / "servings.parquet"
    rows = pq.read_table(sample, columns=["arm", "memory"]).to_pylist()
    measured = {row["arm"]: dict(row["memory"]) for row in rows}
    arms = plan_run(compose_run("cpu_smollm2"), Path("nowhere")).arms
    told = set(measured) & set(arms)
    assert told >= {"plain", "mtp", "eagle3", "dflash", "dflash2"}
    kinds = ("weights_bytes", "drafter_weights_bytes", "kv_bytes", "kv_tokens", "draft_state_bytes")
    for name in told:
        assert {kind: getattr(arms[name].memory, kind) for kind in kinds} == {kind: measured[name][kind] for kind in kinds}


def test_a_single_file_gives_its_size_and_leaves_the_rest_unknown(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"0" * 11)
    assert needs_of(file, None) == Needs(11, None, None, "size of the file; KV per token unknown: state it in the rig")
    assert needs_of(None, None) is UNKNOWN
