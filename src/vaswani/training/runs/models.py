"""The model that a training starts from: a new one, or a pre-trained one with a head for its task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    enable_full_determinism,
    set_seed,
)

from vaswani.auto_classes import models_of
from vaswani.data.given_tokenizers import is_sentencepiece, open_tokenizers
from vaswani.data.text_codec import Tokenizers
from vaswani.data.tokenization import load_tokenizers
from vaswani.errors import UserError, one_line
from vaswani.hub.checkpoint import ENCODER_DECODERS, local_folder
from vaswani.hub.run_metadata import meta_model, read_config
from vaswani.hub.vocabulary import check_vocabulary
from vaswani.hub.weights import (
    check_tensor_names,
    check_weights,
    is_of_base_model,
    load_weights,
    silenced_load_report,
)
from vaswani.inference.classify.classification import names_of
from vaswani.inference.position_limits import position_limit, source_limit
from vaswani.training.config.arguments import FamilyArguments
from vaswani.training.config.options import BaseConfig

ENCODERS = "an encoder such as 'vaswani_encoder', 'bert' or 'distilbert'"
DECODERS = "a decoder such as 'vaswani_decoder'"
CLASSIFIERS = f"{ENCODERS}, or a decoder such as 'vaswani_decoder' or 'gpt2'"

PrepareTokenizer = Callable[[PreTrainedTokenizerBase, str], PreTrainedTokenizerBase]
Shape = TypeVar("Shape", bound=PreTrainedConfig)


def config_from(config_class: type[Shape], arguments: FamilyArguments, **others: Any) -> Shape:
    """Return a model's configuration from the arguments of a run and other fields, such as `vocab_size`.

    Raises:
        UserError: the values are invalid; for example, the heads do not divide the width.
    """
    values = asdict(arguments)
    values.pop("attn_implementation")
    for name in ("encoder_attention", "decoder_attention"):
        if len(values.get(name, ())) == 1:  # one word for all layers
            values[name] = values[name][0]
    try:
        return config_class(**values, **others)
    except (ValueError, StrictDataclassError) as error:
        raise UserError(one_line(error.__cause__ or error)) from error


def new_model(config: BaseConfig, auto_class: Any, shape: PreTrainedConfig) -> PreTrainedModel:
    """Return a model of an Auto class with new weights, drawn from the run's seed.

    Raises:
        UserError: there is no such attention kernel.
    """
    seed_everything(config)
    return _from_config(auto_class, shape, **kernel_options(config))


def pretrained_model(
    config: BaseConfig, pretrained: Pretrained, auto_class: Any, fields: dict[str, Any]
) -> PreTrainedModel:
    """As `load_with_head`, with the run's seed and attention kernel."""
    seed_everything(config)
    return load_with_head(pretrained, auto_class, fields, **kernel_options(config))[0]


def model_with_head(
    config: BaseConfig, pretrained: Pretrained, auto_class: Any, fields: dict[str, Any]
) -> PreTrainedModel:
    """As `pretrained_model` or, with `from_scratch`, return a model of the same shape with new weights."""
    if not config.model.from_scratch:
        return pretrained_model(config, pretrained, auto_class, fields)
    seed_everything(config)
    return new_with_head(pretrained, auto_class, fields, **kernel_options(config))


def seed_everything(config: BaseConfig) -> None:
    """Seed all random generators with the run's seed."""
    args = config.training
    enable_full_determinism(args.seed) if args.full_determinism else set_seed(args.seed)


def kernel_options(config: BaseConfig) -> dict[str, Any]:
    """Return the attention kernel of a run as an option of the Auto classes, which choose one by default."""
    kernel = config.model.attn_implementation
    return {"attn_implementation": kernel} if kernel else {}


# -------------------------------------------------------------------------------------- pre-trained models


@dataclass(frozen=True)
class Pretrained:
    """A pre-trained model whose weights are not loaded yet."""

    folder: Path
    config: PreTrainedConfig  # the model may have no head, or the head of another task
    tokenizer: PreTrainedTokenizerBase  # pads on the right
    longest: int | None  # most tokens of a text or source, special tokens included; None for any number
    longest_target: int | None  # most tokens of a target, likewise
    new_tokens: int | None = None  # tokens added to prepare a decoder's tokenizer; None for any other model

    def check_length(self, length: int, name: str = "max_length") -> None:
        """Raise `UserError` for sequences with more tokens than the model has positions."""
        most = self.longest_target if name == "max_target_length" else self.longest
        if most is not None and length > most:
            is_tokenizer_limit = most == self.tokenizer.model_max_length
            advice = ", or save its tokenizer with a larger model_max_length, if only that limits it"
            raise UserError(
                f"{name}={length}, but {self.folder} has positions for {most} tokens; set {name} to {most} "
                f"or less{advice if is_tokenizer_limit else ''}"
            )


