"""`vaswani evaluate` of models of every kind: the scores of the training that made them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForMultipleChoice,
    AutoTokenizer,
    BertConfig,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerBase,
)

from in_process import outcome
from tiny_causal import gpt2_like
from tiny_runs import TINY_RUN, as_flags
from toy_labels import (
    POSITIONS,
    TASKS,
    save_toy_classifier,
    save_toy_decoder,
    save_toy_encoder,
    toy_config,
    toy_rows,
    toy_tokenizer,
    write_jsonl,
    write_toy_rows,
)
from toy_questions import toy_questions, write_toy_questions
from toy_texts import toy_documents
from toy_translation import save_toy_checkpoint
from toy_translation import toy_rows as toy_pairs
from vaswani.cli import run
from vaswani.inference.classify.classification import Classifier

QUICK: dict[str, Any] = {"use_cpu": True, "disable_tqdm": True, "max_steps": 6, "logging_steps": 1}


def evaluate(capfd, *arguments: object) -> tuple[int, str, str]:
    return outcome(capfd, "evaluate", *arguments)


def record_of(capfd, *arguments: object) -> dict[str, Any]:
    status, output, errors = evaluate(capfd, *arguments, "--json")
    assert status == 0, errors
    return json.loads(output.splitlines()[-1])


# Labels.


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory) -> Path:
    """A model and the rows of each task, whose columns have names of their own."""
    folder = tmp_path_factory.mktemp("finetuned")
    save_toy_encoder(folder / "encoder")
    for task in TASKS:
        write_toy_rows(folder / f"{task} rows", task)
        options = {**QUICK, "task": task, "model": folder / "encoder", "dataset": folder / f"{task} rows"}
        options |= {"output_dir": folder / task, "max_length": 12, "learning_rate": 5e-3, "max_steps": 20}
        assert run(["finetune", *as_flags(options)]) == 0
    return folder


@pytest.mark.parametrize("task", TASKS)
def test_evaluation_repeats_the_scores_of_a_finetuning(finetuned: Path, capfd, task: str) -> None:
    expected = json.loads((finetuned / task / "evaluation.json").read_text())
    found = record_of(capfd, "--model", finetuned / task, "--data", finetuned / f"{task} rows")
    assert (found["split"], found["rows"]) == ("test", expected["rows"])
    for name, score in expected["metrics"].items():
        assert found[name] == pytest.approx(score["value"], rel=1e-4, abs=1e-4)
        assert found["intervals"][name] == pytest.approx([score["low"], score["high"]], rel=1e-4, abs=1e-4)
    assert found.get("types", {}).keys() == expected.get("types", {}).keys()
    status, printed, _ = evaluate(capfd, "--model", finetuned / task, "--data", finetuned / f"{task} rows")
    assert status == 0
    for score in expected["metrics"].values():
        assert f"{score['name']} {score['value']:.2f} (95 % interval {score['low']:.2f} to " in printed


def test_predictions_are_of_the_field_that_was_trained(finetuned: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finetuned / "classification", tmp_path / "run")
    settings = (folder / "training_config.yaml").read_text()
    (folder / "training_config.yaml").write_text(
        settings.replace("text_field: text\n", "text_field: title\n")
    )
    toys = toy_rows("classification", 30, 3)
    rows = [{"title": row["text"], "text": "awful", "label": row["label"]} for row in toys]
    table, output = write_jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"

    def predicted(*more: object) -> list[str]:
        arguments = ["--model", folder, "--input", table, "--output", output, "--device", "cpu", *more]
        assert run(["predict", *map(str, arguments)]) == 0
        return [json.loads(line)["prediction"] for line in output.read_text().splitlines()]

    assert predicted() == predicted("--text_field", "title") != predicted("--text_field", "text")


def test_predictions_read_as_much_as_the_training(finetuned: Path, tmp_path: Path) -> None:
    toys = toy_rows("classification", 30, 3)
    table = write_jsonl(tmp_path / "rows.jsonl", [{"text": f"{row['text']} " * 9} for row in toys])
    output = tmp_path / "out.jsonl"

    def predicted(*more: object) -> list[dict[str, Any]]:
        arguments = ["--model", finetuned / "classification", "--input", table, "--output", output, *more]
        assert run(["predict", *map(str, arguments), "--device", "cpu"]) == 0
        return [json.loads(line) for line in output.read_text().splitlines()]

    assert predicted() == predicted("--max_length", 12) != predicted("--max_length", 40)
    assert Classifier.from_pretrained(finetuned / "tagging").max_length > 12  # every word has a tag


def test_a_decoder_that_classifies(finetuned: Path, tmp_path: Path, capfd) -> None:
    rows = finetuned / "classification rows"
    options = {**QUICK, "model": save_toy_decoder(tmp_path / "decoder"), "dataset": rows, "max_length": 12}
    assert run(["finetune", *as_flags({**options, "output_dir": tmp_path / "run"})]) == 0
    expected = json.loads((tmp_path / "run" / "evaluation.json").read_text())["metrics"]
    found = record_of(capfd, "--model", tmp_path / "run", "--data", rows)
    assert {name: found[name] for name in expected} == pytest.approx(
        {name: score["value"] for name, score in expected.items()}
    )


def test_options_for_labels_take_effect(finetuned: Path, tmp_path: Path, capfd) -> None:
    rows = [{"a": row["text"], "b": row["label"], "c": "awful"} for row in toy_rows("classification", 30, 3)]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    command = ["--model", finetuned / "classification", "--data", table, "--text_field", "a"]
    output = tmp_path / "out.jsonl"
    whole = record_of(capfd, *command, "--label_field", "b", "--output", output)
    written = [json.loads(line) for line in output.read_text().splitlines()]
    right = sum(row["prediction"] == row["label"] for row in written)
    assert whole["accuracy"] == pytest.approx(100 * right / 30)
    assert [row["text"] for row in written] == [row["a"] for row in rows]
    assert record_of(capfd, *command, "--label_field", "b", "--max_rows", "7")["rows"] == 7
    short = record_of(capfd, *command, "--label_field", "b", "--max_source_length", "3")
    assert (short["max_length"], short["cut_off_rows"]) == (3, 30)
    assert whole["cut_off_rows"] < 30
    pairs = record_of(capfd, *command, "--label_field", "b", "--text_pair_field", "c", "--output", output)
    assert pairs["rows"] == 30
    assert json.loads(output.read_text().splitlines()[0])["text_pair"] == "awful"
    assert "label_field: " in evaluate(capfd, *command)[2]


def test_label_separator_and_threshold_take_effect(finetuned: Path, tmp_path: Path, capfd) -> None:
    rows = [{"text": "the great film", "label": "good;bad"}] * 3
    command = ["--model", finetuned / "multi_label", "--data", write_jsonl(tmp_path / "rows.jsonl", rows)]
    status, _, errors = evaluate(capfd, *command)
    assert status == 2
    assert f"has the label 'good;bad', which {finetuned / 'multi_label'} does not know" in errors
    command += ["--label_separator", ";"]
    assert record_of(capfd, *command)["rows"] == 3
    low, high = (record_of(capfd, *command, "--threshold", threshold) for threshold in ("0.001", "0.999"))
    assert (low["threshold"], high["threshold"]) == (0.001, 0.999)
    assert low["micro_f1"] > high["micro_f1"] == 0  # all labels, and none


def test_an_unknown_label_is_named_before_any_work(
    finetuned: Path, tmp_path: Path, capfd, monkeypatch
) -> None:
    monkeypatch.setattr("vaswani.hub.checkpoint.load_weights", lambda *_, **__: pytest.fail("work begins"))
    table = write_jsonl(
        tmp_path / "rows.jsonl", [{"text": "x", "label": "good"}, {"text": "x", "label": "so"}]
    )
    status, _, errors = evaluate(capfd, "--model", finetuned / "classification", "--data", table)
    assert status == 2
    assert errors.splitlines()[-1] == (
        f"vaswani: test of {table} has the label 'so', which {finetuned / 'classification'} "
        "does not know; it knows 'bad', 'good'"
    )


def test_tagged_rows_with_too_many_words_are_left_out(tmp_path: Path, capfd) -> None:
    save_toy_classifier(tmp_path / "model", "tagging")
    rows = [{"text": ["film"] * count, "label": ["O"] * count} for count in (3, 2 * POSITIONS)]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    found = record_of(capfd, "--model", tmp_path / "model", "--data", table)
    assert (found["rows"], found["left_out_rows"]) == (1, 1)
    write_jsonl(table, rows[1:])
    status, _, errors = evaluate(capfd, "--model", tmp_path / "model", "--data", table)
    assert status == 2
    assert "no row can be scored: all are empty or too long" in errors


# Questions.


@pytest.fixture(scope="module")
def answering(tmp_path_factory) -> Path:
    """A model that answers questions, and the rows of its run, some of which have no answer."""
    folder = tmp_path_factory.mktemp("answering")
    save_toy_encoder(folder / "encoder")
    write_toy_questions(folder / "rows", unanswerable=0.4)
    options = {**QUICK, "task": "question_answering", "model": folder / "encoder", "dataset": folder / "rows"}
    options |= {"output_dir": folder / "run", "max_length": 24, "doc_stride": 8, "max_question_length": 8}
    assert run(["finetune", *as_flags({**options, "learning_rate": 5e-3, "max_steps": 40})]) == 0
    return folder


def test_evaluation_repeats_the_scores_of_question_answering(answering: Path, capfd) -> None:
    expected = json.loads((answering / "run" / "evaluation.json").read_text())
    command = ["--model", answering / "run", "--data", answering / "rows"]
    found = record_of(capfd, *command)
    assert (found["split"], found["rows"]) == ("test", expected["rows"])
    assert found.keys() >= {"f1", "no_answer_accuracy"}
    for name, score in expected["metrics"].items():
        assert found[name] == pytest.approx(score["value"])
        assert found["intervals"][name] == pytest.approx([score["low"], score["high"]])
    printed = evaluate(capfd, *command)[1]
    assert f"F1 {found['f1']:.2f} (95 % interval {found['intervals']['f1'][0]:.2f} to " in printed


def test_options_for_questions_take_effect(answering: Path, tmp_path: Path, capfd) -> None:
    rows = [
        {"c": row["context"], "q": row["question"], "a": text, "s": start}
        for row in toy_questions(20, seed=5, words=40)
        for text, start in zip(*row["answers"].values(), strict=True)
    ]
    output = tmp_path / "out.jsonl"
    names = {"context_field": "c", "question_field": "q", "answers_field": "a", "answer_start_field": "s"}
    command = ["--model", answering / "run", "--data", write_jsonl(tmp_path / "rows.jsonl", rows)]
    for name in names:
        fewer = {other: value for other, value in names.items() if other != name}
        assert evaluate(capfd, *command, *as_flags(fewer))[0] == 2
    command += as_flags(names)
    whole = record_of(capfd, *command, "--output", output)
    written = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["question"] for row in written] == [row["q"] for row in rows]
    exact = [row["prediction"] in row["answers"]["text"] for row in written]
    assert whole["exact_match"] == pytest.approx(100 * sum(exact) / len(rows))
    assert record_of(capfd, *command, "--max_rows", "7")["rows"] == 7
    assert record_of(capfd, *command, "--max_source_length", "20")["max_length"] == 20
    silent = record_of(capfd, *command, "--null_score_diff_threshold", "-1000000000")
    assert (silent["f1"], silent["null_score_diff_threshold"]) == (0, -1e9)
    for name, value in (("doc_stride", 4), ("max_question_length", 1), ("max_answer_length", 1)):
        other = record_of(capfd, *command, f"--{name}", str(value))
        assert other[name] == value != whole[name]
    assert other["f1"] != whole["f1"]


# Language models, and encoder-decoders that were pre-trained on texts.

OBJECTIVES = {
    **dict.fromkeys(("masked", "next"), ("masked", ["encoder"])),
    **dict.fromkeys(("causal", "parts"), ("causal", ["decoder"])),
}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained")
    rows = {split: [{"words": text} for text in toy_documents(count, seed)] for seed, (split, count) in
            enumerate({"train": 40, "test": 12}.items())}  # fmt: skip
    for split, of_split in rows.items():
        write_jsonl(folder / f"{split}.jsonl", of_split)
    (folder / "test.txt").write_text("".join(f"{row['words']}\n" for row in rows["test"]))
    shape = {"d_model": 16, "vocab_size": 300, "max_length": 24, "text_field": "words"}
    files = {"train_file": folder / "train.jsonl", "test_file": folder / "test.jsonl"}
    for name, more in {
        "masked": {"mask_probability": 0.3, "seed": 3},
        "next": {"next_sentence": True},
        "causal": {},
        "parts": {"pack": False},
        "span_denoising": {"noise_density": 0.3, "mean_noise_span_length": 2, "vocab_size": 420},
        "gap_sentences": {"gap_sentence_ratio": 0.5, "gap_sentence_strategy": "random", "seed": 3},
    }.items():
        objective, sides = OBJECTIVES.get(name, (name, ["encoder", "decoder"]))
        sizes = {}
        for side in sides:
            sizes |= {f"{side}_layers": 1, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 32}
        options = {**shape, **QUICK, **sizes, **files, **more, "learning_rate": 1e-2, "warmup_steps": 1}
        options |= {"objective": objective, "output_dir": folder / name}
        assert run(["pretrain", *as_flags(options)]) == 0
    return folder


@pytest.mark.parametrize("name", [*OBJECTIVES, "span_denoising", "gap_sentences"])
def test_evaluation_repeats_the_scores_of_a_pretraining(pretrained: Path, capfd, name: str) -> None:
    expected = json.loads((pretrained / name / "evaluation.json").read_text())
    command = ["--model", pretrained / name, "--device", "cpu", "--data"]
    found = record_of(capfd, *command, pretrained / "test.jsonl")
    assert (found["split"], found["rows"]) == ("test", expected["rows"])
    assert "vaswani: test of " in evaluate(capfd, *command, pretrained / "test.jsonl")[2]
    assert found["metrics"].keys() == expected["metrics"].keys()
    for metric, score in expected["metrics"].items():
        assert found["metrics"][metric]["value"] == pytest.approx(score["value"], rel=1e-4)
    assert ("bits_per_byte" in found["metrics"]) == (name in ("causal", "parts"))
    status, printed, _ = evaluate(capfd, *command, pretrained / "test.jsonl")
    assert status == 0
    assert f"Perplexity {expected['metrics']['perplexity']['value']:.3f}" in printed


def test_options_for_texts_take_effect(pretrained: Path, tmp_path: Path, capfd) -> None:
    command = ["--model", pretrained / "parts", "--device", "cpu", "--data"]
    whole = record_of(capfd, *command, pretrained / "test.txt")
    assert record_of(capfd, *command, pretrained / "test.txt", "--max_rows", "5")["rows"] == 5
    shorter = record_of(capfd, *command, pretrained / "test.txt", "--max_source_length", "8")
    assert shorter["rows"] > whole["rows"]
    blocks = record_of(capfd, *command, pretrained / "test.txt", "--documents", "blank_line")
    assert blocks["rows"] < whole["rows"]
    write_jsonl(tmp_path / "rows.jsonl", [{"words": "x", "other": text} for text in toy_documents(4, 5)])
    one, other = (
        record_of(capfd, *command, tmp_path / "rows.jsonl", *flags)["metrics"]["perplexity"]["value"]
        for flags in ([], ["--text_field", "other"])
    )
    assert one != other


def test_a_pretrained_encoder_decoder_is_scored_on_pairs_where_their_fields_are_given(
    pretrained: Path, tmp_path: Path, capfd
) -> None:
    rows = [{"source": source, "target": target} for source, target in toy_pairs(3, seed=0)]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    command = ["--model", pretrained / "gap_sentences", "--data", table, "--num_beams", "1"]
    more = ["--max_length", "4", "--device", "cpu", "--target_field", "target"]
    assert "bleu" in record_of(capfd, *command, *more)
    status, _, errors = evaluate(capfd, *command)
    assert status == 2
    assert "--num_beams is for an encoder-decoder, and the model is an encoder-decoder that was" in errors


def test_a_library_decoder_has_the_scores_of_its_conversion(pretrained: Path, tmp_path: Path, capfd) -> None:
    tokenizer = AutoTokenizer.from_pretrained(pretrained / "causal")
    torch.manual_seed(0)
    special = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 24, "initializer_range": 0.5}
    config = GPT2Config(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **shape, **special)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    assert run(["convert", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    (tmp_path / "ours" / "training_config.yaml").write_text(
        "objective: causal\npack: false\nmax_length: 24\n"
    )
    data = ["--data", pretrained / "test.jsonl", "--text_field", "words", "--device", "cpu"]
    ours, theirs = (record_of(capfd, "--model", tmp_path / name, *data) for name in ("ours", "theirs"))
    assert ours["rows"] == theirs["rows"]
    for name, score in ours["metrics"].items():
        assert theirs["metrics"][name]["value"] == pytest.approx(score["value"], rel=1e-4)


def save_gpt2(folder: Path, tokenizer: PreTrainedTokenizerBase) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 24, "initializer_range": 0.5}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=320, **shape, eos_token_id=2)).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


@pytest.mark.parametrize("stride", [1, 8, 23])
def test_a_stride_gives_each_token_a_long_context(
    pretrained: Path, tmp_path: Path, capfd, stride: int
) -> None:
    """The loop of the library's documentation, over each document."""
    tokenizer = AutoTokenizer.from_pretrained(pretrained / "causal")
    model = save_gpt2(tmp_path / "gpt2", tokenizer)
    nats, count = 0.0, 0
    for text in (pretrained / "test.txt").read_text().splitlines():
        ids = torch.tensor([tokenizer(text)["input_ids"] + [tokenizer.eos_token_id]])
        before = 0
        for begin in range(0, ids.shape[1], stride):
            end = min(begin + 24, ids.shape[1])
            labels = ids[:, begin:end].clone()
            labels[:, : -(end - before)] = -100
            labels[:, 0] = -100
            with torch.no_grad():
                logits = model(ids[:, begin:end]).logits[0, :-1]
            nats += cross_entropy(logits, labels[0, 1:], reduction="sum").item()  # -100 is ignored
            count += int((labels[0, 1:] != -100).sum())
            before = end
            if end == ids.shape[1]:
                break
    command = ["--model", tmp_path / "gpt2", "--data", pretrained / "test.txt", "--device", "cpu"]
    record = record_of(capfd, *command, "--stride", stride)
    assert record["metrics"]["loss"]["value"] == pytest.approx(nats / count, rel=1e-5)
    assert record["stride"] == stride
    plain = record_of(capfd, *command)
    assert "stride" not in plain
    same = plain["metrics"]["loss"]["value"] == pytest.approx(nats / count, rel=1e-5)
    assert same == (stride == 23)


