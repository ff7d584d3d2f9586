"""Metadata of a trained model for its card, read from the folder of its run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from vaswani.auto_classes import models_of
from vaswani.data.text_codec import SOURCE_PREFIX, SOURCE_TAGS
from vaswani.data.tokenization import TARGET_SUBFOLDER
from vaswani.errors import UserError, one_line
from vaswani.files.json_files import read_object
from vaswani.files.run_files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    AVERAGED_FILE,
    COMBINED_FILE,
    CORPUS_FILE,
    EVALUATION_FILE,
    REPORT_PLOT,
    REPORT_TEXT,
    checkpoints,
)
from vaswani.files.run_settings import REPAIR, read_settings
from vaswani.hub.stored_tensors import stored_tensors
from vaswani.model.configuration_vaswani import MAX_LABELS, MAX_LAYERS

# Tried in this order for a configuration without `architectures`.
_AUTO_CLASSES: tuple[Any, ...] = (
    *(transformers.AutoModelForSeq2SeqLM, transformers.AutoModelForCausalLM),
    *(transformers.AutoModelForMaskedLM, transformers.AutoModelForPreTraining),
    *(transformers.AutoModelForSequenceClassification, transformers.AutoModelForTokenClassification),
    *(transformers.AutoModelForQuestionAnswering, transformers.AutoModelForMultipleChoice),
    transformers.AutoModelForNextSentencePrediction,
)
_ATTENTION = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
_COUNTS_LAYERS = re.compile(r"(^|_)(n_layers?|layers)$")


@dataclass(frozen=True)
class RunMetadata:
    """The content of a card; unknown fields are empty.

    Args:
        config: configuration of the model, with the name of its class.
        num_parameters: number of parameters; shared parameters count once, and an adapter's do not count.
        settings: settings of the training, flat, as in its configuration file.
        corpus: the sources of the rows and their numbers.
        evaluation: scores with intervals and signatures, search options, and examples.
        distillation: the report of a distillation, or of another comparison, in Markdown.
        has_plot: True if the report has a plot.
        target_tokenizer: subfolder of the target tokenizer, if it differs from the source tokenizer.
        source_prefix: text that belongs before each source.
        source_tags: tags of which each source begins with one.
        unfinished: the progress of a training that is not finished, such as "update 200 of 1,000".
        averaged: names of the checkpoints whose weights were averaged.
        combined: for an encoder-decoder that was combined and not trained since, the name of the model that
            each stack comes from; None for a new stack.
        example: texts of a row that the averaged models were evaluated on, by field.
        adapter: the configuration of the adapter that the folder holds in place of a model.
        adapter_parameters: number of parameters that the adapter holds.
    """

    config: PreTrainedConfig
    num_parameters: int
    settings: dict[str, Any] = field(default_factory=dict)
    corpus: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    distillation: str = ""
    has_plot: bool = False
    target_tokenizer: str | None = None
    source_prefix: str = ""
    source_tags: tuple[str, ...] = ()
    unfinished: str = ""
    averaged: tuple[str, ...] = ()
    combined: dict[str, str | None] = field(default_factory=dict)
    example: dict[str, Any] = field(default_factory=dict)
    adapter: dict[str, Any] = field(default_factory=dict)
    adapter_parameters: int = 0

    def with_settings(self, **stated: Any) -> RunMetadata:
        """Return a copy with these settings replaced; empty values are ignored."""
        given = {name: value for name, value in stated.items() if value}
        return replace(self, settings={**self.settings, **given})


def new_parts(halves: Mapping[str, object]) -> list[str]:
    """Return the parts of a combined model that are not trained, given where each stack comes from."""
    return [*(stack for stack, origin in halves.items() if not origin), "cross-attention"]


def read_run_metadata(folder: Path, config: PreTrainedConfig | None = None) -> RunMetadata:
    """Read the metadata of a run.

    Args:
        folder: the folder of the run.
        config: configuration of the model; default the one in the folder.

    Raises:
        UserError: the folder holds no model, or a file cannot be read.
    """
    config = config or read_config(folder)
    averaged = _record(folder / AVERAGED_FILE)
    tokenizer = _record(folder / "tokenizer_config.json")
    return RunMetadata(
        config=config,
        num_parameters=count_parameters(config),
        settings=read_settings(folder),
        corpus=_record(folder / CORPUS_FILE),
        evaluation=_record(folder / EVALUATION_FILE),
        distillation=_text(folder / REPORT_TEXT),
        has_plot=(folder / REPORT_PLOT).is_file(),
        target_tokenizer=TARGET_SUBFOLDER if (folder / TARGET_SUBFOLDER).is_dir() else None,
        averaged=tuple(averaged.get("checkpoints", ())),
        combined=_record(folder / COMBINED_FILE),
        example=averaged.get("example", {}),
        source_prefix=tokenizer.get(SOURCE_PREFIX, ""),
        source_tags=tuple(tokenizer.get(SOURCE_TAGS, ())),
        adapter=_record(folder / ADAPTER_CONFIG),
        adapter_parameters=_adapter_parameters(folder / ADAPTER_WEIGHTS),
    )


def _adapter_parameters(file: Path) -> int:
    """Return the number of parameters in the weights of an adapter; 0 if there is no file."""
    return sum(tensor.num_elements for tensor in stored_tensors(file).values()) if file.is_file() else 0


def check_holds_model(folder: Path) -> Path:
    """Return the configuration file of the model in a folder; raise a UserError if there is none."""
    path = folder / "config.json"
    if not path.exists():
        last = next((each for each in checkpoints(folder) if (each / "config.json").exists()), None)
        remedy = f"give {last}" if last else "give the folder that a training wrote"
        raise UserError(f"{folder} holds no model (it has no config.json); {remedy}")
    return path


def read_config(folder: Path) -> PreTrainedConfig:
    """Read the configuration of the model in a folder.

    Raises:
        UserError: the folder holds no model, or its configuration is invalid.
    """
    path = check_holds_model(folder)
    values = read_object(path)
    if "model_type" not in values and (folder / "model.bin").exists():
        raise UserError(
            f"{folder} holds a model for CTranslate2. An encoder-decoder runs in vaswani translate, "
            "summarize, evaluate and demo with --engine ctranslate2, and in Translator with "
            "engine='ctranslate2'; elsewhere, give the folder that it was exported from"
        )
    try:
        _check_sizes(values)
        _check_attention(values)
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # an unknown model type, a field that fails its validation
        model_type, reason = values.get("model_type"), one_line(error.__cause__ or error)
        is_known = isinstance(model_type, str) and model_type in CONFIG_MAPPING
        if "trust_remote_code" in reason or not is_known:
            reason = (
                f"model_type={model_type!r} is unknown to transformers, and checkpoints' own code is not run"
            )
        raise UserError(f"{path} cannot be used: {reason}") from error


def _check_sizes(values: dict[str, Any]) -> None:
    """Raise a ValueError for sizes from which transformers would build lists too large for any model."""
    for name, value in values.items():
        most = MAX_LABELS if name == "num_labels" else MAX_LAYERS if _COUNTS_LAYERS.search(name) else None
        if most is not None and isinstance(value, int | float) and not value <= most:
            raise ValueError(f"{name}={value} must be at most {most:,}")


def _check_attention(values: dict[str, Any]) -> None:
    """Raise a ValueError if a file selects attention from the Hub, which would run the code of a kernel."""
    for name, value in values.items():
        if name in _ATTENTION:
            for chosen in value.values() if isinstance(value, dict) else [value]:
                if isinstance(chosen, str) and "/" in chosen:
                    raise ValueError(
                        f"{name}={chosen} is code on the Hub, which a checkpoint cannot choose; remove it"
                    )
        elif isinstance(value, dict):  # the configuration of a part
            _check_attention(value)


def count_parameters(config: PreTrainedConfig, auto_class: Any = None) -> int:
    """Return the number of parameters of a model of this shape, without allocating them."""
    return meta_model(config, auto_class).num_parameters()


def meta_model(config: PreTrainedConfig, auto_class: Any = None) -> PreTrainedModel:
    """Return a model on the meta device, whose parameters have shapes and no values.

    Args:
        config: the model's configuration.
        auto_class: Auto class that creates the model. Default: that of the class in `config.architectures`;
            if none is named, the first that supports the configuration, with a language-model head if
            possible.
    """
    with torch.device("meta"):
        return (auto_class or auto_class_of(config)).from_config(config, trust_remote_code=False)


def class_name(config: PreTrainedConfig) -> str:
    """Return the class that a configuration names, or else its type, for messages."""
    return ", ".join(config.architectures or ()) or f"a model of type {config.model_type!r}"


def auto_class_of(config: PreTrainedConfig) -> Any:
    """Return the Auto class for the class that a configuration names (see `meta_model`)."""
    names = config.architectures or ()
    for auto_class in _AUTO_CLASSES:
        known = models_of(auto_class).get(type(config), None)
        classes = known if isinstance(known, tuple) else (known,)
        if known is not None and (not names or {each.__name__ for each in classes} & set(names)):
            return auto_class
    return AutoModel


def _record(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file of a run holds; empty if there is no file."""
    return read_object(path, REPAIR) if path.is_file() else {}


def _text(path: Path) -> str:
    """Return the text of a file; empty if there is no file."""
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else ""
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({one_line(error)}); {REPAIR}") from error