def is_decoder(config: PreTrainedConfig) -> bool:
    """Return True if a model is decoder-only, such as GPT-2. (BERT, a masked model, can be causal too.)"""
    causal, masked = models_of(AutoModelForCausalLM), models_of(AutoModelForMaskedLM)
    return type(config) in causal and type(config) not in masked and not config.is_encoder_decoder


def untied_output_reason(config: PreTrainedConfig) -> str | None:
    """Describe a model, unless it is a decoder whose logits are its last states times its embedding."""
    if not is_decoder(config):
        return f"no decoder, but a model of type {config.model_type!r}"
    model = meta_model(config, AutoModelForCausalLM)
    output, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if output is None or output.weight is not embedding.weight:
        return "one with an output layer of its own (tie_word_embeddings=false)"
    if getattr(output, "bias", None) is not None:
        return "one with a bias in its output layer (lm_head_bias=true)"
    changed = {name: value for name, value in config.to_dict().items() if "logit" in name}
    if scales := {name: value for name, value in changed.items() if value not in (None, False, 1)}:
        return "one that changes its logits ({}={})".format(*next(iter(scales.items())))
    return None


def open_pretrained(
    name: str, auto_class: Any, decoders_tokenizer: PrepareTokenizer | None = None
) -> Pretrained:
    """Open a folder, or a model on the Hub, for an Auto class, without loading its weights.

    Args:
        name: name of the folder or the model.
        auto_class: the Auto class that will load it.
        decoders_tokenizer: function that prepares the tokenizer of a decoder; its second argument names the
            tokenizer in messages.

    Raises:
        UserError: there is no model, the class does not load it, or there is no usable tokenizer.
    """
    folder = local_folder(name)
    config = read_config(folder)
    if type(config) not in models_of(auto_class):
        kinds = {
            AutoModelForCausalLM: DECODERS,
            AutoModelForSeq2SeqLM: ENCODER_DECODERS,
            AutoModelForSequenceClassification: CLASSIFIERS,
        }
        raise UserError(
            f"{folder} holds a model of type {config.model_type!r}, which {auto_class.__name__} does not "
            f"load; expected {kinds.get(auto_class, ENCODERS)}"
        )
    tokenizer, new_tokens = load_tokenizers(folder)[0], None
    if decoders_tokenizer is not None and is_decoder(config):
        known = len(tokenizer)
        tokenizer = decoders_tokenizer(tokenizer, f"in {folder}")
        new_tokens = len(tokenizer) - known
    if tokenizer.pad_token_id is None:
        raise UserError(f"the tokenizer in {folder} has no padding token, which batches need; give it one")
    tokenizer.padding_side = "right"
    return Pretrained(folder, config, tokenizer, *_longest(config, auto_class, tokenizer), new_tokens)


def named_tokenizers(name: str, kind: str) -> Tokenizers:
    """Open the source and target tokenizers of a folder, of a model on the Hub, or of a SentencePiece model.

    Args:
        name: name of the folder, the model or the file.
        kind: `tokenizer_kind` of the configuration, which only applies to trained tokenizers.

    Raises:
        UserError: there is none, it cannot be read, or the configuration also sets a kind.
    """
    if kind != "bpe":
        raise UserError(
            f"tokenizer_kind={kind} trains a tokenizer, and tokenizer={name} gives one; leave one of them out"
        )
    if name.endswith((".model", ".spm")) and not Path(name).exists():
        raise UserError(f"tokenizer={name} does not exist; give the file of a SentencePiece model")
    if Path(name).is_file() and not is_sentencepiece(name):
        raise UserError(
            f"tokenizer={name} is a file; expected a SentencePiece model (.model or .spm), a folder, or a "
            "name on the Hub"
        )
    return open_tokenizers(Path(name) if is_sentencepiece(name) else local_folder(name, weights=False))


def _longest(
    config: PreTrainedConfig, auto_class: Any, tokenizer: PreTrainedTokenizerBase
) -> tuple[int | None, int | None]:
    """The most tokens of a source and of a target that a model has positions for.

    Reads them from the model itself, which may have fewer than its configuration says, as RoBERTa does.
    """
    with torch.device("meta"):
        model = auto_class.from_config(config, trust_remote_code=False)
    return source_limit(model, tokenizer), position_limit(model, "target")