def test_a_stride_counts_every_document_of_a_packed_training_alone(pretrained: Path, capfd) -> None:
    command = ["--data", pretrained / "test.jsonl", "--device", "cpu", "--stride", "23", "--model"]
    packed, parts = (record_of(capfd, *command, pretrained / name) for name in ("causal", "parts"))
    assert packed["rows"] == parts["rows"]
    status, _, errors = evaluate(capfd, *command[:-3], "--stride", "24", "--model", pretrained / "causal")
    assert status == 2
    assert "stride=24 must be less than max_length=24, or tokens would be left out" in errors


def test_a_tokenizer_without_pad_or_begin_token_is_accepted(pretrained: Path, tmp_path: Path, capfd) -> None:
    tokenizer = gpt2_like()
    tokenizer.eos_token = "</s>"
    save_gpt2(tmp_path / "bare", tokenizer)
    tokenizer.bos_token = tokenizer.pad_token = "</s>"
    save_gpt2(tmp_path / "given", tokenizer)
    data = ["--data", pretrained / "test.txt", "--device", "cpu", "--model"]
    bare, given = (record_of(capfd, *data, tmp_path / name)["metrics"] for name in ("bare", "given"))
    assert bare == given
    assert "bits_per_byte" in bare


# What a model is.


def test_max_rows_limits_the_rows_of_pairs(tmp_path: Path, capfd) -> None:
    save_toy_checkpoint(tmp_path / "model")
    rows = [{"source": source, "target": target} for source, target in toy_pairs(12, seed=0)]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    command = ["--model", tmp_path / "model", "--data", table, "--num_beams", "1", "--max_length", "4"]
    assert record_of(capfd, *command, "--max_rows", "5")["rows"] == 5
    assert "kept 12 of 12 rows, of which 5 are used" in evaluate(capfd, *command, "--max_rows", "5")[2]


