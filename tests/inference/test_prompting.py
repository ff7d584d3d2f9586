"""`Prompter` with a toy model that learns from its prompt, and with random models."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
)

from toy_prompting import NUMERALS, numeral_rows, numeral_task, save_toy_checkpoint, toy_model, toy_tokenizer
from vaswani import VaswaniDecoderConfig, VaswaniEncoderConfig, VaswaniForCausalLM, VaswaniForMaskedLM
from vaswani.errors import UserError
from vaswani.inference.prompt.prompting import (
    Prompter,
    PromptingResult,
    TaskAnswer,
    count_answers,
    wilson_interval,
)
from vaswani.inference.prompt.task import Task

CHOSEN: dict[str, Any] = {"choices": " {words}"}


@pytest.fixture(scope="module")
def prompter() -> Prompter:
    return Prompter(toy_model(), toy_tokenizer())


def random_prompter(**fields: Any) -> Prompter:
    torch.manual_seed(1)
    shape = {"n_embd": 24, "n_layer": 1, "n_head": 3, "initializer_range": 0.5, "n_positions": 200, **fields}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(toy_tokenizer()), **shape, eos_token_id=2))
    return Prompter(model.double(), toy_tokenizer())


# What the toy model knows, and what it learns from shots.


@pytest.mark.slow
@pytest.mark.parametrize("way", [{}, CHOSEN], ids=["written", "chosen"])
@pytest.mark.parametrize("language", NUMERALS)
def test_one_shot_reveals_the_language(prompter: Prompter, way: dict[str, Any], language: str) -> None:
    task = numeral_task(examples=numeral_rows(language), test=numeral_rows(language), **way)
    accuracies = [prompter.answer(task, shots).accuracy for shots in (0, 1, 4)]
    assert accuracies[0] <= 70
    assert accuracies[1] >= 90
    assert accuracies[2] == 100


def test_zero_shot_answers_are_correct_in_one_language_each(prompter: Prompter) -> None:
    """For the same prompts the same answers, of which each is of one language."""
    right = [prompter.answer(numeral_task(test=numeral_rows(language)), 0).right for language in NUMERALS]
    assert sum(right) == 10


def test_examples_of_another_language_mislead(prompter: Prompter) -> None:
    task = numeral_task(examples=numeral_rows("German"), test=numeral_rows("Spanish"))
    answers = prompter.answer(task, 2).answers
    assert [answer.given for answer in answers] == NUMERALS["German"]
    assert not any(answer.right for answer in answers)


def test_an_answer_holds_prompt_expected_and_given_text(prompter: Prompter) -> None:
    task = numeral_task(description="0: cero")
    answer = prompter.answer(task, 1, seed=3).answers[5]
    (shot,) = task.draw_shots(5, 1, seed=3)
    prompt = f"0: cero, {shot.prompt}{shot.answer}, 5:"
    assert answer == TaskAnswer(6, 1, prompt, expected="cinco", given="cinco", right=True)
    chosen = prompter.answer(numeral_task(**CHOSEN, description="0: cero"), 1, seed=3).answers[5]
    assert (chosen.prompt, chosen.expected, chosen.given) == (prompt, " cinco", " cinco")
    assert chosen.scores is not None
    assert list(chosen.scores) == [" five", " cinco", " fünf"]
    assert sum(math.exp(score) for score in chosen.scores.values()) == pytest.approx(1, abs=0.05)


# How choices are compared.


def naive_score(prompter: Prompter, prompt: str, answer: str) -> tuple[float, int]:
    """The log-probability of an answer's tokens, and their number."""
    model, tokenizer = prompter.language_model.model, toy_tokenizer()
    context = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    token_ids = tokenizer(prompt + answer, add_special_tokens=False)["input_ids"]
    assert token_ids[: len(context)] == context
    with torch.no_grad():
        log_probs = model(torch.tensor([token_ids])).logits[0].log_softmax(dim=-1)
    places = range(len(context), len(token_ids))
    return sum(log_probs[place - 1, token_ids[place]].item() for place in places), len(places)


