"""Predict labels with a trained classifier, regressor or tagger of transformers or vaswani.

A prediction does not depend on the batch, except for rounding.

S texts of a batch · T tokens of a text · L labels
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from vaswani.bounds import Bounds
from vaswani.data.labels.labelled_tokens import check_room, encode_texts
from vaswani.data.text_codec import TextCodec
from vaswani.errors import RunError, UserError, check_positive
from vaswani.files.run_settings import read_settings
from vaswani.hub.checkpoint import WRITING_COMMANDS, local_folder
from vaswani.hub.run_metadata import auto_class_of, class_name, read_config
from vaswani.inference.batches import (
    BUFFERED_TEXTS,
    batches,
    buffers,
    check_several,
    checked,
    padded_inputs,
    within_memory,
)
from vaswani.inference.loading import FromPretrained
from vaswani.inference.position_limits import longest_text

if TYPE_CHECKING:
    from typing_extensions import Self

Text = str | tuple[str, str] | list[str]  # a text, a pair of texts, or words


@dataclass(frozen=True)
class Prediction:
    """The prediction for one text; `label` and probabilities are None for a text without tokens.

    Args:
        label: for classification, the most probable label; for multi-label classification, the labels with
            a probability above the threshold; for regression, the number; for tagging, a tag for each word
            (None for words beyond the length limit).
        probability: the probability of the label, or of each label or tag; None for regression.
        probabilities: the probabilities of all labels, most probable first; for tagging, those of each word.
            None for regression.
        words: the words of the text, for tagging.
        cut_off: whether the text was truncated.
    """

    label: Any = None
    probability: Any = None
    probabilities: Any = None
    words: list[str] | None = None
    cut_off: bool = False


def task_of(config: PreTrainedConfig) -> str | None:
    """Return the task of a model: "classification", "multi_label", "regression" or "tagging".

    Args:
        config: the configuration of the model, with the name of its class.

    Returns:
        None for a model without a head for labels.
    """
    auto_class = auto_class_of(config)
    if auto_class is AutoModelForTokenClassification:
        return "tagging"
    if auto_class is not AutoModelForSequenceClassification:
        return None
    if config.problem_type == "multi_label_classification":
        return "multi_label"
    return "regression" if config.problem_type == "regression" or config.num_labels == 1 else "classification"


def task_of_checkpoint(name: str | Path, revision: str | None = None) -> str:
    """Return the task of the model in a folder or on the Hub (see `task_of`), without loading the model.

    Raises:
        UserError: the model has no head for labels.
    """
    folder = local_folder(name, revision, weights=False)
    config = read_config(folder)
    task = task_of(config)
    if task is None:
        writes = AutoModelForSeq2SeqLM if config.is_encoder_decoder else auto_class_of(config)
        command = WRITING_COMMANDS.get(writes)
        advice = f"; it writes texts: use {command}" if command else ""
        raise UserError(
            f"{folder} holds {class_name(config)}, which predicts no labels; expected {_EXPECTED}{advice}"
        )
    return task


def names_of(config: PreTrainedConfig) -> list[str]:
    """Return the names of a model's labels, in the order of its logits."""
    labels: dict[Any, str] = dict(config.id2label or {})
    return [str(labels[number]) for number in sorted(labels)]


