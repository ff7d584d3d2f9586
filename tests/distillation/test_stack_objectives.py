"""The losses of students of one stack against slow references, and their divisors."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from transformers import AutoConfig, AutoModelForMaskedLM

from toy_labels import toy_config, toy_tokenizer
from vaswani import (
    VaswaniDecoderConfig,
    VaswaniForCausalLM,
    VaswaniForMaskedLM,
    VaswaniForSequenceClassification,
    VaswaniForTokenClassification,
)
from vaswani.data.tokenization import train_tokenizer
from vaswani.distillation.arguments import DistillationObjectives
from vaswani.distillation.losses import relation_loss
from vaswani.distillation.recording import Recorder
from vaswani.distillation.stack_objectives import LanguageModelObjective, TaskObjective
from vaswani.training.config.finetuning_arguments import LabelTrainingArguments
from vaswani.training.config.training_arguments import BaseTrainingArguments
from vaswani.training.trainer.finetuning import FinetuningTrainer
from vaswani.training.trainer.labels import TASKS
from vaswani.training.trainer.pretraining import PretrainingTrainer

PAD = 0
SHAPE: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0}
CAUSAL = train_tokenizer(["the dog saw the cat"] * 4, 300, purpose="causal")


def arguments(kind: type, tmp_path: Any) -> Any:
    return kind(
        output_dir=str(tmp_path),
        use_cpu=True,
        report_to=["none"],
        max_tokens_per_batch=1000,
        learning_rate=1e-3,
    )


def batch(vocab_size: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, vocab_size, (3, 7), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 5:] = mask[2, 3:] = 0
    return {"input_ids": ids.masked_fill(mask == 0, PAD), "attention_mask": mask}


def language_trainer(
    causal: bool, tmp_path: Any, widths: tuple[int, int] = (32, 32), teachers: int = 1, **options: Any
) -> Any:
    models: list[Any] = []
    for number, width in enumerate((*widths[:1], *widths[1:] * teachers)):
        torch.manual_seed(number)
        if causal:
            shape = {
                "d_model": width,
                "decoder_layers": 2,
                "decoder_attention_heads": 2,
                "decoder_ffn_dim": 16,
            }
            models.append(VaswaniForCausalLM(VaswaniDecoderConfig(vocab_size=len(CAUSAL), **shape, **SHAPE)))
        else:
            models.append(VaswaniForMaskedLM(toy_config(**{**SHAPE, "d_model": width, "encoder_layers": 2})))
    all_tokens = options.pop("all_tokens", False)
    trainer = PretrainingTrainer(
        model=models[0],
        args=arguments(BaseTrainingArguments, tmp_path),
        processing_class=CAUSAL if causal else toy_tokenizer(),
        train_dataset=Dataset.from_dict({"input_ids": [[5]]}),
        data_collator=lambda rows: rows,
    )
    trainer.set_objective(
        LanguageModelObjective(trainer, models[1:], DistillationObjectives(**options), all_tokens=all_tokens)
    )
    return trainer


def loss_of(trainer: Any, given: dict[str, torch.Tensor]) -> torch.Tensor:
    batches, items = trainer.get_batch_samples(iter([given]), 1, torch.device("cpu"))
    trainer.model.train()
    with trainer.objective.training():
        return trainer.compute_loss(trainer.model, dict(batches[0]), num_items_in_batch=items)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("all_tokens", [False, True])
@pytest.mark.parametrize("teachers", [1, 2])
def test_losses_of_language_models_equal_their_definition(
    causal: bool, all_tokens: bool, teachers: int, tmp_path: Any
) -> None:
    weights = {"label_weight": 2.0, "soft_target_weight": 5.0, "temperature": 3.0}
    if teachers == 1:
        weights["cosine_weight"] = 1.5
    trainer = language_trainer(causal, tmp_path, all_tokens=all_tokens, teachers=teachers, **weights)
    given = batch(trainer.model.config.vocab_size)
    ids, mask = given["input_ids"], given["attention_mask"].bool()
    labels = ids.masked_fill(~mask, -100) if causal else torch.full_like(ids, -100)
    if not causal:
        labels[0, 2], labels[1, 1], labels[2, 0] = 5, 6, 7
    actual = loss_of(trainer, {**given, "labels": labels})

    student, *others = (
        model(**given, output_hidden_states=True) for model in (trainer.model, *trainer.objective.teachers)
    )
    shifted = F.pad(labels[:, 1:], (0, 1), value=-100) if causal else labels
    rows = mask if all_tokens and not causal else shifted != -100
    items = (
        (labels != -100).sum()
        if not causal
        else trainer.get_batch_samples(iter([{**given, "labels": labels}]), 1, torch.device("cpu"))[1]
    )
    label = F.cross_entropy(student.logits.flatten(0, 1), shifted.flatten(), reduction="sum") / items
    taught = sum((one.logits[rows] / 3).softmax(-1) for one in others) / len(others)
    log_probs = (student.logits[rows] / 3).log_softmax(-1)
    soft = (
        (taught * (taught.log() - log_probs)).sum() * 9 / (mask.sum() if all_tokens and not causal else items)
    )
    expected = 2 * label + 5 * soft
    if teachers == 1:
        cosine = F.cosine_similarity(student.hidden_states[-1], others[0].hidden_states[-1], dim=-1)
        expected = expected + 1.5 * (1 - cosine)[mask].sum() / mask.sum()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    actual.backward()
    assert all(weight.grad is None for one in trainer.objective.teachers for weight in one.parameters())


@pytest.mark.parametrize("causal", [False, True])
def test_relations_and_maps_between_widths_change_the_loss(causal: bool, tmp_path: Any) -> None:
    losses = []
    for options in ({}, {"cosine_weight": 1.0}, {"relation_weight": 1.0, "relation_heads": 2}):
        trainer = language_trainer(causal, tmp_path, (32, 16), **options)
        given = batch(trainer.model.config.vocab_size)
        labels = given["input_ids"].masked_fill(given["attention_mask"] == 0, -100)
        losses.append(loss_of(trainer, {**given, "labels": labels}).item())
    assert len(set(losses)) == 3


@pytest.mark.parametrize("causal", [False, True])
def test_relations_are_those_of_queries_and_keys_and_of_values(causal: bool, tmp_path: Any) -> None:
    only: dict[str, Any] = {"label_weight": 0.0, "soft_target_weight": 0.0}
    trainer = language_trainer(causal, tmp_path, **only, relation_weight=2.0, relation_heads=2)
    given = batch(trainer.model.config.vocab_size)
    mask = given["attention_mask"].bool()
    labels = given["input_ids"].masked_fill(~mask, -100)
    actual = loss_of(trainer, {**given, "labels": labels})
    states = []
    for model in (trainer.model, *trainer.objective.teachers):
        recorder = Recorder(model, projections=True)
        with recorder.recording(), torch.no_grad():
            model(**given)
            states += recorder.take().values()
    student, teacher = states
    visible = mask[:, :, None] & mask[:, None]
    parts = [
        relation_loss(
            (student[a], student[b]),
            (teacher[a], teacher[b]),
            visible.tril() if causal else visible,
            num_heads=2,
            num_tokens=mask.sum(),
        )
        for a, b in (("query", "key"), ("value", "value"))
    ]
    torch.testing.assert_close(actual, 2 * (parts[0] + parts[1]) / 2)


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta", "electra"])
def test_projections_of_library_models_are_recorded(name: str) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 40}
    if name == "distilbert":
        sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "vocab_size": 40}
    model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(name, **sizes)).eval()
    recorder, given = Recorder(model, projections=True), batch(40)
    with recorder.recording():
        model(**given)
        (recorded,) = recorder.take().values()
    assert {kind: states.shape for kind, states in recorded.items()} == dict.fromkeys(
        ("query", "key", "value", "states"), (3, 7, 16)
    )


def task_trainer(name: str, tmp_path: Any, teachers: int = 1) -> Any:
    task = TASKS[name](["a", "b", "c"] if name != "regression" else [])
    kind: Any = VaswaniForTokenClassification if name == "tagging" else VaswaniForSequenceClassification
    models = []
    for number in range(1 + teachers):
        torch.manual_seed(number)
        models.append(kind(toy_config(**SHAPE, **task.config_fields())))
    trainer = FinetuningTrainer(
        model=models[0],
        task=task,
        args=arguments(LabelTrainingArguments, tmp_path),
        processing_class=toy_tokenizer(),
        train_dataset=Dataset.from_dict({"input_ids": [[5]]}),
        data_collator=lambda rows: rows,
    )
    objectives = DistillationObjectives(label_weight=2, soft_target_weight=3, temperature=2)
    trainer.set_objective(TaskObjective(trainer, models[1:], objectives))
    return trainer


LABELS = {
    "classification": torch.tensor([2, -100, 0]),
    "multi_label": torch.tensor([[1.0, 0, 1], [-100, -100, -100], [0, 0, 1]]),
    "regression": torch.tensor([0.5, -100, -1.0]),
    "tagging": torch.tensor([[1, -100, 2, 0, -100, -100, -100], [0, 1, *[-100] * 5], [2, *[-100] * 6]]),
}


@pytest.mark.parametrize("teachers", [1, 2])
@pytest.mark.parametrize("name", TASKS)
def test_losses_of_tasks_equal_their_definition(name: str, teachers: int, tmp_path: Any) -> None:
    trainer = task_trainer(name, tmp_path, teachers)
    given, labels = batch(trainer.model.config.vocab_size), LABELS[name]
    trainer.args.label_smoothing_factor = 0.1
    actual = loss_of(trainer, {**given, "labels": labels})
    student, *taught = (model(**given).logits for model in (trainer.model, *trainer.objective.teachers))
    if name == "classification":
        label = F.cross_entropy(student, labels, reduction="sum", label_smoothing=0.1) / 3
        mean = sum((one / 2).softmax(-1) for one in taught) / teachers
        soft = (mean * (mean.log() - (student / 2).log_softmax(-1))).sum() * 4 / 3
    elif name == "multi_label":
        kept = torch.tensor([0, 2])
        label = F.binary_cross_entropy_with_logits(student[kept], labels[kept], reduction="sum") / 9
        mean = sum((one / 2).sigmoid() for one in taught) / teachers
        own = (student / 2).sigmoid()
        divergence = mean * (mean / own).log() + (1 - mean) * ((1 - mean) / (1 - own)).log()
        soft = divergence.sum() * 4 / 9
    elif name == "regression":
        kept = torch.tensor([0, 2])
        label = ((student[kept, 0] - labels[kept]) ** 2).sum() / 3
        soft = ((student - sum(taught) / teachers) ** 2).sum() / 3
    else:
        rows = labels != -100
        label = F.cross_entropy(student[rows], labels[rows], label_smoothing=0.1)
        mean = sum((one[rows] / 2).softmax(-1) for one in taught) / teachers
        soft = (mean * (mean.log() - (student[rows] / 2).log_softmax(-1))).sum() * 4 / rows.sum()
    torch.testing.assert_close(actual, 2 * label + 3 * soft, rtol=1e-4, atol=1e-5)


def test_a_batch_without_labels_has_soft_targets_alone(tmp_path: Any) -> None:
    trainer = task_trainer("classification", tmp_path)
    given = batch(trainer.model.config.vocab_size)
    loss = loss_of(trainer, {**given, "labels": torch.full((3,), -100)})
    assert loss.isfinite()
    assert loss > 0
