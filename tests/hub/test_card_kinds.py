"""The cards of encoders and decoders name the task and the data of the scores."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    PreTrainedModel,
)

import tiny_causal
from toy_labels import save_toy_answerer, save_toy_classifier, toy_config, toy_tokenizer
from vaswani import VaswaniConfig, VaswaniDecoderConfig, VaswaniEncoderConfig, VaswaniForMultipleChoice
from vaswani.hub.card import model_card
from vaswani.hub.plain_card import usage
from vaswani.hub.run_metadata import RunMetadata, count_parameters, read_config
from vaswani.inference.answer.answering import QuestionAnswerer
from vaswani.inference.classify.classification import Classifier
from vaswani.inference.generate.generation import TextGenerator

SCORE = {"value": 61.25, "low": 55.0, "high": 67.5, "signature": None}
KINDS: list[tuple[str, dict[str, Any], dict[str, Any], list[str]]] = [
    (
        "VaswaniForMaskedLM",
        {"objective": "masked"},
        {"metrics": {"accuracy": {"name": "Accuracy (%)", **SCORE}}},
        ["pipeline_tag: fill-mask", "trained on reviews to fill in masked words", "AutoModelForMaskedLM"],
    ),
    (
        "VaswaniForCausalLM",
        {"objective": "causal"},
        {"metrics": {"perplexity": {"name": "Perplexity", **SCORE}}, "unit": "sequences"},
        ["pipeline_tag: text-generation", "trained on reviews to continue texts", "A Transformer decoder ("],
    ),
    (
        "VaswaniForCausalLM",
        {"objective": "causal", "model": "/home/ada/gpt"},
        {"metrics": {"perplexity": {"name": "Perplexity", **SCORE}}},
        ["It was fine-tuned from gpt on reviews to continue texts"],
    ),
    (
        "VaswaniForCausalLM",
        {"task": "completion", "model": "gpt", "messages_field": "chat"},
        {
            "metrics": {"perplexity": {"name": "Perplexity", **SCORE}},
            "examples": [{"prompt": "user: Hi assistant:", "prediction": "Hi", "reference": "Ho"}],
        },
        [
            "to write the assistant's answers in the chats of `chat`",
            "inputs = tokenizer.apply_chat_template(\n",
            "| user: Hi assistant: | Hi | Ho |",
        ],
    ),
    (
        "VaswaniForCausalLM",
        {"task": "completion", "model": "gpt", "prompt_field": "sum", "completion_field": "is"},
        {
            "metrics": {"perplexity": {"name": "Perplexity", **SCORE}},
            "examples": [{"prompt": "1 + " * 100 + "1 =", "prediction": "2", "reference": "101"}],
        },
        ["to write the `is` of a row after its `sum`", ' + 1 + 1 ="], return_tensors="pt")'],
    ),
    (
        "VaswaniForMaskedLM",
        {"objective": "masked", "model": "mlm"},
        {"metrics": {"accuracy": {"name": "Accuracy (%)", **SCORE}}},
        ["It was fine-tuned from mlm on reviews to fill in masked words"],
    ),
    (
        "VaswaniForSequenceClassification",
        {"task": "classification", "model": "mlm", "text_pair_field": "hypothesis"},
        {
            "metrics": {"accuracy": {"name": "Accuracy (%)", **SCORE}},
            "examples": [{"text": "Ann saw", "text_pair": "Ann ran", "prediction": "no", "reference": "no"}],
        },
        [
            "to predict the `label` of a pair of texts",
            'tokenizer(["Ann saw"], ["Ann ran"], return_tensors="pt")',
        ],
    ),
    (
        "VaswaniForSequenceClassification",
        {"task": "classification", "model": "/home/ada/mlm", "label_field": "mood"},
        {
            "metrics": {"accuracy": {"name": "Accuracy (%)", **SCORE}},
            "examples": [{"text": "A joy | really", "prediction": "pos", "reference": "neg"}],
        },
        [
            "pipeline_tag: text-classification",
            "fine-tuned from mlm on reviews to predict the `mood` of a text",
            "| Text | Prediction | Reference |",
            "| A joy \\| really | pos | neg |",
            "expect errors without warning",
            'tokenizer(["A joy | really"]',
        ],
    ),
    (
        "VaswaniForTokenClassification",
        {"task": "tagging", "model": "mlm", "from_scratch": True},
        {
            "metrics": {"f1": {"name": "Span F1", **SCORE}},
            "examples": [{"text": ["in", "Rome"], "prediction": ["O", "B"], "reference": ["O", "O"]}],
        },
        [
            "pipeline_tag: token-classification",
            "trained from new weights on reviews to predict the `label` of each word of a text",
            "| in Rome | O B | O O |",
            'tokenizer(["in Rome"]',
        ],
    ),
    (
        "VaswaniForSequenceClassification",
        {"task": "multi_label", "label_field": "moods", "teacher": ["/home/ada/large", "/home/ada/wide"]},
        {"metrics": {"micro_f1": {"name": "micro F1", **SCORE}}},
        [
            "It was distilled on reviews to predict any number of labels (`moods`) of a text",
            "| `teacher` | large, wide |",
            "metrics:\n- f1\n",
            "    - type: f1\n      value: 61.25\n      name: micro F1\n",
        ],
    ),
    (
        "VaswaniForMaskedLM",
        {"objective": "masked", "teacher": ["/home/ada/large"], "student": "mlm"},
        {"metrics": {"accuracy": {"name": "Accuracy (%)", **SCORE}}},
        ["It was distilled on reviews to fill in masked words"],
    ),
]


@pytest.mark.parametrize(
    ("architecture", "settings", "evaluation", "said"), KINDS, ids=lambda value: str(value)[:30]
)
def test_the_card_describes_each_kind_of_model(
    architecture: str, settings: dict, evaluation: dict, said: list[str]
) -> None:
    kind = VaswaniDecoderConfig if "Causal" in architecture else VaswaniEncoderConfig
    facts = RunMetadata(
        config=kind(vocab_size=300, architectures=[architecture]),
        num_parameters=1_234,
        settings={"dataset": "data/reviews", **settings},
        corpus={"rows": {"train": 10}},
        evaluation={
            "split": "test",
            "rows": 200,
            "intervals": "from resamples",
            "versions": {},
            **evaluation,
        },
    )
    card = str(model_card(facts, "ada/toy"))
    scored = f"On the 200 {evaluation.get('unit', 'rows')} of the test split of reviews:"
    for text in [*said, scored, "| 61.25 | 55.00 to 67.50 |"]:
        assert text in card, text
    assert "translat" not in card.lower()
    assert "/home" not in card
    assert ("| Output projection |" in card) == architecture.endswith("LM")  # others do not predict tokens


@pytest.mark.parametrize(
    ("architecture", "settings", "texts"),
    [
        (
            "VaswaniForConditionalGeneration",
            {"source_prefix": ">>deu<< "},
            '[">>deu<< A text to translate."]',
        ),
        ("VaswaniForConditionalGeneration", {"task": "summarization"}, '["A text to summarize."]'),
        (
            "VaswaniForSequenceClassification",
            {"text_pair_field": "b"},
            '["A text to classify."], ["A second te',
        ),
        ("VaswaniForTokenClassification", {}, '["Words to tag."]'),
        ("VaswaniForQuestionAnswering", {}, '["Who saw Rome?"], ["Ann saw Rome."]'),
        ("VaswaniForCausalLM", {}, '["The beginning of a text"]'),
        ("VaswaniEncoderModel", {}, '["A text."]'),
    ],
)
def test_without_examples_the_snippet_has_a_text_for_the_task(
    architecture: str, settings: dict, texts: str
) -> None:
    family = {"Conditional": VaswaniConfig, "Causal": VaswaniDecoderConfig}
    kind = next((found for part, found in family.items() if part in architecture), VaswaniEncoderConfig)
    config, prefix = kind(vocab_size=300, architectures=[architecture]), settings.get("source_prefix", "")
    facts = RunMetadata(config, 1_234, settings, source_prefix=prefix)
    assert f"tokenizer({texts}" in str(model_card(facts, "ada/toy"))


def test_a_pretrained_encoder_decoder_without_scores_has_its_task_and_removed_text_to_fill_in() -> None:
    facts = RunMetadata(
        config=VaswaniConfig(vocab_size=300, architectures=["VaswaniForConditionalGeneration"]),
        num_parameters=1_234,
        settings={"objective": "span_denoising", "train_file": ["/home/ada/texts.txt"]},
        corpus={"rows": {"train": 10}},
    )
    card = str(model_card(facts, "ada/toy"))
    assert "pipeline_tag: text-generation" in card
    assert 'tokenizer(["The weather <extra_id_0> today."], return_tensors="pt")' in card
    assert "pipeline_tag" not in str(model_card(RunMetadata(facts.config, 1_234), "ada/toy"))  # nothing known
    card = str(model_card(facts.with_settings(objective="gap_sentences"), "ada/toy"))
    assert 'tokenizer([f"Ann saw Rome. {tokenizer.mask_token} Then she went home."], return' in card


def printed_by_snippet(
    folder: Path, capsys: pytest.CaptureFixture[str], *examples: str, number: int = 0, **options: Any
) -> str:
    """What the code in the card of a model prints; `number` counts the snippets of the card."""
    card = usage(read_config(folder), str(folder), *examples, **options)
    snippet = card.split("```python")[1 + number].split("```")[0]
    capsys.readouterr()
    exec(snippet, {})
    return capsys.readouterr().out


@pytest.mark.parametrize("library", [False, True])
@pytest.mark.parametrize("task", ["classification", "multi_label", "regression"])
def test_the_snippet_of_a_classifier_prints_the_labels_with_their_probabilities(
    task: str, library: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_toy_classifier(tmp_path, task, library)
    printed = printed_by_snippet(folder, capsys, "the film")
    (expected,) = Classifier.from_pretrained(folder)(["the film"])
    if task == "regression":
        assert f"{expected.label:.4f}" in printed
    else:
        assert eval(printed) == pytest.approx(expected.probabilities)


@pytest.mark.parametrize("library", [False, True])
def test_the_snippet_of_a_tagger_prints_tokens_with_their_tags(
    library: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_toy_classifier(tmp_path, "tagging", library)
    printed = eval(printed_by_snippet(folder, capsys, "ann saw rome"))
    (expected,) = Classifier.from_pretrained(folder)([["ann", "saw", "rome"]])
    assert [tag for _, tag in printed[1:-1]] == list(expected.label)
    assert ["ann" in printed[1][0], "rome" in printed[3][0]] == [True, True]


@pytest.mark.parametrize("library", [False, True])
@pytest.mark.parametrize("auto_class", [AutoModelForMaskedLM, AutoModelForPreTraining])
def test_the_snippet_of_a_masked_model_prints_the_likeliest_words(
    auto_class: Any, library: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = auto_class.from_config(toy_config(library)), toy_tokenizer()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    printed = eval(printed_by_snippet(tmp_path, capsys))
    inputs = tokenizer([f"The {tokenizer.mask_token} is good."], return_tensors="pt")
    place = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id)
    scores = model.eval()(**inputs)[0][0, place]
    assert printed == [tokenizer.decode([token]) for token in scores.argsort(descending=True)[:5].tolist()]


@pytest.mark.parametrize("make", [tiny_causal.ours, tiny_causal.gpt2])
def test_the_snippet_of_a_model_of_chats_answers_a_chat(
    make: Callable[[], PreTrainedModel], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = make(), tiny_causal.gpt2_like()
    tokenizer.chat_template = (
        "{% for one in messages %}<s>{{ one.role }}: {{ one.content }}\n{% endfor %}bot:"
    )
    model.generation_config.update(max_length=40, do_sample=False, suppress_tokens=[0, 1, 2])
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    answerer = TextGenerator(model, tokenizer, chat=True, max_new_tokens=5)
    (expected,) = answerer.generate(["A question"])
    (printed,) = eval(printed_by_snippet(tmp_path, capsys, is_chat=True))
    prompt = "user: A question\nbot:"
    assert printed.startswith(prompt)
    assert printed.removeprefix(prompt).startswith(expected.text)
    assert expected.text


@pytest.mark.parametrize("number", [0, 1])  # with the plugin and without it
def test_the_snippets_of_a_question_answerer_print_the_answer(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, tokenizer = save_toy_answerer(tmp_path), toy_tokenizer()
    model = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    answerer, differing = QuestionAnswerer.from_pretrained(folder), 0
    words = ["the", "film", "was", "bad", "and", "ann", "saw", "rome"]
    for turn in range(len(words)):
        pair = "who was good", " ".join(words[turn:] + words[:turn])
        (expected,) = answerer.answer([pair])
        assert printed_by_snippet(folder, capsys, *pair, number=number).strip() == expected.text
        inputs = tokenizer(*pair, return_tensors="pt")
        outputs = model(**inputs)
        start, end = outputs.start_logits.argmax(), outputs.end_logits.argmax()
        differing += tokenizer.decode(inputs["input_ids"][0, start : end + 1]).strip() != expected.text
    of_neutral = printed_by_snippet(folder, capsys, number=number).strip().lower()
    assert of_neutral
    assert of_neutral in "ann saw rome."
    assert differing  # the likeliest start and end are no span of the text


@pytest.mark.parametrize("number", [0, 1])
def test_the_snippet_of_a_multiple_choice_model_prints_the_probability_of_each_choice(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = VaswaniForMultipleChoice(toy_config(initializer_range=0.5)).eval(), toy_tokenizer()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    printed = eval(printed_by_snippet(tmp_path, capsys, number=number))
    inputs = tokenizer(["Ann saw"] * 2, ["Rome.", "a film."], padding=True, return_tensors="pt")
    logits = model(**{name: values[None] for name, values in inputs.items()}).logits
    assert printed == pytest.approx(logits[0].softmax(-1).tolist())
    assert count_parameters(read_config(tmp_path)) == model.num_parameters()
