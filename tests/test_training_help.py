"""The help of the training commands is included as text and matches their dataclasses."""

import json

import pytest
import transformers

from vaswani.cli import run
from vaswani.cli.option_pages import PAGES, field_names, make_page
from vaswani.cli.training_help import (
    FIELDS,
    FOLDER,
    LABEL_TASKS,
    OBJECTIVES,
    OTHER_TASKS,
    PAIR_TASKS,
    check_flags,
    help_page,
)
from vaswani.errors import UserError
from vaswani.evaluation.text_metrics import METRICS_OF_TASK
from vaswani.training.config import finetuning_arguments
from vaswani.training.config.pretraining_arguments import CONTINUED, NEW, PretrainingConfig
from vaswani.training.runs.pretraining import RUNS
from vaswani.training.trainer.labels import TASKS

MAKE_AGAIN = "an option has changed: run `python -m vaswani.cli.option_pages` and commit the pages"


@pytest.mark.parametrize("name", PAGES)
def test_help_pages_match_the_dataclasses(name):
    assert (FOLDER / f"{name}.txt").read_text(encoding="utf-8") == make_page(PAGES[name]), MAKE_AGAIN


def test_there_are_no_further_help_pages():
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(PAGES)


def test_the_names_are_those_of_the_fields():
    known = json.loads(FIELDS.read_text(encoding="utf-8"))
    if known["transformers"] != transformers.__version__:
        pytest.skip(f"the names are those of transformers {known['transformers']}")
    assert known == field_names(), MAKE_AGAIN


@pytest.mark.parametrize(
    "flags",
    [
        *("", "--objective causal", "--objective=causal --model x", "--model=x", "--objective masked"),
        *("--objective span_denoising", "--objective gap_sentences --model x"),
    ],
)
def test_the_help_page_matches_the_selected_configuration(flags):
    given = dict(flag.removeprefix("--").replace("=", " ").split() for flag in flags.split(" --") if flag)
    assert help_page("pretrain", flags.split()) + "\n" == make_page(PretrainingConfig.variant(given))


def test_all_objectives_are_known():
    assert tuple(NEW) == tuple(CONTINUED) == tuple(RUNS) == OBJECTIVES


def test_all_tasks_are_known():
    assert (*LABEL_TASKS, *OTHER_TASKS) == (*TASKS, *finetuning_arguments.OTHER_TASKS)
    assert tuple(METRICS_OF_TASK) == PAIR_TASKS


@pytest.mark.parametrize(
    ("command", "flag", "value", "choices"),
    [
        ("pretrain", "objective", "other", "masked, causal, span_denoising, gap_sentences"),
        ("distill", "objective", "other", "masked, causal"),
        ("distill", "task", "other", "translation, summarization, classification"),
        ("finetune", "task", "other", "classification, .*, question_answering, completion"),
    ],
)
def test_help_for_an_unknown_kind_raises_an_error(command, flag, value, choices):
    with pytest.raises(UserError, match=f"{flag}={value} is unknown; choose one of {choices}"):
        help_page(command, [f"--{flag}", value])


def test_help_names_the_fields_and_says_where_the_others_are(capsys):
    assert run(["train", "--help"]) == 0
    text = capsys.readouterr().out
    for name in ("d_model", "train_file", "max_tokens_per_batch", "learning_rate", "early_stopping_patience"):
        assert f"--{name} " in text
    assert "Every training argument of transformers" in text
    assert "Distillation:" not in text


def test_help_of_each_objective_has_its_fields():
    masked, causal = help_page("pretrain", []), help_page("pretrain", ["--objective", "causal"])
    for name in ("encoder_layers", "whole_word_masking", "next_sentence", "mask_probability"):
        assert f"--{name} " in masked
        assert f"--{name} " not in causal
    for name in ("decoder_layers", "pack"):
        assert f"--{name} " in causal
        assert f"--{name} " not in masked
    spans, gaps = (help_page("pretrain", ["--objective", name]) for name in OBJECTIVES[2:])
    assert "--noise_density " in spans
    assert "--gap_sentence_ratio " in gaps
    for text in (masked, causal, spans, gaps):
        assert "--text_field " in text
        assert "--generation_num_beams " not in text
        assert "metric_for_best_model (loss, perplexity, accuracy" in " ".join(text.split())


def test_flags_are_not_checked_with_another_version_of_transformers(monkeypatch):
    known = json.loads(FIELDS.read_text(encoding="utf-8"))["transformers"]
    monkeypatch.setattr("vaswani.cli.training_help.version", lambda name: known)
    check_flags("train", ["--learning-rate", "1", "--no_bf16", "--max_steps=3"])
    with pytest.raises(UserError, match="unknown flag '--learing_rate'; did you mean '--learning_rate'"):
        check_flags("train", ["--learing_rate", "1"])
    monkeypatch.setattr("vaswani.cli.training_help.version", lambda name: "6.0.0")
    check_flags("train", ["--learing_rate", "1"])
