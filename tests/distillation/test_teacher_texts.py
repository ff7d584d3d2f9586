"""The teacher's texts: continuations against loops over single tokens, and the same after an interruption."""

from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from datasets import Dataset

from toy_texts import toy_documents
from vaswani import VaswaniDecoderConfig, VaswaniForCausalLM
from vaswani.data.text.sequences import DocumentParts, PackedBlocks, boundary_token_ids, make_sequences
from vaswani.data.tokenization import train_tokenizer
from vaswani.distillation.output_cache import OutputCache
from vaswani.distillation.teacher_texts import (
    ContinuationSettings,
    TeacherText,
    continue_texts,
    read_texts,
    store_texts,
    with_teacher_texts,
)
from vaswani.errors import UserError
from vaswani.inference.continuing import Prompt
from vaswani.inference.generation_options import GenerationOptions
from vaswani.inference.language_model import Draft, LanguageModel

SHORT = ["", "The dog"]
TEXTS = [*toy_documents(8, sentences=3), *SHORT, *toy_documents(4, seed=1, sentences=3)]
TOKENIZER = train_tokenizer(toy_documents(20), 300, purpose="causal")
BEGIN, END = boundary_token_ids(TOKENIZER)
GREEDY = ContinuationSettings(prompt_tokens=5, most_tokens=22, temperature=0)
SAMPLED = ContinuationSettings(prompt_tokens=5, most_tokens=22, temperature=0.8, top_p=0.9, seed=3)


def toy_author(max_tokens_per_batch: int = 10_000) -> LanguageModel:
    """A model with no ties between tokens."""
    torch.manual_seed(0)
    shape = {"d_model": 24, "decoder_layers": 2, "decoder_attention_heads": 3, "decoder_ffn_dim": 48}
    special = {"bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": TOKENIZER.pad_token_id}
    fields = {**shape, **special, "max_position_embeddings": 24, "initializer_range": 0.5}
    model = VaswaniForCausalLM(VaswaniDecoderConfig(vocab_size=len(TOKENIZER), **fields))
    return LanguageModel(model, TOKENIZER, max_tokens_per_batch)


