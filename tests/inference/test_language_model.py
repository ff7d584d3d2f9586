"""Log-probabilities against a loop over single texts, greedy writing against one over single tokens."""

import math
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    BertConfig,
    BertLMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from tiny_causal import ALL_MODELS, TEXT, bloom, gpt2, gpt2_like, gpt_neox, llama, ours
from vaswani.data.tokenization import train_tokenizer
from vaswani.errors import RunError, UserError
from vaswani.inference.continuing import Prompt
from vaswani.inference.language_model import LanguageModel

QUESTIONS = [
    ("the cat sat on", [" the mat", " a cat", " 3", " mat"]),
    ("is that right?\n\nthe cat is a very, very good cat. is it?", [" yes", " no"]),
    ("maybe", [" that is right", " 1 2 3 4 5", " no"]),
    ("the", [" cat", " cats"]),
]


def merging(*merges: tuple[str, str]) -> PreTrainedTokenizerBase:
    """Letters, and such pairs of them, across any border."""
    letters = {letter: number for number, letter in enumerate("QA:BCxyz ")}
    vocabulary = letters | {a + b: len(letters) + number for number, (a, b) in enumerate(merges)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocabulary, list(merges))))


def naive_log_prob(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, answer: str
) -> float:
    """One text by itself, as the tokenizer encodes it; an answer's tokens reach beyond the prompt."""
    encoded = tokenizer(prompt + answer, return_offsets_mapping=True, return_special_tokens_mask=True)
    while encoded["special_tokens_mask"][-1]:
        for values in encoded.values():
            values.pop()
    with torch.no_grad():
        log_probs = model(torch.tensor([encoded["input_ids"]])).logits[0].log_softmax(dim=-1)
    total = 0.0
    for place, (token_id, (_, end)) in enumerate(
        zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    ):
        if end > len(prompt):
            total += log_probs[place - 1, token_id].item()
    return total


def log_probs(language_model: LanguageModel, questions: list[tuple[str, list[str]]]) -> list[float]:
    encoded = [language_model.encode_answers(prompt, answers) for prompt, answers in questions]
    return language_model.log_probs([continuation for answers in encoded for continuation in answers])


# Scoring.


@pytest.mark.parametrize("max_tokens_per_batch", [1, 40, 10_000])
@pytest.mark.parametrize("tokenizer", [gpt2_like, lambda: gpt2_like(with_bos=True)], ids=["plain", "bos"])
@pytest.mark.parametrize("make", ALL_MODELS)
def test_log_probs_are_those_of_a_loop_over_single_texts(
    make: Callable[[], PreTrainedModel],
    tokenizer: Callable[[], PreTrainedTokenizerBase],
    max_tokens_per_batch: int,
) -> None:
    model = make().double().eval()
    language_model = LanguageModel(model, tokenizer(), max_tokens_per_batch)
    expected = [
        naive_log_prob(model, tokenizer(), prompt, answer)
        for prompt, answers in QUESTIONS
        for answer in answers
    ]
    rounding = 1e-6 if make is bloom else 1e-10  # its softmax is in single precision
    assert log_probs(language_model, QUESTIONS) == pytest.approx(expected, abs=rounding)
    assert len(set(expected)) == len(expected)


@pytest.mark.parametrize("fields", [{}, {"position_embedding": "sinusoidal"}, {"norm_order": "post"}])
def test_a_tokenizer_that_ends_every_text_does_not_end_the_prompt(fields: dict[str, Any]) -> None:
    tokenizer = train_tokenizer([TEXT] * 3, 320)
    assert tokenizer("the")["input_ids"][-1] == tokenizer.eos_token_id
    model = ours(vocab_size=len(tokenizer), **fields).double().eval()
    expected = [
        naive_log_prob(model, tokenizer, *question) for question in [("the cat", " sat on"), ("1", " 2")]
    ]
    questions = [("the cat", [" sat on"]), ("1", [" 2"])]
    assert log_probs(LanguageModel(model, tokenizer), questions) == pytest.approx(expected, abs=1e-10)


def test_a_space_before_or_after_the_boundary_gives_the_same_score() -> None:
    language_model = LanguageModel(gpt2().double(), gpt2_like())
    before = log_probs(language_model, [("is that right? ", ["yes", "no", "maybe"])])
    after = log_probs(language_model, [("is that right?", [" yes", " no", " maybe"])])
    assert before == pytest.approx(after, abs=1e-12)


def test_answers_that_merge_with_the_prompt_are_scored_from_before_it() -> None:
    tokenizer = merging((":", "B"))
    model = gpt2(vocab_size=10).double().eval()
    encoded = LanguageModel(model, tokenizer).encode_answers("Q:", ["B", "C"])
    tokens = [tokenizer.convert_ids_to_tokens(continuation.answer_ids) for continuation in encoded]
    assert tokens == [[":B"], [":", "C"]]
    whole = [naive_log_prob(model, tokenizer, "Q", ":B"), naive_log_prob(model, tokenizer, "Q", ":C")]
    assert log_probs(LanguageModel(model, tokenizer), [("Q:", ["B", "C"])]) == pytest.approx(whole, abs=1e-12)


