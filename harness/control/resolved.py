"""Findings from what each engine resolved: factor by factor, by the table, never from what was asked."""

from __future__ import annotations

import json
from collections.abc import Iterator

from harness.control.factors import ENGINES, Class, class_of, is_draft, is_of_weights, remedy, table
from harness.control.findings import Finding, Side, show, values_of

Values = dict[str, set[str]]
NULL = "null"
NOTHING = {NULL, '"none"', '"plain"', '"off"', '"not set"'}


def resolved_factors(plain: Side, arm: Side) -> list[Finding]:
    """Factors that differ, that take a forbidden value, that one arm does not tell, and that the engine cannot tell."""
    theirs, ours = values_of(plain, "resolved"), values_of(arm, "resolved")
    if not ours or not theirs:
        return [Finding("resolved", "unknown", show(theirs), show(ours), "the engine did not tell its configuration")]
    names = [
        *(name for name in table() if name in ours or name in theirs),
        *sorted((ours.keys() | theirs.keys()) - set(table())),
    ]
    alike = not (plain.drafts or arm.drafts) or _same_treatment(plain, arm, theirs, ours)
    names = [name for name in names if _both_can_have(name, plain, arm)]
    found = [_finding(name, theirs.get(name, set()), ours.get(name, set()), alike) for name in names]
    return [
        *filter(None, found),
        *_not_plain(plain, theirs),
        *_not_plain(arm, ours),
        *_forbidden(theirs, ours),
        *_untold(theirs, ours),
    ]


def _same_treatment(plain: Side, arm: Side, theirs: Values, ours: Values) -> bool:
    """Whether two arms have one drafter and one budget: then nothing between them is implied by the drafter."""
    drafters = ({(str(row["method"]), str(row["draft_budget"])) for row in side.servings} for side in (plain, arm))
    treated = [name for name in ours.keys() | theirs.keys() if class_of(name) == "treatment"]
    return len(set.union(*drafters)) == 1 and all(ours.get(name) == theirs.get(name) for name in treated)


def _both_can_have(name: str, plain: Side, arm: Side) -> bool:
    """What only a drafter has, or only one with weights, is no difference beside an arm without."""
    if is_of_weights(name):
        return plain.has_weights and arm.has_weights
    return not is_draft(name) or (plain.drafts and arm.drafts)


def _finding(name: str, a: set[str], b: set[str], alike: bool) -> Finding | None:
    """What two sets of values mean, or null when there is nothing to say."""
    kind: Class = class_of(name)
    if kind == "treatment":
        return None
    if not a or not b or NULL in a | b:
        optional = name in table() and table()[name].optional and a == b
        return None if optional else Finding(name, "unknown", show(a), show(b), "not readable in every arm")
    if len(a | b) == 1:
        return None
    return Finding(name, "confounder" if kind == "implied" and alike else kind, show(a), show(b), remedy(name))


def _not_plain(side: Side, told: Values) -> Iterator[Finding]:
    """A plain arm in which the engine found a drafter by itself, as it may beside the target's weights."""
    found = (told.get("method", set()) | told.get("drafter", set())) - NOTHING
    if found and not side.drafts:
        yield Finding("method", "confounder", "plain asked", show(found), "tell the engine to use none; plain must be plain")


def _forbidden(theirs: Values, ours: Values) -> Iterator[Finding]:
    """Values under which outputs are not the target's, in either arm."""
    for name, factor in table().items():
        if factor.only is None:
            continue
        told = {value for value in theirs.get(name, set()) | ours.get(name, set()) if value != NULL}
        if any(json.loads(value) not in factor.only for value in told):
            yield Finding(name, "confounder", show(theirs.get(name, ()), "-"), show(ours.get(name, ()), "-"), factor.remedy)


def _untold(theirs: Values, ours: Values) -> Iterator[Finding]:
    """Factors that the table says this engine has and that neither arm told, in one finding."""
    engines = {json.loads(value) for value in theirs.get("engine", set()) | ours.get("engine", set())}
    engine = next(iter(engines & set(ENGINES)), None)
    if engine is None or len(engines) > 1:
        return
    told, missing = ours.keys() | theirs.keys(), []
    for name, factor in table().items():
        is_wanted = factor.source(engine) is None or factor.is_told_by(engine)
        if is_wanted and not factor.optional and not is_draft(name) and name not in told:
            missing.append(name)
    if missing:
        shown = ", ".join(missing)
        yield Finding(f"{len(missing)} factors", "unknown", "not told", "not told", f"{engine} does not tell: {shown}")
