"""Complete fine-tunings on questions: the results, reproducibility, and errors."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from refusals import refusal
from run_records import assert_same_weights, logged
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from jsonl import write_jsonl
from tiny_runs import as_flags
from toy_labels import POSITIONS, save_toy_decoder, save_toy_encoder, toy_config, toy_tokenizer
from toy_questions import nested, toy_questions, write_toy_questions
from vaswani.cli import run as run_command
from vaswani.data.questions.question_rows import FEATURES
from vaswani.data.questions.windows import WindowCollator, WindowLengths, tokenize_questions
from vaswani.evaluation.answers import evaluate_answers
from vaswani.inference.answer.answering import QuestionAnswerer
from vaswani.training.config.config_file import load_config
from vaswani.training.config.finetuning_arguments import FinetuningConfig
from vaswani.training.config.training_arguments import FinetuningTrainingArguments
from vaswani.training.runs.finetuning import finetune
from vaswani.training.trainer.question_answering import QuestionTrainer, span_loss

QUICK = {"task": "question_answering", "use_cpu": True, "disable_tqdm": True, "learning_rate": 5e-3}
QUICK |= {"max_length": 24, "doc_stride": 8, "max_question_length": 8}
QUICK |= {"max_tokens_per_batch": 300, "logging_steps": 1}


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Toy questions, with and without unanswerable ones, and encoders to begin with."""
    folder = tmp_path_factory.mktemp("toys")
    write_toy_questions(folder / "v1", words=20)
    write_toy_questions(folder / "v2", unanswerable=0.4)
    save_toy_encoder(folder / "ours")
    save_toy_encoder(folder / "library", library=True)
    save_toy_decoder(folder / "gpt2", library=True)
    return folder


@pytest.fixture
def options(toys: Path, tmp_path: Path) -> dict:
    """Of a fine-tuning of some updates."""
    return {**QUICK, "dataset": toys / "v1", "model": toys / "ours", "output_dir": tmp_path / "run"} | {
        "max_steps": 6
    }


def run(options: dict, **more: object) -> dict[str, float]:
    return finetune(load_config(None, as_flags({**options, **more}), FinetuningConfig))


def read(folder: Path, name: str = "evaluation.json") -> dict:
    return json.loads((folder / name).read_text())


# ---------------------------------------------------------------------------------- what is learned, and left


def learn(toys: Path, data: str, model: str, folder: Path, **more: int) -> Path:
    """A fine-tuning by the command, long enough to learn the questions."""
    options = {**QUICK, "model": toys / model, "dataset": toys / data, "output_dir": folder}
    assert run_command(["finetune", *as_flags(options | {"num_train_epochs": 15} | more)]) == 0
    return folder


