"""The trainer of students: the terms of the loss, normalisation, checkpoints, and errors."""

import copy
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import (
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from vaswani import (
    DistillationObjectives,
    DistillationTrainer,
    TrainingArguments,
    VaswaniConfig,
    VaswaniForConditionalGeneration,
)
from vaswani.data.collation import Seq2SeqCollator
from vaswani.distillation.losses import cosine_loss, forward_kl, relation_loss, soft_target_loss
from vaswani.distillation.recording import Recorder
from vaswani.distillation.trainer import teacher_logits
from vaswani.errors import RunError, UserError
from vaswani.kernels import projected_loss
from vaswani.kernels.decoder_step import is_plain
from vaswani.model.losses import token_loss_function

VOCABULARY = 29
PAD, START, END = 0, 1, 2


def vaswani_model(
    width: int = 16, layers: int = 1, seed: int = 0, **fields
) -> VaswaniForConditionalGeneration:
    torch.manual_seed(seed)
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    shape = {"d_model": width, "encoder_layers": layers, "decoder_layers": layers}
    sizes = {"vocab_size": VOCABULARY, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "dropout": 0.0}
    return VaswaniForConditionalGeneration(VaswaniConfig(**{**sizes, **heads, **shape, **fields}))


def teacher_model(**fields) -> VaswaniForConditionalGeneration:
    """A deeper model with other outputs, and dropout that must be off."""
    teacher = vaswani_model(layers=2, seed=1, **{"dropout": 0.5, **fields})
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.mul_(1.5)
    return teacher


def library_models() -> dict:
    """Teachers of the library, with start tokens of their own."""
    torch.manual_seed(2)
    bart_like = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": VOCABULARY}
    bart_like |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 32}
    bart_like |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    ids = {"pad_token_id": PAD, "eos_token_id": END}
    return {
        "marian": MarianMTModel(MarianConfig(**bart_like, **ids, decoder_start_token_id=PAD)),
        "bart": BartForConditionalGeneration(
            BartConfig(**bart_like, **ids, bos_token_id=START, decoder_start_token_id=END)
        ),
        "t5": T5ForConditionalGeneration(
            T5Config(
                vocab_size=VOCABULARY,
                d_model=16,
                d_kv=8,
                d_ff=32,
                num_layers=2,
                num_heads=2,
                decoder_start_token_id=PAD,
                **ids,
            )
        ),
    }


def tokenized(num_rows: int = 8) -> Dataset:
    generator = np.random.default_rng(2)  # sources and targets have different numbers of tokens

    def sequences():
        lengths = generator.integers(6, 11, num_rows)
        return [[*generator.integers(3, VOCABULARY, length - 1).tolist(), END] for length in lengths]

    return Dataset.from_dict({"input_ids": sequences(), "labels": sequences()})


def make_trainer(folder: Path, teacher=None, student=None, objectives=None, **options) -> DistillationTrainer:
    arguments = {"learning_rate": 0.1, "warmup_steps": 2, "max_tokens_per_batch": 160, "use_cpu": True}
    arguments |= {"save_strategy": "no", "logging_steps": 1, "disable_tqdm": True, "max_steps": 2}
    arguments |= {"optim": "sgd", "max_grad_norm": 0.0, "label_smoothing_factor": 0.0}
    return DistillationTrainer(
        model=student or vaswani_model(),
        teacher=teacher,
        objectives=DistillationObjectives(**(objectives or {})),
        args=TrainingArguments(output_dir=str(folder), **{**arguments, **options}),
        train_dataset=tokenized(),
        eval_dataset=tokenized(),
        data_collator=Seq2SeqCollator(PAD, START),
    )