@pytest.mark.parametrize("normalize", ["none", "tokens", "unconditional"])
def test_scores_are_normalized_as_the_task_says(normalize: str) -> None:
    prompter = random_prompter()
    context = {"answer_context": "one two:"} if normalize == "unconditional" else {}
    words = {"choices": [" seven", " sieben acht", " elf", " {word} {word}"], "answer": " {word} {word}"}
    task = numeral_task(normalize=normalize, **words, **context)
    for answer in prompter.answer(task, 2).answers:
        expected = {}
        for choice in task.questions[answer.row - 1].choices:
            log_prob, length = naive_score(prompter, answer.prompt, choice)
            baseline = naive_score(prompter, "one two:", choice)[0] if context else 0.0
            expected[choice] = log_prob / (length if normalize == "tokens" else 1) - baseline
        assert answer.scores == pytest.approx(expected, abs=1e-10)
        assert answer.given == max(expected, key=lambda choice: expected[choice])
        assert answer.right == (answer.given == answer.expected)


def test_normalization_methods_give_different_answers() -> None:
    task = numeral_task(choices=[" seven", " sieben acht", " elf", " {word}"])
    tasks = [replace(task, normalize=way) for way in ("none", "tokens", "unconditional")]
    tasks.append(replace(tasks[-1], answer_context="one two:"))
    given = [[answer.given for answer in random_prompter().answer(each, 1).answers] for each in tasks]
    assert len(set(map(tuple, given))) == len(tasks)


def test_the_first_of_equal_choices_is_given() -> None:
    prompter = random_prompter()
    torch.nn.init.zeros_(prompter.language_model.model.lm_head.weight)
    answers = prompter.answer(numeral_task(choices=[" zwei", " tres", " {word}x"], answer=" tres"), 0).answers
    assert {answer.given for answer in answers} == {" zwei"}


def test_answers_are_the_same_in_any_batches() -> None:
    for way in ({}, {**CHOSEN, "normalize": "tokens"}):
        for shots in (0, 3):
            prompter = random_prompter()
            expected = prompter.answer(numeral_task(**way), shots)
            for max_tokens_per_batch in (1, 50):
                prompter.language_model.max_tokens_per_batch = max_tokens_per_batch
                result = prompter.answer(numeral_task(**way), shots)
                for one, other in zip(result.answers, expected.answers, strict=True):
                    assert (one.given, one.prompt) == (other.given, other.prompt)
                    assert (one.scores or {}) == pytest.approx(other.scores or {}, abs=1e-10)


# Every option moves a result.


@pytest.mark.parametrize(
    ("task_options", "options"),
    [
        ({}, {"shots": 3}),
        ({}, {"seed": 1}),
        ({"description": "Count."}, {}),
        ({"separator": ": "}, {}),
        ({"examples": numeral_rows("German")}, {}),
        ({"prompt": "{digit},"}, {}),
        ({"max_new_tokens": 2}, {}),
        ({"stop": ["o", "e"]}, {}),
    ],
)
def test_each_option_changes_the_answers(task_options: dict[str, Any], options: dict[str, Any]) -> None:
    prompter = random_prompter()
    plain = prompter.answer(numeral_task(), 2).answers
    moved = prompter.answer(numeral_task(**task_options), **{"shots": 2, **options}).answers
    assert [answer.given for answer in moved] != [answer.given for answer in plain]


def test_white_space_around_a_generated_answer_is_ignored(prompter: Prompter) -> None:
    task = numeral_task(
        answer="  {word}\n", examples=[], test=numeral_rows()[1:2], description="0: cero, 2: dos"
    )
    (answer,) = prompter.answer(task).answers
    assert (answer.given, answer.right) == ("uno", True)


# Room for shots.


