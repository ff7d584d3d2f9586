"""`vaswani compare` of models that are no translators: scores as of `vaswani evaluate`, in pairs."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForPreTraining, AutoTokenizer

from in_process import outcome
from jsonl import write_jsonl
from tiny_runs import TINY_MODEL, as_flags
from toy_labels import (
    save_toy_answerer,
    save_toy_classifier,
    save_toy_decoder,
    save_toy_encoder,
    toy_config,
    toy_rows,
    toy_tokenizer,
)
from toy_questions import toy_questions
from toy_texts import toy_documents
from toy_translation import save_toy_checkpoint, save_toy_reverse_checkpoint
from toy_translation import toy_rows as toy_pairs
from vaswani.cli import run
from vaswani.distillation import stack_report
from vaswani.files.run_files import SETTINGS_FILE
from vaswani.inference.classify.classification import Classifier
from vaswani.inference.translate import reverse_model

LABELS = ("classification", "multi_label", "regression", "tagging")
# The metric of the conclusions; another one that can be chosen, and one that cannot.
METRICS = {
    "classification": ("accuracy", "macro_f1", "bleu"),
    "multi_label": ("micro_f1", "subset_accuracy", "accuracy"),
    "regression": ("pearson", "spearman", "mse"),
    "tagging": ("token_accuracy", "f1", "pearson"),
    "questions": ("exact_match", "f1", "bleu"),
    "masked": ("accuracy", None, "perplexity"),
    "causal": ("accuracy", None, "bits_per_byte"),
    "completions": ("accuracy", None, "loss"),
    "span_denoising": ("accuracy", None, "perplexity"),
}


@pytest.fixture(scope="module", autouse=True)
def little_timing() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack_report, "ROUNDS", 1)
        patch.setattr(stack_report, "SPEED_ROWS", 2)
        yield


def with_noise(folder: Path, target: Path, size: float = 0.3) -> Path:
    """A copy of a model with other weights."""
    shutil.copytree(folder, target)
    generator = torch.Generator().manual_seed(1)
    weights = load_file(target / "model.safetensors")
    noisy = {name: w + size * torch.randn(w.shape, generator=generator) for name, w in weights.items()}
    save_file(noisy, target / "model.safetensors", {"format": "pt"})
    (target / "model_hashes.json").unlink(missing_ok=True)
    return target


def rows_of(kind: str) -> list[dict[str, Any]]:
    if kind in LABELS:
        rows = list(toy_rows(kind, 20, seed=3))
        if kind == "tagging":  # the toys know no places and no names
            rows = [{name: row[name][:-1] for name in ("text", "label")} for row in rows]
        if kind == "multi_label":
            rows = [{**row, "label": [name for name in row["label"] if name != "names"]} for row in rows]
        return rows
    if kind == "questions":
        return list(toy_questions(20, seed=3, unanswerable=0.3))
    if kind == "completions":
        return [{"prompt": "The", "completion": text.removeprefix("The")} for text in toy_documents(20)]
    return [{"text": text} for text in toy_documents(20)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For each kind of model its rows, and the models `first` and `second`."""
    folder = tmp_path_factory.mktemp("models")
    for kind in METRICS:
        (folder / kind).mkdir()
        data, first = write_jsonl(folder / kind / "rows.jsonl", rows_of(kind)), folder / kind / "first"
        if kind in LABELS:
            save_toy_classifier(first, kind)
        elif kind == "questions":
            save_toy_answerer(first)
        elif kind == "span_denoising":
            options = {**TINY_MODEL, "objective": kind, "train_file": data, "vocab_size": 420, "max_steps": 1}
            options |= {"max_length": 24, "output_dir": first, "use_cpu": True, "disable_tqdm": True}
            assert run(["pretrain", *as_flags(options)]) == 0
        else:
            (save_toy_encoder if kind == "masked" else save_toy_decoder)(first)
        with_noise(first, folder / kind / "second")
    return folder


