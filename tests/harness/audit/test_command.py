"""What one launch command says: shell text, flags, budgets, defaults."""

import re

import pytest

from harness.audit.command import from_command
from harness.audit.shell import commands

VLLM = "vllm serve org/M"
SGLANG = "python3 -m sglang.launch_server --model-path org/M"
LLAMA = "./build/bin/llama-server -m m.gguf"


def value(text, factor, version=None):
    return from_command(text, version).value(factor)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a 'b c' \"d e\"", ("a", "b c", "d e")),
        ("a \\\n  b # said\n", ("a", "b")),
        ('a "x\\"y" \'$Z\'', ("a", 'x"y', "$Z")),
        ("M=org/x\na $M ${M}/y $UNSET", ("a", "org/x", "org/x/y", "$UNSET")),
        ("A='--x 1 --y'\na $A \"$A\"", ("a", "--x", "1", "--y", "--x 1 --y")),
        ("a b > log 2>&1 &", ("a", "b")),
        ("a $(nproc --all) `date +%s`", ("a", "$(nproc --all)", "`date +%s`")),
        ("a x#y", ("a", "x#y")),
    ],
)
def test_shell_words(text, words):
    assert commands(text)[-1].words == words


def test_only_exported_and_prefixed_variables_reach_the_server():
    text = f"LOCAL=1\nexport A=2\nB=3 {VLLM}\n"
    assert {k: f.value for k, f in from_command(text).facts.items() if k.startswith("env.")} == {"env.A": "2", "env.B": "3"}


@pytest.mark.parametrize(
    "text",
    [
        VLLM,
        "python -m vllm.entrypoints.openai.api_server --model org/M",
        "/opt/venv/bin/vllm serve --model org/M",
        "env HF_HUB_OFFLINE=1 nohup /usr/bin/vllm serve org/M &",
        "docker run --gpus all -e HF_HOME=/x vllm/vllm-openai:v0.33.0 --model org/M",
        "#!/bin/bash\nset -x\ncd /tmp && vllm serve org/M | tee log",
    ],
)
def test_one_engine_has_many_ways_to_be_launched(text):
    found = from_command(text)
    assert (found.value("engine"), found.value("target"), found.method) == ("vllm", "org/M", "plain")


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("docker run vllm/vllm-openai:v0.33.0 --model m", "0.33.0"),
        ("docker run lmsysorg/sglang:v0.5.23-cu130 python3 -m sglang.launch_server --model-path m", "0.5.23"),
        (f"pip install vllm==0.33.0\n{VLLM}", "0.33.0"),
        ("/opt/llama-b11434/llama-server -m m.gguf", "b11434"),
        (VLLM, None),
    ],
)
def test_a_release_is_read_out_of_the_text(text, release):
    assert value(text, "engine_build") == release


@pytest.mark.parametrize(
    ("flags", "factor", "wanted"),
    [
        ("--max-num-seqs 64", "max_running_requests", 64),
        ("--max_num_seqs=64", "max_running_requests", 64),
        ("--max-num-se 64", "max_running_requests", 64),
        ("--max-num-seqs 8 --max-num-seqs 64", "max_running_requests", 64),
        ("-tp 4", "tensor_parallel", 4),
        ("-tp=4", "tensor_parallel", 4),
        ("--max-model-len 8k", "context_limit", 8000),
        ("--max-model-len 8K", "context_limit", 8192),
        ("--no-enable-prefix-caching", "prefix_cache", False),
        ("--kv-cache-dtype fp8_e4m3", "kv_dtype", "fp8"),
        ("--dtype half --kv-cache-dtype auto", "kv_dtype", "float16"),
        ("--enforce-eager", "cuda_graphs", "off"),
        ('--compilation-config \'{"cudagraph_mode": "NONE"}\'', "cuda_graphs", "off"),
        ("--compilation-config.cudagraph_mode FULL", "cuda_graphs", "full"),
        ("-cc 3", "compile_mode", "3"),
        ("--cudagraph-capture-sizes 4 1 2", "graph_batch_sizes", "[1, 2, 4]"),
        ("-O2", "flag.optimization-level", "2"),
        ("--speculative-config.method mtp --speculative-config.num_speculative_tokens 3", "draft_budget", 3),
        ("--spec-method ngram --spec-tokens 4", "method", "ngram"),
        ('--speculative-config \'{"method":"qwen3_next_mtp","num_speculative_tokens":2}\'', "method", "mtp"),
        ("--block-size 16 --num-gpu-blocks-override 100", "kv_tokens", 1600),
    ],
)
def test_vllm_flags(flags, factor, wanted):
    assert value(f"{VLLM} {flags}", factor) == wanted


