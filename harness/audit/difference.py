"""One factor that two accounts do not share: what kind of difference it is, why, and what to do.

Classes and remedies are those of `harness.control.factors`. What is particular to commands and publications:

- The one variable is the drafter. Between two drafters another budget confounds; with one drafter the budget is the variable.
- A factor of class `implied` that somebody set by hand was not moved by the engine: it confounds.
- What one command sets and the other does not has moved, unless the stated release's default says otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from harness.audit.account import Account, Fact
from harness.audit.advice import OPEN, Side, advice, find_out, one_sided
from harness.audit.releases import is_same, is_within
from harness.control.factors import class_of, is_draft, table
from harness.control.findings import Finding

Kind = Literal["treatment", "implied", "confounder", "unknown", "note"]
ENGINE_MOVED = frozenset({"implied", "supposed", "found"})
BY_HAND = "set by hand: the engine did not move it because of the drafter"
# What the shell would have put in: a variable that the text does not set, or what a program prints.
UNSET = re.compile(r"\$\{[^}]*\}?|\$\([^)]*\)?|\$[A-Za-z_]\w*|`[^`]*`?")
NONE = "none"
# What a side that does not state it has anyway.
USUAL = (("draft_tree_width", 1),)
# Values that leave a factor to something that a text does not show.
LEFT: dict[tuple[str, object], str] = {
    ("dtype", "auto"): "auto: whatever the checkpoint's config.json says",
    ("kv_dtype", None): "auto: as the target, whose precision is left to the checkpoint",
}
_SILENT = {
    "command": "the command does not state it",
    "rig": "the rig does not state it",
    "results": "the results do not tell it",
    "published": "the published rig does not state it",
}
# What a launch command calls these drafters: the checkpoint's architecture tells them apart.
SERVED_AS = {"dflash2": "dflash", "xpress": "dflash"}


@dataclass(frozen=True, slots=True)
class Difference:
    """A factor that is not equal, not stated, or not allowed. A null side says nothing of it."""

    factor: str
    kind: Kind
    a: Fact | None
    b: Fact | None
    why: str
    remedy: str

    def finding(self) -> Finding | None:
        """As the verdict takes it; the treatment is no finding."""
        return None if self.kind == "treatment" else Finding(self.factor, self.kind, shown(self.a), shown(self.b), self.remedy)


def shown(fact: Fact | None) -> str:
    return "not stated" if fact is None else str(fact)


def difference(name: str, a: Account, b: Account) -> Difference | None:
    """What two sides say of one factor, or null where there is nothing to say."""
    one, two = a.facts.get(name), b.facts.get(name)
    if _is_drafts(name, a, b) and name != "method" and (a.is_plain or b.is_plain):
        fact = one or two
        is_told = fact is not None and fact.value is not None and a.is_plain != b.is_plain
        return Difference(name, "treatment", one, two, "only the side that drafts has it", "-") if is_told else None
    if one is None or two is None:
        return _one_sided(name, a, b, one, two)
    if one.value == two.value and isinstance(one.value, bool) == isinstance(two.value, bool):
        return _equal(name, a, b, one, two)
    if NONE in (one.value, two.value) and None in (one.value, two.value):
        return None
    builds = str(one.value), str(two.value)
    if name == "engine_build" and (is_same(*builds) or is_within(*builds)):
        return None
    if name == "target" and _base(one) == _base(two):
        return Difference(name, "unknown", one, two, "one name in two places", "compare their revisions or hashes")
    kind, why = _kind(name, a, b, one, two)
    return Difference(name, kind, one, two, why, _remedy(name, kind, one, two))


def _base(fact: Fact) -> str:
    return str(fact.value).rstrip("/").rpartition("/")[2].lower().removesuffix(".gguf")


def _equal(name: str, a: Account, b: Account, one: Fact, two: Fact) -> Difference | None:
    """Equal, and yet not held: a budget that nobody states, a value that no text sets, or one only supposed on a side."""
    if name == "draft_budget" and one.value is None and is_swapped(a, b):
        return Difference(name, "unknown", one, two, one.where, "state the budget of both")
    if isinstance(one.value, str) and (unset := UNSET.search(one.value)):
        why = f"{one.where}: the text does not set {unset.group()}, so each side may have its own"
        return Difference(name, "unknown", one, two, why, f"write the value of {unset.group()}")
    if {one.origin, two.origin} == {"stated", "supposed"} and one.value is not None:
        side: Side = "a" if one.origin == "supposed" else "b"
        why = _one_side(a if side == "a" else b)
        return Difference(name, "confounder", one, two, why, one_sided(name, one, side))
    return None


def _is_drafts(name: str, a: Account, b: Account) -> bool:
    """Whether a factor is the drafter's: what a release does not know is not, however its name begins."""
    said = [(side.facts[name].where, side.unknown_tokens) for side in (a, b) if name in side.facts]
    return is_draft(name) and not any(where in unknown for where, unknown in said)


def _one_side(silent: Account) -> str:
    return f"set on one side only, and {_no_release(silent)}"


