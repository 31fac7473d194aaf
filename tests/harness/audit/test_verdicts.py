"""What two launch commands that differ in one thing are told: the verdict, and the factor that it names."""

import pytest

from harness.audit.command import from_command
from harness.audit.compare import audit

VLLM, SGLANG, LLAMA = "vllm serve M", "python -m sglang.launch_server --model-path M", "llama-server -m M.gguf"
RELEASES = {"vllm": "0.33.0", "python": "0.5.23", "llama-server": "b11434"}
EAGLE3 = "--speculative-algorithm EAGLE3 --speculative-draft-model-path D --speculative-num-steps 3 --speculative-eagle-topk 1"


def audited(a, b, release=True):
    """The audit of two commands, each of the release whose table is kept."""
    return audit(*(from_command(text, RELEASES[text.split()[0]] if release else None) for text in (a, b)))


def both_ways(a, b):
    return audited(a, b), audited(b, a)


FULL = "--compilation-config '{\"cudagraph_mode\":\"FULL\"}'"


@pytest.mark.parametrize(
    ("words", "other", "same"),
    [
        (f"--enforce-eager {FULL}", FULL, "--enforce-eager"),
        (f"{FULL} --enforce-eager", FULL, "--enforce-eager"),
        ("--enforce-eager --compilation-config.cudagraph_mode=FULL", "-cc.cudagraph_mode=FULL", "--enforce-eager"),
        (f"--no-enforce-eager {FULL}", "--enforce-eager", FULL),
    ],
)
def test_eager_wins_over_a_graph_mode_however_it_is_written(words, other, same):
    for found in both_ways(f"{VLLM} {words}", f"{VLLM} {other}"):
        assert (found.verdict, found.named("confounder")[:1]) == ("CONFOUNDED", ("cuda_graphs",))
    assert "cuda_graphs" not in audited(f"{VLLM} {words}", f"{VLLM} {same}").named("confounder")


@pytest.mark.parametrize("off", ["--disable-cuda-graph", "--disable-decode-cuda-graph"])
def test_the_order_of_sglangs_graph_flags_changes_nothing(off):
    backend = "--cuda-graph-backend-decode full"
    assert audited(f"{SGLANG} {off} {backend}", f"{SGLANG} {backend} {off}").verdict == "CONTROLLED"
    assert audited(f"{SGLANG} {off} --cuda-graph-backend-decode disabled", f"{SGLANG} {off}").verdict == "CONTROLLED"
    assert audited(f"{SGLANG} {off}", SGLANG).named("confounder")[:1] == ("cuda_graphs",)


@pytest.mark.parametrize("command", [VLLM, SGLANG])
def test_random_weights_confound_and_another_way_to_load_does_not(command):
    for found in both_ways(f"{command} --load-format dummy", command):
        assert (found.verdict, found.named("confounder")) == ("CONFOUNDED", ("flag.load-format",))
    harmless = audited(f"{command} --load-format safetensors", command)
    assert harmless.verdict == "CONTROLLED"
    assert any("load-format differs" in note for note in harmless.notes)


@pytest.mark.parametrize("other", [LLAMA, f"{LLAMA} --jinja"])
def test_how_prompts_are_rendered_confounds(other):
    for found in both_ways(f"{LLAMA} --no-jinja", other):
        assert found.named("confounder") == ("chat_template.jinja",)
    assert audited(LLAMA, f"{LLAMA} --jinja").verdict == "CONTROLLED"  # it is the default


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD", VLLM),
        ("VLLM_TOKENIZERS_POOL", VLLM),
        ("SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION", SGLANG),
        ("SGLANG_MAX_TOKENS", SGLANG),
        ("PASSWORDLESS", SGLANG),
    ],
)
def test_a_variable_that_only_sounds_like_a_secret_confounds(name, command):
    found = audit(from_command(f"{name}=1 {command}"), from_command(command))
    assert (found.verdict, found.named("confounder")) == ("CONFOUNDED", (f"env.{name}",))


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "VLLM_API_KEY", "OPENAI_APIKEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "TOKEN"]
)
def test_a_secret_is_left_out_and_noted_by_its_name_only(name):
    found = audit(from_command(f"{name}=hunter2 {VLLM}", "0.33.0"), from_command(VLLM, "0.33.0"))
    assert found.verdict == "CONTROLLED"
    assert any(name in note for note in found.notes)
    assert "hunter2" not in str(found)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (
            "-sc.method=mtp -sc.num_speculative_tokens=3",
            "--speculative-config.method mtp --speculative-config.num_speculative_tokens 3",
        ),
        ("-sc.method=mtp -sc.num_speculative_tokens=3", '-sc \'{"method":"mtp","num_speculative_tokens":3}\''),
        ("-cc.cudagraph_mode=NONE", '--compilation-config \'{"cudagraph_mode":"NONE"}\''),
        ("-cc.cudagraph_mode NONE", "--compilation-config.cudagraph_mode=NONE"),
        ("-ac.backend=FLASH_ATTN", "--attention-config.backend FLASH_ATTN"),
        ("-O=0", "-O0"),
        ("-O 0", "-O0"),
        ("--optimization-level 0", "-O0"),
        ("--optimization-level=0", "-O 0"),
    ],
)
def test_a_short_spelling_is_the_long_one(short, long):
    for found in both_ways(f"{VLLM} {short}", f"{VLLM} {long}"):
        assert (found.verdict, found.differences) == ("CONTROLLED", ())
    plain = audited(f"{VLLM} {short}", VLLM)
    assert plain.differences, "and it is not ignored"


