"""Load a checkpoint (a model and its tokenizers), or raise a one-line error that says what is wrong."""

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
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

from vaswani.auto_classes import models_of
from vaswani.data.tokenization import load_tokenizers
from vaswani.errors import UserError, one_line
from vaswani.files.hub_client import last_problem, use_patient_client
from vaswani.files.json_files import read_object
from vaswani.files.run_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, SETTINGS_FILE
from vaswani.hub.adapters import adapted_model, whole_weights, with_adapter
from vaswani.hub.failures import HUB_ERRORS, describe_hub_failure, is_connection_lost
from vaswani.hub.names import check_hub_name, similar_folders
from vaswani.hub.run_metadata import auto_class_of, meta_model, read_config
from vaswani.hub.vocabulary import check_vocabulary
from vaswani.hub.weights import (
    OTHER_CHECKPOINT,
    PICKLED_WEIGHTS,
    check_tensor_names,
    check_weights,
    holds_adapter,
    is_of_base_model,
    load_weights,
)

logger = logging.getLogger(__name__)


ENCODER_DECODERS = "an encoder-decoder such as 'vaswani', 'marian', 'bart' or 't5'"
# For error messages, by Auto class: what a model lacks that it does not load, and examples of those it loads.
_PURPOSES = {
    AutoModelForSeq2SeqLM: ("does not translate", ENCODER_DECODERS),
    AutoModelForCausalLM: (
        "does not continue texts",
        "a causal model such as 'vaswani_decoder', 'gpt2' or 'llama'",
    ),
}
WRITING_COMMANDS = {AutoModelForSeq2SeqLM: "vaswani translate", AutoModelForCausalLM: "vaswani generate"}


