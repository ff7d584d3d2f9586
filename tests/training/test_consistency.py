"""R-Drop: the loss against a slow reference, its normalisation, and trainings with it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.distributions import Categorical, kl_divergence
from transformers import MarianConfig, MarianMTModel

from tiny import batch, tiny_model
from tiny_runs import as_flags
from vaswani import Trainer, TrainingArguments, VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.data.collation import Seq2SeqCollator
from vaswani.distillation.config import DistillationConfig
from vaswani.distillation.run import DistillationRun
from vaswani.distillation.trainer import DistillationTrainer
from vaswani.errors import UserError
from vaswani.kernels import projected_loss
from vaswani.model import operators
from vaswani.model.losses import token_loss_function
from vaswani.training.config.config_file import load_config
from vaswani.training.runs.translation import TrainingRun
from vaswani.training.trainer.consistency import consistency_loss, twice

VOCABULARY = 29
ALPHA = 5.0


class Means:
    """In place of a trainer's."""

    def __init__(self):
        self.total = 0.0

    def add(self, name: str, loss: torch.Tensor) -> None:
        assert name == "consistency_kl"
        self.total += loss.detach().item()


def paper_loss(
    first: torch.Tensor, second: torch.Tensor, labels: torch.Tensor, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums over the tokens, one by one, of equations 2 and 1: cross-entropies and divergences."""
    likelihoods, divergences = [], []
    for row, column in (labels != -100).nonzero().tolist():
        p, q = (Categorical(logits=logits[row, column]) for logits in (first, second))
        target = torch.full_like(p.probs, smoothing / len(p.probs))
        target[labels[row, column]] += 1 - smoothing
        likelihoods.append(-(target * (p.logits + q.logits)).sum())
        divergences.append((kl_divergence(p, q) + kl_divergence(q, p)) / 2)
    return torch.stack(likelihoods).sum(), torch.stack(divergences).sum()


def uneven_labels() -> torch.Tensor:
    """[3, 7], padded at the end and with a hole."""
    labels = torch.randint(0, VOCABULARY, (3, 7))
    labels[1, 4:] = labels[2, 1] = labels[2, 6:] = -100
    return labels


# -------------------------------------------------------------------------------------------------- the loss


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("rows_at_a_time", [1, 7, 1000])  # rows of both passes
def test_the_loss_is_half_that_of_the_paper(monkeypatch, smoothing, rows_at_a_time):
    monkeypatch.setattr(projected_loss, "rows_per_chunk", lambda rows, weight: rows_at_a_time)
    labels, means = uneven_labels(), Means()
    states = torch.randn(6, 7, 8, dtype=torch.float64, requires_grad=True)
    projection = torch.nn.Linear(8, VOCABULARY, dtype=torch.float64)
    leaves = [states, *projection.parameters()]
    given = {"weight": ALPHA, "label_smoothing": smoothing, "means": means}
    loss = consistency_loss(labels, 40, **given)(states, projection)
    likelihood, divergence = paper_loss(*projection(states).chunk(2), labels, smoothing)
    expected = (likelihood + ALPHA * divergence) / 2 / 40
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        torch.autograd.grad(3 * loss, leaves), torch.autograd.grad(3 * expected, leaves, retain_graph=True)
    )
    assert means.total == pytest.approx(divergence.item() / 40)
    of_logits = consistency_loss(labels, 40, **given).from_logits(projection(states))
    torch.testing.assert_close(of_logits, expected)
    torch.testing.assert_close(torch.autograd.grad(of_logits, leaves), torch.autograd.grad(expected, leaves))
    counted = consistency_loss(labels, None, **given)(states, projection)
    torch.testing.assert_close(counted, expected * 40 / (labels != -100).sum())


def test_a_batch_without_labels_has_no_loss():
    given = {"weight": ALPHA, "label_smoothing": 0.1, "means": Means()}
    loss = consistency_loss(torch.full((2, 3), -100), None, **given)
    assert loss(torch.randn(4, 3, 8), torch.nn.Linear(8, VOCABULARY)) == 0


def test_logits_far_apart_have_a_finite_loss():
    means = Means()
    loss = consistency_loss(torch.tensor([[0]]), None, weight=2.0, label_smoothing=0.0, means=means)
    logits = torch.tensor([[[1e4, 0.0]], [[0.0, 1e4]]], requires_grad=True)
    value = loss.from_logits(logits)
    value.backward()
    assert means.total == pytest.approx(1e4)
    assert value.item() == pytest.approx((1e4 + 2 * 1e4) / 2)
    assert logits.grad.isfinite().all()


def test_under_autocast_the_divergence_of_halves_is_not_rounded():
    labels, logits = uneven_labels(), torch.randn(6, 7, VOCABULARY).bfloat16()
    totals = []
    for enabled in (False, True):
        means = Means()
        loss = consistency_loss(labels, None, weight=ALPHA, label_smoothing=0.1, means=means)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            assert loss.from_logits(logits).dtype == torch.float32
        totals.append(means.total)
    assert totals[0] == pytest.approx(totals[1], rel=1e-6)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_without_dropout_the_loss_is_the_cross_entropy(implementation):
    model, data, means = tiny_model(implementation).train(), batch(), Means()
    loss = consistency_loss(data["labels"], None, weight=ALPHA, label_smoothing=0.1, means=means)
    both = model(**twice(data), token_loss=loss).loss
    once = model(**data, smoothing=0.1).loss
    torch.testing.assert_close(both, once)
    assert means.total == pytest.approx(0, abs=1e-9)
    gradients = [torch.autograd.grad(each, [*model.parameters()]) for each in (both, once)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


# ------------------------------------------------------------------------------------------------- trainings


def model_of(**fields) -> VaswaniForConditionalGeneration:
    torch.manual_seed(0)
    shape = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": VOCABULARY}
    shape |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    return VaswaniForConditionalGeneration(VaswaniConfig(**{**shape, **heads, "dropout": 0.3, **fields}))


def marian() -> MarianMTModel:
    torch.manual_seed(0)
    shape = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": VOCABULARY}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 32}
    tokens = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}
    return MarianMTModel(MarianConfig(**shape, **heads, **tokens, dropout=0.3))


def tokenized(num_rows: int = 8) -> Dataset:
    generator = np.random.default_rng(1)

    def sequences() -> list[list[int]]:
        lengths = generator.integers(6, 11, num_rows)
        return [[*generator.integers(3, VOCABULARY, length - 1).tolist(), 2] for length in lengths]

    return Dataset.from_dict({"input_ids": sequences(), "labels": sequences()})


def make_trainer(folder: Path, model=None, trainer_class=Trainer, **options) -> Trainer:
    arguments = {"learning_rate": 0.1, "warmup_steps": 2, "max_tokens_per_batch": 60, "use_cpu": True}
    arguments |= {"save_strategy": "no", "logging_steps": 1, "disable_tqdm": True, "max_steps": 4}
    arguments |= {"consistency_weight": ALPHA, "optim": "sgd"}
    rows = tokenized()
    return trainer_class(
        model=model or model_of(),
        args=TrainingArguments(output_dir=str(folder), **{**arguments, **options}),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=Seq2SeqCollator(0, 1),
    )


def weights_after(trainer: Trainer, **options) -> torch.Tensor:
    trainer.train(**options)
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


@pytest.mark.parametrize("make_model", [model_of, marian])
def test_a_trainer_passes_each_batch_twice_with_different_dropout(tmp_path, make_model):
    trainer = make_trainer(tmp_path, make_model(), label_smoothing_factor=0.1)
    data = next(iter(trainer.get_train_dataloader()))
    torch.manual_seed(5)
    loss = trainer.compute_loss(trainer.model.train(), dict(data), num_items_in_batch=torch.tensor(90))
    torch.manual_seed(5)
    inputs = {name: torch.cat([values, values]) for name, values in data.items() if name != "labels"}
    first, second = trainer.model(**inputs).logits.double().chunk(2)
    likelihood, divergence = paper_loss(first, second, data["labels"], 0.1)
    assert divergence > 0
    torch.testing.assert_close(loss.double(), (likelihood + ALPHA * divergence) / 2 / 90, rtol=1e-5, atol=0)
    trainer.loss_means.keep()
    told, _ = trainer.loss_means.report()
    assert told["consistency_kl"] == pytest.approx(divergence.item() / 90, rel=1e-4)


def differ_by_pass(states: torch.Tensor, p: float, training: bool = True) -> torch.Tensor:
    """A dropout that depends on the pass and on nothing else."""
    if not training:
        return states
    kept = (torch.arange(states.shape[-1]) % 5 != 1).to(states.dtype)
    first, second = states.chunk(2)
    return torch.cat([first * kept, second * kept.flip(0)])


@pytest.mark.slow
def test_one_row_in_eight_steps_equals_eight_rows_in_one(tmp_path, monkeypatch):
    monkeypatch.setattr(operators.dropout, "kernel", differ_by_pass)
    options = {"max_steps": 3, "max_grad_norm": 0.0}
    whole = make_trainer(tmp_path, max_tokens_per_batch=160, **options)
    parts = make_trainer(tmp_path, max_tokens_per_batch=20, gradient_accumulation_steps=8, **options)
    assert (len(whole.get_train_dataloader()), len(parts.get_train_dataloader())) == (1, 8)
    torch.testing.assert_close(weights_after(parts), weights_after(whole), rtol=1e-5, atol=1e-6)
    for name in ("loss", "consistency_kl"):
        logged = [trainer.state.log_history[0][name] for trainer in (whole, parts)]
        assert logged[0] == pytest.approx(logged[1], rel=1e-4)
        assert logged[0] > 0


@pytest.mark.slow
def test_the_consistency_weight_changes_the_result(tmp_path):
    results = [weights_after(make_trainer(tmp_path, consistency_weight=alpha)) for alpha in (0.0, 1.0, 5.0)]
    assert not any(torch.equal(results[one], results[other]) for one, other in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.slow
def test_consistency_training_reduces_the_divergence(tmp_path):
    def last_divergence(alpha: float) -> float:
        options = {"optim": "adamw_torch", "learning_rate": 5e-3, "max_steps": 40}
        trainer = make_trainer(tmp_path, consistency_weight=alpha, **options)
        trainer.train()
        return trainer.state.log_history[-2]["consistency_kl"]

    assert last_divergence(20.0) < 0.7 * last_divergence(1e-9)


def test_the_loss_in_bf16_approximates_that_in_float32(tmp_path, monkeypatch):
    monkeypatch.setattr(operators.dropout, "kernel", differ_by_pass)
    logged = []
    for bf16 in (False, True):
        trainer = make_trainer(tmp_path, max_steps=1, bf16=bf16)
        trainer.train()
        logged.append(trainer.state.log_history[0])
    for name in ("loss", "consistency_kl"):
        assert logged[0][name] == pytest.approx(logged[1][name], rel=0.03)
        assert logged[0][name] != logged[1][name]


@pytest.mark.slow
def test_a_resumed_training_ends_with_the_same_bits(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2}
    whole = weights_after(make_trainer(tmp_path, **saving))
    resumed = weights_after(
        make_trainer(tmp_path, **saving), resume_from_checkpoint=str(tmp_path / "checkpoint-2")
    )
    assert torch.equal(resumed, whole)
    with pytest.raises(UserError, match=r"cannot change consistency_weight=0\.0"):
        make_trainer(tmp_path, **saving, consistency_weight=0.0).train(resume_from_checkpoint=True)


def test_evaluation_runs_one_pass(tmp_path):
    trainer = make_trainer(tmp_path, predict_with_generate=False)
    data = Seq2SeqCollator(0, 1)(list(tokenized()))
    with torch.no_grad():
        logits = trainer.model.eval()(**data).logits
    expected = token_loss_function(logits, data["labels"], label_smoothing=0.1)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(expected), rel=1e-5)
    trainer.loss_means.keep()
    assert "consistency_kl" not in trainer.loss_means.report()[0]


def test_tokens_count_once_and_operations_twice(tmp_path):
    reports = []
    for alpha in (0.0, ALPHA):
        meter = make_trainer(tmp_path, consistency_weight=alpha).meter
        meter.count(Seq2SeqCollator(0, 1)(list(tokenized())))
        reports.append((int(meter._real), meter._padded, meter._flops))
    assert reports[1] == (*reports[0][:2], 2 * reports[0][2])


# ------------------------------------------------------------------------------------------------- refusals

NO_DROPOUT = r"consistency_weight=5 compares two passes .* equal \(.*dropout=0.*\); set dropout=0\.1"


@pytest.mark.parametrize("name", ["dropout", "attention_dropout", "activation_dropout", "word_dropout"])
def test_any_kind_of_dropout_is_accepted(tmp_path, name):
    make_trainer(tmp_path, model_of(**{"dropout": 0.0, name: 0.1}))


@pytest.mark.parametrize("of_library", [False, True])
def test_a_model_without_dropout_is_refused(tmp_path, of_library):
    model = model_of(dropout=0.0)
    if of_library:
        model = MarianMTModel(MarianConfig(**{**marian().config.to_dict(), "dropout": 0.0}))
    with pytest.raises(UserError, match=NO_DROPOUT):
        make_trainer(tmp_path, model)


def test_a_run_without_dropout_is_refused_before_reading_the_corpus():
    flags = {"train_file": "nowhere.jsonl", "consistency_weight": 5, "dropout": 0, "output_dir": "run"}
    with pytest.raises(UserError, match=NO_DROPOUT):
        TrainingRun(load_config(None, as_flags(flags))).check()


def test_a_distillation_refuses_consistency_training(tmp_path):
    refused = "consistency_weight=5 is not supported by a distillation; leave it out, or let the teacher"
    config = load_config(None, ["--teacher", "t", "--consistency_weight", "5"], DistillationConfig)
    with pytest.raises(UserError, match=refused):
        DistillationRun(config).check()
    with pytest.raises(UserError, match=refused):
        make_trainer(tmp_path, trainer_class=DistillationTrainer)