@pytest.mark.parametrize(
    ("flags", "factor", "wanted"),
    [
        ("--tp 2", "tensor_parallel", 2),
        ("--tensor-parallel-size 2", "tensor_parallel", 2),
        ("--disable-radix-cache", "prefix_cache", False),
        ("--disable-overlap-schedule", "async_scheduling", False),
        ("--disable-cuda-graph", "cuda_graphs", "off"),
        ("--cuda-graph-bs 8 1 4", "graph_batch_sizes", "[1, 4, 8]"),
        ("--speculative-algorithm DFLASH --speculative-num-draft-tokens 8", "draft_budget", 7),
        ("--speculative-algorithm DFLASH --speculative-dflash-block-size 8", "draft_budget", 7),
        ("--speculative-algorithm DSPARK --speculative-dspark-block-size 7", "draft_budget", 7),
        ("--speculative-algorithm DSPARK --speculative-num-draft-tokens 8", "draft_budget", 7),
        (
            "--speculative-algorithm EAGLE3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16",
            "draft_budget",
            15,
        ),
        ("--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1", "draft_budget", 3),
        ("--speculative-algorithm EAGLE3", "draft_budget", None),
        ("--speculative-algorithm NGRAM", "draft_budget", 11),
        ("--speculative-algorithm NGRAM", "draft_memory", "serving"),
        ("--speculative-algorithm EAGLE", "method", "mtp"),
        ("--speculative-algorithm EAGLE --speculative-draft-model-path d", "method", "eagle"),
        ("--speculative-algorithm nextn", "method", "mtp"),
    ],
)
def test_sglang_flags(flags, factor, wanted):
    assert value(f"{SGLANG} {flags}", factor) == wanted


@pytest.mark.parametrize(
    ("flags", "factor", "wanted"),
    [
        ("-np 4 -c 8192", "context_limit", 2048),
        ("-np 4 -c 8192 -kvu", "context_limit", 8192),
        ("--no-cache-prompt", "prefix_cache", False),
        ("-ctk q8_0", "kv_dtype", "q8_0"),
        ("-ngl -1", "gpu_layers", "what the target leaves"),
        ("-fa off", "attention_backend", "flash-attn off"),
        ("--spec-type draft-mtp", "draft_budget", 3),
        ("--spec-type draft-dflash -md d.gguf --spec-draft-n-max 4", "draft_budget", 4),
        ("--spec-type ngram-simple --spec-type ngram-mod", "method", "ngram+ngram"),
        ("--spec-type none", "method", "plain"),
        ("-md d.gguf", "method", "auto"),
        ("--spec-draft-model d.gguf --spec-type draft-eagle3 --spec-synth-len 2.5", "synthetic_acceptance", "2.5"),
    ],
)
def test_llama_flags(flags, factor, wanted):
    assert value(f"{LLAMA} {flags}", factor) == wanted


def test_llama_reads_flags_from_variables_and_the_command_line_wins():
    text = "LLAMA_ARG_N_PARALLEL=2 LLAMA_ARG_CTX_SIZE=4096 llama-server -m m.gguf -np 8"
    assert (value(text, "max_running_requests"), value(text, "kv_tokens")) == (8, 4096)


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("echo hello", "no launch found"),
        ("cd /x && trtllm-serve M --port 1", "'trtllm-serve'"),
        ("# only said", "no launch found; give"),
        (f"{VLLM}\n{SGLANG}", "2 launches"),
        (f"{VLLM} --max-num-seqs", "--max-num-seqs"),
        (f"{VLLM} --max-num-seqs many", "many"),
        (f"{VLLM} --max-num-seqs 8 stray", "stray"),
        (f"{VLLM} other", "other"),
        (f"{SGLANG} --tp 2 $EXTRA", "$EXTRA"),
        (f"{VLLM} --speculative-config {{method:mtp}}", "--speculative-config"),
        (f"{VLLM} --speculative-config '[1]'", "--speculative-config"),
        (f"{VLLM} --enforce-eager=1", "--enforce-eager"),
        (f"{VLLM} --speculative-config '{{\"method\"'", "not JSON"),
        ("vllm serve 'org/M", "is missing"),
        ('vllm serve "org/M', "never closed"),
        (f"{VLLM} --max-model-len 8q", "8q"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_token_named(text, token):
    with pytest.raises(ValueError, match=re.escape(token)):
        from_command(text)


def test_an_unknown_flag_is_kept_and_named_with_the_nearest():
    found = from_command(f"{VLLM} --max-num-sequences 8")
    assert found.unknown_tokens == ("--max-num-sequences",)
    assert any("did you mean" in note for note in found.notes)


def test_a_repeated_flag_is_told():
    assert any(
        "max-num-seqs: given more than once" in note for note in from_command(f"{VLLM} --max-num-seqs 1 --max-num-seqs 2").notes
    )


def test_defaults_are_filled_in_for_the_release_of_the_table_only():
    read, other = (from_command(VLLM, version) for version in ("0.33.0", "0.28.0"))
    assert (read.facts["memory_fraction"].value, read.facts["memory_fraction"].where) == (0.92, "default of vllm 0.33.0")
    assert "memory_fraction" not in other.facts
    assert any("no table of vllm 0.28.0" in note for note in other.notes)


def test_secrets_are_never_shown():
    found = from_command(f"HF_TOKEN=abc {VLLM} --api-key abc --hf-token abc")
    assert "abc" not in str(found.facts) + str(found.harmless) + str(found.notes)


def test_conditions_are_told():
    text = f'if [ -n "$X" ]; then\n export A=1\nfi\n{VLLM}'
    assert any("conditions" in note for note in from_command(text).notes)
