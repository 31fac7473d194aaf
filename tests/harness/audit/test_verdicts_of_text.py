"""Releases and shell text: what two commands mean alike is one thing, and what no text says leaves the verdict open."""

import pytest

from harness.audit.command import from_command
from harness.audit.compare import audit

VLLM = "vllm serve M"


@pytest.mark.parametrize("other", ["0.33", "v0.33.0", "v0.33", "0.33.0.0"])
def test_a_release_is_one_however_many_zeros_it_ends_in(other):
    found = audit(from_command(VLLM, "0.33.0"), from_command(VLLM, other))
    assert (found.verdict, found.differences) == ("CONTROLLED", ())


@pytest.mark.parametrize("other", ["0.33.1", "0.3.3", "0.33.0rc1", "0.33.0.post1", "0.330"])
def test_another_release_is_another(other):
    assert "engine_build" in audit(from_command(VLLM, "0.33.0"), from_command(VLLM, other)).named("confounder")


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        ("docker run vllm/vllm-openai:v0.32.0 --model M", "0.33.0", "0.32.0"),
        ("pip install vllm==0.32.0\nvllm serve M", "0.33.0", "0.32.0"),
        ("docker run lmsysorg/sglang:v0.5.9-cu130 python3 -m sglang.launch_server --model-path M", "0.5.23", "0.5.9"),
        ("/opt/llama-b10000/llama-server -m M.gguf", "b11434", "b10000"),
    ],
)
def test_a_release_that_contradicts_the_text_is_told(text, given, said):
    def told(release):
        return [note for note in from_command(text, release).notes if "one is wrong" in note]

    (note,) = told(given)
    assert said in note
    assert given in note
    assert told(said) == told(None) == told(f"v{said}") == []


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("export X=0; unset X; vllm serve M", VLLM),
        ("export X=0 Y=1\nunset X Y\nvllm serve M", VLLM),
        ("N=8; unset N; vllm serve M --max-num-seqs ${N:-64}", f"{VLLM} --max-num-seqs 64"),
        ("vllm serve M --max-num-seqs ${N:-64}", f"{VLLM} --max-num-seqs 64"),
        ('vllm serve M --max-num-seqs "${N-64}"', f"{VLLM} --max-num-seqs 64"),
        ("N=8\nvllm serve M --max-num-seqs ${N:-64}", f"{VLLM} --max-num-seqs 8"),
        ("N=\nvllm serve M --max-num-seqs ${N:-64}", f"{VLLM} --max-num-seqs 64"),
        (": ${N:=64}\nvllm serve M --max-num-seqs $N", f"{VLLM} --max-num-seqs 64"),
        ("vllm serve M ${EXTRA:-}", VLLM),
        ("vllm serve M ${EXTRA:---max-num-seqs 64}", f"{VLLM} --max-num-seqs 64"),
    ],
)
def test_what_the_shell_unsets_or_falls_back_to_is_read(text, same):
    found = audit(from_command(text, "0.33.0"), from_command(same, "0.33.0"))
    assert (found.verdict, found.differences) == ("CONTROLLED", ())


@pytest.mark.parametrize(
    ("words", "factor", "token"),
    [
        ("--max-num-seqs $N", "max_running_requests", "$N"),
        ("--max-num-seqs ${N}", "max_running_requests", "${N}"),
        ("--max-model-len $LENGTH", "context_limit", "$LENGTH"),
        ("--tensor-parallel-size $(nvidia-smi -L | wc -l)", "tensor_parallel", "$(nvidia-smi -L | wc -l)"),
        ("--revision `cat r`", "target_revision", "`cat r`"),
    ],
)
def test_a_variable_that_neither_text_sets_is_named_and_leaves_the_verdict_open(words, factor, token):
    found = audit(*[from_command(f"{VLLM} {words}", "0.33.0")] * 2)
    (told,) = found.differences
    assert (found.verdict, told.factor, told.kind) == ("UNKNOWN", factor, "unknown")
    assert token in told.why
    assert words.split()[0] in told.why