def load_checkpoint(
    name: str | Path,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    auto_class: Any = AutoModelForSeq2SeqLM,
    allow_mismatch: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """Return a model in evaluation mode with its source and target tokenizers; an adapter is merged into it.

    Args:
        name: a folder, or a name on the Hub.
        device: `None` means a CUDA device if there is one, else the CPU.
        dtype: dtype of the weights; `None` means as saved.
        revision: branch, tag or commit on the Hub; `None` means `main`.
        auto_class: Auto class that loads the model; `None` means the class that the checkpoint was saved
            from.
        allow_mismatch: accept tokenizers that seem to belong to another model, and ignore weights that the
            model has no parameter for.

    Raises:
        UserError: the folder is missing or holds no such model; weights are missing, damaged, incomplete,
            not finite or of another model; a tokenizer is missing or of another model; the device or dtype
            is not available.
    """
    device, dtype = _device(device), _dtype(dtype)
    directory = local_folder(name, revision)
    config = read_config(directory)
    config.return_dict = True  # some configurations ask for tuples
    if auto_class is not None:
        check_serves(auto_class, config, directory)
    adapts = holds_adapter(directory)
    weights = weights_folder(directory)
    check_weights(weights, config)
    source_tokenizer, target_tokenizer = load_tokenizers(directory)
    read_generation_config(directory, meta_model(config, auto_class))
    model, report = load_weights(
        weights, auto_class or auto_class_of(config), config, dtype=dtype, ignore_mismatched_sizes=adapts
    )
    missing, unexpected = {*report["missing_keys"]}, report["unexpected_keys"]
    if adapts:  # the adapter holds its own head
        missing = (missing | {name for name, *_ in report["mismatched_keys"]}) - whole_weights(directory)
    if adapts or auto_class is None:  # the weights of a head are not needed
        unexpected = [name for name in unexpected if is_of_base_model(name, model)]
    if unexpected and auto_class is AutoModelForMaskedLM and serves(AutoModelForPreTraining, config):
        # Pre-training may also have a pooler and a classifier of pairs, which a masked model does not need.
        unexpected = {*unexpected} - meta_model(config, AutoModelForPreTraining).state_dict().keys()
    remedy = f"{OTHER_CHECKPOINT}; --allow_mismatch, where a command has it, ignores them"
    check_tensor_names(weights, missing, ())
    check_tensor_names(weights, (), () if allow_mismatch else unexpected, remedy)
    if adapts:
        model = with_adapter(model, directory)
    check_vocabulary(directory, model, source_tokenizer, target_tokenizer, allow_mismatch=allow_mismatch)
    return model.to(device).eval(), source_tokenizer, target_tokenizer  # type: ignore[arg-type]


def check_serves(auto_class: Any, config: PreTrainedConfig, directory: Path) -> None:
    """Raise a UserError unless an Auto class loads models of this type."""
    if serves(auto_class, config):
        return
    problem, expected = _PURPOSES.get(
        auto_class, (f"{auto_class.__name__} does not load", "a model that it does")
    )
    commands = (command for other, command in WRITING_COMMANDS.items() if serves(other, config))
    advice = f", or use {command}" if (command := next(commands, None)) else ""
    raise UserError(
        f"{directory} holds a model of type {config.model_type!r}, which {problem}; expected "
        f"{expected}{advice}"
    )


def weights_folder(directory: Path) -> Path:
    """Return the folder with the weights of a checkpoint: itself or, for an adapter, that of its model."""
    if not holds_adapter(directory):
        return directory
    name = adapted_model(directory)
    try:
        return local_folder(name)
    except UserError as error:
        raise UserError(
            f"the adapter in {directory} needs its model {name}, as its {ADAPTER_CONFIG} says: {error}"
        ) from error


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


def local_folder(name: str | Path, revision: str | None = None, weights: bool | str = True) -> Path:
    """Return the local folder of a model; download the model first if its name is not a folder.

    If the Hub does not answer, use the cached copy and log a warning.

    Args:
        name: a folder, or a name on the Hub.
        revision: branch, tag or commit on the Hub; default `main`.
        weights: True downloads the weights with the configuration and the tokenizers; False leaves them out;
            a string is the name of a file with an engine's own weights, to download instead.

    Raises:
        UserError: there is no such folder or Hub model, the folder cannot be read, or a revision was given
            for a folder.
    """
    folder = Path(name)
    try:
        is_folder = folder.is_dir() and os.listdir(folder) is not None
    except PermissionError as error:
        raise UserError(f"model folder {folder} cannot be read; check its permissions") from error
    if not is_folder:
        return _download(str(name), revision, weights)
    if revision is not None:
        raise UserError(
            f"revision={revision!r} applies to models on the Hub, and {name} is a folder; leave it out"
        )
    return folder


def _download(name: str, revision: str | None, weights: bool | str) -> Path:
    check_hub_name(name)
    use_patient_client()
    try:
        directory = _fetch(name, revision, weights)
    except HUB_ERRORS as error:
        failure = UserError(
            f"model {name!r} is not a local folder{similar_folders(name)} and cannot be loaded from the Hub: "
            f"{describe_hub_failure(error, name, revision)}"
        )
        if not is_connection_lost(error):
            raise failure from error
        try:
            directory = _fetch(name, revision, weights, local_files_only=True)
        except LocalEntryNotFoundError:
            raise failure from error
    if problem := last_problem():
        logger.warning("%s. Using the cached copy of %s: %s.", problem, name, directory)
    return directory


def _fetch(name: str, revision: str | None, weights: bool | str, **options: Any) -> Path:
    """Download the files of a model that the cache lacks; return the model's folder in the cache."""
    wanted = ["*.json", "*.txt", "*.model", "*.spm", "*.jinja", SETTINGS_FILE]
    if weights:
        wanted += ["model*.safetensors", ADAPTER_WEIGHTS] if weights is True else [weights]
    directory = Path(snapshot_download(name, revision=revision, allow_patterns=wanted, **options))
    if weights is True and not any(directory.glob("*.safetensors")):
        snapshot_download(name, revision=revision, allow_patterns=[PICKLED_WEIGHTS], **options)
    return directory


def serves(auto_class: Any, config: PreTrainedConfig) -> bool:
    """Return True if an Auto class loads a configuration as the model that was trained.

    `AutoModelForCausalLM` also loads a BERT, or the decoder of a translator, which were not trained as causal
    language models.
    """
    if auto_class is AutoModelForCausalLM:
        fills_gaps = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
        if fills_gaps or config.is_encoder_decoder:
            return False
    return type(config) in models_of(auto_class)


def read_generation_config(directory: Path, model: PreTrainedModel | None) -> GenerationConfig | None:
    """Return the saved options of `generate`, or None if there are none.

    Args:
        directory: the model's folder.
        model: the model whose special tokens they must name; None does not compare them.

    Raises:
        UserError: they cannot be read, or name special tokens of another model.
    """
    path = directory / "generation_config.json"
    if not path.exists():
        return None
    values = read_object(path)
    try:
        generation = GenerationConfig.from_dict(values)
        generation.validate()
        if model is not None:
            _check_special_tokens(generation, model)
    except Exception as error:  # a field of a wrong type may fail anywhere
        raise UserError(f"{path} cannot be used: {one_line(error)}; correct it, or delete it") from error
    return generation


def _check_special_tokens(generation: GenerationConfig, model: PreTrainedModel) -> None:
    """Raise a ValueError unless the special tokens of `generate` are in the model's vocabulary."""
    output: Any = model.get_output_embeddings()
    for name, value in generation.to_dict().items():
        for token in value if isinstance(value, list) else [value]:
            if not name.endswith("_token_id") or token is None:
                continue
            if not isinstance(token, int) or isinstance(token, bool):
                raise ValueError(f"{name}={token!r} must be the number of a token")
            if output is not None and token >= len(output.weight):
                raise ValueError(f"{name}={token} is outside the vocabulary of {len(output.weight)} tokens")
    for name in ("suppress_tokens", "begin_suppress_tokens"):
        tokens = getattr(generation, name) or []
        if not isinstance(tokens, list) or any(type(token) is not int for token in tokens):
            raise ValueError(f"{name}={tokens!r} must be a list of the numbers of tokens")
    if model.config.is_encoder_decoder:
        for name in ("decoder_start_token_id", "eos_token_id"):
            of_model, given = getattr(model.config, name, None), getattr(generation, name)
            known = given if isinstance(given, list) else [given]
            if of_model is not None and of_model != given and of_model not in known:
                raise ValueError(f"{name}={given}, and config.json has {name}={of_model}")