def _no_release(*sides: Account) -> str:
    """Why it is only supposed what an engine moves by itself: nobody says which release it is, or nobody has read that one."""
    unread = dict.fromkeys(side.unread_release for side in sides if side.unread_release)
    return f"there is no table of {', '.join(unread)}" if unread else "the release is not stated"


def is_swapped(a: Account, b: Account) -> bool:
    """Whether the two sides have different drafters. Native MTP has no weights of its own to differ in."""
    weights = [side.value("draft_checkpoint_hash") if side.method != "mtp" else None for side in (a, b)]
    methods = [SERVED_AS.get(side.method, side.method) if "command" in (a.source, b.source) else side.method for side in (a, b)]
    return methods[0] != methods[1] or (None not in weights and weights[0] != weights[1])


def _kind(name: str, a: Account, b: Account, one: Fact, two: Fact) -> tuple[Kind, str]:
    origins = {one.origin, two.origin}
    if None in (one.value, two.value) and not a.source == b.source == "command" and name != "draft_budget":
        return "unknown", "one side leaves it to the engine"
    if left := next((LEFT[name, fact.value] for fact in (one, two) if (name, fact.value) in LEFT), None):
        return "unknown", left
    if name == "draft_budget":
        return _budget(a, b, one, two)
    if _is_drafts(name, a, b) and (class_of(name) == "treatment" or name.startswith("draft_options.")):
        return "treatment", "the drafter and its options"
    if is_draft(name) and "implied" in origins and name in table():
        return ("implied", _rule(one, two)) if is_swapped(a, b) else ("confounder", BY_HAND)
    if origins == {"supposed"}:
        return "unknown", f"{_no_release(a, b)}; in the one that was read: {one.where}"
    if "supposed" in origins and "stated" in origins:
        return "confounder", _one_side(a if one.origin == "supposed" else b)
    if is_draft(name) and not _is_drafts(name, a, b):
        return "confounder", "the release does not know it"
    kind = class_of(name)
    if kind == "confounder" and name not in table() and "implied" in origins:
        return "implied", _rule(one, two)
    if kind == "implied" and not (origins & ENGINE_MOVED and is_swapped(a, b)):
        return "confounder", BY_HAND
    return kind, _rule(one, two) if "implied" in origins else _why(name)


def _budget(a: Account, b: Account, one: Fact, two: Fact) -> tuple[Kind, str]:
    if one.value is None or two.value is None:
        return "unknown", (one if one.value is None else two).where
    if is_swapped(a, b):
        return "confounder", "the budget moved with the drafter"
    return "treatment", "the same drafter with another budget"


def _rule(one: Fact, two: Fact) -> str:
    return next(fact.where for fact in (two, one) if fact.origin in ("implied", "supposed"))


def _one_sided(name: str, a: Account, b: Account, one: Fact | None, two: Fact | None) -> Difference | None:
    fact, silent = (one, b) if one is not None else (two, a)
    if fact is None or fact.value in (None, NONE) or (name, fact.value) in USUAL:
        return None
    if name == "draft_depth":  # serial drafters have one; what it costs is in the notes
        return Difference(name, "treatment", one, two, "the drafter's passes", "-") if is_swapped(a, b) else None
    if _is_drafts(name, a, b) and (class_of(name) == "treatment" or name.startswith("draft_options.")) and is_swapped(a, b):
        return Difference(name, "treatment", one, two, "the drafter and its options", "-")
    if fact.origin == "found" and silent.source != "results":
        return Difference(name, "note", one, two, "only a run can tell", "-")
    if fact.origin == "default" or (fact.origin in ("implied", "supposed") and silent.source != "published"):
        return _moved_on_one_side(name, one, two, fact)
    side: Side = "a" if one is None else "b"
    if silent.source == "command" and (name in OPEN or a.source == b.source):
        kind: Kind = "unknown" if name in OPEN else "confounder"
        return Difference(name, kind, one, two, OPEN.get(name, "set on one side only"), one_sided(name, fact, side))
    why = "its source does not state it" if name in silent.unstated else _SILENT[silent.source]
    return Difference(name, "unknown", one, two, why, find_out(name, fact))


def _moved_on_one_side(name: str, one: Fact | None, two: Fact | None, fact: Fact) -> Difference | None:
    """An engine's own doing that the other side does not have at all."""
    if fact.origin == "default":
        return None
    kind: Kind = "unknown" if fact.origin == "supposed" else "implied" if name not in table() else class_of(name)
    return Difference(name, kind, one, two, fact.where, _remedy(name, kind, fact, fact))


def _why(name: str) -> str:
    return table()[name].why if name in table() else "it is not the drafter's"


def why_it_matters(name: str) -> str:
    """Why a factor that nobody states leaves the question open."""
    return {"machine": "another machine is another rig", "target": "another target is another model"}.get(name) or _why(name)


def _remedy(name: str, kind: Kind, one: Fact, two: Fact) -> str:
    return "-" if kind == "treatment" else advice(name, one, two)
