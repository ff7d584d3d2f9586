"""Distillation runs of models of one stack: masked and causal language models, and label predictors.

Each extends the training run of such a model (`training/runs/pretraining.py`, `training/runs/finetuning.py`):
the student is built from its teacher, its losses use the teacher's outputs, and a report compares both.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset, concatenate_datasets
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, PreTrainedModel

from vaswani.data.collation import IGNORED_LABEL
from vaswani.data.given_tokenizers import prepare_for_classification
from vaswani.data.labels.labelled_tokens import tokenize_labelled
from vaswani.data.sources.corpus import Corpus, load_unlabelled
from vaswani.distillation.arguments import FROM_TEACHER, RANDOM
from vaswani.distillation.baseline import BASELINE, train_unless_done, training_of_baseline
from vaswani.distillation.fingerprints import fingerprint_model, fingerprint_rows
from vaswani.distillation.measuring import Score
from vaswani.distillation.output_cache import progress_of_rows, shared_cache
from vaswani.distillation.recording import stacks
from vaswani.distillation.report import write_texts
from vaswani.distillation.stack_arguments import (
    CausalDistillationConfig,
    MaskedDistillationConfig,
    TaskDistillationConfig,
)
from vaswani.distillation.stack_objectives import LanguageModelObjective, StackObjective, TaskObjective
from vaswani.distillation.stack_report import StackCandidate, StackComparison, compare_stacks, stack_markdown
from vaswani.distillation.student import (
    Layers,
    choose_layers,
    parse_layers,
    student_from_teacher,
    warn_unless_smaller,
)
from vaswani.distillation.teacher import check_same_vocabulary
from vaswani.distillation.teacher_texts import (
    ContinuationSettings,
    read_texts,
    store_texts,
    with_teacher_texts,
)
from vaswani.errors import UserError, listing
from vaswani.hub.card import name_of_data
from vaswani.hub.checkpoint import load_checkpoint
from vaswani.hub.run_metadata import auto_class_of, read_run_metadata
from vaswani.inference.classify.classification import names_of
from vaswani.inference.language_model import LanguageModel
from vaswani.training.runs.base import BaseRun, Tokenizers
from vaswani.training.runs.finetuning import FinetuningRun
from vaswani.training.runs.language_modelling import SCORE_NAMES, PretrainingRun, scores_with_resamples
from vaswani.training.runs.models import Pretrained, load_with_head, open_pretrained, seed_everything
from vaswani.training.runs.pretraining import CausalLMRun, MaskedLMRun
from vaswani.training.trainer.checkpoints import check_writable
from vaswani.training.trainer.labels import TASKS, MultiLabel

TOKEN_TYPES = "token_type_ids"


class StackDistillation(BaseRun):
    """Base class for distillation runs of encoder-only and decoder-only students."""

    auto_class: Any  # Auto class of teachers and student
    prepare_tokenizer: Any = None  # function that prepares the tokenizer of a decoder
    teaches: bool = True  # False for the baseline and in evaluation
    comparison: StackComparison | None = None

    def __init__(self, config: Any):
        super().__init__(config)
        self.options = config.distillation
        self._evaluating: dict[PreTrainedModel, Any] = {}  # a trainer for each model of the report

    # ------------------------------------------------------------------------------- teachers and the student

    @cached_property
    def opened_teachers(self) -> list[Pretrained]:
        """The teachers, without their weights."""
        return [
            open_pretrained(name, self.auto_class, self.prepare_tokenizer) for name in self.options.teacher
        ]

    @cached_property
    def pretrained(self) -> Pretrained:
        """The source of the student's shape and tokenizer: its folder, or the first teacher."""
        if self.options.student in (RANDOM, FROM_TEACHER):
            return self.opened_teachers[0]
        return open_pretrained(self.options.student, self.auto_class, self.prepare_tokenizer)

    @cached_property
    def layers(self) -> Layers:
        """The teacher's layers that the student gets: by default half of them, evenly spaced."""
        if self.options.student_layers is not None:
            return parse_layers(self.options.student_layers, "student_layers")
        return max(1, self.opened_teachers[0].config.num_hidden_layers // 2)

    def identity(self, corpus: Corpus) -> dict[str, Any]:
        """As in `BaseRun`, with the teachers: a resumed run must learn from the same ones."""
        found = super().identity(corpus)
        return {**found, "teacher": self.fingerprints} if self.teaches else found

    @cached_property
    def fingerprints(self) -> list[str]:
        """The fingerprints of the teachers."""
        return [fingerprint_model(teacher) for teacher in self.teachers]

    def check(self) -> None:
        """Raise `UserError` for what would fail only later."""
        super().check()  # type: ignore[safe-super]  # of the kind of training
        student = self.options.student
        if student not in (RANDOM, FROM_TEACHER) and self.options.student_layers is not None:
            raise UserError(
                f"student_layers={self.options.student_layers} has no effect with student={student}, whose "
                "layers stay; leave one of them out"
            )
        first = self.pretrained.tokenizer
        for name, teacher in zip(self.options.teacher, self.opened_teachers, strict=True):
            self._check_kind(name, teacher)
            teacher.check_length(self.config.data.max_length)
            whose = f"the teacher {name} and the student"
            check_same_vocabulary((teacher.tokenizer,) * 2, (first, first), whose)
        if self.layers is not None:
            choose_layers(self.layers, self.opened_teachers[0].config.num_hidden_layers, "student_layers")

    def _check_kind(self, name: str, teacher: Pretrained) -> None:
        """Raise `UserError` for a teacher that was saved with another head; pre-training has two."""
        found = next(iter(teacher.config.architectures or ()), None)
        accepted = [self.auto_class]
        if self.auto_class is AutoModelForMaskedLM:
            accepted.append(AutoModelForPreTraining)
        if found is not None and auto_class_of(teacher.config) not in accepted:
            raise UserError(f"teacher={name} holds a {found}; expected a model of {self.auto_class.__name__}")

    @cached_property
    def teachers(self) -> list[PreTrainedModel]:
        """The teachers, with their weights."""
        device, dtype = self.config.training.device, self.options.teacher_dtype
        return [
            load_checkpoint(name, device, dtype, auto_class=self.auto_class)[0]
            for name in self.options.teacher
        ]

    def build_student(self, fields: dict[str, Any]) -> PreTrainedModel:
        """Build the student in float32, with these fields of its configuration.

        The baseline starts from the same weights, except with `student=teacher`: then from new ones.
        """
        seed_everything(self.config)
        if self.options.student not in (RANDOM, FROM_TEACHER):
            model, _ = load_with_head(self.pretrained, self.auto_class, fields)
        else:
            teacher = self.teachers[0]
            (stack,) = stacks(teacher)
            model = student_from_teacher(teacher, **{f"{stack}_layers": self.layers}, **fields).float()
            if self.options.student == RANDOM or not self.teaches:
                model = self.auto_class.from_config(model.config, dtype=torch.float32)
        if self.teaches:
            remedy = "set student_layers to fewer layers, or start from a smaller folder"
            warn_unless_smaller(model, self.teachers[0], remedy)
        if (kernel := self.config.model.attn_implementation) is not None:
            model.set_attn_implementation(kernel)
        return model

    def build_trainer(self, splits: dict[str, Any], tokenizers: Tokenizers, model: PreTrainedModel) -> Any:
        """A trainer with the losses of distillation; without them for the baseline and in evaluation."""
        trainer = super().build_trainer(splits, tokenizers, model)  # type: ignore[safe-super]
        if self.teaches:
            trainer.set_objective(self.objective(trainer))
        return trainer

    # ------------------------------------------------------------------------------------------ the report

    def evaluate(self, trainer: Any, splits: dict[str, Any], tokenizers: Tokenizers) -> dict[str, float]:
        """Evaluate the student, and keep what the report needs."""
        self._trained, self._splits, self._tokenizers = trainer.model, splits, tokenizers
        return super().evaluate(trainer, splits, tokenizers)  # type: ignore[safe-super]

    def report(self) -> None:
        """Train the baseline; compare teachers, student and baseline on the test rows; print the report.

        All processes share the rows, as in an evaluation; the main one writes the report.
        """
        baseline = self._trained_baseline() if self.options.baseline else None
        split = "test" if "test" in self._splits else "validation"
        rows = self._splits.get(split)
        if rows is None:
            return
        folder = self.config.output_dir
        models = [self._candidate(name, "teacher", model, rows) for name, model in self._named_teachers()]
        models.append(self._candidate("student", "student", self._whole_student(), rows, folder))
        if baseline is not None:
            models.append(self._candidate(BASELINE, "baseline", baseline, rows, folder / BASELINE))
        comparison = compare_stacks(
            models,
            rows,
            metric=self.metric_of_report,
            names=self.metric_names,
            data=f"{split} of {name_of_data(read_run_metadata(folder), split)}",
            unit=self.unit,
        )
        if PartialState().is_main_process:
            self.comparison, markdown = comparison, stack_markdown(comparison)
            write_texts(comparison, markdown, folder)
            print(markdown, flush=True)

    def _whole_student(self) -> PreTrainedModel:
        """The trained student; read from its folder if the training has sharded it."""
        args = self.config.training
        if not args.shards_model:
            return self._trained
        return load_checkpoint(self.config.output_dir, args.device, auto_class=self.auto_class)[0]

    def _named_teachers(self) -> list[tuple[str, PreTrainedModel]]:
        several = len(self.options.teacher) > 1
        return [
            (f"teacher {number}" if several else "teacher", model)
            for number, model in enumerate(self.teachers, 1)
        ]

    def _candidate(
        self, name: str, role: str, model: PreTrainedModel, rows: Dataset, folder: Path | None = None
    ) -> StackCandidate:
        """A model of the report, with its scores on the rows."""
        scores = self.scores_of(self._predict(model, rows))
        return StackCandidate(name, role, model, scores, partial(self._predict, model), folder)

    def _predict(self, model: PreTrainedModel, rows: Dataset) -> Any:
        """Run a model on tokenized rows; return the trainer that ran it."""
        if (trainer := self._evaluating.get(model)) is None:
            splits = {"train": rows, "validation": rows}
            trainer = self._plain_run().build_trainer(splits, self._tokenizers, model)
            self._evaluating[model] = trainer
        trainer.predict(rows)
        return trainer

    def _plain_run(self) -> StackDistillation:
        """Return a copy of this run whose trainers use no teacher, shard no model and push nothing."""
        run = copy.copy(self)
        run.teaches, run.config = False, copy.copy(self.config)
        run.config.training = copy.copy(self.config.training)
        run.config.training.push_to_hub = False
        run.config.training.fsdp_size = run.config.training.tensor_parallel_size = 1
        return run

    def _trained_baseline(self) -> PreTrainedModel:
        """The same student, trained without a teacher."""
        config = copy.copy(self.config)
        config.training = training_of_baseline(self.config.training)
        run = type(self)(config)
        run.teaches = False
        # Its options still name the teachers, which give the shape; its record names none.
        config.distillation = copy.copy(config.distillation)
        config.distillation.teacher = []
        train_unless_done(run)
        return load_checkpoint(config.output_dir, config.training.device, auto_class=self.auto_class)[0]

    # ------------------------------------------------------------------------ steps that depend on the model

    def objective(self, trainer: Any) -> StackObjective:
        """The losses of the student."""
        raise NotImplementedError

    unit: str = "rows"  # what is scored
    metric_of_report: str  # the metric that compares the student with its teacher
    metric_names: Mapping[str, str]

    def scores_of(self, trainer: Any) -> dict[str, Score]:
        """The scores of a trainer's latest evaluation, each with those of resampled rows [R]."""
        raise NotImplementedError


# -------------------------------------------------------------------------------------------- language models


class LanguageModelRun(StackDistillation, PretrainingRun):
    """A distillation of a language model."""

    unit = "sequences"
    metric_of_report = "accuracy"
    metric_names = SCORE_NAMES

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """The student."""
        return self.build_student({})

    def objective(self, trainer: Any) -> LanguageModelObjective:
        """The losses on tokens."""
        all_tokens = getattr(self.options, "soft_target_tokens", "masked") == "all"
        return LanguageModelObjective(trainer, self.teachers, self.options, all_tokens=all_tokens)

    def scores_of(self, trainer: Any) -> dict[str, Score]:
        """Perplexity, accuracy and, of a causal model, bits per byte."""
        return scores_with_resamples(trainer)


class MaskedLMDistillation(LanguageModelRun, MaskedLMRun):
    """A distillation of a masked language model, as in DistilBERT."""

    config: MaskedDistillationConfig

    def check(self) -> None:
        """Raise `UserError` for what would fail only later."""
        if self.config.task.next_sentence:
            raise UserError("a distillation does not predict next sentences; leave out next_sentence")
        super().check()


class CausalLMDistillation(LanguageModelRun, CausalLMRun):
    """A distillation of a causal language model."""

    config: CausalDistillationConfig

    def check(self) -> None:
        """Raise `UserError` for what would fail only later."""
        if self.config.task.pack and self.options.relation_weight:
            raise UserError("relation_weight does not separate packed documents; set pack=false")
        super().check()
        if self.options.uses_texts:
            self._check_writing()

    def _check_writing(self) -> None:
        """Raise `UserError` unless the teacher can continue texts."""
        options, data = self.options, self.config.data
        if data.streaming:
            raise UserError(
                f"targets={options.targets} keeps the teacher's texts for every epoch; leave out streaming"
            )
        self.opened_teachers[0].check_length(data.max_length)
        if options.prompt_tokens >= self._max_text_tokens:
            raise UserError(
                f"prompt_tokens={options.prompt_tokens} leaves nothing to write in max_length="
                f"{data.max_length} with two special tokens; set it to {self._max_text_tokens - 1} or less"
            )
        if options.teacher_cache is not None:
            check_writable(Path(options.teacher_cache), "teacher_cache")

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """The student; as in `CausalLMRun`, its `generate` stops at `max_length` by default."""
        model = super().build_model(tokenizers)
        model.generation_config.max_length = self.config.data.max_length
        return model

    @property
    def _max_text_tokens(self) -> int:
        """The maximum tokens of a text in one sequence, without the two special tokens around it."""
        return self.config.data.max_length - 2

    def revise(self, corpus: Corpus, tokenizers: Tokenizers) -> None:
        """Let the teacher continue the training texts, if asked for; its texts are cached."""
        options, training, rows = self.options, self.config.training, corpus.splits["train"]
        if not (self.teaches and options.uses_texts):
            return
        if training.should_save:  # so that a run killed from here on can be resumed
            self.record_settings()
        teacher = LanguageModel(
            self.teachers[0], self.opened_teachers[0].tokenizer, training.max_tokens_per_batch
        )
        draws = (options.generation_temperature, options.generation_top_p, training.seed)
        settings = ContinuationSettings(options.prompt_tokens, self._max_text_tokens, *draws)
        identity = {
            "teacher": self.fingerprints[0],
            "texts": fingerprint_rows(rows, ["text"]),
            **settings.identity(teacher),
        }
        cache = shared_cache(options.teacher_cache, self.config.output_dir, "texts", identity, len(rows))
        with progress_of_rows(len(rows), "The teacher writes") as progress:
            store_texts(cache, teacher, rows["text"], settings, progress=progress.update)
        PartialState().wait_for_everyone()
        texts = read_texts(cache)
        taught, kept = with_teacher_texts(rows, texts, keep_references=options.targets == "both")
        cut = sum(not text.complete for text in texts if text is not None)
        teaching = f"the teacher continues {len(rows) - kept:,} of {len(rows):,} texts"
        self.notes["train"] = f" ({teaching})"
        counts = f"train: {teaching}, and ends {len(rows) - kept - cut:,} of them"
        if kept:
            counts += f"; {kept:,} have no more than {options.prompt_tokens} tokens and stay"
        if kept == len(rows):
            raise UserError(f"{counts}; lower prompt_tokens, or set targets to references")
        PartialState().print(counts, flush=True)
        corpus.splits["train"] = taught
        corpus.reports["train"] = replace(corpus.reports["train"], kept=len(taught))


# ------------------------------------------------------------------------------------------- models of a task


class TaskRun(StackDistillation, FinetuningRun):
    """A distillation of a model that predicts labels."""

    config: TaskDistillationConfig  # type: ignore[assignment]  # it has no adapter

    @property
    def auto_class(self) -> Any:
        """The Auto class of the task."""
        return TASKS[self.config.data.task].auto_class

    @property
    def prepare_tokenizer(self) -> Any:
        """The function that makes a decoder's tokenizer end each text to classify; None for tagging."""
        return None if self.config.data.task == "tagging" else prepare_for_classification

    @property
    def metric_of_report(self) -> str:  # type: ignore[override]
        """The first metric of the task."""
        return next(iter(self.task.metric.names))

    @property
    def metric_names(self) -> Mapping[str, str]:  # type: ignore[override]
        """The display names of the task's metrics."""
        return self.task.metric.names

    def check(self) -> None:
        """Raise `UserError` for what would fail only later."""
        data, unlabelled = self.config.data, self.options.unlabelled_file
        if weight := self.config.training.lm_loss_weight:
            raise UserError(f"lm_loss_weight={weight} has no meaning in a distillation; leave it out")
        if unlabelled and (data.task == "tagging" or data.text_pair_field is not None):
            raise UserError(
                f"unlabelled_file={unlabelled[0]} holds single texts, which task={data.task} does not take"
                if data.task == "tagging"
                else "unlabelled_file holds single texts, and text_pair_field asks for two; leave one out"
            )
        super().check()
        if data.text_pair_field is not None:
            self._check_token_types()

    def _check_token_types(self) -> None:
        """Raise `UserError` if a teacher needs token types that the student's tokenizer does not give."""
        if TOKEN_TYPES in self.pretrained.tokenizer.model_input_names:
            return
        for name, teacher in zip(self.options.teacher, self.opened_teachers, strict=True):
            if TOKEN_TYPES in teacher.tokenizer.model_input_names:
                raise UserError(
                    f"the teacher {name} tells two texts apart by {TOKEN_TYPES}, which the tokenizer of "
                    f"student={self.options.student} does not give; give a student that has them, or make it "
                    f"of the teacher (student={FROM_TEACHER})"
                )

    @cached_property
    def unlabelled(self) -> Corpus | None:
        """Texts without labels."""
        if not (self.options.unlabelled_file and self.teaches):
            return None
        return load_unlabelled(self.options.unlabelled_file, self.config.data.text_field)

    def identity(self, corpus: Corpus) -> dict[str, Any]:
        """As in the base class, with the unlabelled texts."""
        found = super().identity(corpus)
        return {**found, "unlabelled": self.unlabelled.identity()} if self.unlabelled else found

    def check_given_weights(self) -> None:
        """Check nothing: a student starts from its own weights or the teacher's, and trains them all."""

    def load(self) -> Corpus:
        """Load the labelled texts; raise `UserError` unless the teachers have the same labels and numbers."""
        corpus = super().load()
        for name, teacher in zip(self.options.teacher, self.opened_teachers, strict=True):
            known = names_of(teacher.config)
            if self.config.data.task == "regression" and teacher.config.num_labels != 1:
                raise UserError(
                    f"teacher={name} has {teacher.config.num_labels} outputs, and task=regression needs one; "
                    "give a teacher that was trained on numbers"
                )
            if self.task.names and known != self.task.names:
                raise UserError(
                    f"teacher={name} tells the labels {listing(known)} apart, and the student "
                    f"{listing(self.task.names)}, in this order; give a teacher or a student that was "
                    "trained on the labels of the other"
                )
        return corpus

    def tokenize(self, corpus: Corpus, tokenizers: Tokenizers) -> dict[str, Dataset]:
        """Rows as token ids; the training rows include the unlabelled texts."""
        splits = super().tokenize(corpus, tokenizers)
        if self.unlabelled:
            labelled = splits["train"]
            rows = self._unlabelled(self.unlabelled, labelled, tokenizers)
            splits["train"] = concatenate_datasets([labelled, rows])
        return splits

    def describe_used_rows(self, split: str, rows: Dataset, kept: int) -> str:
        """As in `FinetuningRun`, with the number of unlabelled texts."""
        used = super().describe_used_rows(split, rows, kept)
        unlabelled = len(rows) - kept if split == "train" and self.unlabelled else 0
        return f"{used}, and {unlabelled:,} texts without labels" if unlabelled else used

    def _unlabelled(self, corpus: Corpus, labelled: Dataset, tokenizers: Tokenizers) -> Dataset:
        """The unlabelled texts as rows with the columns of the labelled ones."""
        data, texts, report = self.config.data, corpus.split("train"), corpus.reports["train"]
        several = isinstance(self.task, MultiLabel)
        nothing: Any = [float(IGNORED_LABEL)] * len(self.task.names) if several else IGNORED_LABEL
        rows = texts.add_column("label", [nothing] * len(texts))
        rows = tokenize_labelled(rows, tokenizers[0], lambda row: nothing, data.max_length, report)
        PartialState().print(f"unlabelled: {report}", flush=True)
        kept = [name for name in labelled.column_names if name in rows.column_names and name != "label"]
        return rows.select_columns(kept).cast(labelled.select_columns(kept).features)

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """The student, with a head for the task."""
        return self.build_student(self.head_fields())

    def objective(self, trainer: Any) -> TaskObjective:
        """The losses on rows or words."""
        return TaskObjective(trainer, self.teachers, self.options)

    def scores_of(self, trainer: Any) -> dict[str, Score]:
        """The metrics of the task."""
        label_scores = trainer.compute_metrics
        resampled = label_scores.resampled()
        return {name: (score, resampled[name]) for name, score in label_scores.scores.items()}


def distill_stack(config: Any) -> StackComparison | None:
    """Train a student of one stack in `output_dir`, and write its report (see `distill`)."""
    kinds: dict[type, Any] = {
        MaskedDistillationConfig: MaskedLMDistillation,
        CausalDistillationConfig: CausalLMDistillation,
        TaskDistillationConfig: TaskRun,
    }
    run = kinds[type(config)](config)
    run.run()
    return run.comparison