def load_with_head(
    pretrained: Pretrained, auto_class: Any, fields: dict[str, Any], **options: Any
) -> tuple[PreTrainedModel, list[str]]:
    """Load a model with a head for a task, in float32; print which weights are new and which are left out.

    Args:
        pretrained: the model.
        auto_class: the Auto class of the task.
        fields: fields of the configuration, for the task's labels.
        options: options of `from_pretrained`.

    Returns:
        The model, and the names of its new weights, which are drawn from torch's generator: the weights of a
        head that the saved model lacks, or has in another size or for other labels.

    Raises:
        UserError: weights of the saved model are missing or damaged, or an option does not work.
    """
    folder = pretrained.folder
    check_weights(folder, pretrained.config)
    config = _config_with(folder, fields)
    model, report = load_weights(
        folder, auto_class, config, dtype=torch.float32, ignore_mismatched_sizes=True, **options
    )
    new = sorted({*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])})
    of_base = [
        [name for name in names if is_of_base_model(name, model)]
        for names in (new, report["unexpected_keys"])
    ]
    check_tensor_names(folder, missing=of_base[0], unexpected=of_base[1])
    _fit_to_tokenizer(model, pretrained)
    new += _fit_to_labels(model, pretrained.config, auto_class, new)
    left_out = dict.fromkeys(name.rpartition(".")[0] or name for name in sorted(report["unexpected_keys"]))
    for what, names in (("new weights", new), ("left out", left_out)):
        if names:
            PartialState().print(f"{what}: {', '.join(names)}", flush=True)
    return model, new


def new_with_head(
    pretrained: Pretrained, auto_class: Any, fields: dict[str, Any], **options: Any
) -> PreTrainedModel:
    """Return a model of the same shape with new weights, drawn from torch's generator, in float32.

    Raises:
        UserError: an option that does not work, or a tokenizer that does not fit.
    """
    config = _config_with(pretrained.folder, fields)
    model = _from_config(auto_class, config, dtype=torch.float32, trust_remote_code=False, **options)
    _fit_to_tokenizer(model, pretrained)
    return model


def _fit_to_labels(
    model: PreTrainedModel, saved: PreTrainedConfig, auto_class: Any, new: Sequence[str]
) -> list[str]:
    """Order the rows of the output layer by the model's labels; draw them anew for other labels than saved.

    Args:
        model: the model, with the weights that were saved.
        saved: the configuration that was saved, with the labels of these weights.
        auto_class: the Auto class of the model.
        new: names of weights that were not saved.

    Returns:
        The names of the weights that this call has drawn.
    """
    before, labels = names_of(saved), names_of(model.config)
    if before == labels:
        return []
    linear = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == len(labels)
    ]
    output = {
        f"{name}.{part}": weight
        for name, module in linear[-1:]  # a hidden layer of the head can be as wide
        for part, weight in module.named_parameters()
        if f"{name}.{part}" not in new
    }
    if not output:
        return []
    if sorted(before) == sorted(labels):
        for weight in output.values():
            weight.data = weight.data[[before.index(label) for label in labels]]
        return []
    drawn = _from_config(auto_class, model.config, dtype=torch.float32, trust_remote_code=False)
    weights = dict(drawn.named_parameters())
    for name, weight in output.items():
        weight.data = weights[name].data
    return list(output)


def _fit_to_tokenizer(model: PreTrainedModel, pretrained: Pretrained) -> None:
    """Give a decoder the padding token that its tokenizer got; check that model and tokenizer agree."""
    tokenizer, embedding = pretrained.tokenizer, model.get_input_embeddings()
    rows = int(embedding.weight.shape[0])  # type: ignore[index]
    if pretrained.new_tokens is not None:
        if 0 < len(tokenizer) - rows <= pretrained.new_tokens:
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        model.config.pad_token_id = tokenizer.pad_token_id
    check_vocabulary(pretrained.folder, model, tokenizer)


def _from_config(auto_class: Any, shape: PreTrainedConfig, **options: Any) -> PreTrainedModel:
    try:
        return auto_class.from_config(shape, **options)
    except (ValueError, ImportError) as error:
        raise UserError(one_line(error)) from error


def _config_with(folder: Path, fields: dict[str, Any]) -> PreTrainedConfig:
    with silenced_load_report():
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **fields)
