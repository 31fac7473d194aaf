"""From what a user names to an account: a rig and arm, a results folder and arm, a command, or a file that holds one."""

from __future__ import annotations

from pathlib import Path

from harness.audit.account import Account
from harness.audit.claims import budget_mistake, mistakes
from harness.audit.command import from_command
from harness.audit.launch import is_launch
from harness.audit.results import arms_of, from_results
from harness.audit.rig import from_run
from harness.compose import compose_run
from harness.config_errors import near
from harness.published import published_of
from harness.run_file import places

MODEL = {
    "vllm": "vllm serve MODEL ...",
    "sglang": "--model-path MODEL",
    "llama_cpp": "-m FILE.gguf, or -hf OWNER/NAME",
}
MODEL_ELSEWHERE = ("config", "models-dir", "models-preset")  # what such a file or folder holds is not read
FORMS = "a rig's arm (cpu_smollm2:ngram), a results folder's arm (results/<run>:ngram), a launch command, or a file with one"


def side_of(side: str, text: str, results: Path, version: str | None = None) -> Account:
    """The account of side A or B. Raises ValueError that names the side."""
    try:
        if not text.strip():
            raise ValueError(f"is empty; give {FORMS}")
        account = account_of(text, results, version)
        if account.source == "command":
            _require_model(account)
    except (ValueError, OSError) as error:
        raise ValueError(f"side {side}: {error}") from None
    return account


def _require_model(account: Account) -> None:
    """Raises ValueError for a command that starts a server of no model and names no file or folder that may hold one."""
    engine = str(account.facts["engine"].value)
    if "target" not in account.facts and not account.facts.keys() & {f"flag.{name}" for name in MODEL_ELSEWHERE}:
        raise ValueError(f"'{account.name}' names no model; write {MODEL[engine]}")


def account_of(text: str, results: Path, version: str | None = None) -> Account:
    """The account of one side. Raises ValueError that says what could not be read; ConfigError for a rig."""
    if is_launch(text):
        return from_command(text, version)
    path = Path(text)
    if "\n" not in text and len(text) < 1024 and path.is_file() and path.suffix not in (".yaml", ".yml"):
        return from_command(path.read_text("utf-8"), version, path.name)
    if any(space in text for space in " \n\t"):
        return from_command(text, version)  # says what is wrong with it
    name, arm = _split(text)
    if folder := _run_folder(name, results):
        return from_results(folder, _arm(name, arm, arms_of(folder)))
    run = compose_run(name).run
    return from_run(run, _arm(name, arm, list(run.arms)), name)


def claim_mistakes(*sides: Account) -> list[str]:
    """What the numbers that published rigs claim for these arms say against each other, and budgets that only print equal."""
    found: dict[str, None] = {}
    if len(sides) == 2 and (anchor := budget_mistake(*sides)):
        found[f"A against B: {anchor}"] = None
    for side in sides:
        if side.source == "published" and side.family:
            run = compose_run(side.family).run
            published = published_of(run)
            arms = {arm: from_run(run, arm, side.family) for arm in run.arms}
            wanted = {side.name.rpartition(":")[2]}
            found.update(dict.fromkeys(mistakes(published, arms, wanted) if published else ()))
    return list(found)


def _split(text: str) -> tuple[str, str | None]:
    name, colon, arm = text.rpartition(":")
    return (name, arm) if colon and "/" not in arm else (text, None)


def _run_folder(name: str, results: Path) -> Path | None:
    return next((folder for folder in places(name, results) if (folder / "run.json").is_file()), None)


def _arm(name: str, arm: str | None, arms: list[str]) -> str:
    """The arm that is meant. Without a name there must be only one that drafts."""
    drafting = [one for one in arms if not one.startswith("plain")]
    if arm is None and len(drafting) == 1:
        return drafting[0]
    if arm is None:
        raise ValueError(f"{name}: which arm? write {name}:ARM; it has {', '.join(arms)}")
    if arm not in arms:
        raise ValueError(f"{name}: no arm '{arm}'; {near(arm, arms)}")
    return arm
