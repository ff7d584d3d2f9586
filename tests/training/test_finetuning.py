"""Complete fine-tunings of seconds: the results, reproducibility, and errors."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from refusals import refusal
from run_records import assert_same_weights, weights
from transformers import pipeline

from tiny_runs import as_flags
from toy_labels import (
    POSITIONS,
    TASKS,
    save_toy_decoder,
    save_toy_encoder,
    toy_rows,
    write_jsonl,
    write_toy_rows,
)
from vaswani.cli import run as run_command
from vaswani.errors import UserError, listing
from vaswani.files import named_configs
from vaswani.training.config.config_file import load_config
from vaswani.training.config.finetuning_arguments import FinetuningConfig
from vaswani.training.runs.finetuning import finetune

QUICK = {"use_cpu": True, "disable_tqdm": True, "max_length": POSITIONS, "learning_rate": 5e-3}
QUICK |= {"max_tokens_per_batch": 300, "logging_steps": 1}
CONFIGS = named_configs.FOLDER
LEARNED = {"classification": "accuracy", "multi_label": "micro_f1", "regression": "pearson", "tagging": "f1"}


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Toy rows of every task, and encoders to begin with."""
    folder = tmp_path_factory.mktemp("toys")
    for task in TASKS:
        write_toy_rows(folder / task, task)
    save_toy_encoder(folder / "ours")
    save_toy_encoder(folder / "library", library=True)
    save_toy_decoder(folder / "decoder")
    save_toy_encoder(folder / "any length", position_embedding="sinusoidal")
    return folder


@pytest.fixture
def options(toys: Path, tmp_path: Path) -> dict:
    """Of a fine-tuning of some updates, for one label."""
    files = {
        f"{split}_file": toys / "classification" / f"{split}.jsonl"
        for split in ("train", "validation", "test")
    }
    return {**QUICK, **files, "model": toys / "ours", "output_dir": tmp_path / "run", "max_steps": 6}


def run(options: dict, **more: object) -> dict[str, float]:
    return finetune(load_config(None, as_flags({**options, **more}), FinetuningConfig))


def for_task(options: dict, toys: Path, task: str) -> dict:
    splits = {f"{split}_file": toys / task / f"{split}.jsonl" for split in ("train", "validation", "test")}
    return {**options, **splits, "task": task}


# ---------------------------------------------------------------------------------- what is learned, and left


def learn(toys: Path, task: str, encoder: str, folder: Path) -> Path:
    """A fine-tuning by the command, long enough to learn the task."""
    options = {**QUICK, "task": task, "model": toys / encoder, "dataset": toys / task, "output_dir": folder}
    options |= {"num_train_epochs": 25}
    assert run_command(["finetune", *as_flags(options)]) == 0
    return folder