def flags_of(kind: str) -> list[str]:
    return ["--device", "cpu", *(["--prompt_field", "prompt"] if kind == "completions" else [])]


@pytest.mark.parametrize("kind", METRICS)
def test_the_scores_are_those_of_an_evaluation_and_the_differences_are_paired(
    models: Path, tmp_path: Path, capfd: pytest.CaptureFixture, kind: str
) -> None:
    places, data = [models / kind / name for name in ("first", "second")], models / kind / "rows.jsonl"
    flags = ["--data", data, *flags_of(kind)]
    status, output, errors = outcome(capfd, "compare", *places, *flags, "--output", tmp_path)
    assert status == 0, errors
    assert {path.name for path in tmp_path.iterdir()} == {"report.md", "report.json"}
    assert output == (tmp_path / "report.md").read_text()
    assert output.startswith("## Comparison\n")
    record = json.loads((tmp_path / "report.json").read_text())
    assert (record["metric"], record["data"]) == (METRICS[kind][0], "test of rows.jsonl")
    for place, model in zip(places, record["models"], strict=True):
        found = json.loads(outcome(capfd, "evaluate", "--model", place, *flags, "--json")[1].splitlines()[-1])
        unit = found.get("unit", "questions" if kind == "questions" else "rows")
        assert (record["rows"], record["unit"]) == (found["rows"], unit)
        assert f"- Data: test of rows.jsonl, {found['rows']:,} {unit}." in output
        for name, score in model["scores"].items():
            if "metrics" in found:
                expected = found["metrics"][name]
                value, interval = expected["value"], [expected["low"], expected["high"]]
            else:
                value, interval = found[name], found["intervals"][name]
            assert score["value"] == pytest.approx(value), name
            assert [score["low"], score["high"]] == pytest.approx(interval), name
        assert model["weight_bytes"] == (place / "model.safetensors").stat().st_size
        assert model["rows_per_second"] > 0
    first, second = record["models"]
    assert first["scores"] != second["scores"]
    for name, difference in second["differences"].items():
        assert difference["value"] == pytest.approx(
            second["scores"][name]["value"] - first["scores"][name]["value"]
        )
    assert record["difference"] == second["differences"][record["metric"]]["value"]
    assert not {"loss", "mse", "perplexity", "bits_per_byte"} & second["retentions"].keys()
    identical = Path(shutil.copytree(places[0], tmp_path / "identical"))
    outcome(capfd, "compare", places[0], identical, *flags, "--output", tmp_path)
    record = json.loads((tmp_path / "report.json").read_text())
    for difference in record["models"][1]["differences"].values():  # in each resample, not only on all rows
        assert [difference[name] for name in ("value", "low", "high", "p_value")] == [0, 0, 0, 1]


@pytest.mark.parametrize("kind", METRICS)
def test_the_metric_is_one_of_the_task(
    models: Path, tmp_path: Path, capfd: pytest.CaptureFixture, kind: str
) -> None:
    _, other, wrong = METRICS[kind]
    places, data = [models / kind / name for name in ("first", "second")], models / kind / "rows.jsonl"
    command = ["compare", *places, "--data", data, *flags_of(kind), "--output", tmp_path]
    if other is not None:
        assert outcome(capfd, *command, "--metric", other)[0] == 0
        record = json.loads((tmp_path / "report.json").read_text())
        assert (record["metric"], record["difference"]) == (
            other,
            record["models"][1]["differences"][other]["value"],
        )
    status, _, errors = outcome(capfd, *command, "--metric", wrong)
    assert status == 2
    assert errors.splitlines()[-1].startswith(f"vaswani: metric={wrong} is not for ")


