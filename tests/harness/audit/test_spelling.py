"""A name that the release does not know is told with the one that was probably meant, wherever in a command it stands."""

import pytest

from harness.audit.command import from_command
from harness.audit.flags import flag_table
from harness.engines import llama_cpp_plan, sglang_command, vllm_command

VLLM = "vllm serve org/M"
SGLANG = "python -m sglang.launch_server --model-path org/M"
LLAMA = "llama-server -m m.gguf"


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (
            f"""{VLLM} -sc '{{"method":"egale3","num_speculative_tokens":5}}'""",
            "-sc method egale3: not a method of vllm 0.33.0; did you mean 'eagle3'",
        ),
        (
            f"""{VLLM} -sc '{{"method":"eagle3","num_speculative_tokns":5}}'""",
            "-sc num_speculative_tokns: not a key of it in vllm 0.33.0; did you mean 'num_speculative_tokens'",
        ),
        (f"{VLLM} --speculative-config.metod mtp", "--speculative-config metod: not a key of it in vllm 0.33.0; did you mean"),
        (f"{VLLM} --spec-method egale", "--spec-method egale: not a method of vllm 0.33.0; did you mean 'eagle'"),
        (
            f"{SGLANG} --speculative-algorithm EAGEL3",
            "--speculative-algorithm EAGEL3: not a method of sglang 0.5.23; did you mean",
        ),
        (
            f"{SGLANG} --speculative-algorithm eagel3",
            "--speculative-algorithm eagel3: not a method of sglang 0.5.23; did you mean",
        ),
        (
            f"{LLAMA} --spec-type ngram-simple,draft-egale3",
            "--spec-type draft-egale3: not a method of llama_cpp b11434; did you",
        ),
    ],
)
def test_a_misspelt_method_or_key_is_told_with_its_near_match(text, note):
    found = from_command(text)
    assert [one for one in found.notes if one.startswith(note)]
    assert found.unknown_tokens == (note.partition(":")[0],)


@pytest.mark.parametrize(
    "text",
    [
        f"""{VLLM} -sc '{{"method":"dspark","model":"d","num_speculative_tokens":5,"draft_sample_method":"greedy"}}'""",
        f"{VLLM} --speculative-config.method ngram --speculative-config.prompt_lookup_max 3",
        f"{VLLM} --spec-method $METHOD",
        f"{SGLANG} --speculative-algorithm nextn",
        f"{LLAMA} --spec-type draft-mtp,ngram-mod",
    ],
)
def test_what_the_release_knows_is_no_unknown_name(text):
    assert from_command(text).unknown_tokens == ()


def test_every_method_and_option_that_an_adapter_sends_is_in_the_table_of_its_engine():
    methods = {vllm_command.NAMES.get(name, name) for name in vllm_command.SINCE}
    assert methods <= set(flag_table("vllm").methods)
    assert set(vllm_command.OPTIONS.values()) <= set(flag_table("vllm").speculation_keys)
    assert set(sglang_command.ALGORITHMS.values()) <= set(flag_table("sglang").methods)
    assert set(llama_cpp_plan.METHODS.values()) <= set(flag_table("llama_cpp").methods)
