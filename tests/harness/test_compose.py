"""Composition: what a rig and its overrides become, and every mistake told in one line that names the key."""

from pathlib import Path

import pytest

from harness.compose import ConfigError, compose_run, expand_sweep, load_dotted, missing_parts
from harness.rigs import RIGS, find_rig, list_rigs
from tests.harness.rigs_cases import TWO_ARMS

RIG = "cpu_smollm2"

# (overrides, what the line must name: the key, and the fix)
MISTAKES = [
    (["draft_budgt=1"], "draft_budgt", "'draft_budget'"),
    (["sampler.temprature=1"], "sampler.temprature", "'sampler.temperature'"),
    (["protcol=smoke"], "protcol", "'protocol'"),
    (["protocol=smok"], "protocol", "claim, screen, smoke"),
    (["sampler=hot"], "sampler", "greedy, qwen_card"),
    (["+arm@arms.other=ngrm"], "arm", "'ngram'"),
    (["arm@arms.ngrm=plain"], "arm@arms.ngrm", "'arm@arms.ngram'"),
    (["arm@arms.mine=ngram"], "arm@arms.mine", "no such arm; to add one: +arm@arms.mine=OPTION"),
    (["arms.dspark=dspark"], "arms.dspark", "to add one: +arm@arms.dspark=OPTION"),
    (["arm=ngram"], "arm", "+arm@arms.NAME=OPTION"),
    (["+arm=ngram"], "arm", "+arm@arms.NAME=OPTION"),
    (["+arms.x=ngram"], "arms.x", "+arm@arms.x=ngram"),
    (["+arm@arms.ngram=ngram"], "arm@arms.ngram", "remove the +"),
    (["concurrency=a"], "concurrency", "should be a list, such as [1,8], got 'a'"),
    (["concurrency=[8,1,8]"], "concurrency", "twice"),
    (["workload.sets=[code]"], "workload.sets, item 1", "should be a mapping of keys, got 'code'"),
    (["engine=3"], "engine", "name of an option"),
    (["engine.foo.bar=1"], "engine.foo", "did you mean"),
    (["engine.flags.page-size=1"], "engine.flags.page-size", "+engine.flags.page-size"),
    (["arms.ngram.engine_flags.x=1"], "arms.ngram.engine_flags", "not stated in this rig; add it with +arms.ngram"),
    (["+foo=1"], "foo", "known: arms"),
    (["+engine.grpahs=off"], "engine.grpahs", "'graphs'"),
    (["+arms.ngram.chekpoint=x"], "arms.ngram.chekpoint", "'checkpoint'"),
    (["+draft_budget=3"], "draft_budget", "remove the +"),
    (["~sampler.foo"], "sampler.foo", "not there"),
    (["~sampler", *TWO_ARMS], "sampler", "missing"),
    (["~sampler"], "arms.dflash2.options.temperature", "'sampler.temperature' not found"),
    (["draft_budget=-1"], "draft_budget", "greater than or equal to 1, got -1"),
    (["draft_budget=0"], "draft_budget", "got 0"),
    (["draft_budget=many"], "draft_budget", "integer"),
    (["draft_budget=1,3"], "draft_budget", "add -m"),
    (["sampler.seed=${nope}"], "sampler.seed", "nope"),
    (["target.context=???"], "target.context", "missing"),
    (["arms.plain.draft_budget=3"], "arms.plain.draft_budget", "remove draft_budget"),
    (["arms.ngram.draft_budget=null"], "arms.ngram.draft_budget", "at least 1"),
    (["arms.ngram.needs_checkpoint=true"], "arms.ngram.checkpoint", "checkpoint.location"),
    (["~arm@arms.plain"], "arms", "plain arm"),
    (["concurrency=64"], "concurrency", "engine.max_running_requests 32"),
    (["concurrency=1,64"], "concurrency", "raise the cap"),
    (["concurrency=[]"], "concurrency", "at least 1"),
    (["concurrency=0"], "concurrency", "got 0"),
    (["engine.adapter=os.system"], "engine.adapter", "inside harness. or drafters."),
    (["arms.ngram.drafter=subprocess.run"], "arms.ngram.drafter", "inside harness. or drafters."),
    (["target.sha256=null"], "target", "sha256"),
    (["engine.graphs=false"], "engine.graphs", "quote it"),
    (["protocol.load=open"], "protocol.rate_rps", "load=open"),
    (["workload.sets.0.max_tokens=-3"], "workload.sets.0.max_tokens", "got -3"),
    (["hydra/launcher=nowhere"], "hydra/launcher", "plugin"),
    (["foo bar"], "foo bar", "key=value"),
    (["a=[1"], "a=[1", "key=value"),
]


