"""Opening a checkpoint for use: a model and its tokenizers, or one line that says what is wrong with it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

from vaswani.data.tokenization import load_tokenizers
from vaswani.errors import UserError, one_line
from vaswani.files.hub_client import last_problem, use_patient_client
from vaswani.files.json_files import read_object
from vaswani.hub.failures import HUB_ERRORS, describe_hub_failure, is_connection_lost
from vaswani.hub.names import check_hub_name
from vaswani.hub.run_metadata import auto_class_of, meta_model, read_config
from vaswani.hub.vocabulary import check_vocabulary
from vaswani.hub.weights import (
    OTHER_CHECKPOINT,
    PICKLED_WEIGHTS,
    check_places,
    check_weights,
    is_of_base_model,
    load_weights,
)

logger = logging.getLogger(__name__)

_GENERATION_CONFIG = "generation_config.json"
_ALL_BUT_WEIGHTS = ["*.json", "*.txt", "*.model", "*.spm"]


# What a model of an Auto class does, and some that do, for those who gave one that does not.
_PURPOSES = {
    "AutoModelForSeq2SeqLM": (
        "does not translate",
        "an encoder-decoder such as 'vaswani', 'marian', 'bart' or 't5'",
    ),
    "AutoModelForCausalLM": (
        "does not continue texts",
        "a causal model such as 'vaswani_decoder', 'gpt2' or 'llama'",
    ),
}


def load_checkpoint(
    name: str | Path,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    auto_class: Any = AutoModelForSeq2SeqLM,
    allow_mismatch: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """Return the model, in evaluation mode, with its source and its target tokenizer.

    Args:
        name: a folder with any model that the Auto class loads, or its name on the Hub.
        device: where to put the model; `None` means a CUDA device if there is one, and else the CPU.
        dtype: of the weights; `None` means as saved.
        revision: branch, tag or commit on the Hub; `None` means `main`.
        auto_class: that loads it; `None` means the class that the checkpoint was saved from.
        allow_mismatch: take tokenizers that seem to be another model's, and leave out weights that the model
            has no place for.

    Raises:
        UserError: no such folder; no model of that kind in it; weights missing, damaged, incomplete, not
            finite or of another model; a tokenizer missing or of another model; a device or dtype that does
            not exist here.
    """
    device, dtype = _device(device), _dtype(dtype)
    directory = local_folder(name, revision)
    config = _load_config(directory, auto_class)
    check_weights(directory, config)
    source_tokenizer, target_tokenizer = load_tokenizers(directory)
    _check_generation_config(directory, meta_model(config, auto_class))
    model, report = load_weights(directory, auto_class or auto_class_of(config), config, dtype=dtype)
    unplaced = report["unexpected_keys"]
    if auto_class is None:  # what a head computes is not asked for
        unplaced = [name for name in unplaced if is_of_base_model(name, model)]
    remedy = f"{OTHER_CHECKPOINT}; --allow_mismatch, where a command has it, leaves out what has no place"
    check_places(directory, report["missing_keys"], ())
    check_places(directory, (), () if allow_mismatch else unplaced, remedy)
    check_vocabulary(directory, model, source_tokenizer, target_tokenizer, allow_mismatch=allow_mismatch)
    return model.to(device).eval(), source_tokenizer, target_tokenizer  # type: ignore[arg-type]


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        known = torch.zeros(1, device=device)
        known.item()  # "meta" holds no numbers
        return known.device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(
            f"device {str(device)!r} cannot be used here ({one_line(error)}); try 'cpu'"
        ) from error


def _dtype(dtype: str | torch.dtype | None) -> str | torch.dtype:
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype or "auto"
    if dtype not in ("float32", "bfloat16", "float16"):
        raise UserError(f"dtype {dtype!r} is unknown; expected 'float32', 'bfloat16' or 'float16'")
    return getattr(torch, dtype)


def local_folder(name: str | Path, revision: str | None = None) -> Path:
    """The folder of a model: itself, or where a model of the Hub was put.

    Where the Hub does not answer, the copy in the cache is used, with a warning.

    Raises:
        UserError: found no local folder and no Hub model, the folder cannot be read, or a revision was given
            to a folder.
    """
    folder = Path(name)
    if not _is_folder(folder):
        return _download(str(name), revision)
    if revision is not None:
        raise UserError(
            f"revision {revision!r} is of a model on the Hub, and {name} is a folder: leave it out"
        )
    return folder


def _is_folder(path: Path) -> bool:
    """Whether there is such a folder; a UserError is raised if it may not be read."""
    try:
        return path.is_dir() and os.listdir(path) is not None
    except PermissionError as error:
        raise UserError(f"model folder {path} cannot be read; check its permissions") from error


def _download(name: str, revision: str | None) -> Path:
    """Fetch a model from the Hub, or from its cache, and return the folder."""
    check_hub_name(name)
    use_patient_client()
    try:
        directory = _fetch(name, revision)
    except HUB_ERRORS as error:
        cached = _cached(name, revision) if is_connection_lost(error) else None
        if cached is None:
            raise UserError(
                f"model {name!r} is no local folder and cannot be loaded from the Hub: "
                f"{describe_hub_failure(error, name, revision)}"
            ) from error
        directory = cached
    if problem := last_problem():
        logger.warning("%s. The copy of %s in the cache is used: %s.", problem, name, directory)
    return directory


def _fetch(name: str, revision: str | None, **options: Any) -> Path:
    """The folder of a model in the Hub's cache, after what is missing there has been fetched."""
    wanted = [*_ALL_BUT_WEIGHTS, "model*.safetensors"]
    directory = Path(snapshot_download(name, revision=revision, allow_patterns=wanted, **options))
    if not any(directory.glob("*.safetensors")):
        snapshot_download(name, revision=revision, allow_patterns=[PICKLED_WEIGHTS], **options)
    return directory