def test_translations_cannot_be_written_as_json(tmp_path: Path, capfd) -> None:
    save_toy_checkpoint(tmp_path / "model")
    rows = [{"source": source, "target": target} for source, target in toy_pairs(2, seed=0)]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    command = ["--model", tmp_path / "model", "--data", table, "--output", tmp_path / "out.jsonl"]
    status, _, errors = evaluate(capfd, *command)
    assert status == 2
    remedy = "run vaswani translate --scores --output FILE.jsonl for lines of JSON"
    assert f"out.jsonl would hold lines of text, not JSON; end it in .txt, or {remedy}" in errors


def test_the_columns_and_the_task_are_those_of_the_training(tmp_path: Path, capfd) -> None:
    rows = [{"text": source, "summary": target, "source": "1"} for source, target in toy_pairs(8, seed=0)]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    options = {**TINY_RUN, "train_file": table, "task": "summarization", "output_dir": tmp_path / "run"}
    options |= {"source_field": "text", "target_field": "summary", "max_steps": 1, "save_steps": 1}
    assert run(["train", *as_flags(options)]) == 0
    command = ["--model", tmp_path / "run", "--data", table, "--num_beams", "1", "--max_length", "4"]
    recorded = record_of(capfd, *command)
    assert (recorded["task"], recorded["rows"]) == ("summarization", 8)
    assert "rouge1" in recorded
    of_checkpoint = record_of(capfd, "--model", tmp_path / "run" / "checkpoint-1", *command[2:])
    assert of_checkpoint["task"] == "summarization"
    assert [of_checkpoint[name] for name in ("rouge1", "rougeL")] == [recorded["rouge1"], recorded["rougeL"]]
    assert "bleu" in record_of(capfd, *command, "--task", "translation", "--source_field", "source")
    status, _, errors = evaluate(capfd, *command, "--target_field", "other")
    assert status == 2
    assert "has no field 'other'" in errors