def token_ids(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


@torch.no_grad()
def slowly(
    author: LanguageModel, text: str, number: int, writing: ContinuationSettings
) -> TeacherText | None:
    """One text by itself, token by token, without a cache."""
    text_ids = token_ids(text)[: writing.most_tokens]
    if len(text_ids) <= writing.prompt_tokens:
        return None
    written = [BEGIN, *text_ids[: writing.prompt_tokens]]
    random = np.random.default_rng((writing.seed, number))
    complete = False
    while len(written) <= len(text_ids):
        logits = author.model(torch.tensor([written])).logits[0, -1].double().numpy()
        chosen = logits.argmax()
        if writing.temperature:
            chances = np.exp((logits - logits.max()) / writing.temperature)
            order = np.argsort(-chances)
            before = np.cumsum(chances[order]) - chances[order]  # of the likelier tokens
            chances[order[before >= writing.top_p * chances.sum()]] = 0
            chosen = np.searchsorted(np.cumsum(chances), random.random() * chances.sum(), side="right")
        if complete := chosen == END:
            break
        written.append(int(chosen))
    text = TOKENIZER.decode(written, skip_special_tokens=True)
    return TeacherText(text if complete else text.rstrip("\ufffd"), bool(complete))


@pytest.mark.parametrize("max_tokens_per_batch", [1, 60, 10_000])
@pytest.mark.parametrize("writing", [GREEDY, SAMPLED, replace(SAMPLED, prompt_tokens=0, top_p=1.0)])
def test_texts_are_those_of_a_loop_over_single_tokens(
    writing: ContinuationSettings, max_tokens_per_batch: int
) -> None:
    author, numbers = toy_author(max_tokens_per_batch), range(len(TEXTS))
    done: list[int] = []
    written = continue_texts(author, TEXTS, numbers, writing, done.append)
    assert written == [slowly(author, *row, writing) for row in zip(TEXTS, numbers, strict=True)]
    assert sum(done) == len(TEXTS)
    kept = [text for text, new in zip(TEXTS, written, strict=True) if new is None]
    assert kept == (SHORT if writing.prompt_tokens else [""])


def test_greedy_texts_are_those_of_generate() -> None:
    author = toy_author()
    written = continue_texts(author, TEXTS, range(len(TEXTS)), GREEDY)
    for text, found in zip(TEXTS, written, strict=True):
        text_ids = token_ids(text)[: GREEDY.most_tokens]
        if found is None:
            continue
        prompt = torch.tensor([[BEGIN, *text_ids[: GREEDY.prompt_tokens]]])
        expected = author.model.generate(prompt, max_length=len(text_ids) + 1, do_sample=False)
        assert found.complete == (END in expected[0])
        text = TOKENIZER.decode(expected[0], skip_special_tokens=True)
        assert found.text == (text if found.complete else text.rstrip("\ufffd"))


def test_a_text_depends_on_its_number_and_not_on_its_neighbours() -> None:
    author, (text, *others) = toy_author(), toy_documents(5, seed=2)
    (alone,) = continue_texts(author, [text], [7], SAMPLED)
    assert continue_texts(author, [*others, text], [3, 4, 5, 6, 7], SAMPLED)[-1] == alone
    assert continue_texts(author, [text], [8], SAMPLED) != [alone]


@pytest.mark.parametrize("change", [{"prompt_tokens": 4}, {"temperature": 1.0}, {"top_p": 0.5}, {"seed": 4}])
def test_each_option_changes_the_texts_and_the_cache_key(change: dict[str, Any]) -> None:
    author, other = toy_author(), replace(SAMPLED, **change)
    numbers = range(len(TEXTS))
    assert continue_texts(author, TEXTS, numbers, SAMPLED) != continue_texts(author, TEXTS, numbers, other)
    before, after = SAMPLED.identity(author), other.identity(author)
    assert {name for name in after if before[name] != after[name]} == {*change}


def test_greedy_texts_depend_on_no_seed() -> None:
    author = toy_author()
    assert replace(GREEDY, seed=1).identity(author) == replace(GREEDY, seed=2, top_p=0.5).identity(author)


def test_draws_follow_the_models_distribution() -> None:
    author, count = toy_author(), 4000
    prompt = (BEGIN, *token_ids("The hedgehog"))
    drafts = [Draft(Prompt(prompt), 1, (0, number)) for number in range(count)]
    drawn = Counter(author.continue_drafts(drafts, GenerationOptions(temperature=2.0)))
    with torch.no_grad():
        logits = author.model(torch.tensor([prompt])).logits[0, -1]
    likeliest = logits.topk(20).indices
    found = torch.tensor([drawn[() if token == END else (token,)] for token in likeliest.tolist()]) / count
    chances, others = (logits / 2).softmax(-1)[likeliest], logits.softmax(-1)[likeliest]
    error = (chances * (1 - chances) / count).sqrt()
    assert ((found - chances).abs() < 4 * error).all()
    assert not ((found - others).abs() < 4 * error).all()


def test_multi_byte_characters_survive_the_end_of_the_prompt() -> None:
    author, text = toy_author(), "“Ünïcödé”"

    def rest(drafts: list[Any], *_: Any, **__: Any) -> list[tuple[int, ...]]:
        return [tuple(token_ids(text)[len(draft.prompt.token_ids) - 1 :]) for draft in drafts]

    with patch.object(author, "continue_drafts", rest):
        for count in range(len(token_ids(text))):
            assert continue_texts(author, [text], [0], ContinuationSettings(count, 99)) == [(text, False)]


def test_a_text_that_is_cut_within_a_character_ends_before_it() -> None:
    author, first = toy_author(), token_ids("“")[0]
    for new, expected in (((first,), ("The", False)), ((), ("The", True))):
        with patch.object(author, "continue_drafts", return_value=[new]):
            prompt_tokens = len(token_ids("The"))
            settings = ContinuationSettings(prompt_tokens, prompt_tokens + 1)
            assert continue_texts(author, ["The dog ran home"], [0], settings) == [expected]


# The cache.


def open_cache(folder: Path, **identity: Any) -> OutputCache:
    return OutputCache(folder, "texts", identity, len(TEXTS), rows_per_shard=4)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_interrupted_teacher_writes_the_same_bytes(tmp_path: Path) -> None:
    author = toy_author()
    store_texts(open_cache(tmp_path / "whole"), author, TEXTS, SAMPLED)
    begun = [continue_texts(author, TEXTS[:4], range(4), SAMPLED), KeyboardInterrupt]
    part = open_cache(tmp_path / "part")
    continuing = patch("vaswani.distillation.teacher_texts.continue_texts", side_effect=begun)
    with continuing, pytest.raises(KeyboardInterrupt):
        store_texts(part, author, TEXTS, SAMPLED)
    assert len(files_of(tmp_path / "part")) == 2
    rest = Dataset.from_dict({"text": TEXTS})["text"]
    store_texts(open_cache(tmp_path / "part"), toy_author(60), rest, SAMPLED)
    assert files_of(tmp_path / "part") == files_of(tmp_path / "whole")
    expected = continue_texts(author, TEXTS, range(len(TEXTS)), SAMPLED)
    assert read_texts(open_cache(tmp_path / "whole")) == expected


def test_texts_of_other_options_are_not_mixed(tmp_path: Path) -> None:
    author = toy_author()
    open_cache(tmp_path, **SAMPLED.identity(author))
    with pytest.raises(UserError, match=r"top_p=0\.9, now 0\.5"):
        open_cache(tmp_path, **replace(SAMPLED, top_p=0.5).identity(author))


# Rows.


def test_rows_take_the_teachers_texts_or_keep_both() -> None:
    rows = Dataset.from_dict({"text": ["a", "", "c"]})
    texts = [TeacherText("A", True), None, TeacherText("C", False)]
    replaced = with_teacher_texts(rows, texts, keep_references=False)
    assert replaced.rows.to_dict() == {"text": ["A", "", "C"], "complete": [True, True, False]}
    assert replaced.num_lacking == 1
    both = with_teacher_texts(rows, texts, keep_references=True)
    expected = {"text": ["a", "", "c", "A", "C"], "complete": [True, True, True, True, False]}
    assert (both.rows.to_dict(), both.num_lacking) == (expected, 1)
    assert both.rows.features["text"] == rows.features["text"]


@pytest.mark.parametrize("pack", [False, True])
def test_only_texts_that_the_teacher_ended_have_an_end_token(pack: bool) -> None:
    texts = [TeacherText("The dog", True), TeacherText("The hedgehog", False), TeacherText("The cat", False)]
    rows = with_teacher_texts(Dataset.from_dict({"text": [""] * 3}), texts, keep_references=False).rows
    builder = PackedBlocks(99) if pack else DocumentParts(99)
    parts = [[BEGIN, *token_ids(text), *[END] * complete] for text, complete in texts]
    expected = [list(chain(*parts))] if pack else parts
    assert make_sequences(rows, TOKENIZER, builder)["input_ids"][:] == expected
