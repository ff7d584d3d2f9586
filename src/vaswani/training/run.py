"""A whole training run: from a resolved configuration to a saved model and its scores."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset, IterableDataset
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    EarlyStoppingCallback,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    enable_full_determinism,
    set_seed,
)

from vaswani.data.batching import Seq2SeqCollator, tokenize_corpus
from vaswani.data.corpus import Corpus, CorpusSpec, load_corpus
from vaswani.data.evenly_spread import evenly_spread
from vaswani.data.tokenization import load_tokenizers, save_tokenizers, train_tokenizer
from vaswani.errors import RunError, UserError, one_line
from vaswani.hub.card import write_card
from vaswani.hub.push import push_folder
from vaswani.hub.run_facts import CORPUS_FILE, EVALUATION_FILE, SETTINGS_FILE, read_run_facts
from vaswani.insight.curves import save_curves
from vaswani.model.configuration_vaswani import VaswaniConfig
from vaswani.model.decoding import position_limit
from vaswani.training.arguments import ModelArguments
from vaswani.training.bpe_dropout import BpeDropoutCollator
from vaswani.training.checkpoints import check_continues, check_writable, checkpoint_to_resume
from vaswani.training.config_file import RunConfig
from vaswani.training.final_evaluation import evaluate_finished
from vaswani.training.metrics import METRICS, TranslationMetrics
from vaswani.training.processes import check_processes
from vaswani.training.publishing import push_options
from vaswani.training.sharding import check_sizes, held_parameters, is_sharded
from vaswani.training.trainer import Trainer

Tokenizers = tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]


def train(config: RunConfig) -> dict[str, float]:
    """Train a model, save it in `output_dir`, evaluate it and write its card (see `TrainingRun`)."""
    scores = TrainingRun(config).run()
    publish(config)
    return scores


def publish(config: RunConfig) -> None:
    """Write the card of a finished run and, where `push_to_hub` is set, push the model with it.

    Raises:
        UserError, RunError: it could not be pushed.
    """
    if not PartialState().is_main_process:
        return
    folder, training = config.output_dir, config.training
    name = training.hub_model_id or folder.absolute().name
    facts = read_run_facts(folder)
    write_card(folder, facts, name)
    if not training.push_to_hub:
        return
    try:
        url = push_folder(folder, name, facts, **push_options(training))
    except (UserError, RunError) as error:
        raise RunError(f"{error}; then: vaswani push --model {folder} --repo {name}") from error
    print(f"published {url}", flush=True)


class TrainingRun:
    """A training run, step by step; a run of another kind replaces some of the steps.

    Writes `training_config.yaml` (the resolved configuration), `corpus.json` (where the data came from), the
    tokenizers, checkpoints, the final model and its scores (`evaluation.json`).
    """

    def __init__(self, config: RunConfig):
        self.config = config

    def run(self) -> dict[str, float]:
        """Train, save, evaluate.

        Returns:
            The scores on the test split, or else on the validation split; empty without either.

        Raises:
            UserError: for a configuration or a corpus that cannot work.
        """
        config = self.config
        self.check()
        checkpoint = checkpoint_to_resume(config.output_dir, config.training.resume_from_checkpoint)
        check_writable(config.output_dir)
        with _first_the_main_process():
            corpus = _load(config)
        if checkpoint:
            check_continues(checkpoint, corpus.identity(), config.training)
        tokenizers = load_tokenizers(checkpoint) if checkpoint else self.build_tokenizers(corpus)
        model = self.build_model(tokenizers)
        # Without it, plain calls of `generate` stop after 20 tokens. The decoder's start token counts.
        longest = 1 + config.data.max_target_length
        model.generation_config.max_length = min(longest, position_limit(model) or longest)
        if checkpoint:
            _check_same_model(model, checkpoint)
        with _first_the_main_process():
            splits = self.tokenize(corpus, tokenizers)
        trainer = self.build_trainer(splits, tokenizers, model)
        trainer.identity = corpus.identity()
        counts = _row_counts(corpus, splits)
        if trainer.is_world_process_zero():
            _announce(counts, model)
        if config.training.should_save:
            _record(config, corpus, counts, tokenizers)

        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        trainer.stop_on_signal.raise_if_stopped()
        trainer.save_model(_internal_call=True)  # not pushed yet: it has no scores
        trainer.save_state()
        trainer.accelerator.wait_for_everyone()  # then the model is there for all processes
        if trainer.is_world_process_zero():
            print(f"peak memory: {peak_memory() / 1e9:.2f} GB", flush=True)
            with suppress(UserError):  # without matplotlib, or when a short run has logged nothing
                save_curves(config.output_dir)
        return evaluate_finished(trainer, splits, tokenizers[0])

    def check(self) -> None:
        """Find what would fail only after the corpus was read, or at the first evaluation."""
        check_config(self.config)

    def build_tokenizers(self, corpus: Corpus) -> Tokenizers:
        """The source and the target tokenizer: one object when the vocabulary is shared."""
        return build_tokenizers(corpus, self.config)

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """The model as it is before training."""
        source, target = tokenizers
        return build_model(self.config, model_config(self.config.model, len(source), len(target)))

    def tokenize(self, corpus: Corpus, tokenizers: Tokenizers) -> dict[str, Any]:
        """The rows of each split as token ids."""
        return {name: _tokenized(self.config, corpus, tokenizers, name) for name in corpus.splits}

    def build_trainer(
        self, splits: dict[str, Any], tokenizers: Tokenizers, model: PreTrainedModel
    ) -> Trainer:
        """A trainer for the tokenized splits."""
        return build_trainer(self.config, splits, tokenizers, model)


@contextmanager
def _first_the_main_process() -> Iterator[None]:
    """The main process of each machine reads and tokenizes; the others then find it in the cache."""
    state = PartialState()
    if not state.is_local_main_process:
        datasets.disable_progress_bars()
    with state.local_main_process_first():
        yield


def model_config(
    arguments: ModelArguments, vocab_size: int, decoder_vocab_size: int, **special_tokens: Any
) -> VaswaniConfig:
    """The model's configuration; the ids of special tokens are by default those of our own tokenizers.

    Raises:
        UserError: for values that make no model, such as heads that do not divide the width.
    """
    values = asdict(arguments)
    values.pop("attn_implementation")
    for stack in ("encoder_attention", "decoder_attention"):
        values[stack] = _for_all_layers(values[stack])
    try:
        return VaswaniConfig(
            vocab_size=vocab_size, decoder_vocab_size=decoder_vocab_size, **values, **special_tokens
        )
    except (ValueError, StrictDataclassError) as error:
        raise UserError(one_line(error.__cause__ or error)) from error


def _for_all_layers(attention: list[str]) -> str | list[str]:
    """One word for all layers, or one for each."""
    return attention[0] if len(attention) == 1 else attention


def build_model(config: RunConfig, shape: PreTrainedConfig) -> PreTrainedModel:
    """A model of this shape with fresh weights, drawn from the seed."""
    seed = config.training.seed
    enable_full_determinism(seed) if config.training.full_determinism else set_seed(seed)
    kernel = config.model.attn_implementation
    try:
        model = AutoModelForSeq2SeqLM.from_config(
            shape,
            **({"attn_implementation": kernel} if kernel else {}),
        )
    except (ValueError, ImportError) as error:
        raise UserError(one_line(error)) from error
    return model


def build_tokenizers(corpus: Corpus, config: RunConfig) -> Tokenizers:
    """The source and target tokenizers: one object when the vocabulary is shared."""
    data = config.data
    learned = config.model.position_embedding == "learned"
    max_length = config.model.max_position_embeddings if learned else None
    rows = corpus.split("train")
    if data.tokenizer_rows is not None:
        rows = rows.take(data.tokenizer_rows)
    sides = [("source", "target")] if data.shared_vocab else [("source",), ("target",)]
    trained = [
        train_tokenizer(_texts(rows, names), data.vocab_size, model_max_length=max_length) for names in sides
    ]
    return trained[0], trained[-1]


def _texts(rows: Dataset | IterableDataset, names: Sequence[str]) -> Iterator[list[str]]:
    for batch in rows.iter(batch_size=1000):
        yield from (batch[name] for name in names)


def build_trainer(
    config: RunConfig,
    splits: dict[str, Any],
    tokenizers: Tokenizers,
    model: PreTrainedModel,
    kind: type[Trainer] = Trainer,
    **options: Any,
) -> Trainer:
    """A trainer for tokenized splits: `train`, and `validation` if there is one; with options of its kind."""
    args, data = config.training, config.data
    source, target = tokenizers
    collator = Seq2SeqCollator(model.config.pad_token_id, model.config.decoder_start_token_id)
    if data.bpe_dropout > 0:
        options["train_data_collator"] = BpeDropoutCollator(
            collator,
            source,
            target,
            max_source_length=data.max_source_length,
            max_target_length=data.max_target_length,
            p=data.bpe_dropout,
        )
    patience = args.early_stopping_patience
    return kind(
        model=model,
        args=args,
        train_dataset=splits["train"],
        eval_dataset=splits.get("validation"),
        data_collator=collator,
        processing_class=source,
        target_processing_class=target,
        compute_metrics=TranslationMetrics(target) if args.predict_with_generate else None,
        callbacks=[] if patience is None else [EarlyStoppingCallback(patience)],
        **options,
    )


def check_config(config: RunConfig) -> None:
    """Find what would fail only after the corpus was read, or at the first evaluation."""
    args, data = config.training, config.data
    check_processes()
    check_sizes(args.fsdp_size, args.tensor_parallel_size, args.world_size)
    model_config(config.model, data.vocab_size, data.vocab_size)
    args.resolve_learning_rate(config.model.d_model)
    if data.truncate and data.bpe_dropout > 0:
        raise UserError("truncate=true and bpe_dropout exclude each other; set one of them to its default")
    if data.streaming and args.max_steps <= 0:
        raise UserError("streaming=true needs max_steps: the length of a stream is not known")
    if args.metric_for_best_model is not None:
        name = args.metric_for_best_model.removeprefix("eval_")
        known = ["loss", *(METRICS if args.predict_with_generate else ())]
        if name not in known:
            raise UserError(f"metric_for_best_model={name} is not computed; choose one of {', '.join(known)}")


def _check_same_model(model: PreTrainedModel, checkpoint: Path) -> None:
    """A checkpoint can only be continued with the model that it holds."""
    saved = AutoConfig.from_pretrained(checkpoint)
    for name in (field.name for field in fields(ModelArguments) if field.name != "attn_implementation"):
        asked, found = (getattr(shape, name, None) for shape in (model.config, saved))
        if asked != found:
            raise UserError(
                f"{name}={asked}, but {checkpoint} has {found}; "
                f"resume with the configuration of the run ({SETTINGS_FILE} beside the checkpoint)"
            )


def _load(config: RunConfig) -> Corpus:
    spec = CorpusSpec(**{field.name: getattr(config.data, field.name) for field in fields(CorpusSpec)})
    corpus = load_corpus(spec)
    corpus.split("train")
    if config.training.eval_strategy != "no" and "validation" not in corpus.splits:
        raise UserError(
            "evaluation needs a validation split; give a validation_file or set eval_strategy to no"
        )
    return corpus


def _tokenized(
    config: RunConfig, corpus: Corpus, tokenizers: Tokenizers, split: str
) -> Dataset | IterableDataset:
    """The rows of a split as token ids.

    Training leaves out rows beyond the length limits, or cuts them off. Evaluation keeps them all, for the
    score is that of the whole split, unless the model has no positions for them; it cuts sources alone.
    """
    data, rows, report = config.data, corpus.splits[split], corpus.reports[split]
    limits: tuple[int | None, int | None] = (data.max_source_length, data.max_target_length)
    truncated = ["source", "target"] if data.truncate else []
    if split != "train":
        learned = config.model.position_embedding == "learned"
        limits = (config.model.max_position_embeddings,) * 2 if learned else (None, None)
        if data.truncate:
            limits, truncated = (data.max_source_length, limits[1]), ["source"]
        rows = Dataset.from_list(list(rows)) if isinstance(rows, IterableDataset) else rows
    tokenized = tokenize_corpus(rows, *tokenizers, *limits, report, truncated)
    if isinstance(tokenized, IterableDataset):
        return tokenized
    _check_budget(tokenized, split, config.training.max_tokens_per_batch)
    if split == "validation" and data.max_validation_rows is not None:
        tokenized = tokenized.select(evenly_spread(len(tokenized), data.max_validation_rows))
    return tokenized


def _row_counts(corpus: Corpus, splits: dict[str, Any]) -> dict[str, str]:
    """What became of the rows of each split, in words."""
    counts = {}
    for name, rows in splits.items():
        if isinstance(rows, IterableDataset):
            counts[name] = "streamed"
        else:
            used = f", of which {len(rows):,} are used" if len(rows) < corpus.reports[name].kept else ""
            counts[name] = f"{corpus.reports[name]}{used}"
    return counts


def _record(config: RunConfig, corpus: Corpus, counts: dict[str, str], tokenizers: Tokenizers) -> None:
    """Write down what the run is made of, before it begins."""
    config.output_dir.mkdir(parents=True, exist_ok=True)
    (config.output_dir / EVALUATION_FILE).unlink(missing_ok=True)  # of an earlier end of this run
    save_tokenizers(*tokenizers, config.output_dir)
    config.save(config.output_dir / SETTINGS_FILE)
    provenance = json.dumps({"rows": counts, **corpus.fingerprint}, indent=2, ensure_ascii=False)
    (config.output_dir / CORPUS_FILE).write_text(provenance, encoding="utf-8")


def _announce(counts: dict[str, str], model: PreTrainedModel) -> None:
    """Say what is trained on what."""
    print(*(f"{name}: {count}" for name, count in counts.items()), sep="\n")
    source = model.config.vocab_size
    sizes = sorted({source, getattr(model.config, "decoder_vocab_size", source)})
    vocabulary = " and ".join(f"{size:,}" for size in sizes)
    share = f" (of which this process holds {held_parameters(model):,})" if is_sharded(model) else ""
    print(
        f"model: {model.num_parameters():,} parameters{share}, vocabulary of {vocabulary} tokens", flush=True
    )


def _check_budget(tokenized: Dataset, split: str, max_tokens: int) -> None:
    lengths = [np.array(tokenized[name][:]) for name in ("source_length", "target_length")]
    longest = int(np.add(*lengths).max())
    if longest > max_tokens:
        raise UserError(
            f"max_tokens_per_batch={max_tokens} is too small: {split} has a row of {longest} tokens; raise it"
            + (", or lower max_source_length and max_target_length" if split == "train" else "")
        )


def peak_memory() -> int:
    """Bytes: the most that tensors held on the GPU, or on a CPU this whole process so far."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    import resource  # not there on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