def test_sources_are_truncated_as_in_the_training(tmp_path: Path, capfd) -> None:
    rows = [{"source": " ".join([source] * 4), "target": target} for source, target in toy_pairs(8, seed=0)]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    options = {**TINY_RUN, "train_file": table, "test_file": table, "output_dir": tmp_path / "run"}
    options |= {"truncate": True, "max_source_length": 6, "max_steps": 1, "save_steps": 1}
    assert run(["train", *as_flags(options)]) == 0
    expected = json.loads((tmp_path / "run" / "evaluation.json").read_text())["metrics"]
    command = ["--model", tmp_path / "run", "--data", table]
    found = record_of(capfd, *command)
    assert found["max_source_length"] == 6
    assert {name: found[name] for name in expected} == {
        name: pytest.approx(score["value"]) for name, score in expected.items()
    }
    assert record_of(capfd, *command, "--max_source_length", "7")["max_source_length"] == 7
    assert "counted as empty" not in evaluate(capfd, *command)[1]
    assert record_of(capfd, *command, "--too_long", "cut")["max_source_length"] == 6
    assert record_of(capfd, *command, "--too_long", "skip")["max_source_length"] == 1024


def test_long_sources_are_evaluated_as_in_the_training(tmp_path: Path, capfd) -> None:
    rows = [{"source": source, "target": target} for source, target in toy_pairs(8, seed=0)]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    tests = write_jsonl(tmp_path / "test.jsonl", [*rows, {"source": "one two " * 700, "target": "1 2"}])
    options = {**TINY_RUN, "train_file": table, "test_file": tests, "output_dir": tmp_path / "run"}
    options |= {"max_steps": 1, "save_steps": 1, "max_tokens_per_batch": 5000, "generation_max_length": 8}
    assert run(["train", *as_flags(options)]) == 0
    expected = json.loads((tmp_path / "run" / "evaluation.json").read_text())["metrics"]
    command = ["--model", tmp_path / "run", "--data", tests]
    found = record_of(capfd, *command)
    assert "counted as empty" not in evaluate(capfd, *command)[1]
    assert {name: found[name] for name in expected} == {
        name: pytest.approx(score["value"]) for name, score in expected.items()
    }
    cut = record_of(capfd, *command, "--max_source_length", "5")
    assert cut["max_source_length"] == 5