def weights(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def trained(trainer: DistillationTrainer) -> torch.Tensor:
    trainer.train()
    return weights(trainer.model)


def only(**objectives) -> dict:
    """These objectives and no others."""
    return {"label_weight": 0.0, "soft_target_weight": 0.0, **objectives}


def first_losses(trainer: DistillationTrainer) -> dict[str, float]:
    trainer.train()
    return trainer.state.log_history[0]


# ------------------------------------------------------------------------------------------- what is computed


def whole_batch() -> dict[str, torch.Tensor]:
    return Seq2SeqCollator(PAD, START)(list(tokenized()))


def test_soft_targets_are_the_teachers_in_evaluation_mode(tmp_path):
    teacher, batch = teacher_model(), whole_batch()
    kept = batch["labels"] != -100
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "decoder_input_ids")}
    with torch.no_grad():
        logits = [model.eval()(**inputs).logits for model in (vaswani_model(), teacher)]
    for temperature in (1.0, 2.0):
        loss = soft_target_loss(
            logits[0][kept],
            (logits[1][kept] / temperature).log_softmax(-1),
            temperature=temperature,
            divergence=forward_kl,
            num_tokens=None,
        )
        objectives = only(soft_target_weight=3.0, temperature=temperature)
        logged = first_losses(make_trainer(tmp_path, teacher.train(), objectives=objectives))
        assert logged["soft_target_loss"] == pytest.approx(float(loss), rel=1e-5)
        assert logged["loss"] == pytest.approx(3 * float(loss), rel=1e-4)


def test_the_loss_is_the_weighted_sum_of_what_is_logged(tmp_path):
    objectives = {"label_weight": 2.0, "soft_target_weight": 5.0, "cosine_weight": 1.0, "temperature": 2.0}
    objectives |= {"relation_weight": 0.5, "relation_heads": 2}
    logged = first_losses(make_trainer(tmp_path, teacher_model(), objectives=objectives))
    parts = {name: logged[f"{name}_loss"] for name in ("label", "soft_target", "cosine", "relation")}
    assert all(part > 0 for part in parts.values())
    assert logged["loss"] == pytest.approx(
        sum(objectives[f"{name}_weight"] * part for name, part in parts.items()), rel=1e-4
    )


def test_losses_of_states_are_means_over_both_stacks(tmp_path):
    """The encoder's are divided by the source tokens, the decoder's by the labels; it sees no later token."""
    objectives = only(cosine_weight=1.0, relation_weight=1.0, relation_heads=2)
    logged = first_losses(make_trainer(tmp_path, teacher_model(), objectives=objectives))
    batch, states = whole_batch(), []
    for model in (vaswani_model(), teacher_model()):
        recorder = Recorder(model.eval(), projections=True)
        with recorder.recording(), torch.no_grad():
            model(**{name: batch[name] for name in ("input_ids", "attention_mask", "decoder_input_ids")})
            states.append(recorder.take())
    kept = {"encoder": batch["attention_mask"].bool(), "decoder": batch["labels"] != -100}
    assert kept["encoder"].sum() != kept["decoder"].sum()
    cosines, relations = [], []
    for stack, tokens in kept.items():
        student, teacher = (each[stack] for each in states)
        visible = tokens[:, :, None] & tokens[:, None]
        visible = visible.tril() if stack == "decoder" else visible
        count = {"num_tokens": tokens.sum()}
        cosines.append(cosine_loss(student["states"], teacher["states"], tokens, **count))
        for a, b in (("query", "key"), ("value", "value")):
            pairs = (student[a], student[b]), (teacher[a], teacher[b])
            relations.append(relation_loss(*pairs, visible, num_heads=2, **count))
    assert logged["cosine_loss"] == pytest.approx(float(sum(cosines)) / 2, rel=1e-5)
    assert logged["relation_loss"] == pytest.approx(float(sum(relations)) / 4, rel=1e-5)


