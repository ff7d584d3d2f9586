"""The trainer: accumulation, the schedule, evaluation in order and each row once, what is saved."""

import itertools
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset, IterableDataset
from transformers import (
    DataCollatorForSeq2Seq,
    EarlyStoppingCallback,
    GenerationConfig,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)
from transformers.trainer_pt_utils import LabelSmoother

from tiny_causal import gpt2
from toy_translation import toy_tokenizer
from vaswani import Trainer, TrainingArguments, VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.data.collation import Seq2SeqCollator
from vaswani.distillation.trainer import DistillationTrainer
from vaswani.errors import StoppedError, UserError
from vaswani.model.compatibility import CACHE_NAME
from vaswani.model.losses import token_loss_function
from vaswani.training.trainer.checkpoints import fault_of
from vaswani.training.trainer.finetuning import FinetuningTrainer
from vaswani.training.trainer.pretraining import PretrainingTrainer

VOCABULARY = 29
SHAPE = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}


def tiny_model(**fields) -> VaswaniForConditionalGeneration:
    torch.manual_seed(0)
    return VaswaniForConditionalGeneration(
        VaswaniConfig(**{"vocab_size": VOCABULARY, "dropout": 0.0, **SHAPE, **HEADS, **fields})
    )


def tokenized(num_rows: int = 8, shortest: int = 6, longest: int = 10, seed: int = 1) -> Dataset:
    """Random rows, each ending with </s>, of different lengths on both sides."""
    generator = np.random.default_rng(seed)

    def sequences():
        lengths = generator.integers(shortest, longest + 1, num_rows)
        return [[*generator.integers(3, VOCABULARY, length - 1).tolist(), 2] for length in lengths]

    return Dataset.from_dict({"input_ids": sequences(), "labels": sequences()})


def make_trainer(folder: Path, rows: Dataset | None = None, model=None, **options) -> Trainer:
    arguments = {"learning_rate": 0.1, "warmup_steps": 2, "max_tokens_per_batch": 60, "use_cpu": True}
    arguments |= {"save_strategy": "no", "logging_steps": 1, "disable_tqdm": True}
    rows = tokenized() if rows is None else rows
    return Trainer(
        model=model or tiny_model(),
        args=TrainingArguments(output_dir=str(folder), **{**arguments, **options}),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=Seq2SeqCollator(0, 1),
    )