def test_long_references_are_scored_as_in_the_training(tmp_path: Path, capfd) -> None:
    """The loss of a reference needs positions for its tokens; the scores compare with the whole text."""
    rows = [{"source": source, "target": target} for source, target in toy_pairs(8, seed=0)]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    tests = write_jsonl(tmp_path / "test.jsonl", [*rows, {"source": "one two", "target": "1 2 3 4 " * 40}])
    options = {**TINY_RUN, "train_file": table, "test_file": tests, "output_dir": tmp_path / "run"}
    options |= {"position_embedding": "learned", "max_position_embeddings": 40, "max_steps": 1}
    options |= {"max_source_length": 40, "max_target_length": 40, "save_steps": 1}
    assert run(["train", *as_flags(options)]) == 0
    expected = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    found = record_of(capfd, "--model", tmp_path / "run", "--data", tests)
    assert found["rows"] == expected["rows"] == 9
    for name, score in expected["metrics"].items():
        assert found[name] == pytest.approx(score["value"])


def test_outputs_are_as_long_as_in_the_training(tmp_path: Path, capfd) -> None:
    """A model that has hardly learned to end writes up to the maximum length."""
    table = write_jsonl(
        tmp_path / "rows.jsonl",
        [{"source": source, "target": target} for source, target in toy_pairs(8, seed=0)],
    )
    options = {**TINY_RUN, "train_file": table, "test_file": table, "output_dir": tmp_path / "run"}
    options |= {"generation_max_length": 4, "max_steps": 1, "save_steps": 1}
    options |= {"generation_num_beams": 2, "generation_length_penalty": -3.0}
    assert run(["train", *as_flags(options)]) == 0
    expected = json.loads((tmp_path / "run" / "evaluation.json").read_text())["metrics"]
    command = ["--model", tmp_path / "run", "--data", table]
    found = record_of(capfd, *command)
    assert (found["max_length"], found["num_beams"], found["length_penalty"]) == (3, 2, -3.0)
    assert found["chrf"] == pytest.approx(expected["chrf"]["value"])
    other = record_of(capfd, *command, "--num_beams", "1", "--length_penalty", "1")
    assert (other["num_beams"], other["length_penalty"]) == (1, 1.0)
    assert found["unfinished_rows"] == 8
    assert "output cut off at the length limit: 8" in evaluate(capfd, *command)[1]
    longer = record_of(capfd, *command, "--max_length", "40")
    assert longer["max_length"] == 40
    assert longer["chrf"] != pytest.approx(found["chrf"])


