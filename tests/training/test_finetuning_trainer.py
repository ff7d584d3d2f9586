"""The trainer for labels: accumulation, and the order and metrics of evaluation."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from toy_labels import TASKS, toy_config, toy_rows, toy_tokenizer
from vaswani.data.labels.labelled_tokens import LabelCollator, tokenize_labelled
from vaswani.data.sources.row_report import RowReport
from vaswani.distillation.stack_arguments import StackTrainingArguments
from vaswani.errors import UserError
from vaswani.training.config.finetuning_arguments import LabelTrainingArguments
from vaswani.training.runs.finetuning import LabelScores
from vaswani.training.trainer import labels
from vaswani.training.trainer.finetuning import FinetuningTrainer
from vaswani.training.trainer.labels import LabelTask


def some_rows(kind: str, count: int) -> tuple[LabelTask, Dataset]:
    rows = list(toy_rows(kind, count, seed=0))
    task = labels.TASKS[kind](labels.TASKS[kind].names_in(row["label"] for row in rows))
    tokens = tokenize_labelled(Dataset.from_list(rows), toy_tokenizer(), task.target, None, RowReport())
    return task, tokens


def make_trainer(folder, kind: str, rows: int = 9, library: bool = False, **options) -> FinetuningTrainer:
    task, tokens = some_rows(kind, rows)
    torch.manual_seed(0)
    auto_class = AutoModelForTokenClassification if kind == "tagging" else AutoModelForSequenceClassification
    without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    fields = without if library else {"dropout": 0.0, "attention_dropout": 0.0}
    model = auto_class.from_config(toy_config(library, **fields, **task.config_fields()))
    defaults = {"output_dir": str(folder), "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    defaults |= {"logging_steps": 1, "lr_scheduler_type": "constant", "warmup_steps": 0}
    return FinetuningTrainer(
        task=task,
        model=model,
        args=LabelTrainingArguments(**{**defaults, **options}),
        train_dataset=tokens,
        eval_dataset=tokens,
        data_collator=LabelCollator(0),
        processing_class=toy_tokenizer(),
        compute_metrics=LabelScores(task),
    )


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.exhaustive(after=3)
@pytest.mark.slow
@pytest.mark.parametrize("library", [False, True], ids=["ours", "library"])
@pytest.mark.parametrize("kind", TASKS)
def test_parts_of_any_size_equal_the_whole(tmp_path, kind, library):
    """Rows and labels that are unequally many in the parts: every one of them weighs the same."""
    options = {"optim": "sgd", "learning_rate": 0.1, "max_steps": 3, "max_grad_norm": 0.0}
    whole = make_trainer(tmp_path, kind, library=library, max_tokens_per_batch=300, **options)
    parts = make_trainer(
        tmp_path, kind, library=library, max_tokens_per_batch=42, gradient_accumulation_steps=4, **options
    )
    sizes = [len(batch["input_ids"]) for batch in parts.get_train_dataloader()]
    assert (len(whole.get_train_dataloader()), sum(sizes), len(sizes)) == (1, 9, 4)
    start = weights(whole.model)
    whole.train()
    parts.train()
    assert (weights(whole.model) - start).abs().max() > 1e-3
    torch.testing.assert_close(weights(parts.model), weights(whole.model), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", TASKS)
def test_evaluation_keeps_the_order_and_does_not_depend_on_batches(tmp_path, kind):
    metrics, predictions = [], []
    for budget in (40, 1000):
        trainer = make_trainer(tmp_path, kind, rows=30, max_tokens_per_batch=budget)
        metrics.append(trainer.evaluate())
        predictions.append(trainer.compute_metrics.predictions)
        references = [
            sorted(label) if kind == "multi_label" else label for label in trainer.eval_dataset["label"]
        ]
        assert trainer.compute_metrics.references == references
    assert metrics[0]["eval_loss"] == pytest.approx(metrics[1]["eval_loss"], rel=1e-5)
    if kind == "regression":
        np.testing.assert_allclose(*predictions, atol=1e-5)
    else:
        assert predictions[0] == predictions[1]
        assert {f"eval_{name}" for name in trainer.task.metric.names} <= metrics[0].keys()


@pytest.mark.parametrize("kind", TASKS)
def test_the_loss_of_evaluation_is_that_of_all_labels_at_once(tmp_path, kind):
    trainer = make_trainer(tmp_path, kind, rows=30, max_tokens_per_batch=60)
    batch = LabelCollator(0)(list(trainer.eval_dataset))
    with torch.no_grad():
        logits = trainer.model.eval()(**{k: v for k, v in batch.items() if k != "labels"}).logits
    count = batch["labels"].ne(-100).sum()
    expected = trainer.task.loss(logits, batch["labels"], count, smoothing=0.0)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("kind", ["classification", "tagging"])
def test_smoothing_changes_the_loss(tmp_path, kind):
    losses = [
        make_trainer(tmp_path, kind, label_smoothing_factor=smoothing).evaluate()["eval_loss"]
        for smoothing in (0.0, 0.1)
    ]
    assert losses[0] != losses[1]


def test_the_loss_alone_needs_no_predictions(tmp_path):
    trainer = make_trainer(tmp_path, "tagging", prediction_loss_only=True)
    assert trainer.evaluate().keys() & {"eval_loss", "eval_f1"} == {"eval_loss"}


@pytest.mark.parametrize(
    ("metric", "greater"),
    [("mse", False), ("eval_mse", False), ("loss", False), ("pearson", True), ("accuracy", True)],
)
def test_a_lower_error_is_better(tmp_path, metric, greater):
    for arguments in (LabelTrainingArguments, StackTrainingArguments):
        args = arguments(output_dir=str(tmp_path), metric_for_best_model=metric)
        assert args.greater_is_better is greater


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_outside_its_range_raises_an_error(tmp_path, smoothing):
    with pytest.raises(UserError, match=r"label_smoothing_factor=.* must be at least 0 and below 1"):
        LabelTrainingArguments(output_dir=str(tmp_path), label_smoothing_factor=smoothing)
