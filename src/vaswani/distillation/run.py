"""A distillation run: the teacher's outputs, the student, the baseline without a teacher, and the report."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset, concatenate_datasets
from transformers import (
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from vaswani.data.collation import Seq2SeqCollator
from vaswani.data.pair_tokens import check_encodes, token_lengths
from vaswani.data.sources.corpus import Corpus, load_unlabelled
from vaswani.data.sources.corpus_spec import SPLITS, TEXT_FEATURES
from vaswani.data.sources.row_report import RowReport
from vaswani.data.text_codec import Side, for_languages, has_one_vocabulary
from vaswani.data.tokenization import load_tokenizers
from vaswani.distillation.arguments import FROM_TEACHER, RANDOM
from vaswani.distillation.baseline import BASELINE, train_unless_done, training_of_baseline
from vaswani.distillation.comparison import Candidate, Comparison, compare, sentences_to_decode
from vaswani.distillation.config import DistillationConfig
from vaswani.distillation.fingerprints import fingerprint_rows
from vaswani.distillation.output_cache import OutputCache, progress_of_rows, shared_cache
from vaswani.distillation.report import as_markdown, write_report
from vaswani.distillation.student import student_from_teacher, warn_unless_smaller
from vaswani.distillation.teacher import Teacher, check_same_vocabulary, check_teachers, load_teacher
from vaswani.distillation.teacher_logits import (
    TeacherLogits,
    TeacherLogitsCollator,
    store_logits,
)
from vaswani.distillation.teacher_targets import (
    decode_targets,
    read_targets,
    search_identity,
    with_teacher_targets,
)
from vaswani.distillation.trainer import DistillationTrainer, check_no_consistency, teacher_logits
from vaswani.errors import UserError
from vaswani.evaluation.text_metrics import METRICS_OF_TASK
from vaswani.hub.card import name_of_data
from vaswani.hub.checkpoint import load_checkpoint
from vaswani.hub.run_metadata import read_config, read_run_metadata
from vaswani.inference.position_limits import position_limit
from vaswani.inference.translate.translation import Translator
from vaswani.training.config.arguments import ModelArguments, RunConfig
from vaswani.training.config.options import default_of
from vaswani.training.runs.base import Tokenizers
from vaswani.training.runs.models import new_model
from vaswani.training.runs.source_tags import check_has_tags
from vaswani.training.runs.translation import TrainingRun, model_config, use_start_token_of_tokenizer
from vaswani.training.trainer.checkpoints import check_writable
from vaswani.training.trainer.seq2seq import Trainer
from vaswani.unwritten_padding import unwritten_padding

logger = logging.getLogger(__name__)

DROPOUTS = ("dropout", "attention_dropout", "activation_dropout", "word_dropout")
# With student=teacher, only these fields and the dropouts that the teacher has may differ from the teacher's.
OWN_FIELDS = ("encoder_layers", "decoder_layers", "attn_implementation")


def distill(config: DistillationConfig) -> Comparison | None:
    """Train a student and, unless `baseline=false`, the same student without a teacher; write a report.

    A run that was killed at any point gives the same result when resumed (`resume_from_checkpoint=true`).

    Returns:
        The comparison of the report; None without a test or validation split, and in other processes than the
        main one.

    Raises:
        UserError: the configuration, the teacher or the corpus is unusable.
    """
    if not isinstance(config, DistillationConfig):
        from vaswani.distillation.stack_run import distill_stack

        return distill_stack(config)
    run = DistillationRun(config)
    run.run()
    return run.comparison


class DistillationRun(TrainingRun):
    """A training whose targets, losses and initial weights can come from a teacher."""

    config: DistillationConfig
    trainer_class = DistillationTrainer

    def __init__(self, config: DistillationConfig):
        super().__init__(config)
        self.options = config.distillation
        self.test_rows: Dataset | None = None  # rows of the corpus for the report
        self.test_split = "test"  # the split of `test_rows`
        self.comparison: Comparison | None = None

    def check(self) -> None:
        """Raise `UserError` for what would fail only later."""
        if self.config.data.tokenizer is not None and self.options.vocabulary != "own":
            raise UserError(
                f"tokenizer={self.config.data.tokenizer} needs vocabulary=own; else the student has the "
                "teacher's tokenizers"
            )
        check_no_consistency(self.config.training)
        super().check()
        retention_metric(self.config)
        check_teachers(self.config)
        if self.options.teacher_cache is not None:
            check_writable(Path(self.options.teacher_cache), "teacher_cache")
        if self.config.data.directions and self.options.languages:
            name = next(iter(self.options.languages))
            raise UserError(
                f"directions and {name} were both given, and directions writes tags; leave one out"
            )
        if self.config.data.streaming:
            raise UserError("a distillation reads its corpus more than once; leave out streaming")
        if self.config.data.bpe_dropout and self.options.teacher_top_k:
            raise UserError(
                "bpe_dropout splits words anew in every epoch, which teacher_top_k cannot keep; drop one"
            )

    @property
    def expects_one_vocabulary(self) -> bool:
        """True unless the student gets two new vocabularies; the teacher's are not known yet."""
        return self.options.vocabulary != "own" or super().expects_one_vocabulary

    @cached_property
    def teacher(self) -> Teacher:
        """The teacher, loaded (or trained) when it is first needed."""
        return load_teacher(self.config)

    @cached_property
    def given_student(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
        """The model and the tokenizers in the student's folder."""
        return load_checkpoint(self.options.student, self.config.training.device, torch.float32)

    # -------------------------------------------------------------------------------------------- the corpus

    @cached_property
    def unlabelled(self) -> Corpus | None:
        """The sources without targets."""
        if not self.options.unlabelled_file:
            return None
        return load_unlabelled(self.options.unlabelled_file, self.config.data.source_field)

    def read(self, splits: Sequence[str] = SPLITS) -> Corpus:
        """As in `BaseRun`; beside sources without targets, there may be no training split."""
        corpus = super().read(splits)
        if self.unlabelled is not None and "train" not in corpus.splits:
            self._check_without_references()
            corpus.splits["train"], corpus.reports["train"] = _without_targets([]), RowReport()
        return corpus

    def _check_without_references(self) -> None:
        """Raise `UserError` if the run needs references to train on."""
        missing = "needs training rows with targets, and the corpus has none beside unlabelled_file"
        if self.options.baseline:
            raise UserError(f"baseline=true {missing}; give a train_file, or set baseline to false")
        if self.options.vocabulary == "own":
            raise UserError(f"vocabulary=own {missing}; give a train_file, or set vocabulary to teacher")

    # --------------------------------------------------------------------------- the student before training

    def build_tokenizers(self, corpus: Corpus) -> Tokenizers:
        """The tokenizers of the teacher or of the student's folder, or newly trained ones."""
        if self.options.vocabulary == "own":
            return super().build_tokenizers(corpus)
        if self.options.student in (RANDOM, FROM_TEACHER):
            return self.teacher.tokenizers
        _, source, target = self.given_student
        if self.options.uses_distributions or self.options.uses_states:
            source, target = for_languages(source, target, **self.options.languages)
            whose = f"the teacher and the student {self.options.student}"
            check_same_vocabulary(self.teacher.tokenizers, (source, target), whose)
        return source, target

    def identity(self, corpus: Corpus) -> dict[str, Any]:
        """As in `BaseRun`, with the teacher: a resumed run must learn from the same one."""
        found = {**super().identity(corpus), "teacher": self.teacher.fingerprint}
        return {**found, "unlabelled": self.unlabelled.identity()} if self.unlabelled else found

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """The student before training; its tokenizer decides the decoder's start token."""
        student = self._build_student(tokenizers)
        warn_unless_smaller(
            student,
            self.teacher.model,
            "lower d_model, encoder_layers, decoder_layers or the ffn_dims, or start from a smaller folder",
        )
        use_start_token_of_tokenizer(student, tokenizers[1])
        return student

    def _build_student(self, tokenizers: Tokenizers) -> PreTrainedModel:
        options, model = self.options, self.config.model
        if options.vocabulary == "own":
            return super().build_model(tokenizers)
        if options.student == RANDOM:
            return self.new_model(_shape_for(model, self.teacher))
        if options.student == FROM_TEACHER:
            _check_teachers_fields(model, self.teacher.model.config)
            teacher = self.teacher.model.config
            dropouts = {name: getattr(model, name) for name in DROPOUTS if hasattr(teacher, name)}
            student = student_from_teacher(
                self.teacher.model, model.encoder_layers, model.decoder_layers, **dropouts
            )
            return student.float()
        student = self.given_student[0]
        _print_ignored_fields(model, student.config, options.student)
        return student

    # ---------------------------------------------------------------------------------- the teacher's outputs

    def revise(self, corpus: Corpus, tokenizers: Tokenizers) -> None:
        """Keep the test rows for the report; give the training rows the teacher's targets if asked for."""
        check_encodes(tokenizers[0], "source", self.config.data.max_source_length)
        check_encodes(tokenizers[1], "target", self.config.data.max_target_length)
        if self.config.data.directions:
            check_has_tags(self.teacher.tokenizers[0], self.config.data.tags)
            check_has_tags(tokenizers[0], self.config.data.tags)
        self.test_split = "test" if "test" in corpus.splits else "validation"
        if self.test_split in corpus.splits:
            self.test_rows = self.limit_evaluated(self.test_split, corpus.splits[self.test_split])
        if self.config.training.should_save:  # so that a run killed from here on can be resumed
            self.record_settings()
        if self.options.targets != "references":
            rows = self._rows_with_teacher_targets(self._rows_to_translate(corpus.splits["train"]))
            corpus.splits["train"] = rows
            corpus.reports["train"] = replace(corpus.reports["train"], kept=len(rows))

    def _rows_to_translate(self, rows: Dataset) -> Dataset:
        """The training rows and, after them, the sources without targets, which are empty."""
        if self.unlabelled is None:
            return rows
        _say(f"unlabelled: {self.unlabelled.reports['train']}")
        sources = _without_targets(self.unlabelled.split("train")["text"][:])
        return concatenate_datasets([rows.select_columns(list(TEXT_FEATURES)), sources])

    def _rows_with_teacher_targets(self, rows: Dataset) -> Dataset:
        """The training rows with the teacher's translations, which are cached."""
        translator = self.teachers_translator(self.options.teacher_num_beams)
        sources = fingerprint_rows(rows, ["source"])
        cache = self._open_cache("targets", rows, sources=sources, **search_identity(translator))
        with progress_of_rows(len(rows), "The teacher translates") as progress:
            decode_targets(cache, translator, rows["source"], progress=progress.update)
        PartialState().wait_for_everyone()
        both = self.options.targets == "both"
        targets = read_targets(cache)
        taught, lacking = with_teacher_targets(rows, targets, keep_references=both)
        teaching = f"the teacher translates {len(rows) - lacking:,} of {len(rows):,} sources"
        self.notes["train"] = f" ({teaching})"
        counts = f"train: {len(rows) - lacking:,} of {len(rows):,} rows have the teacher's translation"
        limit = f"max_target_length={self.config.data.max_target_length}"
        if lacking:
            problem = next((f", or missing ({one.problem})" for one in targets if one.problem), "")
            counts += f"; for {lacking:,} it is empty, or cut off at {limit}{problem}"
        learns_more = self.options.uses_distributions or self.options.uses_states
        if not len(taught) or (lacking == len(rows) and not learns_more):
            raise UserError(
                f"{counts}; raise max_target_length, give another teacher, or set targets to references"
            )
        _say(counts)
        if 2 * lacking > len(rows):
            logger.warning(
                "%s; the others keep their references, if they have any. Raise %s, or give another teacher.",
                *(teaching, limit),
            )
        return taught

    def build_trainer(
        self, splits: dict[str, Any], tokenizers: Tokenizers, model: PreTrainedModel, **parts: Any
    ) -> Trainer:
        """A trainer with the objectives and, if they need it, the teacher or its stored distributions."""
        options = self.options
        parts["objectives"] = options
        asks_teacher = options.uses_distributions or options.uses_states
        readers = {"student": model, **({"teacher": self.teacher.model} if asks_teacher else {})}
        _check_positions(splits["train"], readers)
        if options.uses_distributions and options.teacher_top_k is not None:
            collator = Seq2SeqCollator(model.config.pad_token_id, model.config.decoder_start_token_id)
            logits = self._stored_teacher_logits(splits["train"], collator, options.teacher_top_k)
            parts["train_data_collator"] = TeacherLogitsCollator(collator, logits)
            numbered = splits["train"].add_column("row", np.arange(len(splits["train"])))
            splits = {**splits, "train": numbered}
        elif asks_teacher:
            parts["teacher"] = self.teacher.model
        return super().build_trainer(splits, tokenizers, model, **parts)

    def _stored_teacher_logits(self, rows: Dataset, collator: Seq2SeqCollator, top_k: int) -> TeacherLogits:
        """The teacher's distributions for the training rows, which are cached."""
        conditions: dict[str, Any] = {
            "top_k": top_k,
            "temperature": self.options.temperature,
            "max_tokens_per_batch": self.config.training.max_tokens_per_batch,
        }
        data = fingerprint_rows(rows, ["input_ids", "labels"])
        padding = unwritten_padding(self.teacher.model)
        left_out = {} if padding is None else {"left_out": [padding]}
        cache = self._open_cache("logits", rows, data=data, **conditions, **left_out)
        teach = partial(teacher_logits, self.teacher.model)
        with progress_of_rows(len(rows), "The teacher rates tokens") as progress:
            store_logits(cache, teach, rows, collator, progress=progress.update, **conditions)
        PartialState().wait_for_everyone()
        logits = TeacherLogits(cache)
        _say(f"the teacher's distributions: {logits.bytes_per_token:.1f} bytes per token in {cache.folder}")
        return logits

    def _open_cache(self, kind: str, rows: Dataset, **identity: Any) -> OutputCache:
        """The cache of the teacher's outputs of a kind for the training rows, shared among the processes."""
        identity = {"teacher": self.teacher.fingerprint, **identity}
        return shared_cache(self.options.teacher_cache, self.config.output_dir, kind, identity, len(rows))

    def teachers_translator(self, num_beams: int) -> Translator:
        """A translator of the teacher with the run's search options."""
        return Translator(
            self.teacher.model, *self.teacher.tokenizers, num_beams=num_beams, **_search(self.config)
        )

    # ------------------------------------------------------------------------------------------ the report

    def report(self) -> None:
        """Train the baseline; compare teacher, student and baseline on the test rows; print the report."""
        config = self.config
        if self.options.baseline:
            train_unless_done(BaselineRun(config))
        if self.test_rows is None or not PartialState().is_main_process:
            return
        num_beams = config.training.generation_num_beams or 1

        def trained(name: str, folder: Path) -> Candidate:
            search = {"num_beams": num_beams, **_search(config)}
            translator = Translator.from_pretrained(folder, device=config.training.device, **search)
            return Candidate(name, translator, folder)

        is_one = len(self.options.teacher) == 1
        saved_in = Path(str(self.teacher.model.name_or_path)) if is_one else None
        named = "teacher" if is_one else f"{len(self.options.teacher)} teachers"
        teacher = Candidate(named, self.teachers_translator(num_beams), saved_in)
        student = trained("student", config.output_dir)
        baseline = trained(BASELINE, config.output_dir / BASELINE) if self.options.baseline else None
        name = name_of_data(read_run_metadata(config.output_dir), self.test_split)
        total = sentences_to_decode(3 if baseline else 2, len(self.test_rows))
        with progress_of_rows(total, "Comparing") as progress:
            self.comparison = compare(
                teacher,
                [student],
                self.test_rows,
                data=f"{self.test_split} of {name}",
                baseline=baseline,
                metric=retention_metric(config),
                progress=progress.update,
            )
        write_report(self.comparison, config.output_dir)
        print(as_markdown(self.comparison), flush=True)


class BaselineRun(TrainingRun):
    """A training of the same student on the references, without a teacher, for comparison.

    It starts from the same folder as the student or, with `student=random` or `student=teacher`, from new
    weights.
    """

    def __init__(self, config: DistillationConfig):
        training = training_of_baseline(config.training)
        super().__init__(RunConfig(config.model, config.data, training, config.card))
        self.student, self.begins_with = config.output_dir, config.distillation.student

    @property
    def expects_one_vocabulary(self) -> bool:
        """Always true: the student's configuration decides what the embeddings share."""
        return True

    def build_tokenizers(self, corpus: Corpus) -> Tokenizers:
        """The student's tokenizers."""
        return load_tokenizers(self.student)

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """The student before training: from its folder, or with new weights in its shape."""
        if self.begins_with in (RANDOM, FROM_TEACHER):
            return new_model(self.config, AutoModelForSeq2SeqLM, read_config(Path(self.student)))
        model = load_checkpoint(self.begins_with, self.config.training.device, torch.float32)[0]
        use_start_token_of_tokenizer(model, tokenizers[1])
        return model


def _check_positions(rows: Dataset, models: dict[str, PreTrainedModel]) -> None:
    """Raise `UserError` for a row that is longer than the learned positions of a model."""
    sides: tuple[Side, ...] = ("source", "target")
    for side, lengths in zip(sides, token_lengths(rows), strict=True):
        longest = lengths.max()
        for name, model in models.items():
            limit = position_limit(model, side)
            if limit is not None and longest > limit:
                raise UserError(
                    f"the {name} has positions for {limit} {side} tokens, and a row of train has {longest}; "
                    f"set max_{side}_length to {limit} or less"
                )


def _check_teachers_fields(model: ModelArguments, teacher: PreTrainedConfig) -> None:
    """Raise `UserError` for a given field that differs from the teacher's, whose layers are copied."""
    for name, of_teacher in _differing_fields(model, teacher).items():
        if name not in OWN_FIELDS and not (name in DROPOUTS and hasattr(teacher, name)):
            raise UserError(
                f"student=teacher copies layers, whose {name} is {of_teacher}, not {getattr(model, name)}; "
                f"leave {name} out, or set student=random"
            )


def _print_ignored_fields(model: ModelArguments, student: PreTrainedConfig, folder: str) -> None:
    """Print the given fields that are ignored because a student from a folder keeps its own."""
    if own := _differing_fields(model, student):
        kept = ", ".join(f"{name}={value} (not {getattr(model, name)})" for name, value in own.items())
        _say(f"student={folder} keeps its own fields: {kept}")


def _differing_fields(model: ModelArguments, shape: PreTrainedConfig) -> dict[str, Any]:
    """Return the fields of a shape that differ from given ones: the shape's values, None if it lacks one."""
    found = {field: getattr(shape, field.name, None) for field in fields(ModelArguments)}
    return {
        field.name: value
        for field, value in found.items()
        if getattr(model, field.name) not in (default_of(field), value)
    }


def _shape_for(model: ModelArguments, teacher: Teacher) -> PreTrainedConfig:
    """The configuration of a new student with the teacher's vocabularies and special tokens."""
    matrices: tuple[Any, ...] = (teacher.model.get_input_embeddings(), teacher.model.get_output_embeddings())
    source, target = (matrix.weight.shape[0] for matrix in matrices)
    names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    special_tokens: dict[str, Any] = {name: getattr(teacher.model.config, name, None) for name in names}
    one_vocabulary = has_one_vocabulary(*teacher.tokenizers)
    return model_config(model, source, target, one_vocabulary=one_vocabulary, **special_tokens)


def _without_targets(sources: list[str]) -> Dataset:
    """Rows with these sources and empty targets."""
    return Dataset.from_dict({"source": sources, "target": [""] * len(sources)}, features=TEXT_FEATURES)


def retention_metric(config: DistillationConfig) -> str:
    """The metric of the report; raise `UserError` if it does not belong to the task."""
    task, metric = config.data.task, config.distillation.retention_metric
    known = list(METRICS_OF_TASK[task])
    if metric not in (None, *known):
        raise UserError(
            f"retention_metric={metric} is not a metric of task={task}; choose one of {', '.join(known)}"
        )
    return metric or known[0]


def _search(config: DistillationConfig) -> dict[str, Any]:
    """The search options of all translations, besides the number of beams."""
    return {
        "length_penalty": config.training.generation_length_penalty,
        "max_source_length": config.data.max_source_length if config.data.truncate else None,
        "max_length": config.data.max_target_length,
        "max_tokens_per_batch": config.training.max_tokens_per_batch,
    }


def _say(message: str) -> None:
    PartialState().print(message, flush=True)
