"""Opening a checkpoint for use: a model and its tokenizers, or one line that says what is wrong with it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

from vaswani.data.tokenization import load_tokenizers
from vaswani.errors import UserError, one_line
from vaswani.hub.failures import HUB_ERRORS, describe_hub_failure
from vaswani.hub.run_facts import auto_class_of, meta_model, read_config

_WEIGHTS = "model.safetensors"
_WEIGHTS_INDEX = "model.safetensors.index.json"
_PICKLED_WEIGHTS = (
    "pytorch_model*.bin"  # as PyTorch pickles them: many older checkpoints on the Hub have no others
)
_ALL_BUT_WEIGHTS = ["*.json", "*.txt", "*.model", "*.spm"]
_MOST_UNSAVED = 1 << 20  # parameters that may be made beside the loaded ones, as sinusoidal positions are


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
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """Return the model, in evaluation mode, with its source and its target tokenizer.

    Args:
        name: a folder with any model that the Auto class loads, or its name on the Hub.
        device: where to put the model; `None` means a CUDA device if there is one, and else the CPU.
        dtype: of the weights; `None` means as saved.
        revision: branch, tag or commit on the Hub; `None` means `main`.
        auto_class: that loads it; `None` means the class that the checkpoint was saved from.

    Raises:
        UserError: no such folder; no model of that kind in it; weights missing, damaged or incomplete; a
            tokenizer missing or of another model; a device or dtype that does not exist here.
    """
    device, dtype = _device(device), _dtype(dtype)
    directory = local_folder(name, revision)
    config = _load_config(directory, auto_class)
    check_weights(directory, config)
    source_tokenizer, target_tokenizer = load_tokenizers(directory)
    model, report = load_weights(directory, auto_class or auto_class_of(config), config, dtype=dtype)
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"the weights in {directory} lack {len(missing)} of the model's, {missing[0]} for one; "
            "the checkpoint is incomplete or of another model: use another one"
        )
    check_vocabulary(directory, model, source_tokenizer)
    return model.to(device).eval(), source_tokenizer, target_tokenizer  # type: ignore[arg-type]


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
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

    Raises:
        UserError: neither is to be had, or a revision was given to a folder.
    """
    if not Path(name).is_dir():
        return _download(str(name), revision)
    if revision is not None:
        raise UserError(
            f"revision {revision!r} is of a model on the Hub, and {name} is a folder: leave it out"
        )
    return Path(name)


def _download(name: str, revision: str | None) -> Path:
    """Fetch a model from the Hub, or from its cache, and return the folder."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith("/"):
        raise UserError(f"model folder {name} does not exist; give the folder that a training wrote")
    try:
        wanted = [*_ALL_BUT_WEIGHTS, "model*.safetensors"]
        directory = Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
        if not any(directory.glob("*.safetensors")):
            snapshot_download(name, revision=revision, allow_patterns=[_PICKLED_WEIGHTS])
    except HUB_ERRORS as error:
        raise UserError(
            f"model {name!r} is neither a folder here nor to be had from the Hub: "
            f"{describe_hub_failure(error, name, revision)}"
        ) from error
    return directory


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


def check_weights(directory: Path, config: PreTrainedConfig) -> None:
    """Whether the weights are whole, and as many as a model of this configuration has.

    The headers of the files tell, so nothing large is read: a configuration that was changed may ask for more
    room than there is. Pickled weights tell no size; loading shows whether they are whole.

    Raises:
        UserError: they are not.
    """
    files = _weight_files(directory)
    held = sum(map(_count_weights, files))
    try:
        model = meta_model(config)
    except Exception as error:  # sizes that do not even fit a number of 64 bits
        raise UserError(f"{directory / 'config.json'} cannot be used: {one_line(error)}") from error
    needed = model.num_parameters()
    if files and needed - min(_count_unsaved(model), _MOST_UNSAVED) > 2 * held:
        raise UserError(
            f"{directory / 'config.json'} describes a model of {needed:,} parameters, and the weights beside "
            f"it hold {held:,}; they do not belong together: use another checkpoint"
        )


def _count_unsaved(model: PreTrainedModel) -> int:
    """How many parameters a checkpoint of the model lacks, for they are the same in every model."""
    names = model._keys_to_ignore_on_save or ()
    return sum(weight.numel() for name, weight in model.named_parameters() if name in names)


def _weight_files(directory: Path) -> list[Path]:
    """The files that weights are read from, but for pickled ones."""
    if (directory / _WEIGHTS_INDEX).is_file():
        index = _read_json(directory / _WEIGHTS_INDEX)
        return [directory / name for name in sorted(set(index.get("weight_map", {}).values()))]
    if (directory / _WEIGHTS).is_file():
        return [directory / _WEIGHTS]
    if any(directory.glob(_PICKLED_WEIGHTS)):
        return []
    raise UserError(
        f"{directory} has no weights ({_WEIGHTS}); it may be half-written: use another checkpoint"
    )


def _count_weights(file: Path) -> int:
    if not file.is_file():
        raise UserError(f"{file} is missing; the checkpoint may be half-written: use another one")
    try:
        with safe_open(file, framework="pt") as weights:
            names = weights.keys()
            return sum(math.prod(weights.get_slice(name).get_shape()) for name in names)
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{file} is damaged or half-written ({one_line(error)}); use another checkpoint"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged or half-written ({error}); use another checkpoint") from error


def load_weights(
    directory: Path, model_class: Any, config: PreTrainedConfig, **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a model from a folder, and from nowhere else; no code that a checkpoint brings is run.

    Args:
        directory: the folder.
        model_class: the model's class, or an Auto class.
        config: of the model.
        options: of `from_pretrained`.

    Returns:
        The model, and what became of the weights: `missing_keys`, `unexpected_keys` and `mismatched_keys`.

    Raises:
        UserError: pickled weights that are cut short or hold more than tensors, weights of other shapes than
            the configuration's, an option that cannot be.
    """
    try:
        return model_class.from_pretrained(
            directory,
            config=config,
            local_files_only=True,
            output_loading_info=True,
            trust_remote_code=False,
            **options,
        )
    except UnpicklingError as error:
        raise UserError(
            f"the weights in {directory} cannot be loaded: they are pickled, and are cut short or hold more "
            "than tensors, which could be code, so nothing of them was run; ask who made them for safetensors"
        ) from error
    except Exception as error:  # of many kinds: torch's, safetensors' and the library's
        reason = one_line(error.__cause__ or error)
        raise UserError(f"the weights in {directory} cannot be loaded: {reason}") from error


def check_vocabulary(directory: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Whether the model embeds every token of a tokenizer.

    Raises:
        UserError: it does not.
    """
    embedded = len(model.get_input_embeddings().weight)  # type: ignore[arg-type]
    if len(tokenizer) > embedded:
        raise UserError(
            f"the tokenizer in {directory} has {len(tokenizer)} tokens but the model embeds {embedded}; "
            "they do not belong together: give a folder in which they do"
        )