def weights(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


# ------------------------------------------------------------------------------------------------ structure


@pytest.mark.parametrize("trainer", [Trainer, PretrainingTrainer, FinetuningTrainer, DistillationTrainer])
def test_a_trainer_is_at_most_two_classes_below_that_of_the_library(trainer):
    ours = [base for base in trainer.__mro__[1:] if base.__module__.startswith("vaswani")]
    assert len(ours) <= 2


@pytest.mark.slow
def test_importing_the_trainer_imports_no_yaml_cli_run_or_hub_modules():
    code = "import sys; from vaswani import Trainer; print(*(n for n in sys.modules if 'vaswani.' in n))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    needless = re.compile(r"yaml|config_file|\.cli|\.runs|hub\.(card|push|run_metadata)|sharding|publishing")
    assert "vaswani.training.trainer.base" in loaded.split()
    assert not [name for name in loaded.split() if needless.search(name)]


# ------------------------------------------------------------------------------------------------- training


def test_a_too_long_warm_up_gives_a_warning_before_the_first_update(tmp_path, caplog):
    trainer = make_trainer(tmp_path, max_steps=2, warmup_steps=20)
    trainer.train()
    (told,) = [record.getMessage() for record in caplog.records if "warmup_steps" in record.getMessage()]
    assert told.startswith("warmup_steps=20 is not shorter than the training of 2 updates")
    nothing = make_trainer(tmp_path, max_steps=1, lr_scheduler_type="linear")
    with pytest.raises(UserError, match="nothing would be learned; set warmup_steps=0"):
        nothing.train()
    assert nothing.state.global_step == 0


@pytest.mark.slow
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_one_row_in_eight_steps_equals_eight_rows_in_one(tmp_path, smoothing):
    """Rows of 12 to 20 tokens: a budget of 20 holds one, a budget of 160 all eight."""
    options = {"optim": "sgd", "max_steps": 3, "label_smoothing_factor": smoothing, "max_grad_norm": 0.0}
    whole = make_trainer(tmp_path, max_tokens_per_batch=160, **options)
    parts = make_trainer(tmp_path, max_tokens_per_batch=20, gradient_accumulation_steps=8, **options)
    assert (len(whole.get_train_dataloader()), len(parts.get_train_dataloader())) == (1, 8)
    start = weights(whole.model)
    whole.train()
    parts.train()
    assert (weights(whole.model) - start).abs().max() > 0.01
    torch.testing.assert_close(weights(parts.model), weights(whole.model), rtol=1e-5, atol=1e-6)


# In older versions the library averages smoothed losses over the batch, not over what is accumulated.
SMOOTHS_EXACTLY = "num_items_in_batch" in signature(LabelSmoother.__call__).parameters


@pytest.mark.slow
@pytest.mark.parametrize("smoothing", [0.0, 0.1] if SMOOTHS_EXACTLY else [0.0])
def test_accumulation_is_exact_in_a_plain_seq2seq_trainer_too(tmp_path, smoothing):
    def train(rows_per_batch: int) -> torch.Tensor:
        args = Seq2SeqTrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=rows_per_batch,
            gradient_accumulation_steps=8 // rows_per_batch,
            label_smoothing_factor=smoothing,
            max_steps=3,
            optim="sgd",
            learning_rate=0.1,
            max_grad_norm=0.0,
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Seq2SeqTrainer(tiny_model(), args, Seq2SeqCollator(0, 1), tokenized())
        trainer.train()
        return weights(trainer.model)

    whole = train(8)
    assert (whole - weights(tiny_model())).abs().max() > 0.01
    torch.testing.assert_close(train(1), whole, rtol=1e-5, atol=1e-6)


def test_the_papers_schedule_drives_the_updates(tmp_path):
    trainer = make_trainer(tmp_path, learning_rate=None, warmup_steps=3, max_steps=7)
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert rates == pytest.approx([16**-0.5 * min(step**-0.5, step * 3**-1.5) for step in range(1, 8)])


def test_other_schedules_are_those_of_transformers(tmp_path):
    trainer = make_trainer(tmp_path, lr_scheduler_type="linear", warmup_steps=0, max_steps=4)
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025])


@pytest.fixture(scope="module")
def trained_base(tmp_path_factory) -> torch.Tensor:
    base = make_trainer(tmp_path_factory.mktemp("base"), max_steps=4)
    base.train()
    return weights(base.model)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing_factor": 0.0},
        {"max_tokens_per_batch": 40},
        {"learning_rate": 0.05},
        {"warmup_steps": 1},
        {"adam_beta2": 0.9},
        {"adam_epsilon": 1e-3},
        {"data_seed": 5},
        {"max_grad_norm": 0.1},
        {"gradient_accumulation_steps": 2},
        {"bf16": True},
    ],
)
def test_each_option_changes_the_result(tmp_path, trained_base, options):
    moved = make_trainer(tmp_path, max_steps=4, **options)
    moved.train()
    assert not torch.equal(weights(moved.model), trained_base)


def test_the_data_seed_orders_batches_and_nothing_else(tmp_path):
    rows = tokenized(64)
    first, second = (make_trainer(tmp_path, rows, seed=3, data_seed=seed) for seed in (3, 4))
    assert list(first.get_train_dataloader().batch_sampler) != list(
        second.get_train_dataloader().batch_sampler
    )
    same = make_trainer(tmp_path, rows, seed=3)
    assert list(first.get_train_dataloader().batch_sampler) == list(same.get_train_dataloader().batch_sampler)