def test_column_options_with_two_text_files_give_an_error(tmp_path: Path, capfd) -> None:
    save_toy_checkpoint(tmp_path / "model")
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("one two\n")
    files = [tmp_path / "a.en", tmp_path / "a.de"]
    status, _, errors = evaluate(
        capfd, "--model", tmp_path / "model", "--data", *files, "--source_field", "de"
    )
    assert status == 2
    assert "--source_field is for tables, and two text files are given, the first the source" in errors


@pytest.mark.parametrize("command", [["evaluate", "--data", "dates"], ["score"], ["align"]])
def test_a_second_model_without_its_option_gives_an_error(tmp_path: Path, capfd, command: list[str]) -> None:
    models = [save_toy_checkpoint(tmp_path / name) for name in ("one", "other")]
    status, _, errors = outcome(capfd, *command, "--model", *models)
    assert status == 2
    assert (
        f"TARGET_FILE {models[1]} is a folder; give a text file, or, if it is a model, its option" in errors
    )


def test_an_encoder_decoder_can_name_its_base_class(tmp_path: Path, capfd) -> None:
    save_toy_checkpoint(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "architectures": ["VaswaniModel"]}))
    (tmp_path / "model" / "model_hashes.json").unlink(missing_ok=True)
    table = write_jsonl(tmp_path / "rows.jsonl", [{"source": "one", "target": "1"}])
    flags = ["--num_beams", "1", "--max_length", "4"]
    assert record_of(capfd, "--model", tmp_path / "model", "--data", table, *flags)["rows"] == 1


