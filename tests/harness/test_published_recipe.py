"""The rig that CONTRIBUTING gives for "Add a published rig": it composes, is judged, and its pair has a verdict."""

import re
import shutil
import textwrap
from pathlib import Path

from harness.audit.compare import audit
from harness.audit.rig import from_run
from harness.compose import compose_run
from harness.published import published_of
from harness.rigs import PUBLISHED, RIGS, ROOT


def recipe() -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("### Add a published rig")[2].partition("\n### ")[0]
    found = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return textwrap.dedent(found[1])


def test_the_rig_of_the_recipe_composes_and_says_what_moved(tmp_path: Path) -> None:
    shutil.copytree(RIGS / PUBLISHED, tmp_path / PUBLISHED)
    rig = tmp_path / PUBLISHED / "mine.yaml"
    rig.write_text(recipe(), "utf-8")
    run = compose_run(str(rig)).run
    published = published_of(run)
    assert published is not None
    assert [claim.row for claim in published.claims] == ["claims:1981"]
    found = audit(*(from_run(run, arm, "published/mine") for arm in ("plain", "mtp")))
    assert (found.verdict, found.named("confounder")) == ("CONFOUNDED", ("cuda_graphs",))
