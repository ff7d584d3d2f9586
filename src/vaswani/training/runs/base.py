"""The steps of every training, from a resolved configuration to a saved model, its scores and its card."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import datasets
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from datasets import Dataset, IterableDataset
from transformers import EarlyStoppingCallback, PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.evenly_spread import limit_rows
from vaswani.data.sources.corpus import Corpus, load_corpus
from vaswani.data.sources.corpus_spec import SPLITS
from vaswani.data.sources.row_report import RowReport
from vaswani.data.text_codec import Tokenizers
from vaswani.data.tokenization import load_tokenizers, save_tokenizers
from vaswani.data.vocabularies import trained_tokenizer
from vaswani.errors import RunError, UserError, listing
from vaswani.files.run_files import CORPUS_FILE, EVALUATION_FILE, SETTINGS_FILE
from vaswani.hub.card import handwritten_card, write_card
from vaswani.hub.push import push_folder
from vaswani.hub.run_metadata import read_config, read_run_metadata
from vaswani.insight.curves import save_curves
from vaswani.training.config.options import BaseConfig
from vaswani.training.launch.processes import LongWaits, check_processes, check_sizes
from vaswani.training.launch.sigterm import deferred_sigterm, ends_on_sigterm
from vaswani.training.runs.checks import check_metric, check_stream, dry_run
from vaswani.training.runs.failures import explain_out_of_memory
from vaswani.training.runs.folder_lock import only_run_in
from vaswani.training.trainer.base import BaseTrainer
from vaswani.training.trainer.checkpoints import (
    check_same_data,
    check_writable,
    checkpoint_of,
    checkpoint_to_resume,
    what_was_saved,
)
from vaswani.training.trainer.resuming import check_resumable, manifest_of


class BaseRun(ABC):
    """Base class of training runs; each subclass implements the steps that differ.

    Writes `training_config.yaml` (the resolved configuration), `corpus.json` (where the data came from), the
    tokenizers, checkpoints, the final model, its scores and its card.
    """

    def __init__(self, config: Any):
        self.config = config
        self.checkpoint: Path | None = None  # the checkpoint to resume from
        self.history: list[dict[str, Any]] = []  # settings that changed when the run was resumed
        self.notes: dict[str, str] = {}  # by split, what to tell of its rows after their number

    def run(self) -> dict[str, float]:
        """Train, save, evaluate, write the card and, with `push_to_hub`, push.

        Returns:
            The scores on the test split, or else on the validation split; empty without either.

        Raises:
            UserError: for a configuration or a corpus that cannot work.
        """
        with owned_output(self.config):
            scores = self.train_and_evaluate()
            self.report()
            publish(self.config)
        return scores

    def train_and_evaluate(self) -> dict[str, float]:
        """As `run`, without the report, the card and the push."""
        folder = self.config.output_dir
        with ends_on_sigterm(lambda: f"before training began; {what_was_saved(folder)}"):
            splits, tokenizers, trainer = self._prepare()
        with ends_on_sigterm(lambda: _how_to_evaluate(trainer, folder)):
            with deferred_sigterm():
                self._train(trainer)
            if trainer.is_world_process_zero():
                print(f"peak memory: {peak_memory(self.config.training.device) / 1e9:.2f} GB", flush=True)
                with suppress(UserError):  # without matplotlib, or when a short run has logged nothing
                    save_curves(folder)
            return self.evaluate(trainer, splits, tokenizers)

    def _prepare(self) -> tuple[dict[str, Any], Tokenizers, BaseTrainer]:
        """All steps before training; returns the tokenized splits, the tokenizers and the trainer."""
        self._check_settings()
        self.waits = LongWaits()
        if not PartialState().is_local_main_process:
            datasets.disable_progress_bars()
        with self.waits.main_process_first():
            corpus = self.load()
        if not self.config.training.evaluate_test:
            corpus.splits.pop("test", None)
        if PartialState().is_main_process:
            corpus.count_rows_in_training()
        identity = self.identity(corpus)
        tokenizers = self._saved_or_new_tokenizers(corpus, identity)
        with explain_out_of_memory():
            model = self.build_model(tokenizers)
        settings = manifest_of(self.config)
        if self.checkpoint:
            _check_same_model(self.config.model, model, self.checkpoint)
        self.revise(corpus, tokenizers)
        with self.waits.main_process_first():
            splits = self._with_fewer_test_rows(self.tokenize(corpus, tokenizers))
        trainer = self.build_trainer(splits, tokenizers, model)
        trainer.identity, trainer.settings, trainer.history = identity, settings, self.history
        trainer.stream_report = corpus.reports["train"]
        self._announce_and_record(corpus, splits, tokenizers, trainer)
        return splits, tokenizers, trainer

    def _check_settings(self) -> None:
        """Raise `UserError` for settings that cannot work, before the corpus is read; find the checkpoint."""
        config, training = self.config, self.config.training
        check_processes()
        check_sizes(training.fsdp_size, training.tensor_parallel_size, training.world_size)
        check_stream(config)
        self.check()
        check_metric(training.metric_for_best_model, ["loss", *self.metrics])
        dry_run(training)
        self.checkpoint = checkpoint_to_resume(config.output_dir, training.resume_from_checkpoint)
        handwritten_card(config.output_dir)  # fails now rather than at the end, if the card is unreadable
        if self.checkpoint:
            self.history = check_resumable(self.checkpoint, config).record

    def _saved_or_new_tokenizers(self, corpus: Corpus, identity: dict[str, Any]) -> Tokenizers:
        """The tokenizers of the checkpoint, which must be of the same data, or those of a new run."""
        if not self.checkpoint:
            return self.build_tokenizers(corpus)
        check_same_data(self.checkpoint, identity)
        return load_tokenizers(self.checkpoint)

    def _announce_and_record(
        self, corpus: Corpus, splits: dict[str, Any], tokenizers: Tokenizers, trainer: BaseTrainer
    ) -> None:
        """Print what is trained on what, and save where the rows and the tokenizers come from."""
        counts = self.row_counts(corpus, splits)
        if trainer.is_world_process_zero():
            _announce(counts, trainer, corpus.trained_splits, self.labels())
        if self.config.training.should_save:
            provenance = {"rows": counts, **corpus.fingerprint, **self.origin(splits, tokenizers)}
            self._record(provenance, tokenizers)

    def _with_fewer_test_rows(self, splits: dict[str, Any]) -> dict[str, Any]:
        """Return the splits with at most `max_test_rows` test rows."""
        if "test" not in splits:
            return splits
        return {**splits, "test": limit_rows(splits["test"], self.config.training.max_test_rows)}

    def _train(self, trainer: BaseTrainer) -> None:
        """Train, and save the final model."""
        trainer.train(resume_from_checkpoint=str(self.checkpoint) if self.checkpoint else None)
        trainer.stop_on_signal.raise_if_stopped()
        trainer.finite_updates.raise_if_nothing_was_learned()
        trainer.save_model(_internal_call=True)  # not pushed yet, without scores
        trainer.save_state()
        trainer.accelerator.wait_for_everyone()  # now all processes see the saved model

    # --------------------------------------------------------------- steps that each kind of run implements

    @abstractmethod
    def check(self) -> None:
        """Raise `UserError` for what would fail only after the corpus is read, or in an evaluation."""

    @property
    @abstractmethod
    def metrics(self) -> Sequence[str]:
        """The metrics that an evaluation computes besides the loss, and by which models can be ranked."""

    def read(self, splits: Sequence[str] = SPLITS) -> Corpus:
        """Read the corpus with those of the splits that exist."""
        return load_corpus(self.config.data.corpus, splits)

    def load(self) -> Corpus:
        """Read the corpus with all its splits; raise `UserError` if a split is missing that the run needs."""
        corpus = self.read()
        self.check_splits(corpus)
        return corpus

    def check_splits(self, corpus: Corpus) -> None:
        """Raise `UserError` without rows to train on or, if training evaluates, without validation rows."""
        corpus.split("train")
        if self.config.training.eval_strategy != "no" and "validation" not in corpus.splits:
            raise UserError(
                "evaluation needs a validation split; give a validation_file or set eval_strategy to no"
            )

    def identity(self, corpus: Corpus) -> dict[str, Any]:
        """Identify the rows, and all else that the run learns from; a resumed run must find the same."""
        return corpus.identity()

    @abstractmethod
    def build_tokenizers(self, corpus: Corpus) -> Tokenizers:
        """The tokenizers of a new run."""

    @abstractmethod
    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """The model before training."""

    def revise(self, corpus: Corpus, tokenizers: Tokenizers) -> None:  # noqa: B027 - optional
        """Change the training rows before they are tokenized; all processes call this together."""

    @abstractmethod
    def tokenize(self, corpus: Corpus, tokenizers: Tokenizers) -> dict[str, Any]:
        """The rows of each split in the form that the trainer expects."""

    @abstractmethod
    def build_trainer(
        self, splits: dict[str, Any], tokenizers: Tokenizers, model: PreTrainedModel
    ) -> BaseTrainer:
        """A trainer for the tokenized splits `train` and, if there is one, `validation`."""

    @abstractmethod
    def evaluate(self, trainer: Any, splits: dict[str, Any], tokenizers: Tokenizers) -> dict[str, float]:
        """Evaluate the final model on the test split, or else on the validation split; empty without both."""

    def report(self) -> None:  # noqa: B027 - most kinds of runs have nothing to add
        """Extend the report of a finished run, before its card is written."""

    # --------------------------------------------------------------------- helpers for several kinds of runs

    def new_tokenizer(
        self, corpus: Corpus, columns: Sequence[str], **options: Any
    ) -> PreTrainedTokenizerBase:
        """A tokenizer that the main process trains on columns of the training split, for all processes."""
        trained = None
        if PartialState().is_main_process:
            data = self.config.data
            options |= {"kind": data.tokenizer_kind, "model_max_length": self.positions}
            rows = self.vocabulary_rows(corpus)
            trained = trained_tokenizer(rows, columns, vocab_size=data.vocab_size, **options)
        self.waits.wait()
        return broadcast_object_list([trained])[0]

    def vocabulary_rows(self, corpus: Corpus) -> Dataset | IterableDataset:
        """The training rows from whose texts a vocabulary is learned."""
        rows, first = corpus.split("train"), self.config.data.tokenizer_rows
        return rows if first is None else rows.take(first)

    @property
    def positions(self) -> int | None:
        """The number of positions of the model for a text or source; None if there is no limit."""
        model = self.config.model
        return model.max_position_embeddings if model.position_embedding == "learned" else None

    def check_positions(self, name: str, length: int) -> None:
        """Raise `UserError` if a length, given by the option `name`, exceeds the positions of the model."""
        if self.positions is not None and length > self.positions:
            raise UserError(
                f"{name}={length} is longer than max_position_embeddings={self.positions}; lower the one or "
                "raise the other"
            )

    def check_budget(self, split: str, longest: int, remedy: str = "lower max_length") -> None:
        """Raise `UserError` if the longest row of a split does not fit into a batch.

        The message names `remedy` as an alternative to larger batches.
        """
        budget = self.config.training.max_tokens_per_batch
        if longest > budget:
            raise UserError(
                f"max_tokens_per_batch={budget} is too small: {split} has a row of {longest} tokens; raise "
                f"it, or {remedy}"
            )

    def trainer_options(self, splits: dict[str, Any], model: PreTrainedModel) -> dict[str, Any]:
        """The arguments that every trainer gets."""
        patience = self.config.training.early_stopping_patience
        return {
            "model": model,
            "args": self.config.training,
            "train_dataset": splits["train"],
            "eval_dataset": splits.get("validation"),
            "callbacks": [] if patience is None else [EarlyStoppingCallback(patience)],
        }

    def row_counts(self, corpus: Corpus, splits: dict[str, Any]) -> dict[str, str]:
        """Describe how many rows of each split are kept and used."""
        counts = {}
        for name, rows in splits.items():
            if isinstance(rows, IterableDataset):
                counts[name] = "streamed"
            else:
                counts[name] = self.rows_in_words(name, rows, corpus.reports[name])
        return counts

    def rows_in_words(self, split: str, rows: Dataset, report: RowReport) -> str:
        """Describe how many rows of a split are kept and used, with the note on them."""
        used = self.describe_used_rows(split, rows, report.kept)
        return report.in_words(used + self.notes.get(split, ""))

    def labels(self) -> Sequence[str]:
        """The labels that the model predicts; empty unless it is trained on labels."""
        return ()

    def describe_used_rows(self, split: str, rows: Dataset, kept: int) -> str:
        """Describe how many of the kept rows of a split are used; empty if all are."""
        return f", of which {len(rows):,} are used" if len(rows) < kept else ""

    def origin(self, splits: dict[str, Any], tokenizers: Tokenizers) -> dict[str, Any]:
        """Entries of `corpus.json` besides the corpus: the model on the Hub that the run starts from."""
        model = getattr(self.config.model, "model", None)
        return {} if model is None or Path(model).is_dir() else {"base_model": model}

    def record_settings(self) -> None:
        """Write the resolved settings; from now on, the run can be resumed."""
        self.config.output_dir.mkdir(parents=True, exist_ok=True)
        self.config.save(self.config.output_dir / SETTINGS_FILE, self.history)

    def _record(self, provenance: dict[str, Any], tokenizers: Tokenizers) -> None:
        """Write the settings, the tokenizers and the origin of the data before training begins."""
        folder = self.config.output_dir
        self.record_settings()
        (folder / EVALUATION_FILE).unlink(missing_ok=True)  # from before the run was resumed
        save_tokenizers(*tokenizers, folder)
        told = json.dumps(provenance, indent=2, ensure_ascii=False)
        (folder / CORPUS_FILE).write_text(told, encoding="utf-8")


@contextmanager
def owned_output(config: BaseConfig) -> Iterator[None]:
    """Keep other runs out of `output_dir`; the first of several processes does so for all.

    Raises:
        UserError: another run uses the folder, or it cannot be written to.
    """
    check_writable(config.output_dir)
    if config.training.process_index > 0:
        yield
        return
    with only_run_in(config.output_dir):
        yield


def publish(config: BaseConfig) -> None:
    """Write the card of a finished run and, with `push_to_hub`, push the model with it.

    Raises:
        RunError: the push failed; the message names the command that pushes the model.
    """
    if not PartialState().is_main_process:
        return
    folder, training = config.output_dir, config.training
    name = training.hub_model_id or folder.absolute().name
    metadata = read_run_metadata(folder)
    write_card(folder, metadata, name)
    if not training.push_to_hub:
        return
    try:
        url = push_folder(folder, name, metadata, **training.push_options())
    except (UserError, RunError) as error:
        raise RunError(f"{error}; then: vaswani push --model {folder} --repo {name}") from error
    print(f"published {url}", flush=True)


def _check_same_model(arguments: Any, model: PreTrainedModel, checkpoint: Path) -> None:
    """Raise `UserError` unless the checkpoint holds a model of this shape."""
    saved = read_config(checkpoint)
    for name in (field.name for field in fields(arguments) if field.name != "attn_implementation"):
        asked, found = (getattr(shape, name, None) for shape in (model.config, saved))
        if asked != found:
            raise UserError(
                f"{name}={asked}, but {checkpoint} has {found}; "
                f"resume with the configuration of the run ({SETTINGS_FILE} beside the checkpoint)"
            )


def _how_to_evaluate(trainer: BaseTrainer, output_dir: Path) -> str:
    """Return how to evaluate a run that was stopped after its training and before its scores were saved."""
    saved = f"after training; the model is saved in {output_dir} and has no scores yet"
    if checkpoint_of(output_dir, trainer.state.global_step).is_dir():
        return f"{saved}: --resume_from_checkpoint true evaluates it without further training"
    return f"{saved}: vaswani evaluate --model {output_dir} computes them"


def _announce(
    counts: dict[str, str], trainer: BaseTrainer, trained: Sequence[str], labels: Sequence[str]
) -> None:
    """Print the rows, the splits whose files are `trained` on, the labels, and the sizes of the model."""
    print(*(f"{name}: {count}" for name, count in counts.items()), sep="\n")
    for name in trained:
        print(f"{name} is also a training file: its scores do not show how the model does on unseen texts")
    if labels:
        print(f"{len(labels):,} labels: {listing(labels)}")
    model, sharding = trainer.model, trainer.sharding
    vocabulary = f"{model.config.vocab_size:,}"
    if getattr(model.config, "share_encoder_decoder_embeddings", None) is False:
        vocabulary = f"{vocabulary} source and {model.config.decoder_vocab_size:,} target"
    share = f" (of which this process holds {sharding.local_parameters:,})" if sharding else ""
    print(
        f"model: {model.num_parameters():,} parameters{share}, embeddings of {vocabulary} tokens", flush=True
    )


def peak_memory(device: torch.device) -> int:
    """Return the most bytes that tensors held on a GPU, or this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource  # not there on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
