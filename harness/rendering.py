"""How a prompt becomes token ids: the model's own chat template, once, with exactly one place for the answer.

Every engine is sent these ids, so all arms are asked the same thing; `prompt_hash` proves it per request.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from transformers import AutoTokenizer

from harness.workloads import Prompt

_SLACK = 24  # a long prompt may end this many tokens short of its depth, because it is cut at a word


class Tokenizer(Protocol):
    """What this module needs of a transformers tokenizer."""

    chat_template: Any
    bos_token_id: int | None
    eos_token_id: int | None
    all_special_tokens: list[str]

    def apply_chat_template(self, conversation: list[dict[str, str]], **options: Any) -> Any: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Rendered:
    """Token ids as every engine receives them, and their sha256."""

    prompt_ids: tuple[int, ...]
    prompt_hash: str


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in `folder`, from disk only. Raises ValueError when it has no chat template."""
    tokenizer = cast(Tokenizer, AutoTokenizer.from_pretrained(folder, local_files_only=True))
    if not tokenizer.chat_template:
        raise ValueError(f"{folder}: the tokenizer has no chat template; use an instruction-tuned target")
    return tokenizer


def stop_ids(folder: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids that end an answer: generation_config.json's eos ids (else config.json's) and the tokenizer's own, ascending."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        found = config.get("eos_token_id", config.get("text_config", {}).get("eos_token_id"))
        if found is not None:
            break
    ids = set(found) if isinstance(found, list) else {found}
    return tuple(sorted(i for i in ids | {tokenizer.eos_token_id} if i is not None))


def template_hash(tokenizer: Tokenizer) -> str:
    """sha256 of the chat template: a factor that must be equal in all arms."""
    return hashlib.sha256(json.dumps(tokenizer.chat_template).encode()).hexdigest()


def ids_hash(prompt_ids: Sequence[int]) -> str:
    """sha256 over the ids as little-endian 32-bit integers."""
    return hashlib.sha256(b"".join(i.to_bytes(4, "little") for i in prompt_ids)).hexdigest()


def render(
    prompt: Prompt,
    tokenizer: Tokenizer,
    system_prompt: str | None = None,
    depth: int | None = None,
    template_options: Mapping[str, Any] | None = None,
) -> Rendered:
    """The prompt through the chat template. A prompt with passages is composed to at most `depth` tokens, template included.

    Raises ValueError: no chat template, a special token inside a prompt (a template applied twice), no or two places for the
    answer, a doubled BOS, or a depth that the set's text cannot fill.
    """
    options = dict(template_options or {})
    if not prompt.passages:
        return _rendered(_template(prompt, "", tokenizer, system_prompt, options))
    if depth is None:
        raise ValueError(f"prompt '{prompt.id}' is composed to a depth; set depth (tokens)")
    return _rendered(_composed(prompt, tokenizer, system_prompt, depth, options))


def _composed(
    prompt: Prompt, tokenizer: Tokenizer, system_prompt: str | None, depth: int, options: dict[str, Any]
) -> list[int]:
    """Cut the passages to the longest text, in whole words, whose rendered prompt has at most `depth` tokens."""
    bare = len(_template(prompt, "", tokenizer, system_prompt, options))
    keep = depth - bare
    text_ids = _first_tokens(prompt.passages, keep, tokenizer)
    if keep <= _SLACK or len(text_ids) < keep:
        most = bare + len(text_ids)
        raise ValueError(f"depth {depth}: '{prompt.id}' can be composed to more than {bare + _SLACK} and up to {most} tokens")
    while True:
        excerpt = tokenizer.decode(text_ids[:keep]).rsplit(maxsplit=1)[0]
        ids = _template(prompt, excerpt + "\n\n", tokenizer, system_prompt, options)
        if len(ids) <= depth:
            return ids
        keep -= len(ids) - depth


def _first_tokens(passages: Sequence[str], wanted: int, tokenizer: Tokenizer) -> list[int]:
    """Tokens of as many whole passages as hold `wanted` tokens, or of all of them."""
    ids: list[int] = []
    for passage in passages:
        if len(ids) >= wanted:
            break
        ids += tokenizer.encode(passage + "\n\n", add_special_tokens=False)
    return ids


def _template(
    prompt: Prompt, excerpt: str, tokenizer: Tokenizer, system_prompt: str | None, options: dict[str, Any]
) -> list[int]:
    """Ids of the rendered conversation, `excerpt` in front of the last user message."""
    messages = [{"role": "system", "content": system_prompt}] if system_prompt is not None else []
    messages += [{"role": role, "content": content} for role, content in prompt.messages]
    messages[-1]["content"] = excerpt + messages[-1]["content"]
    _refuse_special_tokens(prompt, tokenizer)
    closed = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False, **options)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
    opening = text.removeprefix(closed)
    if opening in ("", text):
        raise ValueError(f"prompt '{prompt.id}': the chat template adds no place for the answer (add_generation_prompt)")
    # The template writes BOS itself where the model wants one: letting the tokenizer add its own would double it.
    ids = tokenizer.encode(text, add_special_tokens=False)
    bos = tokenizer.bos_token_id
    if bos is not None and ids[:2] == [bos, bos]:
        raise ValueError(f"prompt '{prompt.id}': the rendered prompt starts with two BOS tokens")
    return ids


def _refuse_special_tokens(prompt: Prompt, tokenizer: Tokenizer) -> None:
    """A special token in a message would be read as structure: the mark of a template applied twice."""
    for _, content in prompt.messages:
        for token in tokenizer.all_special_tokens:
            if token in content:
                raise ValueError(f"prompt '{prompt.id}' contains the special token '{token}'; a template was applied twice")


def _rendered(ids: list[int]) -> Rendered:
    return Rendered(tuple(ids), ids_hash(ids))