@pytest.fixture(scope="session")
def learned(toys: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What fine-tunings of our encoder, and of the library's BERT and GPT-2, have left."""
    folder = tmp_path_factory.mktemp("learned")
    return {
        "v1": learn(toys, "v1", "ours", folder / "v1"),
        "v2": learn(toys, "v2", "ours", folder / "v2"),
        "library": learn(toys, "v2", "library", folder / "library"),
        "gpt2": learn(toys, "v2", "gpt2", folder / "gpt2", max_length=30, num_train_epochs=25),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v1", "v2", "library", "gpt2"])
def test_a_tiny_model_learns_to_answer(toys, learned, name):
    """Far more than a model that has learned nothing, which answers a twentieth of the words."""
    record = read(learned[name])
    assert (record["split"], record["rows"]) == ("test", 40)
    assert record["metrics"]["f1"]["value"] > 80
    for metric, score in record["metrics"].items():
        assert score["low"] <= score["value"] <= score["high"]
        assert read(learned[name], "test_results.json")[f"test_{metric}"] == score["value"]
    unanswerable = {"has_answer_exact_match", "has_answer_f1", "no_answer_accuracy"}
    assert unanswerable & record["metrics"].keys() == (set() if name == "v1" else unanswerable)
    assert ("null_score_diff_threshold" in record["search"]) == (name != "v1")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v1", "v2", "library"])
def test_the_scores_can_be_recomputed_from_the_answer_files(toys, learned, name):
    rows = {row["id"]: row for row in map(json.loads, (toys / "v1" / "test.jsonl").open())}
    if name != "v1":
        rows = {row["id"]: row for row in map(json.loads, (toys / "v2" / "test.jsonl").open())}
    answers, best, odds = (
        read(learned[name], f"{file}.json") for file in ("predictions", "nbest_predictions", "null_odds")
    )
    assert answers.keys() == best.keys() == odds.keys() == rows.keys()
    exact = [text in (rows[key]["answers"]["text"] or [""]) for key, text in answers.items()]
    assert 100 * sum(exact) / len(exact) == read(learned[name])["metrics"]["exact_match"]["value"]
    for key, spans in best.items():
        assert 0 < len(spans) <= 20
        scores = [span["score"] for span in spans]
        assert scores == sorted(scores, reverse=True)
        assert all(rows[key]["context"][span["start"] : span["end"]] == span["text"] for span in spans)
        assert answers[key] in ("", spans[0]["text"])
    if name == "v1":
        assert "" not in answers.values()
    else:
        threshold = read(learned[name])["search"]["null_score_diff_threshold"]
        assert {key for key, odd in odds.items() if odd > threshold} == {
            key for key, text in answers.items() if not text
        }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v1", "v2", "library", "gpt2"])
def test_the_saved_model_reproduces_the_answers_and_scores_of_the_run(toys, learned, name):
    rows = list(toy_questions(40, seed=2, **({"words": 20} if name == "v1" else {"unanswerable": 0.4})))
    evaluation = evaluate_answers(QuestionAnswerer.from_pretrained(learned[name]), rows)
    expected = read(learned[name], "predictions.json")
    assert evaluation.predictions == [expected[row["id"]] for row in rows]
    for metric, score in read(learned[name])["metrics"].items():
        assert evaluation.scores()[metric] == pytest.approx(score["value"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v1", "library"])
def test_plain_transformers_gives_the_same_logits(learned, name):
    answerer = QuestionAnswerer.from_pretrained(learned[name])
    model = AutoModelForQuestionAnswering.from_pretrained(learned[name])
    tokenizer = AutoTokenizer.from_pretrained(learned[name])
    inputs = tokenizer(["who"], ["the film was in rome and ann bob saw"], return_tensors="pt")
    with torch.no_grad():
        plain, ours = model(**inputs), answerer.model(**inputs)
    assert torch.equal(plain.start_logits, ours.start_logits)
    assert torch.equal(plain.end_logits, ours.end_logits)
    answer = next(answerer.answer([("who", "the film was in rome and ann bob saw")]))
    offsets = tokenizer("who", "the film was in rome and ann bob saw", return_offsets_mapping=True)
    first, last = plain.start_logits[0, 3:].argmax() + 3, plain.end_logits[0, 3:].argmax() + 3
    text = "the film was in rome and ann bob saw"
    pairs = offsets["offset_mapping"]
    assert answer.text == text[pairs[first][0] : pairs[last][1]].strip()


@pytest.mark.slow
def test_the_card_names_the_task(learned):
    card = (learned["v2"] / "README.md").read_text()
    assert "pipeline_tag: question-answering" in card
    assert "- type: f1\n      value: " in card
    assert "fine-tuned from ours on v2 to answer questions by parts of a text" in card
    assert re.search(r'inputs = tokenizer\(\["wh.*"\], \[".*"\], return_tensors="pt"\)', card)
    assert "| Context | Question | Prediction | Reference |" in re.sub(" +", " ", card)


# --------------------------------------------------------------------------------- every option has an effect


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        *({"max_length": 30}, {"doc_stride": 3}, {"max_question_length": 1}, {"max_tokens_per_batch": 200}),
        *({"from_scratch": True}, {"seed": 7}, {"learning_rate": 1e-3}, {"warmup_steps": 3}),
    ],
    ids=lambda more: "".join(more),
)
def test_training_options_change_the_loss(options, tmp_path, more):
    options["train_file"] = write_jsonl(tmp_path / "rows.jsonl", list(toy_questions(60, 0, words=40)))
    options.pop("dataset")
    run(options)
    run(options, **more, output_dir=tmp_path / "other")
    assert logged(options["output_dir"], "loss") != logged(tmp_path / "other", "loss")


@pytest.mark.slow
def test_evaluation_options_change_the_answers(toys, options, tmp_path):
    run(options, dataset=toys / "v2")
    before = {
        name: read(options["output_dir"], f"{name}.json") for name in ("predictions", "nbest_predictions")
    }
    for number, (option, value, file) in enumerate(
        [
            ("max_answer_length", 1, "predictions"),
            ("null_score_diff_threshold", -1e9, "predictions"),
            ("n_best", 1, "nbest_predictions"),
        ]
    ):
        folder = tmp_path / str(number)
        run({**options, option: value}, dataset=toys / "v2", output_dir=folder)
        assert_same_weights(options["output_dir"], folder)
        assert read(folder, f"{file}.json") != before[file]
        if option == "null_score_diff_threshold":
            assert set(read(folder, "predictions.json").values()) == {""}
            assert read(folder, "config.json")["question_answering"][option] == value


@pytest.mark.slow
def test_the_test_split_may_be_shortened_or_left_out(options, tmp_path, capsys):
    rows = list(toy_questions(8, seed=2, words=40))
    options["test_file"] = write_jsonl(tmp_path / "test.jsonl", rows)
    options["train_file"] = write_jsonl(tmp_path / "train.jsonl", list(toy_questions(30, seed=0)))
    options.pop("dataset")
    run(options, max_steps=1, max_test_rows=3)
    assert re.search(r"test: kept 8 of 8 rows, of which 3 are used, in \d+ windows", capsys.readouterr().out)
    assert len(read(options["output_dir"], "predictions.json")) == 3
    assert read(options["output_dir"])["rows"] == 3
    run(options, max_steps=1, evaluate_test=False, output_dir=tmp_path / "other")
    assert not (tmp_path / "other" / "predictions.json").exists()


def test_rows_with_a_cut_question_are_counted(options, tmp_path, capsys):
    rows = list(toy_questions(8, seed=2))
    rows[3]["question"] = "where was the film that ann and bob saw"
    options["test_file"] = options["train_file"] = write_jsonl(tmp_path / "rows.jsonl", rows)
    options.pop("dataset")
    run(options, max_steps=1)
    output = capsys.readouterr().out
    for split in ("train", "test"):
        assert f"{split}: kept 8 of 8 rows, 1 of them cut off, in " in output
    assert "1 of them cut off" in read(options["output_dir"], "corpus.json")["rows"]["test"]


def test_fields_are_read_by_their_names(options, tmp_path):
    rows = [
        {"i": row["id"], "c": row["context"], "q": row["question"], "a": row["answers"]["text"][0]}
        | {"s": row["answers"]["answer_start"][0]}
        for row in toy_questions(20, seed=0)
    ]
    options.pop("dataset")
    file = write_jsonl(tmp_path / "rows.jsonl", rows)
    fields = {"id_field": "i", "context_field": "c", "question_field": "q", "answers_field": "a"}
    run(options, train_file=file, test_file=file, answer_start_field="s", max_steps=1, **fields)
    assert read(options["output_dir"], "predictions.json").keys() == {row["i"] for row in rows}


# ------------------------------------------------------------------------------------------- again, and again


@pytest.mark.slow
def test_a_resumed_run_can_change_the_answer_options(options, tmp_path, capsys):
    run(options, save_steps=6)
    checkpoint = options["output_dir"] / "checkpoint-6"
    more = {"max_answer_length": 1, "n_best": 2, "null_score_diff_threshold": -1e9}
    run(options, **more, resume_from_checkpoint=checkpoint, output_dir=tmp_path / "resumed")
    assert "max_answer_length: 30 → 1\n" in capsys.readouterr().err
    assert_same_weights(options["output_dir"], tmp_path / "resumed")
    assert set(read(tmp_path / "resumed", "predictions.json").values()) == {""}
    best = read(tmp_path / "resumed", "nbest_predictions.json").values()
    assert {len(spans) for spans in best} == {2}
    assert {len(span["text"].split()) for spans in best for span in spans} == {1}


@pytest.mark.slow
def test_the_best_model_is_chosen_by_its_f1(toys, options):
    options |= {"eval_strategy": "steps", "eval_steps": 3, "save_steps": 3, "dataset": toys / "v2"}
    run(options, load_best_model_at_end=True, metric_for_best_model="f1", max_steps=9)
    state = read(options["output_dir"], "trainer_state.json")
    scores = {entry["step"]: entry["eval_f1"] for entry in state["log_history"] if "eval_f1" in entry}
    assert state["best_metric"] == max(scores.values())
    assert len(scores) == 3


# ------------------------------------------------------------------------------------------ the trainer alone


def make_trainer(folder: Path, rows: int = 9, library: bool = False, **options) -> QuestionTrainer:
    questions = Dataset.from_list(list(toy_questions(rows, 0, 0.3, words=25)), features=FEATURES)
    windows = tokenize_questions(questions, toy_tokenizer(), WindowLengths(24, 8, 8), with_offsets=True)
    torch.manual_seed(0)
    without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    fields = without if library else {"dropout": 0.0, "attention_dropout": 0.0}
    defaults = {"output_dir": str(folder), "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    defaults |= {"logging_steps": 1, "lr_scheduler_type": "constant", "warmup_steps": 0}
    return QuestionTrainer(
        max_answer_length=5,
        n_best=4,
        model=AutoModelForQuestionAnswering.from_config(toy_config(library, **fields)),
        args=FinetuningTrainingArguments(**{**defaults, **options}),
        train_dataset=windows,
        eval_dataset=windows,
        data_collator=WindowCollator(0, with_places=True),
        train_data_collator=WindowCollator(0),
        processing_class=toy_tokenizer(),
        compute_metrics=lambda prediction: {"spans": float(np.abs(prediction.predictions[:, 0]).sum())},
    )


@pytest.mark.slow
@pytest.mark.parametrize("library", [False, True], ids=["ours", "library"])
def test_parts_of_any_size_equal_the_whole(tmp_path, library):
    """Padding and the number of windows in a part change nothing."""
    options = {"optim": "sgd", "learning_rate": 0.1, "max_steps": 3, "max_grad_norm": 0.0}
    whole = make_trainer(tmp_path, library=library, max_tokens_per_batch=3000, **options)
    batches = len(make_trainer(tmp_path, max_tokens_per_batch=50).get_train_dataloader())
    parts = make_trainer(
        tmp_path, library=library, max_tokens_per_batch=50, gradient_accumulation_steps=batches, **options
    )
    assert (len(whole.get_train_dataloader()), len(parts.get_train_dataloader())) == (1, batches)
    assert batches > 3
    start = torch.cat([parameter.detach().flatten() for parameter in whole.model.parameters()])
    whole.train()
    parts.train()
    ends = [
        torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
        for trainer in (whole, parts)
    ]
    assert (ends[0] - start).abs().max() > 1e-3
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-4, atol=1e-6)


def test_the_loss_is_the_mean_of_both_ends(tmp_path):
    trainer = make_trainer(tmp_path, rows=1)
    batch = WindowCollator(0)(list(trainer.eval_dataset)[:1])
    labels = batch.pop("labels")
    with torch.no_grad():
        outputs = trainer.model.eval()(**batch)
        known = trainer.model(**batch, start_positions=labels[:, 0], end_positions=labels[:, 1])
    assert span_loss(outputs, labels).item() == pytest.approx(known.loss.item(), rel=1e-6)


def test_evaluation_does_not_depend_on_batches(tmp_path):
    found = [make_trainer(tmp_path, max_tokens_per_batch=budget).evaluate() for budget in (24, 200, 4096)]
    for name in ("eval_loss", "eval_spans"):
        assert [scores[name] for scores in found] == pytest.approx([found[0][name]] * 3, rel=1e-4)
    assert "eval_spans" not in make_trainer(tmp_path, prediction_loss_only=True).evaluate()


# -------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model": None}, "no model was given; set model to the folder of a pre-trained model"),
        ({"context_field": "text"}, "context_field: .* has no field 'text'; it has"),
        ({"answers_field": "label"}, "answers_field: .* has no field 'label'"),
        ({"max_length": POSITIONS + 1}, "max_length=41, but .* has positions for 40 tokens"),
        ({"max_length": 10, "dataset": "unread"}, "max_length=10 has no room for 3 special tokens"),
        ({"doc_stride": 30, "dataset": "unread"}, "doc_stride=30 and one more token; raise it to 42 or more"),
        ({"doc_stride": -1}, "doc_stride=-1 must be at least 0"),
        ({"max_answer_length": 0}, "max_answer_length=0 must be at least 1"),
        ({"n_best": 0}, "n_best=0 must be at least 1"),
        ({"max_tokens_per_batch": 9}, "max_tokens_per_batch=9 is too small: train has a row of .* tokens"),
        ({"metric_for_best_model": "accuracy"}, "accuracy is not computed; choose one of loss, exact_match"),
        ({"label_field": "label"}, "label_field has no effect here: an answer is a part of a text"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor has no effect here"),
        ({"classifier_pooling": "cls"}, "classifier_pooling has no effect here"),
        ({"attn_implementation": "fast"}, "fast"),
        ({"per_device_train_batch_size": 8}, "per_device_train_batch_size has no effect here"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_invalid_options_give_an_error_before_writing_files(options, capsys, more, message):
    assert re.search(message, refusal("finetune", options | more, capsys))


def test_an_answer_at_the_wrong_place_is_named_before_anything_is_written(options, tmp_path, capsys):
    rows = list(toy_questions(5, seed=0))
    rows[2]["answers"]["answer_start"][0] += 1
    (tmp_path / "rows.json").write_text(json.dumps(nested(rows)))
    options.pop("dataset")
    told = refusal("finetune", options | {"train_file": tmp_path / "rows.json"}, capsys)
    assert "every answer must be in its text, but row 3 of" in told


@pytest.mark.parametrize("split", ["train", "validation"])
def test_duplicate_ids_in_validation_give_an_error(options, tmp_path, capsys, split):
    rows = list(toy_questions(5, seed=0))
    rows[3]["id"] = rows[1]["id"]
    write_jsonl(tmp_path / "twice.jsonl", rows)
    write_jsonl(tmp_path / "once.jsonl", toy_questions(5, seed=0))
    options.pop("dataset")
    files = {f"{each}_file": tmp_path / "once.jsonl" for each in ("train", "validation")}
    files[f"{split}_file"] = tmp_path / "twice.jsonl"
    assert run_command(["finetune", *as_flags({**options, **files})]) == (0 if split == "train" else 2)
    told = "questions 2 and 4 of validation have the same id" in capsys.readouterr().err
    assert told == (split == "validation") != Path(options["output_dir"]).exists()


def test_the_help_lists_the_fields_and_the_scores(capsys):
    assert run_command(["finetune", "--task", "question_answering", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "--null_score_diff_threshold" in told
    assert "metric_for_best_model (loss, exact_match, f1, has_answer_exact_match," in told
    assert run_command(["finetune", "--help"]) == 0
    assert "Also question_answering and completion, whose options" in " ".join(
        capsys.readouterr().out.split()
    )