def test_batches_change_their_order_with_the_epoch(tmp_path):
    seen: list[list[int]] = []
    collate = Seq2SeqCollator(0, 1)

    def spy(rows):
        seen.append([row["labels"] for row in rows])
        return collate(rows)

    trainer = make_trainer(tmp_path, tokenized(64), num_train_epochs=2)
    trainer.train_data_collator = spy
    trainer.train()
    half = len(seen) // 2
    assert seen[:half] != seen[half:]
    first, second = (sorted(itertools.chain(*epoch)) for epoch in (seen[:half], seen[half:]))
    assert first == second  # every row once


def test_a_stream_is_repeated_until_max_steps(tmp_path):
    rows = tokenized(12)
    trainer = make_trainer(tmp_path, rows.to_iterable_dataset(), max_steps=20, max_tokens_per_batch=60)
    start = weights(trainer.model)
    trainer.train()
    assert trainer.state.global_step == 20  # a pass has five batches
    assert not torch.equal(weights(trainer.model), start)


# ----------------------------------------------------------------------------------------------- evaluation


def test_predictions_come_in_the_order_of_the_data_set_whatever_the_batches(tmp_path):
    rows = tokenized(30, shortest=2, longest=14)
    options = {"generation_num_beams": 1, "generation_max_length": 8}  # beams of a random model lie close
    outputs = [
        make_trainer(tmp_path, rows, max_tokens_per_batch=budget, **options).predict(rows)
        for budget in (30, 400)
    ]
    for output in outputs:
        for labels, row in zip(output.label_ids, rows, strict=True):
            assert labels[labels != -100].tolist() == row["labels"]
    first, second = (output.predictions for output in outputs)
    assert (first == second).all()
    assert len(np.unique(first, axis=0)) > 1


def test_the_evaluation_loss_is_the_mean_over_all_tokens(tmp_path):
    rows = tokenized(30, shortest=2, longest=14)
    trainer = make_trainer(tmp_path, rows, max_tokens_per_batch=60)
    assert len(trainer.get_eval_dataloader()) > 5
    batch = Seq2SeqCollator(0, 1)(list(rows))
    with torch.no_grad():
        logits = trainer.model.eval()(**batch).logits
    expected = token_loss_function(logits, batch["labels"], label_smoothing=0.1)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected.item(), rel=1e-5)


class CountingMetrics:
    def __call__(self, prediction):
        return {"rows": len(prediction.predictions)}


def generate_options(trainer: Trainer, monkeypatch, **given) -> dict:
    """What evaluation hands to `generate`."""
    calls: list[dict] = []
    generate = trainer.model.generate
    monkeypatch.setattr(
        trainer.model, "generate", lambda **options: calls.append(options) or generate(**options)
    )
    trainer.compute_metrics = CountingMetrics()
    trainer.evaluate(**given)
    trainer.predict(trainer.eval_dataset, **given)
    evaluated, predicted = calls[0], calls[-1]
    assert evaluated.keys() == predicted.keys()
    assert all(evaluated[name] == predicted[name] for name in given)
    return evaluated


def test_evaluation_decodes_with_the_settings_of_the_paper(tmp_path, monkeypatch):
    rows = tokenized(4, shortest=3, longest=9)
    options = generate_options(make_trainer(tmp_path, rows, max_tokens_per_batch=400), monkeypatch)
    assert options["num_beams"] == 4
    assert 11 ** options["length_penalty"] == pytest.approx(((5 + 11) / 6) ** 0.6)
    assert options["max_length"] == 1 + 9 + 50


@pytest.mark.parametrize(
    ("argument", "value", "option"),
    [
        ("generation_num_beams", 2, "num_beams"),
        ("generation_length_penalty", 1.5, "length_penalty"),
        ("generation_max_length", 12, "max_length"),
    ],
)
def test_generation_options_reach_the_search(tmp_path, monkeypatch, argument, value, option):
    trainer = make_trainer(tmp_path, **{argument: value})
    assert float(generate_options(trainer, monkeypatch)[option]) == value


