"""What two launch commands that differ in one thing are told: the verdict, and the factor that it names."""

import re

import pytest

from harness.audit.command import from_command
from harness.audit.compare import audit
from harness.audit.render import sentence
from harness.audit.rig import from_run
from harness.compose import compose_run
from harness.published import published_of

VLLM, SGLANG, LLAMA = "vllm serve M", "python -m sglang.launch_server --model-path M", "llama-server -m M.gguf"
RELEASES = {"vllm": "0.33.0", "python": "0.5.23", "llama-server": "b11434"}
EAGLE3 = "--speculative-algorithm EAGLE3 --speculative-draft-model-path D --speculative-num-steps 3 --speculative-eagle-topk 1"


def audited(a, b, release=True):
    """The audit of two commands, each of the release whose table is kept."""
    return audit(*(from_command(text, RELEASES[text.split()[0]] if release else None) for text in (a, b)))


def both_ways(a, b):
    return audited(a, b), audited(b, a)


FULL = '--compilation-config \'{"cudagraph_mode":"FULL"}\''


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
    "name",
    ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "VLLM_API_KEY", "OPENAI_APIKEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "TOKEN"],
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
    assert audited(f"{command} {words}", f"{command} {words}1").verdict == "CONFOUNDED"


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


SERIAL_ARMS = {
    "EAGLE3": EAGLE3,
    "EAGLE": EAGLE3.replace("EAGLE3", "EAGLE"),
    "MTP": "--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1",
    "STANDALONE": EAGLE3.replace("EAGLE3", "STANDALONE"),
}


@pytest.mark.parametrize("arm", SERIAL_ARMS.values(), ids=SERIAL_ARMS)
@pytest.mark.parametrize("flag", ["--speculative-use-rejection-sampling", "--speculative-use-block-verification"])
def test_a_verify_rule_that_is_set_by_hand_on_one_drafter_confounds(arm, flag):
    for found in both_ways(f"{SGLANG} {arm} {flag}", f"{SGLANG} {arm}"):
        assert (found.verdict, found.named("confounder"), found.named("treatment")) == ("CONFOUNDED", ("verify_rule",), ())
        assert sentence(found) == "the drafter did not move, but verify_rule"


def test_a_verify_rule_that_the_engine_moves_with_the_drafter_is_implied():
    dflash = "--speculative-algorithm DFLASH --speculative-draft-model-path F --speculative-num-draft-tokens 4"
    for found in both_ways(f"{SGLANG} {EAGLE3}", f"{SGLANG} {dflash}"):
        assert "verify_rule" in found.named("implied")


@pytest.mark.parametrize(
    "lossy",
    [
        "--speculative-accept-threshold-single 0.5",
        "--speculative-accept-threshold-acc 0.5",
        "--speculative-accept-threshold-acc 0.5 --speculative-accept-threshold-single 1.0",
        "--speculative-accept-threshold-acc 1.0 --speculative-accept-threshold-single 0.5",
    ],
)
@pytest.mark.parametrize("other", ["", "--speculative-accept-threshold-acc 1.0", "--speculative-accept-threshold-single 0.5"])
def test_lossy_acceptance_confounds_by_either_threshold(lossy, other):
    for found in both_ways(f"{SGLANG} {EAGLE3} {lossy}", f"{SGLANG} {EAGLE3} {other}"):
        assert (found.verdict, found.named("confounder")) == ("CONFOUNDED", ("accept_threshold",))


@pytest.mark.parametrize("threshold", ["single", "acc"])
def test_a_threshold_of_one_is_the_default(threshold):
    words = f"--speculative-accept-threshold-{threshold} 1.0"
    assert audited(f"{SGLANG} {EAGLE3} {words}", f"{SGLANG} {EAGLE3}").verdict == "CONTROLLED"


@pytest.mark.parametrize("none", ["NONE", "none"])
def test_no_algorithm_by_name_is_plain(none):
    found = audited(f"{SGLANG} --speculative-algorithm {none}", SGLANG)
    assert (found.a.method, found.verdict, found.differences) == ("plain", "CONTROLLED", ())


def test_nextn_is_another_name_of_eagle_without_weights_of_its_own():
    one, two = (f"{SGLANG} --speculative-algorithm {name} --speculative-num-steps 3" for name in ("NEXTN", "EAGLE"))
    assert audited(one, two).verdict == "CONTROLLED"


def test_a_publication_beside_its_own_command_is_not_confounded():
    name, arm = "published/h200_qwen27b_card", "dflash2"
    run = compose_run(name).run
    (text,) = published_of(run).as_published[arm]
    rig, command = from_run(run, arm, name), from_command(text)
    for found in (audit(rig, command), audit(command, rig)):
        assert (found.verdict, found.named("confounder")) == ("UNKNOWN", ())
        (rule,) = [d for d in found.differences if d.factor == "verify_rule"]
        assert (rule.kind, rule.why) == ("unknown", "the published rig does not state it")


