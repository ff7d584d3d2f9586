"""The steps of every training run, from a resolved configuration to a saved model, scores and a card."""

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import datasets
import torch
from accelerate import PartialState
from datasets import IterableDataset
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    PreTrainedConfig,
    PreTrainedModel,
    enable_full_determinism,
    set_seed,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from vaswani.data.sources.corpus import Corpus, load_corpus
from vaswani.errors import RunError, UserError, one_line
from vaswani.files.run_files import CORPUS_FILE, EVALUATION_FILE, SETTINGS_FILE
from vaswani.hub.card import handwritten_card, write_card
from vaswani.hub.push import push_folder
from vaswani.hub.run_metadata import read_run_metadata
from vaswani.insight.curves import save_curves
from vaswani.training.config.arguments import BaseTrainingArguments, FamilyArguments
from vaswani.training.config.rehearsal import rehearse
from vaswani.training.config.run_config import BaseConfig
from vaswani.training.launch.processes import check_processes
from vaswani.training.launch.sigterm import ends_on_sigterm, sigterm_held_back
from vaswani.training.runs.failures import blame_options, blame_size, what_was_saved
from vaswani.training.runs.folder_lock import only_run_in
from vaswani.training.runs.pretrained import Pretrained, load_with_head
from vaswani.training.trainer.base import BaseTrainer
from vaswani.training.trainer.checkpoints import check_same_data, check_writable, checkpoint_to_resume
from vaswani.training.trainer.publishing import push_options
from vaswani.training.trainer.resuming import check_resumable, manifest_of
from vaswani.training.trainer.sharding import check_sizes, held_parameters, is_sharded


class BaseRun(ABC):
    """A training run, step by step; each kind of run has steps of its own.

    Writes `training_config.yaml` (the resolved configuration), `corpus.json` (where the data came from), the
    tokenizers, checkpoints, the final model and its scores.
    """

    def __init__(self, config: Any):
        self.config = config
        self.history: list[dict[str, Any]] = []  # settings that changed when the run was resumed

    def run(self) -> dict[str, float]:
        """Train, save, evaluate.

        Returns:
            The scores on the test split, or else on the validation split; empty without either.

        Raises:
            UserError: for a configuration or a corpus that cannot work.
        """
        output_dir = self.config.output_dir
        with ends_on_sigterm(lambda: f"before training began; {what_was_saved(output_dir)}"):
            checkpoint, splits, tokenizers, trainer = self._prepare()
        with ends_on_sigterm(lambda: _how_to_evaluate(trainer, output_dir)):
            with sigterm_held_back():
                self._train(trainer, checkpoint)
            if trainer.is_world_process_zero():
                print(f"peak memory: {peak_memory() / 1e9:.2f} GB", flush=True)
                with suppress(UserError):  # without matplotlib, or when a short run has logged nothing
                    save_curves(output_dir)
            return self.evaluate(trainer, splits, tokenizers)

    def _prepare(self) -> tuple[Path | None, dict[str, Any], Any, BaseTrainer]:
        """What comes before training: the checkpoint to go on from, tokenized splits, tokenizers, trainer."""
        config = self.config
        self.check()
        rehearse(config.training)
        checkpoint = checkpoint_to_resume(config.output_dir, config.training.resume_from_checkpoint)
        handwritten_card(config.output_dir)  # it is read at the end
        if checkpoint:
            self.history = check_resumable(checkpoint, config).record
        with _first_the_main_process():
            corpus = self.load()
        if checkpoint:
            check_same_data(checkpoint, corpus.identity())
        tokenizers = self.load_tokenizers(checkpoint) if checkpoint else self.build_tokenizers(corpus)
        with blame_size():
            model = self.build_model(tokenizers)
        settings = manifest_of(config)
        if checkpoint:
            _check_same_model(config.model, model, checkpoint)
        with _first_the_main_process():
            splits = self.tokenize(corpus, tokenizers)
        with blame_options(RuntimeError, OSError):
            trainer = self.build_trainer(splits, tokenizers, model)
        trainer.identity, trainer.settings, trainer.history = corpus.identity(), settings, self.history
        counts = self.row_counts(corpus, splits)
        if trainer.is_world_process_zero():
            _announce(counts, model)
        if config.training.should_save:
            self._record(corpus, counts, tokenizers)
        return checkpoint, splits, tokenizers, trainer

    def _train(self, trainer: BaseTrainer, checkpoint: Path | None) -> None:
        """Train, and save the final model."""
        with blame_options(unless=lambda: trainer.has_updated):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        trainer.stop_on_signal.raise_if_stopped()
        trainer.raise_if_nothing_was_learned()
        trainer.save_model(_internal_call=True)  # not pushed yet: it has no scores
        trainer.save_state()
        trainer.accelerator.wait_for_everyone()  # then the model is there for all processes

    # ------------------------------------------------------------------------------------------ its own steps

    @abstractmethod
    def check(self) -> None:
        """Find what would fail only after the corpus was read, or at the first evaluation."""

    def load(self) -> Corpus:
        """The corpus, with all splits that it has; training and, where one is evaluated, validation exist."""
        corpus = load_corpus(self.config.data.corpus)
        self.check_splits(corpus)
        return corpus

    def check_splits(self, corpus: Corpus) -> None:
        """Whether there is something to train on and, where it is evaluated, to evaluate on.

        Raises:
            UserError: there is not.
        """
        corpus.split("train")
        if self.config.training.eval_strategy != "no" and "validation" not in corpus.splits:
            raise UserError(
                "evaluation needs a validation split; give a validation_file or set eval_strategy to no"
            )

    @abstractmethod
    def load_tokenizers(self, checkpoint: Path) -> Any:
        """The tokenizer or tokenizers that a checkpoint was trained with."""

    @abstractmethod
    def build_tokenizers(self, corpus: Corpus) -> Any:
        """Those of a run that begins."""

    @abstractmethod
    def save_tokenizers(self, tokenizers: Any, folder: Path) -> None:
        """Write them into a folder."""

    @abstractmethod
    def build_model(self, tokenizers: Any) -> PreTrainedModel:
        """The model as it is before training."""

    @abstractmethod
    def tokenize(self, corpus: Corpus, tokenizers: Any) -> dict[str, Any]:
        """The rows of each split as the trainer takes them."""

    @abstractmethod
    def build_trainer(self, splits: dict[str, Any], tokenizers: Any, model: PreTrainedModel) -> BaseTrainer:
        """A trainer for the tokenized splits: of `train`, and of `validation` if there is one."""

    @abstractmethod
    def evaluate(self, trainer: Any, splits: dict[str, Any], tokenizers: Any) -> dict[str, float]:
        """Evaluate the final model on the test split, or else on the validation split; empty without both."""

    def row_counts(self, corpus: Corpus, splits: dict[str, Any]) -> dict[str, str]:
        """What became of the rows of each split, in words."""
        counts = {}
        for name, rows in splits.items():
            if isinstance(rows, IterableDataset):
                counts[name] = "streamed"
            else:
                used = f", of which {len(rows):,} are used" if len(rows) < corpus.reports[name].kept else ""
                counts[name] = f"{corpus.reports[name]}{used}"
        return counts

    def record_settings(self) -> None:
        """Write the settings in force; from here on there is something to resume."""
        self.config.output_dir.mkdir(parents=True, exist_ok=True)
        self.config.save(self.config.output_dir / SETTINGS_FILE, self.history)

    def _record(self, corpus: Corpus, counts: dict[str, str], tokenizers: Any) -> None:
        """Write down what the run is made of, before it begins."""
        folder = self.config.output_dir
        self.record_settings()
        (folder / EVALUATION_FILE).unlink(missing_ok=True)  # of an earlier end of this run
        self.save_tokenizers(tokenizers, folder)
        provenance = json.dumps({"rows": counts, **corpus.fingerprint}, indent=2, ensure_ascii=False)
        (folder / CORPUS_FILE).write_text(provenance, encoding="utf-8")