def test_a_row_without_room_has_fewer_shots_and_is_counted() -> None:
    rows = [{**row, "digit": "1 " * row["digit"]} for row in numeral_rows()]
    task = numeral_task(**CHOSEN, test=rows)
    whole = random_prompter().answer(task, 5)
    lengths = [
        max(naive_lengths(answer.prompt, choice) for choice in task.questions[answer.row - 1].choices)
        for answer in whole.answers
    ]
    positions = sorted(lengths)[4]
    assert min(lengths) < positions < max(lengths)
    result = random_prompter(n_positions=positions).answer(task, 5)
    fits = [length <= positions for length in lengths]
    assert [answer.shots == 5 for answer in result.answers] == fits
    assert [answer.row for answer in result.with_fewer_shots] == [
        row for row, fit in enumerate(fits, 1) if not fit
    ]
    assert result.to_dict()["rows_with_fewer_shots"] == fits.count(False)
    for answer, full in zip(result.answers, whole.answers, strict=True):
        assert full.prompt.endswith(answer.prompt)  # the first shots went
        assert answer.prompt.count(",") == answer.shots
    assert whole.with_fewer_shots == []


def naive_lengths(prompt: str, choice: str) -> int:
    """What the model reads: all but the last token."""
    return len(toy_tokenizer()(prompt + choice, add_special_tokens=False)["input_ids"]) - 1


@pytest.mark.parametrize("way", [{}, CHOSEN], ids=["written", "chosen"])
def test_all_positions_are_used_and_no_more(way: dict[str, Any]) -> None:
    task = numeral_task(**way, test=[numeral_rows()[7]])
    prompt = random_prompter().answer(task, 3).answers[0].prompt
    if way:
        needed = max(naive_lengths(prompt, choice) for choice in task.questions[0].choices)
    else:
        needed = naive_lengths(prompt, "") + 8
    assert random_prompter(n_positions=needed).answer(task, 3).answers[0].shots == 3
    assert random_prompter(n_positions=needed - 1).answer(task, 3).answers[0].shots == 2


@pytest.mark.parametrize("way", [{}, CHOSEN], ids=["written", "chosen"])
def test_a_row_too_long_without_shots_raises_an_error(way: dict[str, Any]) -> None:
    rows = [*numeral_rows(), {**numeral_rows()[0], "digit": "1 " * 50}]
    with pytest.raises(
        UserError, match=r"row 11 of test takes \d+ tokens without any shot, and the model has "
    ):
        random_prompter(n_positions=40).answer(numeral_task(**way, test=rows), 1)


@pytest.mark.parametrize("position_embedding", ["sinusoidal", "none"])
def test_a_model_without_a_length_limit_uses_all_shots(position_embedding: str) -> None:
    config = VaswaniDecoderConfig(
        vocab_size=len(toy_tokenizer()),
        d_model=16,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=16,
        max_position_embeddings=8,
        position_embedding=position_embedding,
        eos_token_id=2,
    )
    result = Prompter(VaswaniForCausalLM(config), toy_tokenizer()).answer(numeral_task(), 9)
    assert result.with_fewer_shots == []


# What cannot be asked.