def test_an_output_with_fewer_lines_than_its_data_gives_a_warning(tmp_path: Path, capfd) -> None:
    save_toy_checkpoint(tmp_path / "model")
    files = [tmp_path / "one", tmp_path / "two"]
    for file, text in zip(files, ("one\n\ntwo\n", "1\n2\n3\n"), strict=True):
        file.write_text(text)
    output = tmp_path / "out.txt"
    arguments = ["--model", tmp_path / "model", "--data", *files, "--num_beams", "1", "--max_length", "4"]
    errors = evaluate(capfd, *arguments, "--output", output)[2]
    assert f"kept 2 of 3 rows; left out: 1 empty; {output} gets a line for each of 2" in errors
    assert len(output.read_text().splitlines()) == 2
    errors = evaluate(capfd, *arguments, "--output", output, "--max_rows", "1")[2]
    assert f"of which 1 are used; {output} gets a line for each of 1" in errors
    assert "gets a line" not in evaluate(capfd, *arguments)[2]


def test_a_model_that_cannot_be_evaluated_gives_an_error(tmp_path: Path, capfd) -> None:
    AutoModelForMultipleChoice.from_config(toy_config()).save_pretrained(tmp_path / "choices")
    toy_tokenizer().save_pretrained(tmp_path / "choices")
    status, _, errors = evaluate(capfd, "--model", tmp_path / "choices", "--data", "x")
    assert status == 2
    assert f"{tmp_path / 'choices'} holds VaswaniForMultipleChoice, which cannot be evaluated" in errors
    BertConfig().save_pretrained(tmp_path / "nothing")
    status, _, errors = evaluate(capfd, "--model", tmp_path / "nothing", "--data", "x")
    assert status == 2
    assert "names no class of a model with a head (architectures)" in errors


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        ("labels", ["--num_beams", "2"], "--num_beams is for an encoder-decoder, and the model is"),
        ("labels", ["--source_field", "x"], "--source_field is for an encoder-decoder, and"),
        ("labels", ["--task", "summarization"], "--task is for an encoder-decoder"),
        ("labels", ["--stride", "3"], "--stride is for a causal language model, and the model is"),
        ("masked", ["--stride", "3"], "--stride is for a causal language model, and the model is"),
        ("labels", ["--documents", "line"], "--documents is for a masked language model or a causal"),
        ("masked", ["--output", "x"], "--output is for an encoder-decoder or a classifier or tagger"),
        ("masked", ["--label_field", "x"], "--label_field is for a classifier or tagger, and"),
        ("pairs", ["--text_field", "x"], "--text_field is for a classifier or tagger or a masked"),
    ],
)  # fmt: skip
def test_options_without_effect_are_refused(
    tmp_path: Path, capfd, kind: str, flags: list[str], message: str
) -> None:
    if kind == "labels":
        save_toy_classifier(tmp_path / "model", "classification")
    elif kind == "masked":
        save_toy_encoder(tmp_path / "model")
    else:
        save_toy_checkpoint(tmp_path / "model")
    status, _, errors = evaluate(capfd, "--model", tmp_path / "model", "--data", "x", *flags)
    assert status == 2
    assert f"vaswani: {message}" in errors


# Saving the scores for the card.