@pytest.mark.parametrize(
    ("command", "words", "factor"),
    [
        (VLLM, "--spec-tokns 3", "flag.spec-tokns"),
        (VLLM, "--draft-modle D", "flag.draft-modle"),
        (SGLANG, "--speculative-frobnicate 3", "flag.speculative-frobnicate"),
        (LLAMA, "--spec-frobnicate 3", "flag.spec-frobnicate"),
    ],
)
@pytest.mark.parametrize("drafter", [False, True])
def test_a_flag_that_is_not_known_confounds_although_it_sounds_like_a_drafters(command, words, factor, drafter):
    method = {VLLM: "--spec-method mtp --spec-tokens 3", SGLANG: EAGLE3, LLAMA: "--spec-type draft-mtp"}[command]
    for found in both_ways(f"{command} {words} {method if drafter else ''}", command):
        assert factor in found.named("confounder")
    for found in both_ways(f"{command} {words} {method}", f"{command} {method}"):
        assert (found.verdict, found.named("confounder")) == ("CONFOUNDED", (factor,))
    assert "CONFOUNDED" == audited(f"{command} {words}", f"{command} {words}1").verdict


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (SGLANG, "--speculative-num-steps 3"),
        (SGLANG, "--speculative-draft-kv-cache-dtype fp8_e4m3"),
        (SGLANG, "--speculative-accept-threshold-single 0.5"),
        (LLAMA, "--spec-draft-n-max 5"),
        (LLAMA, "--spec-draft-type-k q8_0"),
    ],
)
def test_what_does_nothing_without_a_method_goes_and_is_told(command, words):
    for found in both_ways(f"{command} {words}", command):
        assert found.verdict == "CONTROLLED"
        assert any(f"{words.split()[0]}: does nothing" in note for note in found.notes), found.notes
    assert not any("does nothing" in note for note in audited(command, command).notes)


def test_the_default_speculation_of_llama_cpp_is_speculation():
    found = audited(f"{LLAMA} --spec-default", LLAMA)
    assert (found.a.method, found.a.value("draft_budget")) == ("ngram", 64)
    assert "method" in found.named("treatment")
    assert audited(f"{LLAMA} --spec-default", f"{LLAMA} --spec-type ngram-mod").verdict == "CONTROLLED"
    assert not any("does nothing" in note for note in audited(f"{LLAMA} --spec-type none", LLAMA).notes)


@pytest.mark.parametrize(
    ("model", "method"),
    [
        ("z-lab/Qwen3-8B-DFlash", "dflash"),
        ("yuhuili/EAGLE-LLaMA3-Instruct-8B", "eagle"),
        ("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "eagle3"),
        ("AngelSlim/Qwen3-8B_eagle3", "eagle3"),
        ("deepseek-ai/dspark_qwen3_8b_block7", "dspark"),
    ],
)
def test_vllm_tells_a_method_by_the_name_of_the_drafter(model, method):
    words = [f"{VLLM} -sc.model={model} -sc.num_speculative_tokens=7 {rest}" for rest in ("", f"-sc.method={method}")]
    fact = from_command(words[0]).facts["method"]
    assert (fact.value, fact.origin) == (method, "implied")
    assert audited(*words).verdict == "CONTROLLED"


def test_a_drafter_whose_name_says_nothing_is_a_draft_model():
    fact = from_command(f"{VLLM} -sc.model=Qwen/Qwen3-0.6B -sc.num_speculative_tokens=7").facts["method"]
    assert (fact.value, fact.origin) == ("draft_model", "stated")