def test_the_labels_loss_alone_trains_as_without_a_teacher(tmp_path):
    from vaswani import Trainer

    plain = Trainer(
        model=vaswani_model(),
        args=make_trainer(tmp_path, label_smoothing_factor=0.1).args,
        train_dataset=tokenized(),
        data_collator=Seq2SeqCollator(PAD, START),
    )
    plain.train()
    alone = trained(make_trainer(tmp_path, objectives=only(label_weight=1.0), label_smoothing_factor=0.1))
    torch.testing.assert_close(alone, weights(plain.model), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_every_objective_moves_the_student(tmp_path):
    base = {"label_weight": 1.0, "soft_target_weight": 1.0, "relation_heads": 2}
    choices = [
        {},
        {"label_weight": 0.0},
        {"soft_target_weight": 0.0},
        {"temperature": 2.0},
        {"divergence": "reverse_kl"},
        {"divergence": "jensen_shannon"},
        {"cosine_weight": 1.0},
        {"relation_weight": 1.0},
        {"relation_weight": 1.0, "relation_heads": 4},
    ]
    students = [
        trained(make_trainer(tmp_path, teacher_model(), objectives={**base, **each})) for each in choices
    ]
    for (one, a), (other, b) in itertools.combinations(zip(choices, students, strict=True), 2):
        assert not torch.equal(a, b), (one, other)


@pytest.mark.parametrize("objectives", [only(soft_target_weight=1.0), only(cosine_weight=1.0)])
def test_a_student_approaches_its_teacher(tmp_path, objectives):
    trainer = make_trainer(
        tmp_path,
        teacher_model(),
        objectives=objectives,
        max_steps=30,
        optim="adamw_torch",
        learning_rate=5e-3,
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.7 * losses[0]


def test_the_teacher_runs_once_per_batch_without_gradients_and_is_unchanged(tmp_path, monkeypatch):
    teacher = teacher_model().to(torch.bfloat16)
    before, calls = weights(teacher).clone(), []
    forward = teacher.forward

    def counted(*args, **kwargs):
        calls.append((teacher.training, torch.is_grad_enabled()))
        outputs = forward(*args, **kwargs)
        assert outputs.logits.dtype == torch.bfloat16
        return outputs

    monkeypatch.setattr(teacher, "forward", counted)
    objectives = {"cosine_weight": 1.0, "relation_weight": 1.0, "relation_heads": 2}
    make_trainer(tmp_path, teacher, objectives=objectives, max_steps=3).train()
    assert calls == [(False, False)] * 3
    assert torch.equal(weights(teacher), before)


@pytest.mark.parametrize("kind", ["marian", "bart", "t5"])
def test_teachers_of_the_library_teach_with_their_own_start_token(tmp_path, kind):
    teacher, batch = library_models()[kind].eval(), whole_batch()
    with torch.no_grad():  # from the labels, the library makes the decoder's input itself
        theirs = teacher(**{name: batch[name] for name in ("input_ids", "attention_mask", "labels")}).logits
        ours = vaswani_model().eval()(**{name: batch[name] for name in batch if name != "labels"}).logits
    kept = batch["labels"] != -100
    loss = soft_target_loss(
        ours[kept],
        theirs[kept].log_softmax(-1),
        temperature=1.0,
        divergence=forward_kl,
        num_tokens=None,
    )
    objectives = only(soft_target_weight=1.0, cosine_weight=1.0, relation_weight=1.0, relation_heads=2)
    logged = first_losses(make_trainer(tmp_path, teacher, objectives=objectives))
    assert logged["soft_target_loss"] == pytest.approx(float(loss), rel=1e-5)
    assert 0 < logged["cosine_loss"] < 2
    assert logged["relation_loss"] > 0


def test_students_of_library_classes_are_trained(tmp_path):
    objectives = {"cosine_weight": 1.0, "relation_weight": 1.0, "relation_heads": 2}
    student = library_models()["marian"]
    before = weights(student).clone()
    after = trained(make_trainer(tmp_path, teacher_model(), student=student, objectives=objectives))
    assert not torch.equal(before, after)


def test_evaluation_does_not_run_the_teacher(tmp_path):
    trainer = make_trainer(tmp_path, teacher_model(), predict_with_generate=False)
    batch = whole_batch()
    with torch.no_grad():
        logits = trainer.model.eval()(**{name: batch[name] for name in batch if name != "labels"}).logits
    expected = token_loss_function(logits, batch["labels"], label_smoothing=0.0)
    trainer.teacher.forward = None
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(expected), rel=1e-5)


# ---------------------------------------------------------------------- normalisation, widths, saving

ALL = {"cosine_weight": 1.0, "relation_weight": 1.0, "relation_heads": 2, "temperature": 2.0}


@pytest.mark.slow
def test_one_row_in_eight_steps_equals_eight_rows_in_one(tmp_path):
    whole = make_trainer(tmp_path, teacher_model(), objectives=ALL)
    options = {"max_tokens_per_batch": 20, "gradient_accumulation_steps": 8}
    parts = make_trainer(tmp_path, teacher_model(), objectives=ALL, **options)
    assert (len(whole.get_train_dataloader()), len(parts.get_train_dataloader())) == (1, 8)
    start = weights(whole.model)
    assert (trained(whole) - start).abs().max() > 0.01
    torch.testing.assert_close(trained(parts), weights(whole.model), rtol=1e-4, atol=1e-5)
    for name in ("loss", "soft_target_loss", "cosine_loss", "relation_loss"):
        logged = [trainer.state.log_history[0][name] for trainer in (whole, parts)]
        assert logged[0] == pytest.approx(logged[1], rel=1e-4), name


def test_a_batch_without_a_token_count_is_averaged_over_the_whole_batch(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, teacher_model())
    at_once = trainer.compute_loss(trainer.model.train(), whole_batch())
    monkeypatch.setattr(projected_loss, "rows_per_chunk", lambda rows, weight: 5)
    torch.testing.assert_close(trainer.compute_loss(trainer.model, whole_batch()), at_once)
    losses = [trainer.compute_loss(trainer.model.eval(), whole_batch())]
    monkeypatch.undo()
    torch.testing.assert_close(losses[0], trainer.compute_loss(trainer.model, whole_batch()))


def test_widths_may_differ_and_the_map_between_them_is_not_saved(tmp_path):
    teacher = teacher_model(width=24)
    objectives = only(cosine_weight=1.0)
    trainer = make_trainer(tmp_path, teacher, objectives=objectives, save_strategy="steps", save_steps=1)
    own_parameters = trainer.model.num_parameters()
    trainer.train()
    assert trainer.model.num_parameters() == own_parameters
    trainer.save_model()
    maps = [load_file(tmp_path / f"checkpoint-{step}" / "to_teacher_width.safetensors") for step in (1, 2)]
    assert all(not torch.equal(maps[0][name], maps[1][name]) for name in maps[0])  # they are learned
    for folder in (tmp_path, tmp_path / "checkpoint-2"):
        assert not any("to_teacher_width" in name for name in load_file(folder / "model.safetensors"))
        _, report = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
        assert not report["unexpected_keys"]
        assert not report["missing_keys"]
    assert not (tmp_path / "to_teacher_width.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("width", [16, 24])
def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path, width):
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "optim": "adamw_torch"}
    student = vaswani_model(dropout=0.3)

    def make(folder: str) -> DistillationTrainer:
        return make_trainer(
            tmp_path / folder, teacher_model(width=width), copy.deepcopy(student), ALL, **options
        )

    whole = trained(make("whole"))
    resumed = make("resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert torch.equal(weights(resumed.model), whole)


# ---------------------------------------------------------------------------------- what does not fit


def test_distributions_over_different_vocabularies_cannot_be_compared(tmp_path):
    teacher = vaswani_model(vocab_size=VOCABULARY + 3)
    with pytest.raises(UserError, match=r"predicts 32 tokens and the student 29.*targets=teacher"):
        make_trainer(tmp_path, teacher)


def test_a_teacher_without_a_start_token_begins_as_its_class_does(tmp_path):
    """mBART begins with the language that ends the labels."""
    of_stack = {"layers": 1, "attention_heads": 2, "ffn_dim": 16}
    shape = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in of_stack.items()}
    teacher = MBartForConditionalGeneration(MBartConfig(vocab_size=29, d_model=16, **shape)).eval()
    assert teacher.config.decoder_start_token_id is None
    labels = torch.tensor([[7, 8, 2, 25], [9, 2, 26, -100]])
    batch = {"input_ids": torch.tensor([[5, 6, 2], [5, 2, 1]]), "labels": labels}
    batch["attention_mask"] = batch["input_ids"].ne(1).long()
    start = torch.tensor([[25, 7, 8, 2], [26, 9, 2, 26]])
    expected = teacher(batch["input_ids"], batch["attention_mask"], decoder_input_ids=start).logits
    torch.testing.assert_close(teacher_logits(teacher, batch)[labels != -100], expected[labels != -100])


