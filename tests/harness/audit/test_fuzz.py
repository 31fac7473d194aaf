"""The parsers under random text: nothing but a ValueError of one line, and what was rendered comes back."""

import shlex

from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.audit.command import from_command
from harness.audit.compare import audit
from harness.audit.difference import UNSET
from harness.audit.flags import STYLES, flag_table
from harness.audit.shell import commands

PROGRAMS = {"vllm": "vllm serve M", "sglang": "python -m sglang.launch_server", "llama_cpp": "llama-server"}
FLAGS = sorted({f"--{name}" for engine in STYLES for name in flag_table(engine).kinds()})
SHORT = sorted({alias for engine in STYLES for alias in flag_table(engine).aliases})
ODD = [
    "",
    "-",
    "--",
    "=",
    "--=",
    "--x=",
    "$A",
    "${A[@]}",
    "{",
    "[1",
    '{"a":',
    "-1",
    "1e999",
    "nan",
    "8K",
    "'",
    '"',
    "\\",
    "`",
    "$(",
    "\n",
]
WORDS = st.one_of(
    st.sampled_from(FLAGS), st.sampled_from(SHORT), st.sampled_from(ODD), st.text(max_size=8), st.integers().map(str)
)


def read(text):
    """The account of a text, or null where it was refused; any other exception fails the test."""
    try:
        return from_command(text)
    except ValueError:
        return None


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
@example("vllm serve '")
@example("a\\")
@example("llama-server --\x00")
def test_any_text_is_read_or_refused(text):
    read(text)
    read(f"vllm serve {text}")


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(PROGRAMS)), st.lists(WORDS, max_size=8), st.booleans())
def test_any_words_after_a_program_are_read_or_refused(engine, words, quoted):
    read(f"{PROGRAMS[engine]} {shlex.join(words) if quoted else ' '.join(words)}")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)), min_size=1), min_size=1, max_size=6)
)
def test_words_that_the_shell_quotes_come_back(words):
    text = shlex.join(["run", *words])
    assert commands(text)[0].words == ("run", *(word.replace("\r\n", "\n") for word in words))


VALUES = {
    "--max-num-seqs": (st.integers(1, 4096), "max_running_requests"),
    "--tensor-parallel-size": (st.integers(1, 16), "tensor_parallel"),
    "--gpu-memory-utilization": (st.floats(0.1, 0.99).map(lambda x: round(x, 3)), "memory_fraction"),
    "--max-num-batched-tokens": (st.integers(1, 65536), "max_batched_tokens"),
    "--kv-cache-dtype": (st.sampled_from(["fp8", "bfloat16"]), "kv_dtype"),
    "--seed": (st.integers(0, 99), "engine_seed"),
}


@settings(max_examples=60, deadline=None)
@given(st.fixed_dictionaries({}, optional={flag: values for flag, (values, _) in VALUES.items()}), st.booleans(), st.randoms())
def test_rendered_flags_come_back_in_any_order_and_spelling(chosen, equals, random):
    words = [[f"{flag}={value}"] if equals else [flag, str(value)] for flag, value in chosen.items()]
    random.shuffle(words)
    found = from_command(" ".join(["vllm serve M", *(word for pair in words for word in pair)]))
    assert {flag: found.value(VALUES[flag][1]) for flag in chosen} == chosen


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(PROGRAMS)), st.lists(WORDS, max_size=6))
def test_whatever_is_read_can_be_audited_against_plain(engine, words):
    account = read(f"{PROGRAMS[engine]} {shlex.join(words)}")
    if account is not None:
        assert audit(from_command(PROGRAMS[engine]), account).verdict
        left_open = {"unknown"} if any(UNSET.search(word) for word in words) else set()
        assert {d.kind for d in audit(account, account).differences} <= {"confounder"} | left_open