def test_answers_that_differ_in_their_last_token_share_one_row() -> None:
    model = gpt2()
    language_model = LanguageModel(model, gpt2_like())
    with patch.object(model, "forward", wraps=model.forward) as forward:
        alone = [
            log_probs(language_model, [("the", [answer])])[0] for answer in (" cat", " mat", " good cat")
        ]
        forward.reset_mock()
        together = log_probs(language_model, [("the", [" cat", " mat", " good cat"])])
    assert together == pytest.approx(alone, abs=1e-5)
    (call,) = forward.call_args_list
    assert call.kwargs["input_ids"].shape[0] == 2


def test_no_more_logits_are_computed_than_are_needed() -> None:
    model = gpt2()
    language_model = LanguageModel(model, gpt2_like())
    with patch.object(model.lm_head, "forward", wraps=model.lm_head.forward) as head:
        log_probs(language_model, [("the cat sat on the mat. the cat sat on", [" the mat", " maybe"])])
    assert head.call_args.args[0].shape[:2] == (2, 2)


@pytest.mark.parametrize("max_tokens_per_batch", [1, 12, 30, 1000])
def test_batches_keep_to_their_budget(max_tokens_per_batch: int) -> None:
    model = gpt2()
    language_model = LanguageModel(model, gpt2_like(), max_tokens_per_batch)
    done: list[int] = []
    encoded = [language_model.encode_answers(prompt, answers) for prompt, answers in QUESTIONS]
    continuations = [continuation for answers in encoded for continuation in answers]
    with patch.object(model, "forward", wraps=model.forward) as forward:
        language_model.log_probs(continuations, done.append)
    shapes = [call.kwargs["input_ids"].shape for call in forward.call_args_list]
    assert all(rows == 1 or rows * length <= max_tokens_per_batch for rows, length in shapes)
    assert [length for _, length in shapes] == sorted((length for _, length in shapes), reverse=True)
    assert len(done) == len(shapes)
    assert sum(done) == len(continuations)


def test_half_precision_scores_are_computed_in_float32() -> None:
    model = gpt2().bfloat16().eval()
    tokenizer = gpt2_like()
    logits = model(torch.tensor([tokenizer("the cat")["input_ids"]])).logits[0].float()
    expected = logits[-2].log_softmax(dim=-1)[tokenizer(" cat")["input_ids"][0]].item()
    assert log_probs(LanguageModel(model, tokenizer), [("the", [" cat"])]) == pytest.approx(
        [expected], abs=1e-6
    )


@pytest.mark.parametrize(
    ("prompt", "answers", "message"),
    [
        ("", [" yes", " no"], "the answers have no context to predict them from: the prompt ''"),
        ("Q", [":"], "the prompt 'Q' is empty, or forms one token with them"),
        ("x", ["e", "f"], "the tokenizer does not distinguish these answers: 'e', 'f'"),
        ("x", ["y", ""], "the tokenizer does not distinguish these answers: 'y', ''"),
    ],
)
def test_answers_without_context_or_tokens_raise_an_error(
    prompt: str, answers: list[str], message: str
) -> None:
    language_model = LanguageModel(gpt2(vocab_size=10), merging(("Q", ":")))
    with pytest.raises(UserError, match=message):
        language_model.encode_answers(prompt, answers)


def test_with_a_begin_token_an_empty_prompt_is_accepted() -> None:
    model = gpt2().double().eval()
    tokenizer = gpt2_like(with_bos=True)
    expected = [naive_log_prob(model, tokenizer, "", answer) for answer in ("yes", "no")]
    assert log_probs(LanguageModel(model, tokenizer), [("", ["yes", "no"])]) == pytest.approx(
        expected, abs=1e-10
    )


# Writing.


def naive_writing(
    model: PreTrainedModel, token_ids: list[int], max_new_tokens: int, ends: set[int]
) -> list[int]:
    written: list[int] = []
    while len(written) < max_new_tokens:
        with torch.no_grad():
            likeliest = model(torch.tensor([token_ids + written])).logits[0, -1].argmax().item()
        if likeliest in ends:
            break
        written.append(int(likeliest))
    return written


