"""Reading canonical factors out of what an engine says: paths, logs, commands, and what is left out."""

from __future__ import annotations

import pytest

from harness.control.read import read_factors

SGLANG = {
    "server_info": {
        "version": "0.5.23",
        "disable_radix_cache": False,
        "speculative_algorithm": "EAGLE3",
        "speculative_num_draft_tokens": 4,
        "speculative_use_block_verification": True,
        "min_free_slots_delay": None,
        "cuda_graph_config": {"decode": {"backend": "full", "bs": [1, 2, 4]}},
        "internal_states": [{"effective_max_running_requests_per_dp": 48}],
    }
}


def test_paths_reach_into_lists_and_translate() -> None:
    found = read_factors("sglang", SGLANG)
    assert found["max_running_requests"] == 48
    assert found["prefix_cache"] is True
    assert found["verify_rule"] == "block"
    assert found["graph_batch_sizes"] == "[1, 2, 4]"


def test_the_root_token_is_no_draft() -> None:
    """SGLang's 4 draft tokens are vLLM's 3."""
    assert read_factors("sglang", SGLANG)["draft_budget"] == 3
    assert read_factors("sglang", SGLANG)["verify_width"] == 4
    vllm = {"server_info": {"vllm_config": {"speculative_config": {"num_speculative_tokens": 3}}}}
    assert read_factors("vllm", vllm)["draft_budget"] == 3


def test_an_engines_own_null_is_none_and_what_is_not_there_is_null() -> None:
    found = read_factors("sglang", SGLANG)
    assert found["admission_delay"] == "none"
    assert found["attention_backend"] is None


def test_a_plain_serving_has_no_factor_of_a_drafter() -> None:
    found = read_factors("vllm", {"server_info": {"vllm_config": {"speculative_config": None}}})
    assert not {"method", "draft_budget", "verify_rule"} & found.keys()


def test_documents_that_are_not_there_are_not_asked() -> None:
    assert "engine_build" not in read_factors("vllm", {"log": ""})
    assert read_factors("openai", {"server_info": {}, "log": "", "command": ""}) == {}


def test_the_last_word_of_a_log_counts() -> None:
    text = "INFO Using V2 Model Runner\nWARNING Model Runner V2 requires Triton; using the V1 model runner instead.\n"
    assert read_factors("vllm", {"log": text})["runner"] == "V1"
    assert read_factors("vllm", {"log": "INFO Using V2 Model Runner"})["runner"] == "V2"
    assert read_factors("vllm", {"log": "nothing"})["runner"] is None


@pytest.mark.parametrize(
    ("command", "value"),
    [
        ("llama-server -m x --spec-type draft-dflash --port 1", "draft-dflash"),
        ("llama-server --spec-type=none", "none"),
        ("llama-server --spec-type --port 1", "true"),
        ("llama-server -m x", "not set"),
    ],
)
def test_flags_of_a_command(command: str, value: str) -> None:
    assert read_factors("llama_cpp", {"command": command})["method"] == value


def test_variables_of_an_environment() -> None:
    assert read_factors("vllm", {"env": {"VLLM_BATCH_INVARIANT": "1"}})["deterministic"] == "1"
    assert read_factors("sglang", {"env": {}})["synthetic_acceptance"] == "not set"
