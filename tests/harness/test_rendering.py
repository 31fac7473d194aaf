"""Prompts as token ids: the chat template applied once, one place for the answer, and a hash that arms must share."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from harness.rendering import ids_hash, load_tokenizer, render, stop_ids, template_hash
from harness.workloads import Prompt, load_set

CHATML = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if thinking is defined %}<think>{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte tokenizer that puts BOS in front of plain text, with a ChatML template that writes BOS itself."""
    alphabet = ["<s>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet())]
    tokenizer = Tokenizer(BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="<|im_end|>", extra_special_tokens=["<|im_start|>"]
    )
    fast.chat_template = CHATML
    path = tmp_path_factory.mktemp("tokenizer")
    fast.save_pretrained(path)
    return path


def ask(text: str) -> Prompt:
    return Prompt("p", "chat", (("user", text),))


@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize("name", ["chat", "humaneval"])
def test_ids_equal_what_transformers_makes_of_the_conversation(folder: Path, name: str, system: str | None) -> None:
    tokenizer, reference = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for prompt in load_set(name).prompts:
        turns = [{"role": "system", "content": system}] if system else []
        turns += [{"role": role, "content": content} for role, content in prompt.messages]
        expected = reference.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert list(render(prompt, tokenizer, system).prompt_ids) == expected


def test_bos_is_there_once_although_the_tokenizer_would_add_its_own(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("x", add_special_tokens=True)[0] == tokenizer.bos_token_id
    assert render(ask("hello"), tokenizer).prompt_ids.count(0) == 1


def test_a_template_that_doubles_bos_is_refused(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = "{{ bos_token }}" + CHATML
    with pytest.raises(ValueError, match="two BOS"):
        render(ask("hello"), tokenizer)


def test_a_prompt_that_already_went_through_a_template_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"contains the special token '<\|im_"):
        render(ask("<|im_start|>user\nhello<|im_end|>"), load_tokenizer(folder))


def test_a_template_without_a_place_for_the_answer_is_refused(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = CHATML.partition("{% if add_generation")[0]
    with pytest.raises(ValueError, match="no place for the answer"):
        render(ask("hello"), tokenizer)


def test_a_tokenizer_without_a_chat_template_is_refused(folder: Path, tmp_path: Path) -> None:
    bare = AutoTokenizer.from_pretrained(folder)
    bare.chat_template = None
    bare.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no chat template"):
        load_tokenizer(tmp_path)


def test_template_options_reach_the_template_and_change_the_hash(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    quiet, thinking = render(ask("hi"), tokenizer), render(ask("hi"), tokenizer, template_options={"thinking": True})
    assert tokenizer.decode(thinking.prompt_ids).endswith("<think>")
    assert quiet.prompt_hash != thinking.prompt_hash


def test_the_hash_is_that_of_the_ids_and_tells_id_lists_apart() -> None:
    assert ids_hash([1, 2]) == "34fb5c825de7ca4aea6e712f19d439c1da0c92c37b423936c5f618545ca4fa1f"
    assert ids_hash([1, 23]) != ids_hash([12, 3])


def test_the_template_hash_follows_the_template(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    before = template_hash(tokenizer)
    tokenizer.chat_template = CHATML + " "
    assert template_hash(tokenizer) != before


@pytest.mark.parametrize("depth", [600, 2000])
def test_a_long_prompt_fills_its_depth_with_a_contiguous_excerpt_in_whole_words(folder: Path, depth: int) -> None:
    tokenizer = load_tokenizer(folder)
    for prompt in load_set("long").prompts[::24]:
        ids = render(prompt, tokenizer, depth=depth).prompt_ids
        assert depth - 32 <= len(ids) <= depth
        asked = tokenizer.decode(ids).partition("user\n")[2].partition("<|im_end|>")[0]
        excerpt, _, question = asked.rpartition("\n\n")
        assert question == prompt.messages[-1][1]
        text = "\n\n".join(prompt.passages)
        assert text.startswith(excerpt)
        assert text[len(excerpt)].isspace()


def test_a_deeper_prompt_goes_on_where_the_shallow_one_ended(folder: Path) -> None:
    tokenizer, prompt = load_tokenizer(folder), load_set("long").prompts[7]
    shallow, deep = (tokenizer.decode(render(prompt, tokenizer, depth=depth).prompt_ids) for depth in (700, 900))
    assert deep.startswith(shallow[:500])


def test_a_depth_is_needed_has_a_minimum_and_ends_with_the_text(folder: Path) -> None:
    tokenizer, prompt = load_tokenizer(folder), Prompt("p", "long", (("user", "Why?"),), passages=("one two " * 40,))
    with pytest.raises(ValueError, match="set depth"):
        render(prompt, tokenizer)
    for depth in (10, 100_000):
        with pytest.raises(ValueError, match=f"depth {depth}: 'p' can be composed to more than"):
            render(prompt, tokenizer, depth=depth)


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [("[7, 5]", "{}", (2, 5, 7)), ("9", '{"eos_token_id": 4}', (2, 9)), (None, '{"text_config": {"eos_token_id": 6}}', (2, 6))],
)
def test_stop_ids_are_the_generation_config_s_and_the_tokenizer_s(
    folder: Path, tmp_path: Path, generation: str | None, config: str, expected: tuple[int, ...]
) -> None:
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {generation}}}')
    (tmp_path / "config.json").write_text(config)
    assert stop_ids(tmp_path, load_tokenizer(folder)) == expected