@pytest.mark.parametrize(("option", "value"), [("num_beams", 2), ("max_length", 7), ("max_new_tokens", 3)])
def test_an_evaluation_takes_options_of_generate_before_the_arguments(tmp_path, monkeypatch, option, value):
    trainer = make_trainer(tmp_path, generation_num_beams=3, generation_max_length=12)
    options = generate_options(trainer, monkeypatch, **{option: value})
    defaults = {"num_beams": 3} | ({} if option == "max_new_tokens" else {"max_length": 12})
    expected = {**defaults, option: value}
    assert {name: options.get(name) for name in expected} == expected
    assert ("max_length" in options) == (option != "max_new_tokens")


@pytest.mark.slow
def test_metrics_get_every_row_and_loss_only_evaluation_does_not_generate(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, tokenized(30))
    trainer.compute_metrics = CountingMetrics()
    assert trainer.evaluate()["eval_rows"] == 30
    loss_only = make_trainer(tmp_path, predict_with_generate=False)
    loss_only.compute_metrics = CountingMetrics()
    monkeypatch.setattr(loss_only.model, "generate", None)
    assert {"eval_loss"} == {name for name in loss_only.evaluate() if "runtime" not in name} & {
        "eval_loss",
        "eval_rows",
    }


def test_misleading_speed_metrics_are_not_reported(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=2)
    metrics = {**trainer.train().metrics, **trainer.evaluate()}
    assert "eval_samples_per_second" in metrics
    assert (
        not {"train_samples_per_second", "train_steps_per_second", "eval_steps_per_second"} & metrics.keys()
    )


# ---------------------------------------------------------------------------------------------- checkpoints


def test_saved_models_enable_the_cache_and_the_papers_search(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=1)
    trainer.train()
    trainer.save_model()
    assert VaswaniConfig.from_pretrained(tmp_path).use_cache is True
    generation = GenerationConfig.from_pretrained(tmp_path)
    assert (generation.num_beams, generation.length_penalty, generation.use_cache) == (4, 0.6, True)
    assert "_from_model_config" not in json.loads((tmp_path / "generation_config.json").read_text())


def test_greedy_evaluation_has_no_length_penalty(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, generation_num_beams=1)
    assert "length_penalty" not in generate_options(trainer, monkeypatch)
    trainer.save_model()  # a penalty without beams could not be saved
    assert GenerationConfig.from_pretrained(tmp_path).length_penalty is None


def test_training_caches_no_keys_and_values(tmp_path):
    trainer = make_trainer(tmp_path)
    batch = next(iter(trainer.get_train_dataloader()))
    _, outputs = trainer.compute_loss(trainer.model, batch, return_outputs=True)
    assert outputs.get(CACHE_NAME) is None