@pytest.mark.parametrize("max_tokens_per_batch", [1, 60, 10_000])
@pytest.mark.parametrize("make", ALL_MODELS)
def test_writing_equals_a_greedy_loop(make: Callable[[], PreTrainedModel], max_tokens_per_batch: int) -> None:
    model, tokenizer = make().double().eval(), gpt2_like()
    prompts = [Prompt(tuple(tokenizer(prompt)["input_ids"])) for prompt, _ in QUESTIONS for _ in range(2)]
    continued = [naive_writing(model, list(prompt.token_ids), 12, set()) for prompt in prompts]
    end = continued[0][3]  # one that a text comes to
    model.generation_config.eos_token_id = end
    expected = [naive_writing(model, list(prompt.token_ids), 12, {end}) for prompt in prompts]
    assert len({len(ids) for ids in expected}) > 1
    texts = LanguageModel(model, tokenizer, max_tokens_per_batch).write(prompts, 12)
    assert texts == tokenizer.batch_decode(expected, skip_special_tokens=True)
    assert len(set(texts)) > 2


def test_writing_stops_before_the_first_of_the_stop_texts_and_at_once() -> None:
    model = gpt2().eval()
    tokenizer = gpt2_like()
    language_model = LanguageModel(model, tokenizer)
    prompts = [language_model.encode_prompt(prompt) for prompt, _ in QUESTIONS[:1]]
    (whole,) = language_model.write(prompts, 20)
    stop = [whole[7:9], whole[4:7], "never"]
    with patch.object(model, "forward", wraps=model.forward) as forward:
        assert language_model.write(prompts, 20, stop) == [whole[: min(map(whole.find, stop[:2]))]]
    assert forward.call_count < 20
    assert language_model.write(prompts, 20, ["never"]) == [whole]


def test_the_number_of_written_tokens_is_limited() -> None:
    model, tokenizer = llama().eval(), gpt2_like()
    prompt = tuple(tokenizer("the cat")["input_ids"])
    for count in (1, 2, 5):
        expected = tokenizer.decode(naive_writing(model, list(prompt), count, set()))
        assert LanguageModel(model, tokenizer).write([Prompt(prompt)], count) == [expected]


def test_an_end_token_of_number_0_ends_a_text() -> None:
    model = gpt_neox().eval()
    tokenizer = gpt2_like()
    prompt = tuple(tokenizer("the cat")["input_ids"])
    with torch.no_grad():
        states = model(torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1]
        model.get_output_embeddings().weight[0] = 1e3 * states[0, -1]
    assert LanguageModel(model, tokenizer).write([Prompt(prompt)], 5) == [""]


def test_progress_counts_every_text() -> None:
    language_model = LanguageModel(gpt2(), gpt2_like(), 30)
    prompts = [language_model.encode_prompt(prompt) for prompt, _ in QUESTIONS * 2]
    done: list[int] = []
    language_model.write(prompts, 3, progress=done.append)
    assert len(done) > 1
    assert sum(done) == len(prompts)


def test_an_empty_prompt_cannot_be_continued() -> None:
    with pytest.raises(UserError, match="the prompt is empty; give a text to continue"):
        LanguageModel(gpt2(), gpt2_like()).encode_prompt("")
    assert LanguageModel(gpt2(), gpt2_like(with_bos=True)).encode_prompt("") == Prompt((1,))


# Models.


@pytest.mark.parametrize("make", ALL_MODELS)
def test_dropout_is_off_whatever_mode_the_model_was_in(make: Callable[[], PreTrainedModel]) -> None:
    language_model = LanguageModel(make().train(), gpt2_like())
    assert log_probs(language_model, QUESTIONS) == log_probs(language_model, QUESTIONS)


def test_a_bidirectional_model_is_refused() -> None:
    shape = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 48}
    config = BertConfig(vocab_size=320, **shape)
    with pytest.raises(UserError, match="BertLMHeadModel sees the tokens that it predicts; give a causal"):
        LanguageModel(BertLMHeadModel(config), gpt2_like())
    config.is_decoder = True
    LanguageModel(BertLMHeadModel(config), gpt2_like())


def test_a_token_budget_must_be_positive() -> None:
    with pytest.raises(UserError, match="max_tokens_per_batch=0 must be at least 1"):
        LanguageModel(gpt2(), gpt2_like(), 0)


def test_scores_that_are_not_numbers_are_no_scores() -> None:
    model = gpt2()
    torch.nn.init.constant_(model.transformer.ln_f.weight, math.nan)
    with pytest.raises(RunError, match="scores are not finite numbers in float32"):
        log_probs(LanguageModel(model, gpt2_like()), QUESTIONS)


def test_short_memory_names_the_batch_and_the_remedy() -> None:
    model = gpt2()
    language_model = LanguageModel(model, gpt2_like())
    continuations = language_model.encode_answers("the", [" cat", " good cat"])
    message = r"out of memory with \d texts of up to \d tokens; lower max_tokens_per_batch"
    with patch.object(model, "forward", side_effect=torch.OutOfMemoryError):
        with pytest.raises(RunError, match=message):
            language_model.log_probs(continuations)
        with pytest.raises(RunError, match=message):
            language_model.write([Prompt(continuation.inputs) for continuation in continuations], 3)