def test_a_metric_that_the_rows_do_not_have_is_refused_before_any_prediction(
    tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of speech mark no spans, so they have no F1 of spans."""
    tags = ["O", "NOUN", "VERB"]
    labels = {"id2label": dict(enumerate(tags)), "label2id": {tag: at for at, tag in enumerate(tags)}}
    places = [save_toy_classifier(tmp_path / name, "tagging", **labels) for name in ("first", "second")]
    data = write_jsonl(tmp_path / "rows.jsonl", [{"text": ["the", "film"], "label": ["O", "NOUN"]}] * 3)
    monkeypatch.setattr(Classifier, "stream", lambda *_, **__: pytest.fail("predicted"))
    flags = ["--device", "cpu", "--data", data, "--metric", "f1"]
    status, _, errors = outcome(capfd, "compare", *places, *flags)
    assert status == 2
    assert "metric=f1 is not defined for these rows; choose one of 'token_accuracy'" in errors


def test_models_of_other_tasks_are_refused_before_any_work(
    models: Path, tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vaswani.hub.checkpoint.load_weights", lambda *_, **__: pytest.fail("a model is loaded")
    )
    mixed = {
        (
            "classification",
            "tagging",
        ): "a classifier or tagger (classification), and {} is a classifier or tagger",
        (
            "questions",
            "causal",
        ): "a question answerer, and {} is a causal language model; compare models of one",
        (
            "masked",
            "span_denoising",
        ): "a masked language model, and {} is an encoder-decoder that was pre-trained",
    }
    for (first, second), message in mixed.items():
        places = models / first / "first", models / second / "second"
        status, output, errors = outcome(capfd, "compare", *places, "--data", "dates", "--output", tmp_path)
        assert (status, output) == (2, "")
        assert f"vaswani: {places[0]} is {message.format(places[1])}" in errors
    base, tuned = models / "causal" / "first", tmp_path / "tuned"
    shutil.copytree(base, tuned)
    (tuned / SETTINGS_FILE).write_text("task: completion\n")
    status, _, errors = outcome(capfd, "compare", base, tuned, "--data", "dates", "--output", tmp_path)
    assert status == 2
    assert "with prompts; compare models of one task, or give --prompt_field or --text_field" in errors
    for task in ("translation", "summarization"):
        save_toy_checkpoint(tmp_path / task)
        (tmp_path / task / SETTINGS_FILE).write_text(f"task: {task}\n")
    places = tmp_path / "translation", tmp_path / "summarization"
    status, _, errors = outcome(capfd, "compare", *places, "--data", "dates")
    assert status == 2
    assert "is an encoder-decoder (summarization); compare models of one task, or give --metric" in errors


def test_a_reverse_model_is_loaded_once(
    tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [save_toy_checkpoint(tmp_path / name) for name in ("first", "second")]
    reverse = save_toy_reverse_checkpoint(tmp_path / "reverse")
    rows = [{"source": source, "target": target} for source, target in toy_pairs(6, seed=-3)]
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    flags = ["--data", data, "--device", "cpu", "--num_beams", 3, "--reverse_model", reverse]
    loaded = []
    load = reverse_model.load_for_torch
    monkeypatch.setattr(
        reverse_model, "load_for_torch", lambda *given: loaded.append(given[0]) or load(*given)
    )
    assert outcome(capfd, "compare", *places, *flags, "--output", tmp_path)[0] == 0
    assert loaded == [str(reverse)]
    record = json.loads((tmp_path / "report.json").read_text())
    assert record["search"]["reverse_model"] == "reverse"
    found = json.loads(outcome(capfd, "evaluate", "--model", places[1], *flags, "--json")[1].splitlines()[-1])
    for one in record["models"]:
        assert one["scores"]["bleu"]["value"] == pytest.approx(found["bleu"])
    (places[1] / SETTINGS_FILE).write_text("source_field: en\ntarget_field: de\n")
    (reverse / SETTINGS_FILE).write_text("source_field: en\ntarget_field: de\n")
    status, _, errors = outcome(capfd, "compare", *places, *flags, "--output", tmp_path)
    assert status == 2
    assert "were both trained from the column 'en' to 'de'" in errors


def test_rows_that_a_tagger_cannot_read_in_full_are_left_out_for_all(
    models: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    data, whole = models / "tagging" / "rows.jsonl", models / "tagging" / "first"
    short = save_toy_classifier(tmp_path / "short", "tagging", max_position_embeddings=9)
    assert outcome(capfd, "compare", whole, short, "--data", data, "--device", "cpu")[0] == 0
    record = json.loads((short / "report.json").read_text())
    texts = [row["text"] for row in rows_of("tagging")]
    read = [not one.cut_off for one in Classifier.from_pretrained(short, device="cpu")(texts)]
    assert 0 < sum(read) < len(texts)
    assert (record["rows"], record["left_out_rows"]) == (sum(read), len(texts) - sum(read))
    assert (
        f"Left out, because not all models can score them: {len(texts) - sum(read)} rows."
        in (short / "report.md").read_text()
    )
    kept = [row for row, is_read in zip(rows_of("tagging"), read, strict=True) if is_read]
    write_jsonl(tmp_path / "kept.jsonl", kept)
    found = outcome(capfd, "evaluate", "--model", whole, "--data", tmp_path / "kept.jsonl", "--json")[1]
    for name, score in record["models"][0]["scores"].items():
        assert score["value"] == pytest.approx(json.loads(found.splitlines()[-1])[name])


def test_texts_that_a_classifier_truncates_are_reported_for_it(
    models: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    data, whole = models / "classification" / "rows.jsonl", models / "classification" / "first"
    short = save_toy_classifier(tmp_path / "short", "classification", max_position_embeddings=9)
    assert outcome(capfd, "compare", whole, short, "--data", data, "--device", "cpu")[0] == 0
    record = json.loads((short / "report.json").read_text())
    assert record["models"][0]["cut_off_rows"] == 0 < record["models"][1]["cut_off_rows"] < record["rows"]
    assert record["options"] == {"max_length": [40, 9]}
    assert "- Cut off for `short`: " in (short / "report.md").read_text()


def test_language_models_read_the_same_sequences(
    models: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    data, long = models / "causal" / "rows.jsonl", models / "causal" / "first"
    short = save_toy_decoder(tmp_path / "short", max_position_embeddings=20)
    command = ["compare", long, short, "--device", "cpu", "--data", data]
    assert outcome(capfd, *command)[0] == 0
    record = json.loads((short / "report.json").read_text())
    assert record["options"]["max_length"] == 20
    arguments = ["evaluate", "--model", long, "--data", data, "--device", "cpu", "--max_source_length", "20"]
    found = json.loads(outcome(capfd, *arguments, "--json")[1].splitlines()[-1])
    assert record["models"][0]["scores"]["loss"]["value"] == pytest.approx(found["metrics"]["loss"]["value"])
    assert outcome(capfd, *command, "--stride", 5)[0] == 0
    with_stride = json.loads((short / "report.json").read_text())
    assert with_stride["options"]["stride"] == 5
    assert with_stride["models"][0]["scores"] != record["models"][0]["scores"]
    other = save_toy_decoder(tmp_path / "other", library=True)
    status, _, errors = outcome(capfd, "compare", long, other, "--device", "cpu", "--data", data)
    assert status == 2
    assert f"the tokenizers of {long} and {other} make different tokens of the texts" in errors


def test_language_models_are_scored_on_the_same_tokens(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    """Two chat templates write the same chat, but one counts the role before an answer to the answer."""
    chat = [{"role": "user", "content": "the film"}, {"role": "assistant", "content": "was good"}]
    data = write_jsonl(tmp_path / "rows.jsonl", [{"messages": chat}] * 4)
    template = "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + eos_token }}{% endfor %}"
    templates = {
        "first": template + "{% if add_generation_prompt %}assistant {% endif %}",
        "second": template,
    }
    places = [save_toy_decoder(tmp_path / name) for name in templates]
    for place, written in zip(places, templates.values(), strict=True):
        tokenizer = AutoTokenizer.from_pretrained(place)
        tokenizer.chat_template = written
        tokenizer.save_pretrained(place)
    flags = ["--device", "cpu", "--data", data, "--messages_field", "messages"]
    status, _, errors = outcome(capfd, "compare", *places, *flags)
    assert status == 2
    assert f"the tokenizers of {places[0]} and {places[1]} locate the answers differently" in errors


@pytest.mark.parametrize(
    ("kind", "other", "setting"),
    [
        ("causal", {"max_position_embeddings": 20}, ("max_length", 20)),
        ("causal", {"decoder_attention": "sparse"}, ("pack", False)),
        ("completions", {"max_position_embeddings": 36}, ("max_length", 36)),
        ("masked", {}, ("next_sentence", False)),
    ],
)
def test_a_training_decides_how_texts_are_read_as_far_as_all_models_allow(
    tmp_path: Path, capfd: pytest.CaptureFixture, kind: str, other: dict[str, Any], setting: tuple[str, Any]
) -> None:
    trained, second = tmp_path / "trained", tmp_path / "second"
    settings = {
        "max_length": 38,
        **({"task": "completion"} if kind == "completions" else {"objective": kind}),
    }
    if kind == "masked":  # only the first predicts next sentences
        save_toy_encoder(second)
        AutoModelForPreTraining.from_config(toy_config()).save_pretrained(trained)
        toy_tokenizer().save_pretrained(trained)
        settings |= {"next_sentence": True, "documents": "blank_line"}
    else:
        save_toy_decoder(trained)
        save_toy_decoder(second, **other)
        settings |= {"pack": True}
    (trained / SETTINGS_FILE).write_text(json.dumps(settings))
    rows = [{"prompt": "The", "completion": " cat."}] if kind == "completions" else rows_of(kind)
    command = ["--data", write_jsonl(tmp_path / "rows.jsonl", rows), *flags_of(kind), "--output", tmp_path]
    for models in ((trained, second), (second, trained)):
        status, _, errors = outcome(capfd, "compare", *models, *command)
        assert status == 0, errors
        record = json.loads((tmp_path / "report.json").read_text())
        assert record["options"][setting[0]] == setting[1]
        assert "next_sentence_accuracy" not in record["names"]  # one head would be untrained


def test_students_are_called_so_and_rows_are_read_as_in_the_second_training(
    models: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    first, student = models / "classification" / "first", tmp_path / "student"
    shutil.copytree(models / "classification" / "second", student)
    (student / SETTINGS_FILE).write_text("task: classification\nteacher: [large]\ntext_field: words\n")
    rows = [{"words": row["text"], "label": row["label"]} for row in rows_of("classification")]
    data = write_jsonl(tmp_path / "rows.jsonl", rows)
    command = ["compare", first, student, "--data", data, "--device", "cpu"]
    assert outcome(capfd, *command)[0] == 0
    record = json.loads((student / "report.json").read_text())
    assert [model["role"] for model in record["models"]] == ["teacher", "student"]
    assert (
        outcome(capfd, *command, "--max_rows", "7", "--baseline", models / "classification" / "second")[0]
        == 0
    )
    record = json.loads((student / "report.json").read_text())
    assert (record["rows"], record["models"][2]["role"]) == (7, "baseline")
    assert record["models"][1]["gain"]["value"] == 0


def test_an_option_of_other_models_is_refused(models: Path, tmp_path: Path, capfd) -> None:
    places = models / "classification" / "first", models / "classification" / "second"
    data = models / "classification" / "rows.jsonl"
    status, _, errors = outcome(capfd, "compare", *places, "--data", data, "--num_beams", "2")
    assert status == 2
    assert "--num_beams is for an encoder-decoder, and the model is a classifier or tagger" in errors
