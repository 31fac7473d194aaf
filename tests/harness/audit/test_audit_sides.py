"""`samerig audit` on a side that is nothing, names no model, misspells a flag, states a release without a table."""

import pytest

from harness import cli
from harness.audit.command import from_command
from harness.audit.compare import audit

GOOD = "vllm serve M"


def _error(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["audit", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty; give a rig's arm"),
        ("  ", "is empty; give a rig's arm"),
        ("vllm serve", "names no model; write vllm serve MODEL"),
        ("vllm serve --max-num-seqs 4", "names no model; write vllm serve MODEL"),
        ("python -m sglang.launch_server --port 1", "names no model; write --model-path MODEL"),
        ("llama-server -c 4096", "names no model; write -m FILE.gguf, or -hf OWNER/NAME"),
        ("nosuchrig:plain", "not in rigs/"),
    ],
)
def test_a_side_that_cannot_be_read_is_named(text: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    for side, words in (("A", (text, GOOD)), ("B", (GOOD, text))):
        err = _error(capsys, *words)
        assert err.startswith(f"error: side {side}: ")
        assert told in err


@pytest.mark.parametrize(
    "text", ["vllm serve --config mine.yaml", "llama-server --models-dir models", "llama-server -mu https://x/y.gguf"]
)
def test_a_model_that_a_file_or_a_folder_holds_is_enough(text: str) -> None:
    assert cli.main(["audit", text, text]) in (0, 1)


@pytest.mark.parametrize("release", ["abc", "", "latest", "v", "0.33 or so", "-1"])
def test_what_can_be_no_release_is_refused(release: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "side B: release" in _error(capsys, GOOD, GOOD, f"--version-b={release}")


@pytest.mark.parametrize("release", ["0.33.0", "v0.33.0", "0.5.23.post1", "0.33.0rc1", "0.33.0+cu128", "b11434", "99.0"])
def test_releases_of_all_kinds_are_taken(release: str) -> None:
    assert str(from_command(GOOD, release).facts["engine_build"].value) == release.lstrip("v")


def test_a_stated_release_without_a_table_is_said_to_have_none_and_nobody_is_asked_to_state_it() -> None:
    drafting = f"{GOOD} --spec-method mtp --spec-tokens 3"
    told = [d for d in audit(from_command(GOOD, "99.0"), from_command(drafting, "99.0")).differences if d.kind != "treatment"]
    assert told
    for d in told:
        assert "no table of vllm 99.0" in d.why
        assert "release is not stated" not in d.why
        assert "state the release" not in d.remedy
    silent = audit(from_command(GOOD), from_command(drafting))
    assert any("the release is not stated" in d.why for d in silent.differences)


@pytest.mark.parametrize(
    ("text", "flag", "meant"),
    [
        ("vllm serve M --max-num-seqz 64", "max-num-seqz", "max-num-seqs"),
        (
            "python -m sglang.launch_server --model-path M --max-runing-requests 4",
            "max-runing-requests",
            "max-running-requests",
        ),
        ("llama-server -m M.gguf --threds 4", "threds", "threads"),
    ],
)
def test_a_misspelt_flag_is_told_with_its_near_match_in_the_finding_itself(text: str, flag: str, meant: str) -> None:
    spelt, without = from_command(text), from_command(text.partition(f" --{flag}")[0])
    (found,) = (d for d in audit(spelt, without).differences if d.factor == f"flag.{flag}")
    assert f"did you mean '{meant}'" in found.why
    assert found.remedy.startswith("correct the name")