def _mistake(rig: str, overrides: list[str]) -> str:
    with pytest.raises(ConfigError) as caught:
        compose_run(rig, overrides)
    return str(caught.value)


@pytest.mark.parametrize(("overrides", "key", "fix"), MISTAKES, ids=[" ".join(overrides) for overrides, _, _ in MISTAKES])
def test_a_mistake_on_the_command_line_is_one_line_with_key_and_fix(overrides: list[str], key: str, fix: str) -> None:
    line = _mistake(RIG, overrides)
    assert line.startswith((key, f"'{key}"))
    assert fix in line
    assert "\n" not in line
    assert len(line) < 400


@pytest.mark.parametrize(
    ("text", "start", "fix"),
    [
        ("defaults: [cpu_smollm2, _self_]\ndraft_budgt: 3\n", "draft_budgt", "'draft_budget'"),
        (
            "defaults: [cpu_smollm2, _self_]\nengine: {max_runing_requests: 3}\n",
            "engine.max_runing_requests",
            "'max_running_requests'",
        ),
        ("defaults: [cpu_smollm2, _self_]\nconcurrency: [1\nname: x\n", "rig.yaml:3", "not valid YAML"),
        ("defaults: [cpu_smolm2, _self_]\n", "defaults of rig: there is no 'cpu_smolm2'", "'cpu_smollm2'"),
        ("defaults: [cpu_smollm2, {override protocl: smoke}, _self_]\n", "protocl: unknown key in the defaults", "'protocol'"),
        ("defaults: [cpu_smollm2, _self_]\narms: [ngram]\n", "rig rig", "another shape"),
        ("defaults: [cpu_smollm2, _self_]\nengine: reference\n", "engine", "should be a mapping of keys"),
        ("defaults:\n  - machien: cpu\n  - _self_\n", "machien", "'machine'"),
        ("defaults:\n  - machine: gpu9\n  - _self_\n", "machine", "known: cpu"),
        ("- a list\n", "rig './rig.yaml'", "a mapping of keys"),
        ("name: alone\n", "summary", "state it in the rig file"),
    ],
)
def test_a_mistake_in_a_rig_file_is_one_line(
    text: str, start: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rig.yaml").write_text(text)
    line = _mistake("./rig.yaml", [])
    assert line.startswith(start)
    assert fix in line
    assert "\n" not in line


def test_a_missing_field_is_named_after_the_unknown_key_that_explains_it(tmp_path: Path) -> None:
    (tmp_path / "rig.yaml").write_text("defaults: [cpu_smollm2, _self_]\n")
    line = _mistake(str(tmp_path / "rig.yaml"), ["~concurrency", "+concurency=[1]"])
    assert line == "concurency: unknown key; did you mean 'concurrency'? (also wrong: concurrency)"


def test_an_unknown_rig_lists_near_matches() -> None:
    assert "did you mean 'cpu_smollm2'" in _mistake("cpu_smolm2", [])
    assert "known: " in _mistake("zzz", [])
    assert "no such .yaml file" in _mistake("./nowhere.yaml", [])


@pytest.mark.parametrize("name", [name for name, _ in list_rigs()])
def test_every_rig_in_the_folder_composes(name: str) -> None:
    composed = compose_run(name)
    assert composed.run.name == name
    assert any(arm.method != "plain" for arm in composed.run.arms.values())


def test_every_option_of_every_group_composes_into_the_default_rig() -> None:
    for group in ("protocol", "sampler", "machine", "engine"):
        for option in sorted((RIGS / group).glob("*.yaml")):
            compose_run(RIG, [f"{group}={option.stem}"])


def test_arms_draw_their_budget_from_the_rig() -> None:
    run = compose_run(RIG, ["draft_budget=7"]).run
    budgets = {name: arm.draft_budget for name, arm in run.arms.items()}
    assert len(budgets) == 6
    assert budgets == {**dict.fromkeys(budgets, 7), "plain": None}


def test_an_arm_can_be_added_on_the_command_line() -> None:
    run = compose_run(RIG, ["+arm@arms.second=ngram", "arms.second.options.max_n=5"]).run
    assert run.arms["second"].options["max_n"] == 5
    assert run.arms["second"].draft_budget == run.draft_budget


@pytest.mark.parametrize(
    ("override", "levels"),
    [("concurrency=8", (8,)), ("concurrency=1,8", (1, 8)), ("concurrency=1, 8,32", (1, 8, 32)), ("concurrency=[2]", (2,))],
)
def test_concurrency_may_be_one_number_or_a_comma_list(override: str, levels: tuple[int, ...]) -> None:
    assert compose_run(RIG, [override]).run.concurrency == levels


def test_the_smoke_protocol_caps_answers_and_leaves_the_workload_alone() -> None:
    smoke, claim = compose_run(RIG, ["protocol=smoke"]).run, compose_run(RIG, ["protocol=claim"]).run
    assert smoke.workload == claim.workload
    first = smoke.workload.sets[0]
    assert smoke.max_tokens(first) == smoke.protocol.max_tokens_cap
    assert claim.max_tokens(first) == first.max_tokens


def test_the_saved_yaml_is_a_rig_with_the_same_hash(tmp_path: Path) -> None:
    composed = compose_run(RIG, ["draft_budget=3", "sampler=qwen_card"])
    (tmp_path / "config.yaml").write_text(composed.yaml)
    assert compose_run(str(tmp_path / "config.yaml")).config_hash == composed.config_hash


def test_the_hash_moves_with_any_value_and_with_nothing_else() -> None:
    same, other = compose_run(RIG, ["draft_budget=4"]), compose_run(RIG, ["draft_budget=5"])
    assert compose_run(RIG).config_hash == same.config_hash != other.config_hash


def test_a_rig_outside_the_folder_uses_its_own_groups_before_those_of_rigs(tmp_path: Path) -> None:
    (tmp_path / "protocol").mkdir()
    (tmp_path / "protocol" / "quick.yaml").write_text("defaults: [smoke, _self_]\nname: quick\nblocks: 2\n")
    (tmp_path / "mine.yaml").write_text("defaults:\n- cpu_smollm2\n- override protocol: quick\n- _self_\nname: mine\n")
    run = compose_run(str(tmp_path / "mine.yaml")).run
    assert (run.name, run.protocol.name, run.protocol.blocks) == ("mine", "quick", 2)


def test_a_rig_given_by_its_path_in_the_folder_is_the_same_rig() -> None:
    assert find_rig(str(RIGS / "smoke.yaml")) == find_rig("smoke")


def test_a_sweep_expands_as_hydra_would_and_keeps_concurrency_in_one_serving() -> None:
    jobs = expand_sweep(RIG, ["draft_budget=1,3,7", "concurrency=1,8", "protocol=glob(s*)"])
    assert len(jobs) == 6
    assert jobs[0] == ["draft_budget=1", "concurrency=[1,8]", "protocol=screen"]
    assert [job[0] for job in jobs] == ["draft_budget=1"] * 2 + ["draft_budget=3"] * 2 + ["draft_budget=7"] * 2
    assert expand_sweep(RIG, ["concurrency=[1],[8]"]) == [["concurrency=[1]"], ["concurrency=[8]"]]
    assert expand_sweep(RIG, ["draft_budget=range(1,4)"]) == [[f"draft_budget={k}"] for k in (1, 2, 3)]
    assert expand_sweep(RIG, []) == [[]]


def test_a_sweep_that_hydra_cannot_expand_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"sweep: .*use key=a,b,c"):
        expand_sweep(RIG, ["draft_budget=interval(1,3)"])


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("harness.engines.nowhere.Engine", "is not in this version; there is no module harness.engines.nowhere"),
        ("harness.config.Rnu", "did you mean 'Run'?"),
        ("os.path.join", "inside harness. or drafters."),
        ("harnessed.x", "inside harness. or drafters."),
    ],
)
def test_a_dotted_path_that_names_nothing_here_is_told(path: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_dotted(path)
    assert told in str(caught.value)


def test_a_dotted_path_loads_what_it_names() -> None:
    assert load_dotted("harness.config.Run").__name__ == "Run"


def test_parts_that_are_not_here_are_found_before_launch() -> None:
    overrides = [
        *TWO_ARMS,
        "engine.adapter=harness.engines.nowhere.Engine",
        "arms.ngram.drafter=drafters.contract.Darfter",
        "arms.ngram.checkpoint={location: no/such/folder}",
    ]
    adapter, drafter, checkpoint = missing_parts(compose_run(RIG, overrides).run)
    assert adapter.startswith("engine adapter: harness.engines.nowhere.Engine is not in this version")
    assert drafter.startswith("arms.ngram.drafter: ")
    assert "did you mean 'Drafter'" in drafter
    assert checkpoint.startswith("arms.ngram.checkpoint.location: 'no/such/folder' does not exist")


def test_a_checkpoint_with_a_revision_is_not_looked_for_on_disk() -> None:
    overrides = [*TWO_ARMS, "arms.ngram.checkpoint={location: org/model, revision: abc}"]
    assert not [line for line in missing_parts(compose_run(RIG, overrides).run) if "checkpoint" in line]


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["workload.sets.9.set=x"], "workload.sets.9.set: workload.sets has 6 entries: 0 humaneval, 1 gsm8k, 2 chat, "),
        (["+workload.sets.6.set=x"], "workload.sets.6.set: workload.sets has 6 entries: 0 humaneval, "),
        (["workload.sets.a.set=x"], "workload.sets.a.set: workload.sets has 6 entries: 0 humaneval, "),
        (["workload=code", "draft_budget=3", "workload.sets.1.set=x"], "workload.sets.1.set: workload.sets has 1 entry: 0 "),
        (["concurrency.4=3"], "concurrency.4: concurrency has 1 entry: 0 1; name one by its number, or give the whole list"),
        (["engine.graph_batch_sizes.0=3"], "engine.graph_batch_sizes.0: engine.graph_batch_sizes is an empty list; "),
    ],
)
def test_an_entry_that_a_list_does_not_have_names_those_that_it_has(overrides: list[str], line: str) -> None:
    assert _mistake(RIG, overrides).startswith(line)


def test_an_entry_that_a_list_has_is_overridden() -> None:
    assert compose_run(RIG, ["workload.sets.5.set=chat2"]).run.workload.sets[5].set == "chat2"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "mine.yaml has no defaults: "),
        ("# nothing\n", "mine.yaml has no defaults: "),
        ("name: mine\nsummary: s\n", "state it in the rig file (also wrong: engine, target, draft_budget"),
        ("name: mine\nsummary: s\n", "mine.yaml has no defaults: "),
    ],
)
def test_a_rig_that_rests_on_nothing_is_told_the_line_to_begin_it_with(tmp_path: Path, text: str, what: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    line = _mistake(str(file), [])
    begin = "defaults: [cpu_smollm2, _self_]"
    assert what in line
    assert line.endswith(f"begin it with `{begin}`, then state what differs")
    file.write_text(f"{begin}\n{text}")
    assert compose_run(str(file)).run.arms  # what the error says to do is enough
    file.write_text(f"{begin}\nworkload: null\n")
    assert "no defaults" not in _mistake(str(file), [])