@contextmanager
def owned_output(config: BaseConfig) -> Iterator[None]:
    """Keep other runs out of `output_dir`; of several processes, the first does it for all.

    Raises:
        UserError: another run is in the folder, or it cannot be written to.
    """
    check_writable(config.output_dir)
    if config.training.process_index > 0:
        yield
        return
    with only_run_in(config.output_dir):
        yield


@contextmanager
def _first_the_main_process() -> Iterator[None]:
    """The main process of each machine reads and tokenizes; the others then find it in the cache."""
    state = PartialState()
    if not state.is_local_main_process:
        datasets.disable_progress_bars()
    with state.local_main_process_first():
        yield


def check_devices(args: BaseTrainingArguments) -> None:
    """Find numbers of processes that do not fit together.

    Raises:
        UserError: they do not fit.
    """
    check_processes()
    check_sizes(args.fsdp_size, args.tensor_parallel_size, args.world_size)


def check_stream(config: BaseConfig) -> None:
    """Find a stream without `max_steps`.

    Raises:
        UserError: there is one.
    """
    if config.data.streaming and config.training.max_steps <= 0:
        raise UserError("streaming=true needs max_steps: the length of a stream is not known")


def check_metric(name: str | None, known: list[str]) -> None:
    """Find a `metric_for_best_model` that no evaluation computes.

    Raises:
        UserError: naming those that are.
    """
    if name is not None and name.removeprefix("eval_") not in known:
        raise UserError(
            f"metric_for_best_model={name.removeprefix('eval_')} is not computed; "
            f"choose one of {', '.join(known)}"
        )


def seed_everything(config: BaseConfig) -> None:
    """Draw first weights, and what follows, from the run's seed."""
    args = config.training
    enable_full_determinism(args.seed) if args.full_determinism else set_seed(args.seed)


