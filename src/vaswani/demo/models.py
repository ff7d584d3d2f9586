"""Open the models that a demo can show, each with the class that fits its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from transformers import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    FillMaskPipeline,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from vaswani.data.text_codec import TextCodec, exclusive
from vaswani.errors import UserError
from vaswani.files.run_settings import read_settings
from vaswani.hub.checkpoint import local_folder
from vaswani.hub.run_metadata import auto_class_of, class_name, read_config
from vaswani.inference.answer.answering import QuestionAnswerer
from vaswani.inference.classify.classification import Classifier, task_of
from vaswani.inference.loading import FromPretrained
from vaswani.inference.position_limits import longest_text
from vaswani.inference.prompt.prompting import Prompter
from vaswani.inference.score.scorer import kind_of
from vaswani.inference.translate.translation import Translator
from vaswani.insight.token_texts import word_parts

Kind = Literal["labels", "labels of pairs", "summaries", "seq2seq", "causal", "masked", "answers"]

EXPECTED = (
    "an encoder-decoder, a classifier, a model that answers questions, or a causal or masked language model"
)
SUMMARY_DEFAULTS = {"max_length": 512, "no_repeat_ngram_size": 3}  # as in `vaswani summarize`


class Summarizer(Translator):
    """A `Translator` that has learned to summarize."""


class PairClassifier(Classifier):
    """A `Classifier` that has learned to read pairs of texts."""


class MaskedWord(NamedTuple):
    """A token that a masked language model predicts.

    Args:
        text: the token as text.
        probability: its probability.
        continues: whether it continues the word before it.
    """

    text: str
    probability: float
    continues: bool


class MaskFiller(FromPretrained):
    """Predicts masked tokens with a masked language model; thread-safe.

    Args:
        model: a masked language model; it is put into evaluation mode.
        tokenizer: the model's tokenizer, with a mask token.

    Attributes:
        max_length: maximum tokens of a text, including special tokens.

    Raises:
        UserError: the tokenizer has no mask token.
    """

    _auto_class = AutoModelForMaskedLM

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        if tokenizer.mask_token is None:
            raise UserError("the tokenizer has no mask_token, so no token can be masked")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.codec = TextCodec(tokenizer)
        self.max_length = longest_text(model, tokenizer, None)
        self._pipeline = FillMaskPipeline(model=model, tokenizer=cast(Any, tokenizer))
        self._word_part = word_parts(self.codec)

    def __call__(self, text: str, top_k: int) -> list[list[MaskedWord]]:
        """Return, for each mask of a text, its most probable tokens."""
        with exclusive(self.tokenizer):
            found: Any = self._pipeline(text, top_k=top_k)
        of_masks = found if isinstance(found[0], list) else [found]
        return [[self._word(each) for each in of_mask] for of_mask in of_masks]

    def _word(self, found: dict[str, Any]) -> MaskedWord:
        text, continues = self._word_part(self.tokenizer.convert_ids_to_tokens([found["token"]])[0])
        return MaskedWord(text, found["score"], continues)


Model = Translator | Classifier | Prompter | MaskFiller | QuestionAnswerer

CLASSES: dict[Kind, Any] = {
    "labels": Classifier,
    "labels of pairs": PairClassifier,
    "summaries": Summarizer,
    "seq2seq": Translator,
    "causal": Prompter,
    "masked": MaskFiller,
    "answers": QuestionAnswerer,
}


# The fields of both texts in the examples of an evaluation, for models that read two.
PAIR_FIELDS: dict[type[Model], tuple[str, str]] = {
    PairClassifier: ("text", "text_pair"),
    QuestionAnswerer: ("question", "context"),
}


def kind_of_checkpoint(name: str | Path, revision: str | None = None) -> Kind:
    """Return the kind of a model, in a folder or on the Hub, before it is loaded.

    Raises:
        UserError: a demo does not show such models.
    """
    folder = local_folder(name, revision, weights=False)
    config = read_config(folder)
    if auto_class_of(config) is AutoModelForQuestionAnswering:
        return "answers"
    if task_of(config):
        return "labels" if read_settings(folder).get("text_pair_field") is None else "labels of pairs"
    kind: Kind | None = kind_of(config)
    if kind == "seq2seq" and summarizes(folder, config):
        return "summaries"
    if kind is None:
        raise UserError(
            f"{folder} holds {class_name(config)}, which the demo does not show; expected {EXPECTED}"
        )
    return kind


def _kind_of_export(name: str | Path, revision: str | None) -> Kind:
    """Return the kind of an encoder-decoder for CTranslate2, which may have no `config.json`."""
    return "summaries" if _trained_to_summarize(local_folder(name, revision, weights=False)) else "seq2seq"


def summarizes(folder: Path, config: PreTrainedConfig) -> bool:
    """Return True if the training settings or the type of an encoder-decoder say that it summarizes."""
    return _trained_to_summarize(folder) or config.model_type == "pegasus"


def _trained_to_summarize(folder: Path) -> bool:
    return read_settings(folder).get("task") == "summarization"


def open_model(
    name: str | Path,
    *,
    engine: str = "torch",
    revision: str | None = None,
    translator_options: dict[str, Any] | None = None,
    **loading: Any,
) -> Model:
    """Load a model with the class that fits its checkpoint.

    Args:
        name: a folder, or a name on the Hub.
        engine: `"torch"`, `"onnx"` or, for encoder-decoders, `"ctranslate2"`.
        revision: branch, tag or commit on the Hub; None means `main`.
        translator_options: options of `Translator`, for encoder-decoders; None values mean the defaults.
        loading: further options of `FromPretrained.from_pretrained`.

    Raises:
        UserError: the model cannot be loaded, a demo does not show its kind, or an option is for another
            kind.
    """
    given = {name: value for name, value in (translator_options or {}).items() if value is not None}
    exported = engine == "ctranslate2"
    kind = _kind_of_export(name, revision) if exported else kind_of_checkpoint(name, revision)
    if kind in ("seq2seq", "summaries"):
        options = {**(SUMMARY_DEFAULTS if kind == "summaries" else {}), **given, **loading}
        return CLASSES[kind].from_pretrained(name, engine=engine, revision=revision, **options)
    if given:
        raise UserError(f"{next(iter(given))} is for encoder-decoders, and {name} is not one; leave it out")
    return CLASSES[kind].from_pretrained(name, engine=engine, revision=revision, **loading)


def shown_names(names: Sequence[str]) -> list[str]:
    """Return short names for models: the last parts of their names, as many as distinguish them.

    Raises:
        UserError: a model is given twice.
    """
    parts = [Path(name).parts for name in names]
    for count in range(1, max(map(len, parts)) + 1):
        shown = ["/".join(each[-count:]) for each in parts]
        if len(set(shown)) == len(shown):
            return shown
    raise UserError(f"model {names[0]} is given twice; give different ones")
