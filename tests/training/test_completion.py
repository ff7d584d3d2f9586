"""Fine-tuning on completions: the results, the evaluation, and errors."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refusal
from run_records import weights
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from jsonl import write_jsonl
from tiny_runs import as_flags
from toy_labels import POSITIONS, save_toy_decoder, save_toy_encoder, toy_rows
from vaswani.cli import run as run_command
from vaswani.training.config.completion_arguments import CompletionConfig
from vaswani.training.config.config_file import load_config
from vaswani.training.config.finetuning_arguments import FinetuningConfig
from vaswani.training.runs.completion import CompletionRun
from vaswani.training.runs.finetuning import finetune

QUICK = {"use_cpu": True, "disable_tqdm": True, "max_length": POSITIONS, "learning_rate": 5e-3}
QUICK |= {"max_tokens_per_batch": 400, "logging_steps": 1, "task": "completion"}
TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
COMPLETIONS = {"good": " fine and good", "bad": " poor"}


def completion_rows(count: int, seed: int) -> list[dict]:
    """What follows a text depends on the word that decides."""
    rows = list(toy_rows("classification", count, seed))
    return [
        {
            "prompt": row["text"],
            "completion": COMPLETIONS[row["label"]],
            "messages": [
                {"role": "user", "content": row["text"]},
                {"role": "assistant", "content": COMPLETIONS[row["label"]].strip()},
            ],
        }
        for row in rows
    ]


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completions")
    (folder / "rows").mkdir()
    for seed, (split, count) in enumerate({"train": 200, "validation": 20, "test": 30}.items()):
        write_jsonl(folder / "rows" / f"{split}.jsonl", completion_rows(count, seed))
    save_toy_decoder(folder / "ours")
    save_toy_decoder(folder / "without dropout", dropout=0.0, attention_dropout=0.0)
    for name, options in {"library": {"library": True}, "chat": {"max_position_embeddings": 120}}.items():
        save_toy_decoder(folder / name, **options)
    tokenizer = AutoTokenizer.from_pretrained(folder / "chat")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "chat")
    save_toy_encoder(folder / "encoder")
    return folder


@pytest.fixture
def options(toys: Path, tmp_path: Path) -> dict:
    place = {"dataset": toys / "rows", "model": toys / "ours", "output_dir": tmp_path / "run"}
    return {**QUICK, **place, "max_steps": 5}


def run(options: dict, **more: object) -> dict[str, float]:
    return finetune(load_config(None, as_flags({**options, **more}), FinetuningConfig))


def trainer_of(options: dict, **more: object):
    """The trainer of a run, and its rows."""
    config = load_config(None, as_flags({**options, **more}), FinetuningConfig)
    assert isinstance(config, CompletionConfig)
    splits, _, trainer = CompletionRun(config)._prepare()
    return trainer, splits


# ---------------------------------------------------------------------------------- what is learned, and left


@pytest.mark.slow
@pytest.mark.parametrize("model", ["ours", "library"])
def test_plain_generate_completes_as_in_training(toys, tmp_path, capsys, model):
    options = {**QUICK, "model": toys / model, "dataset": toys / "rows", "output_dir": tmp_path}
    assert run_command(["finetune", *as_flags(options | {"num_train_epochs": 20})]) == 0
    record = json.loads((tmp_path / "evaluation.json").read_text())
    assert set(record["metrics"]) == {"loss", "perplexity", "accuracy"}
    assert record["metrics"]["accuracy"]["value"] > 95
    for score in record["metrics"].values():
        assert score["low"] <= score["value"] <= score["high"]
    assert len(record["examples"]) == 8
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    generator = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    prompts = [example["prompt"] for example in record["examples"]]
    batch = tokenizer(prompts, padding=True, return_tensors="pt")
    assert 0 in batch.attention_mask
    if model == "ours":  # the library's GPT-2 takes positions from the padding too
        written = generator.generate(**batch)[:, batch.input_ids.shape[1] :]
        answers = tokenizer.batch_decode(written, skip_special_tokens=True)
        assert answers == [example["prediction"] for example in record["examples"]]
    right = [example["prediction"] == example["reference"] for example in record["examples"]]
    assert np.mean(right) > 0.6
    assert "  →  " in capsys.readouterr().out
    card = (tmp_path / "README.md").read_text()
    assert f"fine-tuned from {model} on rows to write the `completion` of a row after its `prompt`" in card
    assert "Token accuracy (%)" in card


@pytest.mark.slow
def test_answers_in_chats_are_learned(toys, options):
    options |= {"model": toys / "chat", "messages_field": "messages", "max_steps": 300, "max_length": 120}
    run(options, max_tokens_per_batch=1000)
    tokenizer = AutoTokenizer.from_pretrained(options["output_dir"])
    model = AutoModelForCausalLM.from_pretrained(options["output_dir"]).eval()
    for row in completion_rows(6, seed=2):
        inputs = tokenizer.apply_chat_template(
            row["messages"][:1], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        written = model.generate(**inputs)[0, inputs["input_ids"].shape[1] :]
        answer = tokenizer.decode(written, skip_special_tokens=True)
        assert answer == f" {row['messages'][1]['content']}\n"  # as the template surrounds it
    card = (options["output_dir"] / "README.md").read_text()
    assert "to write the assistant's answers in the chats of `messages`" in card


# ------------------------------------------------------------------------------------------ losses and scores


def slow_losses(model, rows) -> list[torch.Tensor]:
    """The loss of each token of each completion, one at a time."""
    losses = []
    for row in rows:
        for place in range(1, row["length"]):
            if row["labels"][place] != -100:
                logits = model(input_ids=torch.tensor([row["input_ids"][:place]])).logits[0, -1]
                losses.append(cross_entropy(logits, torch.tensor(row["input_ids"][place])))
    return losses


@pytest.mark.parametrize("model", ["without dropout", "library"])
def test_only_completions_contribute_to_loss_and_gradient(toys, options, model):
    trainer, splits = trainer_of(options, model=toys / model, max_tokens_per_batch=200)
    for module in trainer.model.modules():  # GPT-2's dropout
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    rows = splits["train"].select(range(4))
    batch = trainer.data_collator(list(rows))
    assert 0 in batch["attention_mask"]
    (batch,), count = trainer.get_batch_samples(iter([batch]), 1, torch.device("cpu"))
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, {**batch}, num_items_in_batch=count)
    expected = torch.stack(slow_losses(trainer.model, rows)).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    parameters = list(trainer.model.parameters())
    fast, slow = (torch.autograd.grad(each, parameters) for each in (loss, expected))
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_evaluation_in_batches_equals_evaluation_of_single_rows(options):
    trainer, splits = trainer_of(options)
    scores = trainer.evaluate(splits["test"])
    with torch.no_grad():
        losses = slow_losses(trainer.model.eval(), splits["test"])
    loss = torch.stack(losses).mean().item()
    assert scores["eval_loss"] == pytest.approx(loss, rel=1e-4)
    assert scores["eval_perplexity"] == pytest.approx(np.exp(loss), rel=1e-4)
    assert "eval_bits_per_byte" not in scores


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    [
        {"prompt_field": "completion"},
        {"completion_field": "prompt"},
        {"messages_field": "messages"},
        {"max_length": 8},
        {"max_tokens_per_batch": 200},
        {"learning_rate": 1e-3},
        {"seed": 7},
    ],
    ids=lambda option: next(iter(option)),
)
def test_each_option_changes_the_weights(toys, options, tmp_path, option):
    options |= {"model": toys / "chat", "max_length": 100}
    run(options)
    run(options, **{**option, "output_dir": tmp_path / "moved"})
    moved, plain = weights(tmp_path / "moved"), weights(options["output_dir"])
    assert any(not torch.equal(moved[name], plain[name]) for name in plain)


def test_long_rows_are_cut_and_counted(options, capsys):
    run(options, max_length=8)
    assert re.search(r"train: kept 200 of 200 rows, \d+ of them cut off", capsys.readouterr().out)


# -------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model": None}, "no model was given; set model to the folder of a causal language model"),
        ({"prompt_field": "question"}, "prompt_field: .* has no field 'question'; it has 'prompt', 'comp"),
        ({"max_length": 41}, "max_length=41, but .* has positions for 40 tokens"),
        ({"max_length": 1}, "max_length=1 must be at least 2"),
        ({"max_length": 2}, "none of 200 rows of train has a completion that fits max_length=2; raise it"),
        ({"max_tokens_per_batch": 9}, "max_tokens_per_batch=9 is too small: train has a row of .* tokens"),
        ({"messages_field": "messages"}, "messages_field=messages needs a chat template, and the tokenizer"),
        ({"label_field": "prompt"}, "unknown flag '--label_field'|label_field"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor has no effect here"),
        ({"metric_for_best_model": "f1"}, "f1 is not computed; choose one of loss, perplexity, accuracy"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_invalid_options_give_a_one_line_error(options, capsys, more, message):
    assert re.search(message, refusal("finetune", options | more, capsys))


def test_an_encoder_cannot_be_trained_on_completions(toys, options, capsys):
    told = refusal("finetune", options | {"model": toys / "encoder"}, capsys)
    assert "expected a decoder such as 'vaswani_decoder'" in told


def test_a_tokenizer_that_ends_its_prompts_is_refused(toys, options, tmp_path, capsys):
    """That of a decoder which has learned to classify."""
    rows = [{"text": row["text"], "label": row["label"]} for row in toy_rows("classification", 30, 0)]
    file = write_jsonl(tmp_path / "labels.jsonl", rows)
    labelled = {**options, "task": "classification", "train_file": file, "output_dir": tmp_path / "labels"}
    del labelled["dataset"]
    run(labelled)
    told = refusal("finetune", options | {"model": tmp_path / "labels"}, capsys)
    assert "ends each text with </s>, so that nothing can follow a prompt" in told


def test_the_help_lists_the_fields(capsys):
    assert run_command(["finetune", "--task", "completion", "--help"]) == 0
    told = capsys.readouterr().out
    assert "--messages_field" in told
    assert "--label_field" not in told


@pytest.mark.parametrize(("metric", "greater"), [("perplexity", False), ("loss", False), ("accuracy", True)])
def test_a_lower_perplexity_is_better(toys, options, metric, greater):
    config = load_config(None, as_flags({**options, "metric_for_best_model": metric}), FinetuningConfig)
    assert config.training.greater_is_better is greater


# ------------------------------------------------------------------------------------------- vaswani evaluate


def evaluated(capfd, *arguments: object) -> dict:
    capfd.readouterr()
    status = run_command(["evaluate", *map(str, arguments), "--device", "cpu", "--json"])
    captured = capfd.readouterr()
    assert status == 0, captured.err
    return json.loads(captured.out.splitlines()[-1])


def test_evaluate_gives_the_scores_of_the_training(toys, options, tmp_path, capfd):
    run(options)
    expected = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    found = evaluated(capfd, "--model", tmp_path / "run", "--data", toys / "rows")
    assert found["metrics"].keys() == expected["metrics"].keys()
    for name, metric in expected["metrics"].items():
        for key, value in metric.items():
            rounded = pytest.approx(value, rel=1e-6) if isinstance(value, float) else value  # other batches
            assert found["metrics"][name][key] == rounded
    assert [found["examples"], found["rows"]] == [expected["examples"], expected["rows"]]
    assert (
        evaluated(capfd, "--model", tmp_path / "run", "--data", toys / "rows", "--max_rows", 7)["rows"] == 7
    )
    file = toys / "rows" / "test.jsonl"
    as_text = evaluated(capfd, "--model", tmp_path / "run", "--data", file, "--text_field", "prompt")
    assert "bits_per_byte" in as_text["metrics"]


def test_evaluate_reports_the_rows_that_it_leaves_out_or_cuts(toys, tmp_path, capfd):
    rows = completion_rows(4, 9)
    rows[0]["prompt"] *= 9
    rows[1]["completion"] *= 40
    write_jsonl(tmp_path / "rows.jsonl", rows)
    data = ["--data", str(tmp_path / "rows.jsonl"), "--completion_field", "completion"]
    flags = ["--max_source_length", "30", "--device", "cpu"]
    assert run_command(["evaluate", "--model", str(toys / "ours"), *data, *flags]) == 0
    expected = "kept 3 of 4 rows, 1 of them cut off; left out: 1 over-long"
    assert expected in capfd.readouterr().err


@pytest.mark.parametrize("by", ["--completion_field", "--messages_field", "a pair of files"])
def test_evaluate_scores_completions_of_any_causal_model(toys, tmp_path, capfd, by):
    """The loss is that of the tokens after the prompt, by hand."""
    rows = completion_rows(6, 9)
    write_jsonl(tmp_path / "rows.jsonl", [{**row, "answer": row["completion"]} for row in rows])
    model = toys / ("chat" if by == "--messages_field" else "ours")
    data: list[object] = [tmp_path / "rows.jsonl"]
    if by == "a pair of files":
        for name in ("prompt", "completion"):
            (tmp_path / name).write_text("".join(f"{row[name].strip()}\n" for row in rows))
        data = [tmp_path / "prompt", tmp_path / "completion", "--prompt_field", "prompt"]
    flags = {"--completion_field": ["--completion_field", "answer"], "--messages_field": [by, "messages"]}
    found = evaluated(capfd, "--model", model, "--data", *data, *flags.get(by, []))

    tokenizer = AutoTokenizer.from_pretrained(model)
    causal = AutoModelForCausalLM.from_pretrained(model).eval()
    losses = []
    for row in rows:
        before = row["prompt"]
        whole = before + (row["completion"] if by == "--completion_field" else row["completion"].strip())
        if by == "--messages_field":
            before = tokenizer.apply_chat_template(
                row["messages"][:1], tokenize=False, add_generation_prompt=True
            )
            whole = tokenizer.apply_chat_template(row["messages"], tokenize=False)
        special = by != "--messages_field"  # a template writes them itself
        ids = [*tokenizer(whole, add_special_tokens=special).input_ids, tokenizer.eos_token_id]
        start = len(tokenizer(before, add_special_tokens=special).input_ids)
        logits = causal(torch.tensor([ids])).logits[0, start - 1 : -1]
        losses += cross_entropy(logits, torch.tensor(ids[start:]), reduction="none").tolist()
    assert found["metrics"]["loss"]["value"] == pytest.approx(np.mean(losses), abs=1e-4)


def test_evaluate_refuses_fields_of_completions_for_other_models(toys, capfd):
    arguments = ["--model", str(toys / "encoder"), "--data", str(toys / "rows"), "--prompt_field", "prompt"]
    assert run_command(["evaluate", *arguments]) != 0
    assert "--prompt_field is for a causal language model with prompts" in capfd.readouterr().err