def _cached(name: str, revision: str | None) -> Path | None:
    """The folder of a model in the Hub's cache, if it is whole."""
    try:
        return _fetch(name, revision, local_files_only=True)
    except LocalEntryNotFoundError:
        return None


def _load_config(directory: Path, auto_class: Any) -> PreTrainedConfig:
    config = read_config(directory)
    if auto_class is not None and not _serves(auto_class, config):
        problem, expected = _PURPOSES.get(
            auto_class.__name__, (f"{auto_class.__name__} does not load", "a model that it does")
        )
        raise UserError(
            f"{directory} holds a model of type {config.model_type!r}, which {problem}; expected {expected}"
        )
    return config


def _serves(auto_class: Any, config: PreTrainedConfig) -> bool:
    """Whether an Auto class makes of this configuration what it is.

    `AutoModelForCausalLM` would make a decoder of a BERT, or of half a translator, with weights that never
    saw the task.
    """
    if auto_class is AutoModelForCausalLM:
        fills_gaps = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
        if fills_gaps or config.is_encoder_decoder:
            return False
    return type(config) in auto_class._model_mapping


def _check_generation_config(directory: Path, model: PreTrainedModel) -> None:
    """Check the options of `generate` that are saved with a model, where there are any.

    Raises:
        UserError: they cannot be read, or their special tokens are not the model's.
    """
    path = directory / _GENERATION_CONFIG
    if not path.exists():
        return
    values = read_object(path)
    try:
        generation = GenerationConfig.from_dict(values)
        generation.validate()
        _check_special_tokens(generation, model)
    except Exception as error:  # of many kinds: a field of another type may fail anywhere
        raise UserError(f"{path} cannot be used: {one_line(error)}; mend it, or delete it") from error


def _check_special_tokens(generation: GenerationConfig, model: PreTrainedModel) -> None:
    """Raise a ValueError unless `generate` starts, pads and ends with tokens that the model has."""
    output: Any = model.get_output_embeddings()
    for name, value in generation.to_dict().items():
        for token in value if isinstance(value, list) else [value]:
            if not name.endswith("_token_id") or token is None:
                continue
            if not isinstance(token, int) or isinstance(token, bool):
                raise ValueError(f"{name}={token!r} must be the number of a token")
            if output is not None and token >= len(output.weight):
                raise ValueError(f"{name}={token} lies outside the vocabulary of {len(output.weight)} tokens")
    if model.config.is_encoder_decoder:
        for name in ("decoder_start_token_id", "eos_token_id"):
            of_model, given = getattr(model.config, name, None), getattr(generation, name)
            if of_model is not None and of_model != given and of_model not in (given or ()):
                raise ValueError(f"{name}={given}, and config.json has {name}={of_model}")