@pytest.mark.parametrize("part", ["save_model", "_save_optimizer_and_scheduler", "_save_rng_state"])
def test_a_failed_save_keeps_the_earlier_checkpoint_of_the_same_name(tmp_path, monkeypatch, part):
    trainer = make_trainer(tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    trainer.train()
    monkeypatch.setattr(trainer, part, lambda *args, **kwargs: (_ for _ in ()).throw(OSError))
    with pytest.raises(OSError):  # noqa: PT011 - raised above
        trainer._save_checkpoint(trainer.model, None)
    assert fault_of(tmp_path / "checkpoint-2") is None


@pytest.mark.parametrize("limit", [1, 2])
def test_the_last_and_the_best_checkpoints_are_kept(tmp_path, limit):
    trainer = make_trainer(
        tmp_path,
        max_steps=5,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=limit,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        greater_is_better=True,  # the loss falls: an early one is the "best"
    )
    trainer.train()
    kept = {path.name for path in tmp_path.glob("checkpoint-*")}
    best = tmp_path / f"checkpoint-{trainer.state.best_global_step}"
    last = {"checkpoint-5"} if limit > 1 else set()  # at the end the library deletes it, if one is to stay
    assert kept == {best.name, *last}
    assert best.name != "checkpoint-5"
    state = json.loads((best / "trainer_state.json").read_text())
    assert trainer.state.best_model_checkpoint == state["best_model_checkpoint"] == str(best)


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, step):
    """Three updates of two batches: two of a first epoch of three, and one of a second."""
    rows = tokenized(12, shortest=8, longest=10)
    options = {"max_steps": 3, "gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 1}

    def run(folder: str, checkpoint: str | None = None) -> torch.Tensor:
        trainer = make_trainer(
            tmp_path / folder, rows, tiny_model(dropout=0.3), max_tokens_per_batch=90, **options
        )
        trainer.train(resume_from_checkpoint=checkpoint)
        assert trainer.state.global_step == 3
        return weights(trainer.model)

    whole = run("whole")
    resumed = run("resumed", str(tmp_path / "whole" / f"checkpoint-{step}"))
    assert torch.equal(resumed, whole)


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["saved", "in an evaluation"])
def test_the_log_of_a_resumed_run_counts_every_update(tmp_path, stop):
    """Checkpoints lie between two logged updates."""
    rows = tokenized(12, shortest=8, longest=10)
    options = {"max_steps": 9, "logging_steps": 4, "save_strategy": "steps", "save_steps": 3}
    if stop != "saved":
        options |= {"save_steps": 100, "eval_strategy": "steps", "eval_steps": 3}

    def log(folder: str, checkpoint: str | None = None) -> list[tuple[float, ...]]:
        trainer = make_trainer(
            tmp_path / folder, rows, tiny_model(dropout=0.3), max_tokens_per_batch=90, **options
        )
        if folder == "stopped":
            trainer.stop_on_signal.on_prediction_step = lambda *_, **__: stopped(trainer)
        trainer.train(resume_from_checkpoint=checkpoint)
        entries = [entry for entry in trainer.state.log_history if "tokens" in entry]
        return [(entry["step"], entry["loss"], entry["tokens"], entry["padding"]) for entry in entries]

    def stopped(trainer: Trainer) -> None:
        if trainer.state.global_step == 6:
            raise StoppedError("by hand")

    whole = log("whole")
    assert [step for step, *_ in whole] == [3, 4, 6, 8, 9]
    checkpoint = tmp_path / "whole" / "checkpoint-6"
    if stop != "saved":
        with pytest.raises(StoppedError):
            log("stopped")
        checkpoint = tmp_path / "stopped" / "checkpoint-6"
    assert log("resumed", str(checkpoint)) == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"gradient_accumulation_steps": 2}, {"dataloader_num_workers": 1}], ids=str
)
def test_a_resumed_stream_equals_an_uninterrupted_one(tmp_path, options):
    rows, passes = tokenized(12), tmp_path / "passes"

    def stream() -> Iterator[dict]:
        with passes.open("a") as file:  # a worker has memory of its own
            file.write("a pass\n")
        yield from rows

    def run(folder: str, checkpoint: str | None = None) -> tuple[torch.Tensor, int]:
        passes.write_text("")
        trainer = make_trainer(
            tmp_path / folder,
            IterableDataset.from_generator(stream),
            tiny_model(dropout=0.3),
            max_steps=12,
            save_strategy="steps",
            save_steps=9,
            **options,
        )
        trainer.train(resume_from_checkpoint=checkpoint)
        return weights(trainer.model), len(passes.read_text().splitlines())

    whole, passes_of_whole = run("whole")
    again, _ = run("again")
    assert torch.equal(again, whole)
    checkpoint = tmp_path / "whole" / "checkpoint-9"
    finished = json.loads((checkpoint / "manifest.json").read_text())["passes"]
    assert finished
    resumed, passes_of_resumed = run("resumed", str(checkpoint))
    assert torch.equal(resumed, whole)
    assert passes_of_resumed < passes_of_whole  # the first passes are not read again


def resume(folder: Path, **options) -> Trainer:
    trainer = make_trainer(folder, max_steps=4, save_strategy="steps", save_steps=2, **options)
    trainer.train(resume_from_checkpoint=True)
    return trainer


