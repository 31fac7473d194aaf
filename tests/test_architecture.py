"""The arrows between the parts: who may import whom, by reading every import, and that every rig composes."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.compose import compose_run
from harness.rigs import PUBLISHED, RIGS, ROOT

HARNESS = sorted((ROOT / "harness").rglob("*.py"))
DRAFTERS = sorted((ROOT / "drafters").rglob("*.py"))
READERS = ("metrics", "stats", "control", "gates", "decompose", "decompose_causes", "report", "speedup", "validity", "records")


def imported(path: Path) -> Iterator[str]:
    """Dotted names of what a file imports, names taken out of a module included; relative imports are made absolute."""
    package = ".".join(path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            module = ".".join(filter(None, [up if node.level else "", node.module or ""]))
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _imports(path: Path, *prefixes: str) -> list[str]:
    return [name for name in imported(path) if any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)]


def _offenders(paths: list[Path], *prefixes: str) -> dict[str, list[str]]:
    return {str(path.relative_to(ROOT)): found for path in paths if (found := _imports(path, *prefixes))}


def test_the_walk_sees_imports_of_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "harness" / "engines").mkdir(parents=True)
    file = tmp_path / "harness" / "engines" / "x.py"
    file.write_text("import a.b\nfrom c import d\nfrom . import e\nfrom ..f import g\ndef late():\n    import h\n")
    assert sorted(imported(file)) == ["a.b", "c.d", "h", "harness.engines.e", "harness.f.g"]


def test_there_is_something_to_walk() -> None:
    assert len(HARNESS) > 10
    assert len(DRAFTERS) > 3


def test_drafters_never_import_harness() -> None:
    assert _offenders(DRAFTERS, "harness") == {}


def test_only_the_reference_engine_imports_drafters() -> None:
    assert set(_offenders(HARNESS, "drafters")) <= {"harness/engines/reference.py", "harness/engines/reference_files.py"}


def test_what_reads_rows_never_imports_an_engine() -> None:
    readers = [path for path in HARNESS if path.relative_to(ROOT / "harness").parts[0].removesuffix(".py") in READERS]
    assert len(readers) >= 5
    assert _offenders(readers, "harness.engines", "drafters", "torch", "transformers") == {}


def test_engines_are_reached_only_through_their_dotted_path() -> None:
    engines = {f"harness.engines.{path.stem}" for path in (ROOT / "harness" / "engines").glob("*.py")}
    adapters = engines - {"harness.engines.base", "harness.engines.__init__"}
    outside = [path for path in HARNESS if path.parent.name != "engines"]
    assert _offenders(outside, *adapters) == {}


def test_the_harness_imports_no_served_engine() -> None:
    assert _offenders([*HARNESS, *DRAFTERS], "vllm", "sglang") == {}


def test_config_and_records_depend_on_nothing_of_the_project() -> None:
    for name in ("config.py", "records.py"):
        assert _imports(ROOT / "harness" / name, "harness", "drafters") == []


def test_nothing_is_called_utils() -> None:
    assert [path for path in (*HARNESS, *DRAFTERS) if path.stem in ("util", "utils", "helpers", "common")] == []


@pytest.mark.parametrize("rig", sorted(path.stem for path in RIGS.glob("*.yaml")))
def test_every_rig_composes(rig: str) -> None:
    assert compose_run(rig).run.summary


OPTIONS = [path for path in sorted(RIGS.glob("*/*.yaml")) if path.parent.name != PUBLISHED]


@pytest.mark.parametrize("option", [path.relative_to(RIGS).as_posix() for path in OPTIONS])
def test_every_option_of_every_group_composes(option: str) -> None:
    group, name = option.removesuffix(".yaml").split("/")
    override = f"arm@arms.ngram={name}" if group == "arm" else f"{group}={name}"
    extra = ["target.location=/a/folder"] if option == "target/folder.yaml" else []
    rig = "h200_qwen27b" if name == "plain_best" else "cpu_smollm2"  # an arm that changes nothing of a rig is refused
    assert compose_run(rig, [override, *extra]).run