class Classifier(FromPretrained):
    """Predicts labels of texts or of their words, with any model that has a head for labels.

        classifier = Classifier.from_pretrained("runs/finetune_reviews")
        classifier(["A joy from the first minute to the last."])[0].label  # "pos"

    Args:
        model: a sequence or token classifier; it is put into evaluation mode.
        tokenizer: adds the special tokens that the model was trained with.
        max_length: maximum tokens of a text; longer texts are truncated. None means the limit of the model
            and tokenizer, or 4,096 if they have none. `from_pretrained` uses the limit of the training
            instead, except for taggers, because every word needs a tag.
        max_tokens_per_batch: maximum tokens of a batch, padding included. A longer text forms its own batch.
        threshold: for multi-label classification: labels with a probability above this are predicted. None
            means 1/2.

    Attributes:
        task: the task of the model (see `task_of`).
        names: the names of the labels.

    Raises:
        UserError: an option is out of range, or the model predicts no labels.
    """

    _engines = ("torch", "onnx")

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int | None = None,
        max_tokens_per_batch: int = 8192,
        threshold: float | None = None,
    ):
        check_positive(max_tokens_per_batch=max_tokens_per_batch, max_length=max_length)
        task = task_of(model.config)
        if task is None:
            raise UserError(f"a {type(model).__name__} predicts no labels; expected {_EXPECTED}")
        if task == "regression" and (count := len(names_of(model.config))) > 1:
            raise UserError(f"the model predicts {count} numbers of a text; expected one")
        if threshold is not None:
            Bounds(above=0, below=1).check("threshold", threshold)
            if task != "multi_label":
                raise UserError(
                    f"threshold={threshold} is for models that give a text any number of labels "
                    f"(multi_label), and this one is for {task}; leave it out"
                )
        self.task = task
        self.model = model.eval()
        self.tokenizer = copy.deepcopy(tokenizer)  # truncation is stored in it
        self.names = names_of(model.config)
        self.max_length = longest_text(model, tokenizer, max_length)
        check_room(tokenizer, self.max_length, pairs=False)
        self.max_tokens_per_batch = max_tokens_per_batch
        self.threshold = 0.5 if threshold is None else threshold
        self._special = TextCodec(self.tokenizer).special_ids()
        self._arguments = inspect.signature(model.forward).parameters

    @classmethod
    def from_pretrained(cls, name: str | Path, **options: Any) -> Self:
        """Load a model as the class that it was saved from, with its tokenizer (see `FromPretrained`)."""
        folder = local_folder(name, options.get("revision"), weights=False)
        task = task_of_checkpoint(folder)
        settings = read_settings(folder)
        if options.get("max_length") is None and task != "tagging" and settings.get("task") == task:
            options["max_length"] = settings.get("max_length")  # what it was trained and scored on
        return super().from_pretrained(name, **options)

    def __call__(self, texts: Iterable[Text]) -> list[Prediction]:
        """Predict the labels of texts, in order.

        Args:
            texts: texts or pairs of texts; for a tagger, texts, which are split at white space, or lists of
                words.

        Raises:
            UserError: a single text is given, or the tokenizer does not map tokens to words.
            RunError: a batch does not fit into the device's memory, or its results are not finite.
        """
        return list(self.stream(texts))

    def stream(
        self,
        texts: Iterable[Text],
        *,
        buffer_size: int = BUFFERED_TEXTS,
        progress: Callable[[int], object] | None = None,
    ) -> Iterator[Prediction]:
        """Predict the labels of a stream of texts, in order and in bounded memory.

        Args:
            texts: as in `__call__`; they are read, sorted by length and predicted one buffer at a time.
            buffer_size: number of texts to read ahead; smaller at the beginning and for very long texts.
            progress: is called with the number of texts of each finished batch.

        Raises:
            UserError, RunError: as `__call__`.
        """
        check_several(texts)
        check_positive(buffer_size=buffer_size)
        done = progress or (lambda count: None)
        for buffer in buffers(checked(texts, (str, tuple, list)), buffer_size):
            yield from self._predict_buffer(buffer, done)

    def _predict_buffer(self, texts: list[Text], done: Callable[[int], object]) -> list[Prediction]:
        if self.task == "tagging":
            texts = [text.split() if isinstance(text, str) else list(text) for text in texts]
        elif found := next((text for text in texts if isinstance(text, list)), None):
            raise UserError(
                f"expected a text, got the list {str(found)[:60]}; lists of words are for taggers"
            )
        predictions = [Prediction(words=text if isinstance(text, list) else None) for text in texts]
        rows, is_long = self._encode(texts)
        done(len(texts) - len(rows))
        lengths = {number: len(row["input_ids"]) for number, row in rows.items()}
        # Without a padding token, decoders cannot tell where a padded text ends.
        most = self.max_tokens_per_batch if self.model.config.pad_token_id is not None else 1
        for batch in batches(lengths, most):
            with within_memory("texts", len(batch), lengths[batch[0]]):
                logits = self._logits([rows[number] for number in batch])
            for number, of_text in zip(batch, logits, strict=True):
                words = predictions[number].words
                values = self._values(of_text, rows[number].get("word_starts"), len(words or ()))
                predictions[number] = Prediction(**values, words=words, cut_off=is_long[number])
            done(len(batch))
        return predictions

    def _encode(self, texts: list[Text]) -> tuple[dict[int, dict[str, Any]], dict[int, bool]]:
        """Return, by position, the tokens of non-empty texts, and whether a text is too long."""
        filled = [number for number, text in enumerate(texts) if text and any(map(str.strip, _parts(text)))]
        rows: dict[int, dict[str, Any]] = {}
        is_long: dict[int, bool] = {}
        for pairs in (False, True):
            numbers = [number for number in filled if isinstance(texts[number], tuple) == pairs]
            if not numbers:
                continue
            kept = [texts[number] for number in numbers]
            columns: list[list[Any]] = [list(side) for side in zip(*kept, strict=True)] if pairs else [kept]
            encoded, cut = encode_texts(self.tokenizer, columns, self.max_length)
            rows |= dict(zip(numbers, encoded, strict=True))
            is_long |= dict(zip(numbers, cut, strict=True))
        rows = {number: row for number, row in rows.items() if not self._special.issuperset(row["input_ids"])}
        return rows, is_long

    @torch.inference_mode()
    def _logits(self, rows: Sequence[dict[str, Any]]) -> torch.Tensor:
        """Return the logits of a batch, float32 on the CPU: [S, L], or [S, T, L] for a tagger."""
        inputs = padded_inputs(rows, self._arguments, self.tokenizer.pad_token_id, self.model.device)
        logits = self.model(**inputs).logits.float().cpu()
        kept = inputs["attention_mask"].bool().cpu() if self.task == "tagging" else slice(None)
        if not logits[kept].isfinite().all():
            raise RunError(f"the model's results leave the range of {self.model.dtype}; try dtype float32")
        return logits

    def _values(self, logits: torch.Tensor, word_starts: Any, num_words: int) -> dict[str, Any]:
        """Return the label and the probabilities of a text from its logits [L], or [T, L] for a tagger."""
        if self.task == "regression":
            return {"label": float(logits[0])}
        if self.task == "multi_label":
            shares = logits.sigmoid()
            of_names = zip(self.names, shares.tolist(), strict=True)
            likely = {name: share for name, share in of_names if share > self.threshold}
            return {
                "label": list(likely),
                "probability": list(likely.values()),
                "probabilities": self._ranked(shares),
            }
        if self.task == "classification":
            all_of = self._ranked(logits.softmax(-1))
            label, probability = next(iter(all_of.items()))
            return {"label": label, "probability": probability, "probabilities": all_of}
        of_words = [self._ranked(row) for row in logits[word_starts].softmax(-1)]
        best = [next(iter(of_word.items())) for of_word in of_words]
        unread = [None] * (num_words - len(best))
        return {
            "label": [*(label for label, _ in best), *unread],
            "probability": [*(probability for _, probability in best), *unread],
            "probabilities": [*of_words, *unread],
        }

    def _ranked(self, probabilities: torch.Tensor) -> dict[str, float]:
        """Return the labels with their probabilities, the most probable first."""
        order = probabilities.argsort(descending=True, stable=True).tolist()
        return {self.names[number]: float(probabilities[number]) for number in order}


_EXPECTED = "a sequence or token classifier, such as one of vaswani finetune"


def _parts(text: Text) -> Sequence[str]:
    return [text] if isinstance(text, str) else text
