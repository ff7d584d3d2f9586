"""Fine-tuning of a causal language model on completions of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.evenly_spread import evenly_spread
from vaswani.data.given_tokenizers import prepare_for_completion
from vaswani.data.labels.labelled_tokens import LabelCollator
from vaswani.data.sources.corpus import Corpus, load_corpus
from vaswani.data.sources.corpus_spec import SPLITS
from vaswani.data.text.completions import ChatSpec, load_chats, tokenize_completions
from vaswani.data.text_codec import Tokenizers
from vaswani.errors import UserError
from vaswani.evaluation.final import NUM_EXAMPLES, evaluate_finished, record, show_example
from vaswani.hub.checkpoint import load_checkpoint
from vaswani.hub.weights import holds_adapter
from vaswani.training.config.completion_arguments import CompletionConfig
from vaswani.training.runs.base import BaseRun
from vaswani.training.runs.checks import check_attention_kernel
from vaswani.training.runs.language_modelling import SCORE_NAMES, show_estimates
from vaswani.training.runs.models import DECODERS, Pretrained, is_decoder, open_pretrained, pretrained_model
from vaswani.training.runs.trained_parts import check_trainable, only_trained_parts
from vaswani.training.trainer.completion import CompletionTrainer

DISPLAY_NAMES = {**SCORE_NAMES, "accuracy": "Token accuracy (%)"}


class CompletionRun(BaseRun):
    """A training of a causal language model on the completions of prompts, or on the answers in chats."""

    config: CompletionConfig

    @cached_property
    def pretrained(self) -> Pretrained:
        """The model that the run starts from."""
        return open_pretrained(str(self.config.model.model), AutoModelForCausalLM, prepare_for_completion)

    # ----------------------------------------------------------------------------------- before the corpus

    @property
    def metrics(self) -> Sequence[str]:
        return ["perplexity", "accuracy"]

    def check(self) -> None:
        data, pretrained = self.config.data, self.pretrained
        if not is_decoder(pretrained.config):
            raise UserError(
                f"{pretrained.folder} holds a model of type {pretrained.config.model_type!r}, which is no "
                f"decoder; expected {DECODERS} or 'gpt2'"
            )
        pretrained.check_length(data.max_length)
        if data.messages_field is not None and pretrained.tokenizer.chat_template is None:
            raise UserError(
                f"messages_field={data.messages_field} needs a chat template, and the tokenizer in "
                f"{pretrained.folder} has none; give it one, or give prompt_field and completion_field"
            )
        check_attention_kernel(AutoModelForCausalLM, pretrained.config, self.config.model.attn_implementation)
        check_trainable(self.config, pretrained, AutoModelForCausalLM, may_be_adapter=True)

    # ------------------------------------------------------------------------------------- rows and the model

    def read(self, splits: Sequence[str] = SPLITS) -> Corpus:
        spec = self.config.data.corpus
        return load_chats(spec, splits) if isinstance(spec, ChatSpec) else load_corpus(spec, splits)

    def tokenize(self, corpus: Corpus, tokenizers: Tokenizers) -> dict[str, Dataset]:
        """Rows as token ids and labels."""
        splits = {}
        for split, rows in corpus.splits.items():
            limit, report = self.config.data.max_length, corpus.reports[split]
            splits[split] = tokenize_completions(rows, tokenizers[0], limit, report, split)
            self.check_budget(split, max(splits[split]["length"][:]))
        return splits

    def build_tokenizers(self, corpus: Corpus) -> Tokenizers:
        """The tokenizer of the model, set to pad on the left, as `generate` needs."""
        tokenizer = self.pretrained.tokenizer
        tokenizer.padding_side = "left"
        return tokenizer, tokenizer

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """The causal language model; `generate` stops at the end token by default."""
        folder = self.pretrained.folder
        if holds_adapter(folder):
            model = load_checkpoint(folder, "cpu", torch.float32, auto_class=AutoModelForCausalLM)[0]
        else:
            model = pretrained_model(self.config, self.pretrained, AutoModelForCausalLM, {})
        generation, end = model.generation_config, tokenizers[0].eos_token_id
        ends = (
            generation.eos_token_id
            if isinstance(generation.eos_token_id, list)
            else [generation.eos_token_id]
        )
        if end not in ends:
            generation.eos_token_id = end
        generation.pad_token_id = tokenizers[0].pad_token_id
        generation.max_length = self.config.data.max_length
        return only_trained_parts(model, self.config)

    # ------------------------------------------------------------------------------- trainer and evaluation

    def build_trainer(
        self, splits: dict[str, Any], tokenizers: Tokenizers, model: PreTrainedModel
    ) -> CompletionTrainer:
        return CompletionTrainer(
            processing_class=tokenizers[0],
            data_collator=LabelCollator(int(tokenizers[0].pad_token_id)),
            **self.trainer_options(splits, model),
        )

    def evaluate(
        self, trainer: CompletionTrainer, splits: dict[str, Any], tokenizers: Tokenizers
    ) -> dict[str, float]:
        """Scores on the test split, or else on the validation split; printed and saved."""

        def show(split: str, rows: Dataset, scores: dict[str, float]) -> dict[str, Any]:
            return self.show_scores(trainer, split, rows)

        return evaluate_finished(trainer, splits, show)

    def show_scores(self, trainer: CompletionTrainer, split: str, rows: Dataset) -> dict[str, Any]:
        """Print the scores and examples; return what `evaluation.json` holds of them."""
        longest = self.config.data.max_length  # the model has positions for this many
        tokenizer: Any = trainer.processing_class
        examples = [] if trainer.sharding else completed(trainer.model, tokenizer, rows, longest)
        metrics = show_estimates(trainer, split, rows, unit="rows", names=DISPLAY_NAMES)
        print()
        for example in examples:
            show_example([example["prompt"]], example["prediction"], example["reference"])
        more: dict[str, Any] = {"examples": examples} if examples else {}
        return record(split, len(rows), metrics, **more)


@torch.no_grad()
def completed(
    model: Any, tokenizer: PreTrainedTokenizerBase, rows: Dataset, longest: int
) -> list[dict[str, str]]:
    """Some rows, evenly spread, with what the model generates greedily after their prompts.

    Args:
        model: a model in evaluation mode.
        tokenizer: the tokenizer that decodes.
        rows: rows of token ids (see `tokenize_completions`).
        longest: most tokens of a prompt and its completion.
    """
    chosen = rows.select(evenly_spread(len(rows), NUM_EXAMPLES))
    most = max(row["length"] - row["prompt_length"] for row in chosen)
    examples = []
    for row in chosen:
        prompt, reference = row["input_ids"][: row["prompt_length"]], row["input_ids"][row["prompt_length"] :]
        inputs = torch.tensor([prompt], device=model.device)
        generated = model.generate(
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=max(1, min(most, longest - len(prompt))),
            max_length=None,
            do_sample=False,
        )
        parts = (prompt, generated[0, len(prompt) :].tolist(), reference)
        texts = (str(tokenizer.decode(part, skip_special_tokens=True)) for part in parts)
        examples.append(dict(zip(("prompt", "prediction", "reference"), texts, strict=True)))
    return examples