def test_hidden_states_need_a_teacher(tmp_path):
    with pytest.raises(UserError, match="cosine_weight and relation_weight need a teacher"):
        make_trainer(tmp_path, objectives={"cosine_weight": 1.0})


def test_a_batch_without_distributions_needs_a_teacher(tmp_path):
    with pytest.raises(UserError, match="no teacher_log_probs and no teacher_tokens"):
        make_trainer(tmp_path).train()


def test_relation_heads_divide_both_widths(tmp_path):
    objectives = {"relation_weight": 1.0, "relation_heads": 8}
    with pytest.raises(UserError, match="relation_heads=8 does not divide the width 20"):
        make_trainer(tmp_path, vaswani_model(width=20), objectives=objectives)


def test_relation_heads_divide_the_width_of_keys(tmp_path):
    objectives = {"relation_weight": 1.0, "relation_heads": 4}
    with pytest.raises(UserError, match="relation_heads=4 does not divide the width 6"):
        make_trainer(tmp_path, vaswani_model(key_dim=3), objectives=objectives)
    make_trainer(tmp_path, vaswani_model(key_dim=6), objectives=objectives)


def test_a_non_finite_teacher_is_blamed_instead_of_the_learning_rate(tmp_path):
    teacher = teacher_model()
    next(teacher.parameters()).data.fill_(float("nan"))
    with pytest.raises(RunError, match="The teacher's outputs are not finite there: give another teacher"):
        make_trainer(tmp_path / "teacher", teacher).train()
    student = vaswani_model()
    next(student.parameters()).data.fill_(float("nan"))
    with pytest.raises(RunError, match="Lower the learning_rate"):
        make_trainer(tmp_path / "student", teacher_model(), student).train()