@pytest.mark.parametrize(
    ("options", "shots", "message"),
    [
        ({}, 10, "shots=10, and there are 9 examples for row 1 of test"),
        ({}, -1, "shots=-1 must be 0 or more"),
        ({"prompt": ""}, 0, "row 1 of test: the prompt is empty"),
        ({"prompt": "", **CHOSEN}, 0, "row 1 of test: the answers have no context"),
    ],
)
def test_invalid_tasks_raise_an_error_before_running_the_model(
    options: dict[str, Any], shots: int, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        random_prompter().answer(numeral_task(**options), shots)


def test_an_empty_answer_context_raises_an_error() -> None:
    task = numeral_task(**CHOSEN, normalize="unconditional", answer_context="")
    with pytest.raises(UserError, match="answer_context: the answers have no context"):
        random_prompter().answer(task, 1)


# Results.


def test_wilsons_interval_holds_the_probabilities_that_the_share_does_not_refute() -> None:
    """Its ends solve |share - p| = z · sqrt(p (1 - p) / n)."""
    for successes, trials in [(0, 1), (1, 1), (0, 20), (3, 20), (10, 20), (20, 20), (999, 1000)]:
        low, high = wilson_interval(successes, trials)
        assert 0 <= low <= successes / trials <= high <= 1
        assert high - low > 0
        for end in (low, high):
            distance = 1.959964 * math.sqrt(end * (1 - end) / trials)
            assert abs(successes / trials - end) == pytest.approx(distance, abs=1e-9)


def test_a_result_has_a_text_and_a_dictionary_form() -> None:
    answers = [TaskAnswer(row, 1, "", "", "", right=row <= 3) for row in range(1, 5)]
    result = PromptingResult(1, answers)
    assert (result.right, result.accuracy) == (3, 75.0)
    low, high = result.interval
    assert str(result) == f"1 shot: accuracy 75.00 (95 % interval {low:.2f} to {high:.2f}), 3 of 4 rows"
    assert str(replace(result, shots=2)).startswith("2 shots: ")
    numbers = {"shots": 1, "accuracy": 75.0, "low": low, "high": high, "rows": 4, "rows_with_fewer_shots": 0}
    assert result.to_dict() == numbers


@pytest.mark.parametrize("way", [{}, CHOSEN], ids=["written", "chosen"])
def test_progress_counts_all_answers(prompter: Prompter, way: dict[str, Any]) -> None:
    done: list[int] = []
    prompter.answer(numeral_task(**way), 2, progress=done.append)
    assert sum(done) == count_answers(numeral_task(**way)) == (30 if way else 10)


# Loading.


def test_a_folder_is_loaded_with_its_options(tmp_path: Path) -> None:
    save_toy_checkpoint(tmp_path)
    loaded = Prompter.from_pretrained(tmp_path, device="cpu", dtype="bfloat16", max_tokens_per_batch=77)
    assert loaded.language_model.model.dtype == torch.bfloat16
    assert loaded.language_model.max_tokens_per_batch == 77
    assert loaded.answer(numeral_task(), 4).accuracy >= 90
    with pytest.raises(UserError, match="max_tokens_per_batch=0 must be at least 1"):
        Prompter.from_pretrained(tmp_path, max_tokens_per_batch=0)


def test_models_that_are_not_causal_raise_an_error(tmp_path: Path) -> None:
    sizes = {"vocab_size": len(toy_tokenizer()), "pad_token_id": 0, "decoder_start_token_id": 0}
    MarianMTModel(MarianConfig(d_model=16, encoder_layers=1, decoder_layers=1, **sizes)).save_pretrained(
        tmp_path / "marian"
    )
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    bert = BertConfig(vocab_size=len(toy_tokenizer()), **shape)
    BertForMaskedLM(bert).save_pretrained(tmp_path / "bert")
    heads = {"encoder_attention_heads": 2, "encoder_ffn_dim": 16}
    ours = VaswaniEncoderConfig(vocab_size=len(toy_tokenizer()), d_model=16, encoder_layers=1, **heads)
    VaswaniForMaskedLM(ours).save_pretrained(tmp_path / "vaswani_encoder")
    for name in ("marian", "bert", "vaswani_encoder"):
        toy_tokenizer().save_pretrained(tmp_path / name)
        message = (
            f"{tmp_path / name} holds a model of type '{name}', which does not continue texts; expected a c"
        )
        with pytest.raises(UserError, match=message):
            Prompter.from_pretrained(tmp_path / name)


def test_a_bert_trained_as_a_decoder_is_accepted(tmp_path: Path) -> None:
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=len(toy_tokenizer()), **shape, is_decoder=True)
    BertLMHeadModel(config).save_pretrained(tmp_path)
    toy_tokenizer().save_pretrained(tmp_path)
    assert len(Prompter.from_pretrained(tmp_path).answer(numeral_task(), 2).answers) == 10


def test_an_ad_hoc_task_needs_no_file(prompter: Prompter) -> None:
    task = Task(
        prompt="0: null, {n}:", answer=" {w}", choices=[" {w}", " cinco"], test=[{"n": 5, "w": "fünf"}]
    )
    assert prompter.answer(task).accuracy == 100