@pytest.mark.parametrize(("algorithm", "word"), [("EAGLE3", "serial"), ("DFLASH", "DFLASH"), ("NGRAM", "NGRAM")])
def test_the_reason_for_a_verify_rule_fits_the_method(algorithm, word):
    assert word in from_command(f"{SGLANG} --speculative-algorithm {algorithm}").facts["verify_rule"].where


@pytest.mark.parametrize("value", ["1", "true", "0", ""])
@pytest.mark.parametrize("name", ["CACHE_PROMPT", "KV_OFFLOAD", "CONT_BATCHING", "JINJA", "REPACK", "CONTEXT_SHIFT"])
def test_a_negated_variable_of_llama_cpp_is_the_negated_flag(name, value):
    variable, flag = f"LLAMA_ARG_NO_{name}={value} {LLAMA}", f"{LLAMA} --no-{name.lower().replace('_', '-')}"
    found = audit(from_command(variable, "b11434"), from_command(flag, "b11434"))
    assert (found.verdict, found.differences) == ("CONTROLLED", ())
    assert audit(from_command(variable, "b11434"), from_command(LLAMA, "b11434")).verdict == "CONFOUNDED"


def test_the_command_line_wins_over_a_negated_variable_too():
    assert from_command(f"LLAMA_ARG_NO_CACHE_PROMPT=1 {LLAMA} --cache-prompt").value("prefix_cache") is True
    assert from_command(f"LLAMA_ARG_NO_CACHE_PROMPT=1 LLAMA_ARG_CACHE_PROMPT=1 {LLAMA}").value("prefix_cache") is False
    assert from_command(f"LLAMA_ARG_NO_HOST=1 {LLAMA}").value("flag.no-host") is True


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("--spec-type draft-mtp,ngram-mod", "--spec-type ngram-mod,draft-mtp"),
        ("--spec-type draft-mtp,ngram-mod", "--spec-type ngram-mod --spec-type draft-mtp"),
        ("--spec-type ngram-simple,ngram-mod", "--spec-type ngram-mod,ngram-simple"),
        ("--spec-type ngram-mod,ngram-mod", "--spec-type ngram-mod"),
    ],
)
def test_several_types_of_llama_cpp_are_one_set(one, two):
    found = audited(f"{LLAMA} {one} --spec-draft-n-max 5", f"{LLAMA} {two} --spec-draft-n-max 5")
    assert (found.verdict, found.differences) == ("CONTROLLED", ())


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("--spec-type draft-mtp,ngram-mod", "--spec-type draft-mtp,ngram-simple"),
        ("--spec-type draft-mtp,ngram-mod", "--spec-type draft-mtp,ngram-mod --spec-ngram-mod-n-max 16"),
    ],
)
def test_what_the_second_type_is_told_is_seen(one, two):
    for found in both_ways(f"{LLAMA} {one}", f"{LLAMA} {two}"):
        assert found.differences


@pytest.mark.parametrize("count", ["8.5", "0", "-1", "some"])
@pytest.mark.parametrize(
    "words",
    [
        f"{SGLANG} --speculative-algorithm DFLASH --speculative-num-draft-tokens=",
        f"{SGLANG} --speculative-algorithm DSPARK --speculative-dspark-block-size=",
        f"{SGLANG} --speculative-algorithm EAGLE3 --speculative-num-steps=",
        f"{SGLANG} --speculative-algorithm EAGLE3 --speculative-eagle-topk=",
        f"{VLLM} --spec-method mtp --spec-tokens=",
        f"{VLLM} -sc.method=mtp -sc.num_speculative_tokens=",
    ],
)
def test_a_budget_that_is_no_count_is_refused(words, count):
    with pytest.raises(ValueError, match=re.escape(count)):
        from_command(f"{words}{count}")


def test_half_a_draft_is_refused_by_llama_cpp_too():
    with pytest.raises(ValueError, match=r"8\.5"):
        from_command(f"{LLAMA} --spec-type draft-mtp --spec-draft-n-max 8.5")


@pytest.mark.parametrize("command", [VLLM, SGLANG])
def test_a_precision_that_is_left_to_the_checkpoint_is_not_told_from_a_stated_one(command):
    for found in both_ways(f"{command} --dtype bfloat16", command):
        assert (found.verdict, found.named("unknown")) == ("UNKNOWN", ("dtype", "kv_dtype"))
    assert audited(f"{command} --dtype auto", command).verdict == "CONTROLLED"
    assert audited(f"{command} --dtype bfloat16", f"{command} --dtype float16").named("confounder")[:1] == ("dtype",)