@pytest.mark.slow
def test_the_trainer_compares_settings_and_requires_the_training_state(tmp_path, capsys):
    make_trainer(tmp_path, max_steps=2, save_strategy="steps", save_steps=1).train()
    with pytest.raises(UserError, match=r"cannot change learning_rate=0.2 \(it was trained with 0.1\)"):
        resume(tmp_path, learning_rate=0.2)
    assert resume(tmp_path).state.global_step == 4
    announced = capsys.readouterr().err.splitlines()
    assert {"max_steps: 2 → 4", "save_steps: 1 → 2"} <= set(announced)
    manifest = json.loads((tmp_path / "checkpoint-4" / "manifest.json").read_text())
    changed = {"max_steps": [2, 4], "save_steps": [1.0, 2]}
    assert manifest["resumed"] == [{"update": 2, "changed": changed}]
    for checkpoint in tmp_path.glob("checkpoint-*"):
        (checkpoint / "optimizer.pt").unlink()
    with pytest.raises(
        UserError, match="checkpoint-4 is not a complete checkpoint: it holds a model without"
    ):
        make_trainer(tmp_path, max_steps=4).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))


@pytest.mark.slow
def test_early_stopping_keeps_its_count_when_resumed_with_another_patience(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"}
    options |= {"greater_is_better": True, "predict_with_generate": False}
    options |= {"learning_rate": 1e-3}  # the loss falls: none is better than the first

    def stopped_after(patience: int | None, resume: bool) -> int:
        trainer = make_trainer(
            tmp_path,
            max_steps=9,
            save_strategy="steps",
            save_steps=1,
            early_stopping_patience=patience,
            **options,
        )
        if patience is not None:
            trainer.add_callback(EarlyStoppingCallback(patience))
        trainer.train(resume_from_checkpoint=resume or None)
        return trainer.state.global_step

    assert stopped_after(2, resume=False) == 3
    assert stopped_after(2, resume=True) == 3
    assert stopped_after(4, resume=True) == 5
    assert stopped_after(None, resume=True) == 9  # nobody counts any more


# ------------------------------------------------------------------------------------- options without effect


def test_metrics_without_effect_raise_an_error(tmp_path):
    given = {"model": tiny_model(), "data_collator": Seq2SeqCollator(0, 1)}
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, predict_with_generate=False)
    with pytest.raises(UserError, match="predict_with_generate=False generates nothing"):
        Trainer(**given, args=args, compute_metrics=print)
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    with pytest.raises(UserError, match="preprocess_logits_for_metrics has no effect"):
        Trainer(**given, args=args, preprocess_logits_for_metrics=print)


@pytest.mark.parametrize("kind", [Trainer, DistillationTrainer])
def test_arguments_of_transformers_are_refused(tmp_path, kind):
    given = Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True)
    with pytest.raises(UserError, match=r"args are transformers\.Seq2SeqTrainingArguments; give vaswani's"):
        kind(tiny_model(), given)
    with pytest.raises(UserError, match="args are missing; give vaswani's TrainingArguments"):
        kind(tiny_model())


def test_models_and_teachers_that_are_no_encoder_decoders_are_named(tmp_path):
    args = TrainingArguments(str(tmp_path), use_cpu=True)
    causal = gpt2()
    with pytest.raises(UserError, match="the model is a GPT2LMHeadModel, which is no encoder-decoder"):
        Trainer(causal, args)
    with pytest.raises(UserError, match="the teacher is a GPT2LMHeadModel, which is no encoder-decoder"):
        DistillationTrainer(tiny_model(), args, teacher=causal)


def test_data_sets_that_are_missing_or_not_tokenized_are_named(tmp_path):
    trainer = Trainer(tiny_model(), TrainingArguments(str(tmp_path), use_cpu=True, max_steps=1))
    with pytest.raises(UserError, match="give a train_dataset"):
        trainer.train()
    with pytest.raises(UserError, match="give an eval_dataset"):
        trainer.evaluate()
    texts = Dataset.from_dict({"source": ["a"], "target": ["b"]})
    for rows, missing in ((texts, "input_ids"), (tokenized().remove_columns("labels"), "labels")):
        with pytest.raises(UserError, match=f"a row has no {missing}, only '.*tokenize the data set first"):
            make_trainer(tmp_path, rows).train()
    with pytest.raises(UserError, match="a row has no input_ids, only 'source', 'target'"):
        make_trainer(tmp_path, texts.to_iterable_dataset(), max_steps=1).train()