# --------------------------------------------------------------------------- what callers may leave or give


STATES = {"cosine_weight": 1.0, "relation_weight": 1.0, "relation_heads": 2}


def test_a_batch_needs_no_mask_and_no_decoder_input(tmp_path):
    losses = []
    for left_out in ((), ("decoder_input_ids",), ("attention_mask", "decoder_input_ids")):
        rows = Dataset.from_dict({"input_ids": [[5, 6, 7, END]] * 4, "labels": [[8, 9, END]] * 4})
        trainer = make_trainer(tmp_path, teacher_model(), objectives=STATES)
        trainer.train_dataset = trainer.eval_dataset = rows
        collate = trainer.data_collator

        def without(features, left_out=left_out, collate=collate):
            return {name: value for name, value in collate(features).items() if name not in left_out}

        trainer.train_data_collator = trainer.data_collator = without
        losses.append((trainer.train().training_loss, trainer.evaluate()["eval_loss"]))
        assert trainer.non_finite_cause([without([rows[0]])]) is None
    assert losses[0] == losses[1] == losses[2]


def test_unsupported_trainer_options_raise_an_error(tmp_path):
    given = {"model": vaswani_model(), "args": TrainingArguments(output_dir=str(tmp_path), use_cpu=True)}
    with pytest.raises(UserError, match="compute_loss_func is not supported by a distillation"):
        DistillationTrainer(**given, teacher=teacher_model(), compute_loss_func=print)
    given = {"model_init": lambda: vaswani_model(), "args": given["args"], "teacher": teacher_model()}
    with pytest.raises(UserError, match="model_init makes others"):
        DistillationTrainer(**given, objectives=DistillationObjectives(cosine_weight=1.0))
    options = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
    with pytest.raises(UserError, match="would have no gradient with use_reentrant=True"):
        make_trainer(tmp_path, teacher_model(), objectives=STATES, **options)


def test_training_leaves_no_hooks_on_student_and_teacher(tmp_path):
    student, teacher = vaswani_model(width=32), teacher_model()
    trainer = make_trainer(tmp_path, teacher, student, objectives=STATES | {"relation_weight": 0.0})
    first = trainer.train().training_loss
    for model in (student, teacher):
        assert not any(module._forward_hooks for module in model.modules())
        copy.deepcopy(model)
    assert is_plain(student.eval())
    assert trainer.train().training_loss != first  # it can go on