def save_scores(capfd, model: Path, data: Path, output: Path, *arguments: object) -> dict[str, Any]:
    """Evaluate a copy of a model without its scores; return what is written, and check the card."""
    folder = shutil.copytree(model, output)
    (folder / "evaluation.json").unlink(missing_ok=True)
    status, _, errors = evaluate(capfd, "--model", folder, "--data", data, *arguments, "--save_scores")
    assert status == 0, errors
    assert f"wrote the scores into {folder / 'evaluation.json'}" in errors
    saved = json.loads((folder / "evaluation.json").read_text())
    status, card, _ = outcome(capfd, "card", "--model", folder)
    assert status == 0
    assert f"On the {saved['rows']:,} {saved['unit']} of the test split of {data.name}" in card
    for metric in saved["metrics"].values():
        assert f"| {metric['name']} | {metric['value']:.2f} |" in card
    return saved


def check_scores(saved: dict[str, Any], model: Path) -> None:
    """The saved scores are those that the training wrote."""
    expected = json.loads((model / "evaluation.json").read_text())
    assert saved.keys() >= {"split", "rows", "metrics", "intervals", "versions"}
    assert (saved["rows"], saved["intervals"]) == (expected["rows"], expected["intervals"])
    assert saved["metrics"].keys() == expected["metrics"].keys()
    for name, score in expected["metrics"].items():
        assert saved["metrics"][name]["name"] == score["name"]
        for bound in ("value", "low", "high"):
            assert saved["metrics"][name][bound] == pytest.approx(score[bound], rel=1e-4, abs=1e-4)


def test_scores_of_labels_are_saved(finetuned: Path, tmp_path: Path, capfd) -> None:
    model, data = finetuned / "classification", finetuned / "classification rows"
    check_scores(save_scores(capfd, model, data, tmp_path / "model"), model)


def test_scores_of_questions_are_saved(answering: Path, tmp_path: Path, capfd) -> None:
    model, data = answering / "run", answering / "rows"
    check_scores(save_scores(capfd, model, data, tmp_path / "model"), model)


def test_scores_of_a_language_model_are_saved(pretrained: Path, tmp_path: Path, capfd) -> None:
    model, data = pretrained / "causal", pretrained / "test.jsonl"
    saved = save_scores(capfd, model, data, tmp_path / "model", "--device", "cpu")
    check_scores(saved, model)
    assert saved["search"] == {"max_length": 24}
    shorter = ["--device", "cpu", "--max_source_length", 12, "--stride", 4]
    saved = save_scores(capfd, model, data, tmp_path / "shorter", *shorter)
    assert saved["search"] == {"max_length": 12, "stride": 4}
    assert ", with max_length 12, stride 4:" in outcome(capfd, "card", "--model", tmp_path / "shorter")[1]


def test_scores_of_translations_are_saved(tmp_path: Path, capfd) -> None:
    rows = [{"source": source, "target": target} for source, target in toy_pairs(6, seed=0)]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    save_toy_checkpoint(tmp_path / "toy")
    (tmp_path / "toy" / "averaged.json").write_text('{"checkpoints": ["checkpoint-6", "checkpoint-8"]}')
    search = ["--num_beams", "2", "--max_length", "9", "--source_prefix", "one ", "--source_field", "source"]
    saved = save_scores(capfd, tmp_path / "toy", table, tmp_path / "model", *search)
    card = outcome(capfd, "card", "--model", tmp_path / "model")[1]
    assert "source_prefix one, source_field source:" in card
    found = record_of(capfd, "--model", tmp_path / "toy", "--data", table, *search)
    assert saved["metrics"].keys() == {"bleu", "chrf", "exact_match", "bleu_lowercased"}
    for name, score in saved["metrics"].items():
        assert score["value"] == found[name]
        assert [score["low"], score["high"]] == found["intervals"][name]
    assert saved["metrics"]["bleu"]["signature"].startswith("nrefs:1|")
    assert (saved["search"]["num_beams"], saved["search"]["max_length"]) == (2, 9)
    assert (saved["search"]["source_prefix"], saved["search"]["source_field"]) == ("one ", "source")
    assert not (tmp_path / "toy" / "evaluation.json").exists()  # only if it is asked for


def test_scores_that_are_not_a_model_s_on_a_split_are_not_saved(
    tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        save_toy_checkpoint(tmp_path / name)
    for arguments, message in (
        (
            ["--model", "one", "--model", "two"],
            "writes into the folder of one model; give one --model FOLDER",
        ),
        (["--model", "someone/model"], "writes into the folder of one model; give one --model FOLDER"),
        (["--model", "one", "--max_rows", "3"], "is for scores of a whole split; leave out --max_rows"),
    ):
        status, _, errors = evaluate(capfd, *arguments, "--data", "dates", "--save_scores")
        assert (status, errors) == (2, f"vaswani: --save_scores {message}\n")