def test_a_prediction_needs_no_targets(tmp_path):
    rows = tokenized()
    trainer = make_trainer(tmp_path, rows)
    expected = trainer.predict(rows)
    # The library's collator sets missing labels to None.
    for collator in (trainer.data_collator, DataCollatorForSeq2Seq(toy_tokenizer())):
        trainer.data_collator = collator
        found = trainer.predict(rows.remove_columns("labels"))
        assert found.label_ids is None
        # What fills the ends of rows depends on the batches: -100, or </s> from the search.
        tokens = [np.where(each.predictions == -100, 2, each.predictions) for each in (found, expected)]
        assert tokens[0].tolist() == tokens[1].tolist()


def test_a_model_that_the_caller_adapted_is_trained_and_saved(tmp_path):
    peft = pytest.importorskip("peft")  # not there with the oldest versions
    adapted = peft.get_peft_model(tiny_model(), peft.LoraConfig(target_modules=["q_proj"]))
    trainer = make_trainer(tmp_path, model=adapted, max_steps=1, save_strategy="steps", save_steps=1)
    trainer.train()
    given = {"input_ids": torch.tensor([[5, 6, 2]]), "labels": torch.tensor([[7, 2]])}
    again = peft.PeftModel.from_pretrained(tiny_model(), tmp_path / "checkpoint-1").eval()
    torch.testing.assert_close(again(**given).loss, adapted.eval()(**given).loss)
    assert not torch.isclose(again(**given).loss, tiny_model().eval()(**given).loss)


def test_arguments_without_effect_give_a_warning(tmp_path, caplog):
    make_trainer(tmp_path)
    assert "has no effect" not in caplog.text
    make_trainer(tmp_path, per_device_train_batch_size=2, dataloader_drop_last=True)
    assert "per_device_train_batch_size=2 has no effect: batches hold max_tokens_per_batch" in caplog.text
    assert "dataloader_drop_last=True has no effect" in caplog.text


def test_a_new_model_of_each_training_is_saved_with_its_search(tmp_path):
    trainer = Trainer(
        model_init=lambda: tiny_model(),
        args=TrainingArguments(output_dir=str(tmp_path), use_cpu=True, max_steps=1, generation_num_beams=3),
        train_dataset=tokenized(),
        data_collator=Seq2SeqCollator(0, 1),
    )
    before = trainer.model
    trainer.train()
    assert trainer.model is not before
    assert trainer.model.generation_config.num_beams == 3


def test_an_evaluation_needs_no_mask(tmp_path):
    scores = []
    for left_out in ((), ("attention_mask",)):
        rows = Dataset.from_dict({"input_ids": [[5, 6, 7, 2]] * 4, "labels": [[8, 9, 2]] * 4})
        trainer = make_trainer(tmp_path, rows)
        collate = trainer.data_collator
        trainer.data_collator = lambda features, left_out=left_out, collate=collate: {
            name: value for name, value in collate(features).items() if name not in left_out
        }
        scores.append(trainer.predict(rows).predictions.tolist())
    assert scores[0] == scores[1]


@pytest.mark.process
def test_ctrl_c_in_a_terminal_does_not_end_the_workers_that_read_rows(tmp_path):
    """The update that a run finishes after Ctrl-C may need more batches."""
    loader = make_trainer(tmp_path, max_tokens_per_batch=20, dataloader_num_workers=1).get_train_dataloader()
    batches = iter(loader)
    next(batches)
    (worker,) = multiprocessing.active_children()
    os.kill(int(worker.pid or 0), signal.SIGINT)
    assert len(list(batches)) == len(loader) - 1 > 4  # more than are read ahead