Shape = TypeVar("Shape", bound=PreTrainedConfig)


def config_from(kind: type[Shape], arguments: FamilyArguments, **others: Any) -> Shape:
    """A model's configuration, of this kind.

    Args:
        kind: of the model.
        arguments: its fields as a run was given them.
        others: what the data decide, such as the size of the vocabulary.

    Raises:
        UserError: for values that make no model, such as heads that do not divide the width.
    """
    values = asdict(arguments)
    values.pop("attn_implementation")
    for name in ("encoder_attention", "decoder_attention"):
        if len(values.get(name, ())) == 1:  # one word for all layers
            values[name] = values[name][0]
    try:
        return kind(**values, **others)
    except (ValueError, StrictDataclassError) as error:
        raise UserError(one_line(error.__cause__ or error)) from error


def new_model(config: BaseConfig, auto_class: Any, shape: PreTrainedConfig) -> PreTrainedModel:
    """A model with fresh weights, drawn from the run's seed.

    Args:
        config: of the run.
        auto_class: the Auto class whose model it is.
        shape: its configuration.

    Raises:
        UserError: there is no such attention kernel.
    """
    seed_everything(config)
    try:
        return auto_class.from_config(shape, **kernel_options(config))
    except (ValueError, ImportError) as error:
        raise UserError(one_line(error)) from error


def pretrained_model(
    config: BaseConfig, pretrained: Pretrained, auto_class: Any, fields: dict[str, Any]
) -> PreTrainedModel:
    """A pre-trained model with the heads that a run trains; says which of its weights are new.

    Args:
        config: of the run, whose seed draws those.
        pretrained: the model.
        auto_class: with those heads.
        fields: of its configuration, that tell of the task.

    Raises:
        UserError: its weights are missing, damaged or not its own, or there is no such attention kernel.
    """
    seed_everything(config)
    model, new = load_with_head(pretrained, auto_class, fields, **kernel_options(config))
    if new:
        PartialState().print(f"new weights: {', '.join(new)}", flush=True)
    return model


def kernel_options(config: BaseConfig) -> dict[str, Any]:
    """The attention kernel of a run, as the library's Auto classes take it; nothing for their own choice."""
    kernel = config.model.attn_implementation
    return {"attn_implementation": kernel} if kernel else {}


def publish(config: BaseConfig) -> None:
    """Write the card of a finished run and, where `push_to_hub` is set, push the model with it.

    Raises:
        UserError, RunError: it could not be pushed.
    """
    if not PartialState().is_main_process:
        return
    folder, training = config.output_dir, config.training
    name = training.hub_model_id or folder.absolute().name
    facts = read_run_metadata(folder)
    write_card(folder, facts, name)
    if not training.push_to_hub:
        return
    try:
        url = push_folder(folder, name, facts, **push_options(training))
    except (UserError, RunError) as error:
        raise RunError(f"{error}; then: vaswani push --model {folder} --repo {name}") from error
    print(f"published {url}", flush=True)


def _check_same_model(arguments: Any, model: PreTrainedModel, checkpoint: Path) -> None:
    """A checkpoint can only be continued with the model that it holds."""
    saved = AutoConfig.from_pretrained(checkpoint)
    for name in (field.name for field in fields(arguments) if field.name != "attn_implementation"):
        asked, found = (getattr(shape, name, None) for shape in (model.config, saved))
        if asked != found:
            raise UserError(
                f"{name}={asked}, but {checkpoint} has {found}; "
                f"resume with the configuration of the run ({SETTINGS_FILE} beside the checkpoint)"
            )


def _how_to_evaluate(trainer: BaseTrainer, output_dir: Path) -> str:
    """What a run says that is stopped between the end of its training and the end of its evaluation."""
    saved = f"after training; the model is saved in {output_dir} and has no scores yet"
    if (output_dir / f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}").is_dir():
        return f"{saved}: --resume_from_checkpoint true evaluates it without further training"
    if trainer.model.config.is_encoder_decoder:
        return f"{saved}: vaswani evaluate --model {output_dir} computes them"
    return saved


def _announce(counts: dict[str, str], model: PreTrainedModel) -> None:
    """Say what is trained on what."""
    print(*(f"{name}: {count}" for name, count in counts.items()), sep="\n")
    vocabulary = f"{model.config.vocab_size:,}"
    if getattr(model.config, "share_encoder_decoder_embeddings", None) is False:
        vocabulary = f"{vocabulary} source and {model.config.decoder_vocab_size:,} target"
    share = f" (of which this process holds {held_parameters(model):,})" if is_sharded(model) else ""
    print(
        f"model: {model.num_parameters():,} parameters{share}, embeddings of {vocabulary} tokens", flush=True
    )


def peak_memory() -> int:
    """Bytes: the most that tensors held on the GPU, or on a CPU this whole process so far."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    import resource  # not there on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