@pytest.fixture(scope="session")
def learned(toys: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each task what a fine-tuning of our encoder has left."""
    folder = tmp_path_factory.mktemp("learned")
    return {task: learn(toys, task, "ours", folder / task) for task in TASKS}


def check_scores(folder: Path, task: str) -> dict:
    """Check for the best possible scores, in all files that hold them."""
    record = json.loads((folder / "evaluation.json").read_text())
    scores = json.loads((folder / "test_results.json").read_text())
    assert (record["split"], record["rows"]) == ("test", 40)
    best = record["metrics"][LEARNED[task]]
    assert best["value"] == scores[f"test_{LEARNED[task]}"] > (0.95 if task == "regression" else 95)
    assert all(score["low"] <= score["value"] <= score["high"] for score in record["metrics"].values())
    assert record["versions"]["torch"]
    assert len(record["examples"]) == 8
    card = (folder / "README.md").read_text()
    predicted = "any number of labels (`label`)" if task == "multi_label" else "the `label`"
    assert f"to predict {predicted} of a text" in card
    assert f"{next(iter(record['metrics'].values()))['value']:.2f}" in card
    return record


@pytest.mark.exhaustive(after=2)
@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_our_encoder_learns_each_task(learned, task):
    record = check_scores(learned[task], task)
    labels = record.get("labels", {})
    assert bool(labels) == (task != "regression")
    assert task != "tagging" or labels.keys() == {"LOC", "PER"}


@pytest.mark.exhaustive(after=2)
@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_library_encoder_learns_each_task_and_reports_it(toys, tmp_path, capsys, task):
    record = check_scores(learn(toys, task, "library", tmp_path), task)
    printed = capsys.readouterr().out
    best = record["metrics"][LEARNED[task]]
    assert "new weights: " in printed
    assert "train: kept 300 of 300 rows" in printed
    if task != "regression":
        names = json.loads((tmp_path / "config.json").read_text())["id2label"].values()
        assert f"\n{len(names)} labels: {listing(names)}\n" in printed
    assert f"{best['name']} {best['value']:.2f} (95 % interval {best['low']:.2f} to " in printed
    if task == "tagging":
        assert "PER: precision " in printed
        assert "/B-PER " in printed
    else:
        assert printed.count("  →  ") == 8


def answers(learned: dict[str, Path], task: str, *texts: str, **options: object) -> list:
    name = "token-classification" if task == "tagging" else "text-classification"
    return pipeline(name, str(learned[task]), device="cpu", **options)(list(texts))


@pytest.mark.slow
def test_pipelines_use_the_fine_tuned_models(learned):
    film = ("the great film", "the awful film")
    labels = [answer["label"] for answer in answers(learned, "classification", *film)]
    assert labels == ["good", "bad"]
    good, bad = (answer["score"] for answer in answers(learned, "regression", *film))
    assert (good, bad) == pytest.approx((1.5, -2.0), abs=0.5)
    (several,) = answers(learned, "multi_label", "the great film ann saw", top_k=None)
    assert {answer["label"]: answer["score"] > 0.5 for answer in several} == {
        "good": True,
        "bad": False,
        "names": True,
    }
    (tags,) = answers(learned, "tagging", "the film ann bob saw rome", aggregation_strategy="simple")
    found = [(answer["entity_group"], answer["word"].strip()) for answer in tags]
    assert found == [("PER", "ann bob"), ("LOC", "rome")]


def as_conll(rows: list[dict]) -> str:
    return "\n".join(
        "".join(f"{word} {tag}\n" for word, tag in zip(row["text"], row["label"], strict=True))
        for row in rows
    )


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("finetune_reviews", "classification"),
        ("finetune_gpt", "classification"),
        ("finetune_tagging", "tagging"),
    ],
)
def test_the_configurations_train(toys, tmp_path, name, task):
    model = "decoder" if name == "finetune_gpt" else "ours"
    small = {**QUICK, "model": toys / model, "num_train_epochs": 2, "output_dir": tmp_path / "run"}
    place = {"dataset": toys / task}
    if task == "tagging":
        place = {f"{split}_file": tmp_path / f"{split}.conll" for split in ("train", "validation", "test")}
        for seed, file in enumerate(place.values()):
            file.write_text(as_conll(list(toy_rows(task, 40, seed))))
    config = load_config(CONFIGS / f"{name}.yaml", as_flags({**small, **place}), FinetuningConfig)
    assert finetune(config).keys() >= {f"test_{LEARNED[task]}"}


@pytest.mark.slow
def test_a_second_text_is_used_for_the_label(options, tmp_path):
    rows = [
        {"text": "the film", "second": row["text"], "label": row["label"]}
        for row in toy_rows("classification", 100, seed=0)
    ]
    options |= {f"{split}_file": write_jsonl(tmp_path / "pairs.jsonl", rows) for split in ("train", "test")}
    del options["validation_file"]
    more = {"learning_rate": 1e-2, "max_steps": 50}
    both = run(options | more, text_pair_field="second")
    one = run(options | more, output_dir=tmp_path / "one")
    assert both["test_accuracy"] > 95
    assert one["test_accuracy"] < 70
    record = json.loads((options["output_dir"] / "evaluation.json").read_text())
    assert record["examples"][0].keys() == {"text", "text_pair", "prediction", "reference"}


def test_validation_is_evaluated_where_there_is_no_test(options):
    del options["test_file"]
    assert run(options).keys() >= {"validation_loss", "validation_accuracy", "validation_macro_f1"}
    assert json.loads((options["output_dir"] / "evaluation.json").read_text())["split"] == "validation"


def test_without_test_and_validation_a_run_trains_and_reports_nothing(options):
    del options["test_file"], options["validation_file"]
    assert run(options) == {}
    assert (options["output_dir"] / "model.safetensors").is_file()


def test_a_split_without_labels_is_not_evaluated(options, tmp_path):
    rows = [{"text": row["text"], "label": None} for row in toy_rows("classification", 5, seed=0)]
    assert run(options, test_file=write_jsonl(tmp_path / "untold.jsonl", rows)).keys() >= {
        "validation_accuracy"
    }


# ----------------------------------------------------------------------------------------------- every option


@pytest.fixture(scope="session")
def plain_run(toys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the options of the next test are compared with."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    train = toys / "classification" / "train.jsonl"
    run({**QUICK, "train_file": train, "model": toys / "ours", "max_steps": 6, "output_dir": folder})
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    [
        {"seed": 7},
        {"from_scratch": True},
        {"classifier_pooling": "mean"},
        {"max_length": 7},
        {"learning_rate": 1e-3},
        {"lr_scheduler_type": "inverse_sqrt"},
        {"warmup_steps": 3},
        {"adam_beta2": 0.9},
        {"adam_epsilon": 1e-3},
        {"label_smoothing_factor": 0.1},
        {"max_tokens_per_batch": 200},
        {"text_field": "label"},
    ],
    ids=lambda option: next(iter(option)),
)
def test_each_option_changes_the_weights(options, plain_run, option):
    del options["test_file"], options["validation_file"]
    run(options, **option)
    moved, plain = weights(options["output_dir"]), weights(plain_run)
    assert any(not torch.equal(moved[name], plain[name]) for name in plain)


@pytest.mark.slow
def test_the_separator_makes_the_labels(options, tmp_path):
    rows = [{"text": row["text"], "label": "; ".join(row["label"])} for row in toy_rows("multi_label", 60, 0)]
    file = write_jsonl(tmp_path / "rows.jsonl", rows)
    options |= {"task": "multi_label", "train_file": file, "validation_file": file, "test_file": file}
    run(options, label_separator=";")
    config = json.loads((options["output_dir"] / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "good", "2": "names"}
    assert config["problem_type"] == "multi_label_classification"
    run(options, output_dir=tmp_path / "other")
    assert len(json.loads((tmp_path / "other" / "config.json").read_text())["id2label"]) > 3


@pytest.mark.slow
def test_training_starts_from_pretrained_weights(toys, options):
    """With no learning rate to speak of, the encoder stays as it was; from scratch it is another."""
    embeddings = "model.encoder.embed_tokens.weight"
    before = weights(toys / "ours")[embeddings]
    run(options, learning_rate=1e-12)
    assert torch.allclose(weights(options["output_dir"])[embeddings], before, atol=1e-6)
    run(options, learning_rate=1e-12, from_scratch=True, output_dir=f"{options['output_dir']}-scratch")
    scratch = weights(Path(f"{options['output_dir']}-scratch"))[embeddings]
    assert scratch.shape == before.shape
    assert not torch.allclose(scratch, before, atol=1e-3)


def test_a_single_update_changes_the_weights(toys, options):
    embeddings = "model.encoder.embed_tokens.weight"
    run(options, max_steps=1)
    assert not torch.equal(weights(options["output_dir"])[embeddings], weights(toys / "ours")[embeddings])


@pytest.mark.slow
def test_a_tuned_model_keeps_the_numbers_of_its_labels(toys, options, tmp_path):
    run(options)
    path = options["output_dir"] / "config.json"
    config = json.loads(path.read_text())
    assert config["id2label"] == {"0": "bad", "1": "good"}
    turned = {"id2label": {"0": "good", "1": "bad"}, "label2id": {"good": 0, "bad": 1}}
    path.write_text(json.dumps({**config, **turned}))
    (options["output_dir"] / "model_hashes.json").unlink()  # of the configuration that was there before
    run(options, model=options["output_dir"], output_dir=tmp_path / "more")
    again = json.loads((tmp_path / "more" / "config.json").read_text())
    assert {name: again[name] for name in turned} == turned

    backwards = dict(reversed(turned["id2label"].items()))  # as a tool may write them that sorts texts
    path.write_text(json.dumps({**config, **turned, "id2label": backwards}))
    run(options, model=options["output_dir"], output_dir=tmp_path / "once more")
    again = json.loads((tmp_path / "once more" / "config.json").read_text())
    assert {name: again[name] for name in turned} == turned


# ----------------------------------------------------------------------------------------- rows that are long


def test_long_texts_are_cut_off_and_counted(options, capsys):
    run(options, max_length=7)
    assert " rows, " in (cut := capsys.readouterr().out)
    assert "of them cut off" in cut


@pytest.mark.slow
def test_tags_of_long_rows_are_all_scored(toys, options, tmp_path, capsys):
    """Training cuts them; evaluation reads as far as there are positions, and leaves out what is longer."""
    rows = list(toy_rows("tagging", 30, seed=0))
    rows.append({"text": ["the"] * 50, "label": ["O"] * 50})
    file = write_jsonl(tmp_path / "rows.jsonl", rows)
    options |= {"task": "tagging", "train_file": file, "validation_file": file, "test_file": file}
    run(options, max_length=8, model=toys / "any length", output_dir=tmp_path / "any")
    printed = capsys.readouterr().out
    assert "train: kept 31 of 31 rows, " in printed
    assert "test: kept 31 of 31 rows; also in the training split: 31\n" in printed
    run(options, max_length=8)
    printed = capsys.readouterr().out
    assert "train: kept 31 of 31 rows, " in printed
    assert "test: kept 30 of 31 rows; left out: 1 over-long; also in the training split: 31\n" in printed


# ------------------------------------------------------------------------------------------- again, and again


def test_resuming_with_changed_rows_is_refused(options, tmp_path):
    run(options, save_steps=3)
    write_jsonl(tmp_path / "other.jsonl", list(toy_rows("classification", 300, seed=9)))
    options |= {"train_file": tmp_path / "other.jsonl"}
    with pytest.raises(UserError, match=r"the data changed since .*\(train\)"):
        run(options, resume_from_checkpoint=True)


def test_training_stops_early_and_keeps_the_best(options):
    """A learning rate that destroys the model: the first evaluation is the best."""
    options |= {"learning_rate": 5.0, "lr_scheduler_type": "constant", "max_steps": 40, "warmup_steps": 0}
    options |= {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "early_stopping_patience": 2}
    run(options, load_best_model_at_end=True, metric_for_best_model="loss")
    state = json.loads((options["output_dir"] / "trainer_state.json").read_text())
    assert state["global_step"] < 40
    assert_same_weights(options["output_dir"], Path(state["best_model_checkpoint"]))


def test_a_moved_run_keeps_its_best_checkpoint(options, tmp_path):
    """The library looks for the best checkpoint where the run was before."""
    options |= {"learning_rate": 5.0, "lr_scheduler_type": "constant", "max_steps": 6, "warmup_steps": 0}
    options |= {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2}
    options |= {"load_best_model_at_end": True, "metric_for_best_model": "loss"}
    run(options)
    moved = Path(shutil.move(options["output_dir"], tmp_path / "moved"))
    best = json.loads((moved / "trainer_state.json").read_text())["best_global_step"]
    assert best < 6
    run(options, output_dir=moved, resume_from_checkpoint=True)
    state = json.loads((moved / "trainer_state.json").read_text())
    assert Path(state["best_model_checkpoint"]) == moved / f"checkpoint-{best}"
    assert_same_weights(moved, moved / f"checkpoint-{best}")


# -------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model": None}, "no model was given; set model to the folder of a pre-trained model"),
        ({"model": "./nowhere"}, "model folder ./nowhere does not exist"),
        ({"label_field": "stars"}, "label_field: .* has no field 'stars'; it has 'text', 'label'"),
        (
            {"max_length": 41},
            r"max_length=41, but .* has positions for 40 tokens; set max_length to 40 or less",
        ),
        ({"max_length": 2, "train_file": "unread"}, "max_length=2 has no room beside 2 special tokens"),
        (
            {"max_length": 3, "text_pair_field": "b", "train_file": "unread"},
            "max_length=3 has no room beside 3 special tokens",
        ),
        ({"max_length": 0}, "max_length=0 must be at least 1"),
        (
            {"max_tokens_per_batch": 9},
            "max_tokens_per_batch=9 is too small: train has a row of .* tokens; raise",
        ),
        ({"task": "regression"}, "row 1 of .* has '.*' where task=regression takes a number"),
        ({"task": "tagging"}, "every word needs a tag, but row 1 of .* has .* words and 1 tags"),
        ({"task": "tagging", "text_pair_field": "b"}, "text_pair_field has no meaning for task=tagging"),
        (
            {"task": "mood"},
            "task=mood is unknown; choose one of .*, tagging, question_answering, completion$",
        ),
        ({"task": "classify"}, "task=classify is unknown; .*; did you mean 'classification'"),
        (
            {"task": "tagging", "classifier_pooling": "mean"},
            "classifier_pooling has no meaning for task=tagging",
        ),
        ({"classifier_pooling": "max"}, "classifier_pooling: invalid choice"),
        ({"label_separator": ""}, "label_separator='' is empty"),
        (
            {"metric_for_best_model": "f1"},
            "f1 is not computed; choose one of loss, accuracy, macro",
        ),
        (
            {"task": "regression", "label_smoothing_factor": 0.1},
            "label_smoothing_factor has no meaning for task=regression",
        ),
        ({"attn_implementation": "fast"}, "fast"),
        ({"prediction_loss_only": True}, "prediction_loss_only has no effect here"),
        ({"per_device_train_batch_size": 8}, "per_device_train_batch_size has no effect here"),
        ({"train_file": "nowhere.jsonl"}, "no such file: nowhere.jsonl"),
        ({"validation_file": None, "eval_strategy": "epoch"}, "evaluation needs a validation split"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_invalid_options_give_an_error_before_writing_files(options, capsys, more, message):
    assert re.search(message, refusal("finetune", options | more, capsys))


def test_unsupported_classifier_pooling_gives_an_error(toys, options, capsys):
    told = refusal("finetune", options | {"model": toys / "library", "classifier_pooling": "mean"}, capsys)
    assert "classifier_pooling=mean is not supported by a model of type 'bert'" in told


def test_the_help_lists_the_fields_and_the_scores(capsys):
    assert run_command(["finetune", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "--from_scratch" in told
    assert "metric_for_best_model (loss, accuracy, macro_f1, matthews, micro_f1, subset_accuracy," in told


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_label_missing_in_the_training_data_is_named(options, tmp_path, split):
    rows = [*toy_rows("classification", 3, seed=0), {"text": "the film", "label": "so so"}]
    options[f"{split}_file"] = write_jsonl(tmp_path / "rows.jsonl", rows)
    with pytest.raises(UserError, match=f"{split} has the label 'so so', which .*those have 'bad', 'good'"):
        run(options)


def test_no_labels_at_all_are_refused(options, tmp_path):
    rows = [{"text": "the film", "label": []}] * 3
    options |= {"task": "multi_label", "train_file": write_jsonl(tmp_path / "rows.jsonl", rows)}
    with pytest.raises(UserError, match="train must have two labels or more, and it has none"):
        run(options)


def test_parts_of_speech_have_no_spans_to_choose_a_model_by(options, tmp_path):
    rows = [{"text": "the film was", "label": "DET NOUN VERB"}] * 9
    file = write_jsonl(tmp_path / "rows.jsonl", rows)
    options |= {"task": "tagging", "train_file": file, "validation_file": file, "test_file": file}
    assert run(options).keys() & {"test_token_accuracy", "test_f1"} == {"test_token_accuracy"}
    record = json.loads((options["output_dir"] / "evaluation.json").read_text())
    assert record["labels"].keys() == {"DET", "NOUN", "VERB"}
    with pytest.raises(
        UserError, match="metric_for_best_model=f1 is not computed; choose one of loss, token"
    ):
        run(options, metric_for_best_model="f1", output_dir=tmp_path / "other")
