"""Labels of texts and words, with probabilities: those of each text alone, in any batch."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForQuestionAnswering,
    BartConfig,
    BartModel,
    GPT2Config,
    GPT2ForSequenceClassification,
)

from toy_labels import (
    CITIES,
    NAMES,
    POSITIONS,
    TASKS,
    save_toy_classifier,
    save_toy_decoder,
    save_toy_encoder,
    toy_config,
    toy_rows,
    toy_tokenizer,
    write_jsonl,
)
from vaswani import Classifier
from vaswani.cli import run
from vaswani.errors import RunError, UserError

TEXTS = ["the great film", "awful", "", "the film was awful and poor in rome"]
LONG = " ".join(["film"] * 100)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for task in TASKS:
        save_toy_classifier(folder / task, task)
    save_toy_classifier(folder / "library", "classification", library=True)
    save_toy_encoder(folder / "encoder")
    return folder


def logits(classifier: Classifier, *text: str) -> torch.Tensor:
    """Of one text, or a pair, by itself."""
    with torch.no_grad():
        return classifier.model(**toy_tokenizer()(*text, return_tensors="pt")).logits[0]


@pytest.mark.parametrize("name", ["classification", "library"])
def test_classification_gives_the_most_probable_label_with_its_probability(models: Path, name: str) -> None:
    classifier = Classifier.from_pretrained(models / name, max_tokens_per_batch=30)
    found = classifier(TEXTS)
    assert (found[2].label, found[2].probability, found[2].probabilities) == (None, None, None)
    for text, prediction in zip(TEXTS, found, strict=True):
        if text:
            expected = logits(classifier, text).softmax(-1)
            assert prediction.label == NAMES["classification"][int(expected.argmax())]
            assert prediction.probability == pytest.approx(float(expected.max()), abs=1e-5)
            assert list(prediction.probabilities) == [
                NAMES["classification"][at] for at in expected.argsort(descending=True)
            ]
            assert sum(prediction.probabilities.values()) == pytest.approx(1, abs=1e-5)


def test_multi_label_and_regression_models_give_labels_and_numbers(models: Path) -> None:
    classifier = Classifier.from_pretrained(models / "multi_label")
    for text, prediction in zip(TEXTS, classifier(TEXTS), strict=True):
        if text:
            shares = logits(classifier, text).sigmoid()
            of_names = zip(NAMES["multi_label"], shares.tolist(), strict=True)
            likely = {name: share for name, share in of_names if share > 0.5}
            assert prediction.label == list(likely)
            assert prediction.probability == pytest.approx(list(likely.values()), abs=1e-5)
            assert prediction.probabilities.keys() == {"bad", "good"}
    found = {
        threshold: Classifier.from_pretrained(models / "multi_label", threshold=threshold)(TEXTS)[0].label
        for threshold in (0.001, 0.999)
    }
    assert found == {0.001: NAMES["multi_label"], 0.999: []}
    classifier = Classifier.from_pretrained(models / "regression")
    first = classifier(TEXTS)[0]
    assert first.label == pytest.approx(float(logits(classifier, TEXTS[0])), abs=1e-5)
    assert (first.probability, first.probabilities) == (None, None)


def test_each_word_is_tagged_by_its_first_token(models: Path) -> None:
    classifier = Classifier.from_pretrained(models / "tagging")
    texts = ["ann saw rome", ["bob", "was in", CITIES[0]], "zzzzzz film"]  # the last: several tokens
    for text, prediction in zip(texts, classifier(texts), strict=True):
        words = text.split() if isinstance(text, str) else text
        encoding = toy_tokenizer()(words, is_split_into_words=True, return_tensors="pt")
        starts = [encoding.word_ids(0).index(at) for at in range(len(words))]
        with torch.no_grad():
            shares = classifier.model(**encoding).logits[0, starts].softmax(-1)
        assert prediction.words == words
        assert prediction.label == [NAMES["tagging"][at] for at in shares.argmax(-1)]
        assert prediction.probability == pytest.approx(shares.max(-1).values.tolist(), abs=1e-5)
    cut = Classifier.from_pretrained(models / "tagging", max_length=4)(["ann saw bob rome"])[0]
    assert cut.cut_off
    assert len(cut.label) == len(cut.probability) == 4
    assert cut.label[-1] is None


def test_pairs_and_long_texts(models: Path) -> None:
    classifier = Classifier.from_pretrained(models / "classification")
    pair, other = classifier([("the great film", "awful"), ("the great film", "the film")])
    expected = logits(classifier, "the great film", "awful").softmax(-1)
    assert pair.probability == pytest.approx(float(expected.max()), abs=1e-5)
    assert pair.probabilities != other.probabilities
    whole, long = classifier([TEXTS[0], LONG])
    assert (whole.cut_off, long.cut_off) == (False, True)
    words = len(toy_tokenizer()("film").input_ids) - 2
    beginning = " ".join(["film"] * ((POSITIONS - 2) // words))
    if (POSITIONS - 2) % words == 0:
        assert long.probability == pytest.approx(classifier([beginning])[0].probability, abs=1e-5)
    assert Classifier.from_pretrained(models / "classification", max_length=3)([TEXTS[0]])[0].cut_off


def test_pairs_beside_single_texts_change_nothing(models: Path) -> None:
    classifier = Classifier.from_pretrained(models / "classification")
    texts = [("the great film", "awful"), "ok", "the film", ("the film", "great")]
    alone = [classifier([text])[0] for text in texts]
    assert [each.probability for each in classifier(texts)] == pytest.approx(
        [each.probability for each in alone]
    )
    assert len({each.probability for each in alone}) == 4


@pytest.mark.parametrize("text", [None, 3, b"x", ("a", None)])
def test_invalid_texts_raise_an_error(models: Path, text: Any) -> None:
    classifier = Classifier.from_pretrained(models / "classification")
    with pytest.raises(UserError, match=r"text 2 is .*; expected a string"):
        classifier(["ok", text])


def test_a_decoder_without_padding_classifies_texts_one_by_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40, "num_labels": 3}
    model = GPT2ForSequenceClassification(GPT2Config(vocab_size=len(toy_tokenizer()), **shape)).eval()
    model.config.architectures = ["GPT2ForSequenceClassification"]
    model.config.pad_token_id = None
    for text, prediction in zip(TEXTS, Classifier(model, toy_tokenizer())(TEXTS), strict=True):
        if text:
            with torch.no_grad():
                expected = model(**toy_tokenizer()(text, return_tensors="pt")).logits[0].softmax(-1)
            assert prediction.probability == pytest.approx(float(expected.max()), abs=1e-5)


def test_non_finite_results_raise_an_error(models: Path) -> None:
    classifier = Classifier.from_pretrained(models / "tagging")
    with torch.no_grad():
        classifier.model.classifier.weight.fill_(torch.finfo(torch.float32).max)
    with pytest.raises(RunError, match="leave the range"):
        classifier(["the film"])


def test_a_model_that_predicts_no_labels_is_refused(models: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds VaswaniForMaskedLM, which predicts no labels; expected a seq"):
        Classifier.from_pretrained(models / "encoder")
    AutoModelForQuestionAnswering.from_config(toy_config()).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="holds VaswaniForQuestionAnswering, which predicts no labels"):
        Classifier.from_pretrained(tmp_path)
    save_toy_decoder(tmp_path / "decoder")
    with pytest.raises(UserError, match=r"predicts no labels.*; it writes texts: use vaswani generate"):
        Classifier.from_pretrained(tmp_path / "decoder")
    sizes = {f"{side}_{name}": 1 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    BartModel(BartConfig(vocab_size=9, d_model=8, **sizes)).save_pretrained(tmp_path / "bart")
    with pytest.raises(UserError, match=r"predicts no labels.*; it writes texts: use vaswani translate"):
        Classifier.from_pretrained(tmp_path / "bart")  # named by its class without a head
    several = Classifier.from_pretrained(models / "multi_label").model
    several.config.problem_type = "regression"
    with pytest.raises(UserError, match="the model predicts 2 numbers of a text; expected one"):
        Classifier(several, toy_tokenizer())
    with pytest.raises(UserError, match=r"expected a list of texts, got one text: write \['one'\]"):
        Classifier.from_pretrained(models / "classification")("one")
    with pytest.raises(UserError, match=r"threshold=0.3 is for models that .* this one is for tagging;"):
        Classifier.from_pretrained(models / "tagging", threshold=0.3)
    with pytest.raises(UserError, match="threshold=1 must be above 0 and below 1"):
        Classifier.from_pretrained(models / "multi_label", threshold=1)
    with pytest.raises(UserError, match=r"got the list .*; lists of words are for taggers"):
        Classifier.from_pretrained(models / "classification")([["one"]])


# The command.


def predict(capfd, *arguments: Any) -> tuple[int, list[dict[str, Any]], str]:
    status = run(["predict", *map(str, arguments)])
    output, errors = capfd.readouterr()
    return status, [json.loads(line) for line in output.splitlines()], errors


def test_conll_files_are_not_read_as_lines(models: Path, tmp_path: Path, capfd) -> None:
    (tmp_path / "in.conll").write_text("a\tB-X\n\nb\tO\n")
    command = ["--model", models / "classification", "--input", tmp_path / "in.conll"]
    status, records, errors = predict(capfd, *command)
    assert (status, records) == (2, [])
    assert "in.conll is in CoNLL's columns, a word in each line; give lines of text, or a table" in errors


@pytest.mark.parametrize("name", ["in.conll", "in.conll.gz"])
def test_a_tagger_reads_the_words_of_conll(models: Path, tmp_path: Path, capfd, name: str) -> None:
    sentences = [["ann", "saw", "New York"], ["bob"], ["#", "5"]]
    columns = "-DOCSTART- -X-\n\n# text = ann\nann\tO\nsaw\tVB\tO\nNew York\tB-X\n\nbob\n\n\n# # O\n5  CD O\n"
    opened = gzip.open if name.endswith(".gz") else open
    with opened(tmp_path / name, "wt") as file:
        file.write(columns)
    command = ["--model", models / "tagging", "--input", tmp_path / name]
    status, records, errors = predict(capfd, *command, "--top_k", "1")
    assert status == 0, errors
    assert "predicted 3 sentences" in errors
    expected = Classifier.from_pretrained(models / "tagging")(sentences)
    assert [record["words"] for record in records] == sentences
    assert [record["prediction"] for record in records] == [one.label for one in expected]
    status, records, errors = predict(capfd, *command, "--text_field", "words")
    assert (status, records) == (2, [])
    assert "--text_field words is for tables" in errors


@pytest.mark.parametrize("ending", ["", "-DOCSTART- -X- O\n\n"])
def test_a_tagger_refuses_lines_of_words_with_tags(models: Path, tmp_path: Path, capfd, ending: str) -> None:
    label = Classifier.from_pretrained(models / "tagging").names[0]
    path = tmp_path / "in.txt"
    command = ["--model", models / "tagging", "--input", path]
    path.write_text(f"{ending}Ann NNP {label}\nsaw VB {label}\n\nBob NNP {label}\n")
    status, records, errors = predict(capfd, *command)
    assert (status, records) == (2, [])
    assert f"has a word with tags in each line, such as 'Ann NNP {label}'; end its name in .conll" in errors
    path.write_text(f"Ann saw {label}\nBob\n")  # texts that end so by chance
    assert predict(capfd, *command)[0] == 0


def test_predictions_of_lines_are_written_as_json(models: Path, tmp_path: Path, capfd) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in [*TEXTS, LONG]))
    command = ["--model", models / "classification", "--input", tmp_path / "in.txt"]
    status, records, errors = predict(capfd, *command)
    assert status == 0, errors
    expected = Classifier.from_pretrained(models / "classification")([*TEXTS, LONG])
    assert [record["text"] for record in records] == [*TEXTS, LONG]
    assert [record["prediction"] for record in records] == [one.label for one in expected]
    assert [record.get("cut_off") for record in records] == [None, None, None, None, True]
    assert all("probabilities" not in record for record in records)
    assert "predicted 5 lines; 1 empty; 1 of which only the beginning was read" in errors
    two = predict(capfd, *command, "--top_k", "2")[1]
    assert two[0]["probabilities"] == pytest.approx(dict([*expected[0].probabilities.items()][:2]), abs=1e-5)
    assert predict(capfd, *command, "--max_length", "3")[1] != records
    one_by_one = predict(capfd, *command, "--max_tokens_per_batch", "1", "--buffer_size", "1")[1]
    assert [record["prediction"] for record in one_by_one] == [record["prediction"] for record in records]
    rounded = predict(capfd, *command, "--dtype", "bfloat16", "--device", "cpu")[1]
    assert rounded[0]["probability"] != records[0]["probability"]


@pytest.mark.parametrize("task", TASKS)
def test_rows_come_back_with_their_predictions(models: Path, tmp_path: Path, capfd, task: str) -> None:
    rows = [{**row, "other": "awful"} for row in toy_rows(task, 5, seed=0)]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    command = ["--model", models / task, "--input", table]
    status, records, errors = predict(capfd, *command)
    assert status == 0, errors
    assert [{name: record[name] for name in rows[0]} for record in records] == rows
    found = Classifier.from_pretrained(models / task)([row["text"] for row in rows])
    if task == "regression":
        assert [record["prediction"] for record in records] == pytest.approx(
            [one.label for one in found], abs=1e-5
        )
        assert "probability" not in records[0]
    else:
        assert [record["prediction"] for record in records] == [one.label for one in found]
    of_tags = predict(capfd, *command, "--text_field", "other")[1]
    assert ("words" in of_tags[0]) == (task == "tagging")
    if task == "classification":
        pairs = predict(capfd, *command, "--text_pair_field", "other")[1]
        expected = Classifier.from_pretrained(models / task)([(row["text"], "awful") for row in rows])
        assert [record["probability"] for record in pairs] == pytest.approx(
            [one.probability for one in expected], abs=1e-5
        )
        assert pairs != records
        recorded = tmp_path / "recorded"
        shutil.copytree(models / task, recorded)
        (recorded / "training_config.yaml").write_text("text_pair_field: other\n")
        assert predict(capfd, "--model", recorded, "--input", table)[1] == pairs
        (tmp_path / "in.txt").write_text("good\n")
        status, _, errors = predict(capfd, "--model", recorded, "--input", tmp_path / "in.txt")
        assert status == 2
        assert "--text_pair_field other is for tables" in errors
    if task == "tagging":
        tops = predict(capfd, *command, "--top_k", "1")[1]
        assert [list(each) for each in tops[0]["probabilities"]] == [[tag] for tag in tops[0]["prediction"]]


def test_only_taggers_read_lists_of_words(models: Path, tmp_path: Path, capfd) -> None:
    table = write_jsonl(tmp_path / "rows.jsonl", list(toy_rows("tagging", 2, seed=0)))
    status, _, errors = predict(capfd, "--model", models / "classification", "--input", table)
    assert status == 2
    assert f"line 1 of {table}: field 'text' holds [" in errors


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--text_field", "b"], "--text_field: ROWS has no field 'b'; it has 'text', 'label'"),
        (["--text_pair_field", "b"], "ROWS has no field 'b'; it has 'text', 'label'"),
        (["--top_k", "0"], "top_k=0 must be at least 1"),
        (["--max_length", "2"], "max_length=2 has no room beside 2 special tokens; give 3 or more"),
    ],
)
def test_wrong_flags(models: Path, tmp_path: Path, capfd, flags: list[str], message: str) -> None:
    table = write_jsonl(tmp_path / "rows.jsonl", list(toy_rows("classification", 2, seed=0)))
    status, records, errors = predict(capfd, "--model", models / "classification", "--input", table, *flags)
    assert (status, records) == (2, [])
    assert message.replace("ROWS", str(table)) in errors
    assert errors.count("\n") == 1
