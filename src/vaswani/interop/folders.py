"""Convert, export, combine and merge checkpoints with their tokenizers, for the commands of these names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.given_tokenizers import special_tokens
from vaswani.data.tokenization import load_tokenizers, save_tokenizers
from vaswani.errors import RunError, UserError
from vaswani.files.atomic_files import check_output_folder, whole_folder, write_json
from vaswani.files.run_files import COMBINED_FILE, CORPUS_FILE, EVALUATION_FILE, SETTINGS_FILE
from vaswani.files.run_settings import settings_file
from vaswani.hub.card import write_card
from vaswani.hub.checkpoint import load_checkpoint, local_folder
from vaswani.hub.hashes import tokenizer_files, write_hashes
from vaswani.hub.run_metadata import read_config, read_run_metadata
from vaswani.hub.vocabulary import check_vocabulary
from vaswani.hub.weights import (
    check_not_adapter,
    check_tensor_names,
    check_weights,
    holds_adapter,
    load_weights,
)
from vaswani.interop.combination import check_given, combine
from vaswani.interop.conversion import OUR_CLASSES, convert, export, format_of
from vaswani.interop.sentence_modules import copy_sentence_modules
from vaswani.interop.to_ctranslate2 import EXPORTED_WITHOUT_HEAD, check_engine, export_to_ctranslate2
from vaswani.interop.to_onnx import check_onnx, export_to_onnx
from vaswani.model.configuration_vaswani import VaswaniFamilyConfig

CHECKED_ROWS, CHECKED_LENGTH = 2, 12
LARGEST_DIFFERENCE = {torch.float32: 1e-3, torch.float64: 1e-6}
LARGEST_HALF_DIFFERENCE = 0.2  # bfloat16 has eight significant bits

# By format of `export_folder`: the files of the model, and the tool that exports models of other libraries.
MODEL_FILES = {"ctranslate2": "model.bin", "marian": "*.safetensors", "onnx": "*.onnx*"}
OTHER_EXPORTERS = {
    "ctranslate2": "CTranslate2's own ct2-transformers-converter",
    "marian": "it as it is",
    "onnx": "Optimum",
}


@dataclass(frozen=True)
class Converted:
    """The result of a conversion.

    Args:
        before: the name of the old class.
        after: the name of the new class.
        num_parameters: number of parameters; shared parameters count once.
        difference: maximum difference between the outputs for random tokens.
        has_tokenizer: whether a tokenizer was copied.
    """

    before: str
    after: str
    num_parameters: int
    difference: float
    has_tokenizer: bool


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Args:
        name: name of the exported class: ours, without its head if that is left out, or Marian's.
        num_parameters: number of parameters; shared parameters count once.
        size: size of the model's files, in bytes.
        without_head_of: the class whose head is left out, if any.
        modules: the modules of sentence-transformers that follow the model, such as its pooling; their files
            are copied, and the user of the export applies them to its states.
    """

    name: str
    num_parameters: int
    size: int
    without_head_of: str | None = None
    modules: tuple[str, ...] = ()


def convert_folder(
    source: str, output: Path, to: str | None = None, architecture: str | None = None
) -> Converted:
    """Convert a checkpoint to or from vaswani and save it.

    Compares the outputs of both models for random tokens before anything is written.

    Args:
        source: a folder, or a name on the Hub.
        output: a folder that is empty or does not exist yet.
        to: the format of an exported vaswani model: `"marian"`, `"bert"`, `"gpt2"` ...
        architecture: the class to load the checkpoint as; None means the class in its `config.json`.

    Raises:
        UserError: the checkpoint does not exist, its class is not supported, a field or a tensor has no
            counterpart, or its weights are pickled with more than tensors.
        RunError: the models compute different outputs, or the disk is full or not writable; nothing is left.
    """
    check_output_folder(output, "the model")
    folder = local_folder(source)
    check_not_adapter(folder)
    config = read_config(folder)
    if isinstance(config, VaswaniFamilyConfig) and to is None:
        raise UserError(f"{source} is already a vaswani model; give --to marian, bert, gpt2 ... to export it")
    if not isinstance(config, VaswaniFamilyConfig) and to is not None:
        raise UserError(
            f"{source} is a {config.model_type!r} model, and --to exports vaswani models; leave it out"
        )
    model = load_exactly(folder, config, architecture)
    converted: Any = convert(model) if to is None else export(model, to)
    difference = _difference(model, converted)
    has_tokenizer = bool(tokenizer_files(folder))
    tokenizers = load_tokenizers(folder) if has_tokenizer else None
    if tokenizers:
        check_vocabulary(folder, converted, *tokenizers)
    _save(converted, output, tokenizers, folder)
    names = type(model).__name__, type(converted).__name__
    return Converted(*names, converted.num_parameters(), difference, has_tokenizer)


def export_folder(
    source: str,
    output: Path,
    to: str = "ctranslate2",
    *,
    quantization: str | None = None,
    max_positions: int | None = None,
) -> Exported:
    """Export a checkpoint for inference without this package, with its tokenizers and generation settings.

    `vaswani.interop.export` converts a model in memory, and writes nothing.

    Args:
        source: a folder, or a name on the Hub, of a model of vaswani.
        output: a folder that is empty or does not exist yet.
        to: `"ctranslate2"` (see `export_to_ctranslate2`; pre-trained encoders lose their heads),
            `"onnx"` (see `export_to_onnx`), or `"marian"`, which is what `convert_folder` writes.
        quantization: the type of the weights, for CTranslate2 and ONNX; None means float32.
        max_positions: for CTranslate2, see `export_to_ctranslate2`.

    Raises:
        UserError: the checkpoint does not exist or is not of vaswani; it has no tokenizer; an option is
            unknown or does not belong to the format; or the format cannot hold the model.
        RunError: the disk is full or not writable, or a converted model computes different outputs; nothing
            is left.
    """
    check_output_folder(output, "the model")
    _check_export_options(to, quantization, max_positions)
    folder = local_folder(source)
    check_not_adapter(folder)
    config = read_config(folder)
    if not isinstance(config, VaswaniFamilyConfig):
        raise UserError(
            f"{source} is a {config.model_type!r} model, and vaswani models are exported; make one of it "
            f"(vaswani convert), or use {OTHER_EXPORTERS[to]}"
        )
    if to == "marian":
        converted = convert_folder(str(folder), output, to)
        return Exported(converted.after, converted.num_parameters, _size(output, to))
    model: Any = load_exactly(folder, config)
    loses_head = to == "ctranslate2" and type(model).__name__ in EXPORTED_WITHOUT_HEAD
    without_head_of, model = (type(model).__name__, model.base_model) if loses_head else (None, model)
    tokenizers = load_tokenizers(folder)
    check_vocabulary(folder, model, *tokenizers)
    with whole_folder(output, "the model") as unfinished:
        if to == "onnx":
            export_to_onnx(model, unfinished, quantization=quantization)
        else:
            options: dict[str, Any] = {"quantization": quantization, "max_positions": max_positions}
            export_to_ctranslate2(model, tokenizers, unfinished, **options)
        save_tokenizers(*tokenizers, unfinished)
        _keep_settings(folder, unfinished)
        modules = copy_sentence_modules(folder, unfinished)
        if model.can_generate():
            model.generation_config.save_pretrained(unfinished)
    size = _size(output, to)
    return Exported(type(model).__name__, model.num_parameters(), size, without_head_of, modules)


def _check_export_options(to: str, quantization: str | None, max_positions: int | None) -> None:
    """Raise a UserError for an unknown format, an option of other formats, or a missing engine."""
    if to not in MODEL_FILES:
        raise UserError(f"unknown format {to!r}; expected one of {', '.join(MODEL_FILES)}")
    if max_positions is not None and to != "ctranslate2":
        raise UserError(
            f"max_positions={max_positions} is an option of ctranslate2, not of {to}; leave it out"
        )
    if quantization is not None and to == "marian":
        raise UserError(
            f"quantization={quantization!r} is an option of ctranslate2 and onnx, not of marian, which keeps "
            "the weights as they are; leave it out"
        )
    if to == "ctranslate2":
        check_engine(quantization)
    if to == "onnx":
        check_onnx(quantization)


def _size(folder: Path, to: str) -> int:
    """Return the size of the model's files in an exported folder, in bytes."""
    return sum(path.stat().st_size for path in folder.glob(MODEL_FILES[to]))


def combine_folders(encoder: str | None, decoder: str | None, output: Path, **values: Any) -> PreTrainedModel:
    """Combine an encoder and a decoder (see `combine`) and save the model with their tokenizers and a card.

    Special tokens that the configuration of the decoder (or of the only half) lacks come from its tokenizer.

    Raises:
        UserError: a checkpoint or tokenizer does not exist, the models do not fit, or `output` is not empty.
        RunError: the disk is full or not writable; nothing is left.
    """
    check_given(encoder, decoder)
    check_output_folder(output, "the model")
    folders = [local_folder(name) if name else None for name in (encoder, decoder)]
    halves = [load_exactly(folder, read_config(folder)) if folder else None for folder in folders]
    source, target = (folder or next(filter(None, folders)) for folder in folders)
    tokenizers = (load_tokenizers(source)[0], load_tokenizers(target)[-1])
    config = next(half.config for half in reversed(halves) if half)
    model = combine(*halves, **{**_missing_tokens(config, tokenizers[1]), **values})
    for given, half, tokenizer in zip(folders, halves, tokenizers, strict=True):
        if given and half:
            check_vocabulary(given, half, tokenizer)
    names = {stack: name and Path(name).name for stack, name in (("encoder", encoder), ("decoder", decoder))}
    with whole_folder(output, "the model") as unfinished:
        _write(model, unfinished, (tokenizers[0], tokenizers[0 if source == target else 1]), None)
        write_json(unfinished / COMBINED_FILE, names)
        write_card(unfinished, read_run_metadata(unfinished), output.resolve().name)
    return model


def _missing_tokens(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> dict[str, int | None]:
    """Return the special tokens of targets that a configuration lacks, such as BERT's [CLS] and [SEP]."""
    tokens = special_tokens(tokenizer, tokenizer)
    start = tokens.pop("decoder_start_token_id")
    starts = {"decoder_start_token_id": start} if config.bos_token_id is None else {}
    return {name: token for name, token in tokens.items() if getattr(config, name) is None} | starts


def merge_folder(source: str, output: Path) -> PreTrainedModel:
    """Merge an adapter into its model and save the whole model, with the tokenizers.

    The data and the scores that the adapter's folder records are kept, because both compute the same, and a
    card is made of them.

    Args:
        source: the adapter's folder, or its name on the Hub.
        output: a folder that is empty or does not exist yet.

    Raises:
        UserError: the source holds no adapter, or one that does not fit its model.
        RunError: the disk is full or not writable; nothing is left.
    """
    check_output_folder(output, "the model")
    folder = local_folder(source)
    if not holds_adapter(folder):
        raise UserError(f"{source} holds no adapter (adapter_config.json and adapter_model.safetensors)")
    model, source_tokenizer, target_tokenizer = load_checkpoint(folder, device="cpu", auto_class=None)
    with whole_folder(output, "the model") as unfinished:
        _write(model, unfinished, (source_tokenizer, target_tokenizer), folder)
        for record in (CORPUS_FILE, EVALUATION_FILE):
            if (folder / record).is_file():
                copyfile(folder / record, unfinished / record)
        write_card(unfinished, read_run_metadata(unfinished), output.resolve().name)
    return model


def load_exactly(folder: Path, config: PreTrainedConfig, architecture: str | None = None) -> PreTrainedModel:
    """Load a model in its own dtype, and check that its weights have exactly its tensors.

    Raises:
        UserError: the class is unknown or not supported; weights are missing or unexpected, or pickled with
            more than tensors.
    """
    class_name = architecture or next(iter(config.architectures or []), None)
    if class_name is None:
        raise UserError(f"{folder / 'config.json'} names no class under architectures; give --architecture")
    model_class = OUR_CLASSES.get(class_name) or _class_of_library(class_name, config)
    if model_class is None or model_class.config_class is not type(config):
        raise UserError(f"{class_name} is not a class of {config.model_type!r} models")
    check_weights(folder, config)
    model, report = load_weights(folder, model_class, config, dtype="auto")
    remedy = f"they were loaded as {class_name}: --architecture selects another class"
    check_tensor_names(folder, report["missing_keys"], report["unexpected_keys"], remedy)
    return model.eval()


def _class_of_library(class_name: str, config: PreTrainedConfig) -> Any:
    try:
        format_of(class_name)
    except UserError as error:
        raise UserError(f"this is a {config.model_type!r} model: {error}") from None
    return getattr(transformers, class_name, None)


def _difference(model: PreTrainedModel, converted: PreTrainedModel) -> float:
    """Return the maximum difference between the outputs of two models for the same random tokens.

    Raises:
        RunError: the difference is too large for rounding errors.
    """
    config: Any = model.config
    sizes = (getattr(config, name, None) for name in ("vocab_size", "src_vocab_size", "decoder_vocab_size"))
    vocab = min(size for size in sizes if size)
    length = min(CHECKED_LENGTH, getattr(config, "max_position_embeddings", None) or CHECKED_LENGTH)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, vocab, (CHECKED_ROWS, length), generator=generator)
    if (padding := config.pad_token_id) is not None:
        tokens[tokens == padding] = padding - 1 if padding else 1
    if type(model).__name__.endswith("ForMultipleChoice"):
        tokens = tokens[None]  # the rows are the choices of one text
    inputs: dict[str, Any] = {"input_ids": tokens}
    if config.is_encoder_decoder:
        inputs |= {"decoder_input_ids": tokens.flip(0), "use_cache": False}
    with torch.no_grad():
        outputs = [each(**inputs)[0].double() for each in (model, converted)]
    difference = (outputs[0] - outputs[1]).abs().max().item()
    largest = LARGEST_DIFFERENCE.get(model.dtype, LARGEST_HALF_DIFFERENCE)  # relative, for large outputs
    if not difference <= largest * max(1.0, outputs[0].abs().max().item()):
        raise RunError(
            f"the converted model computes other outputs: they differ by up to {difference:.3g}; nothing was "
            "written. Please report this with the config.json of the checkpoint"
        )
    return difference


def _save(
    model: PreTrainedModel, output: Path, tokenizers: tuple[Any, Any] | None, run: Path | None = None
) -> None:
    """Save a model as `_write` does; a folder that cannot be finished is deleted."""
    with whole_folder(output, "the model") as unfinished:
        _write(model, unfinished, tokenizers, run)


def _write(
    model: PreTrainedModel, folder: Path, tokenizers: tuple[Any, Any] | None, run: Path | None
) -> None:
    """Write a model with its tokenizers, and what a run's folder says about its training and its pooling."""
    model.save_pretrained(folder)
    if run is not None:
        _keep_settings(run, folder)
        copy_sentence_modules(run, folder)
    if tokenizers:
        save_tokenizers(*tokenizers, folder)
    write_hashes(folder)


def _keep_settings(run: Path, folder: Path) -> None:
    """Copy the settings of a training, whose run or checkpoint is given, if they are recorded.

    With them, `predict` and `evaluate` use the same columns and lengths, and a demo recognizes a summarizer.
    """
    if (settings := settings_file(run)).is_file():
        copyfile(settings, folder / SETTINGS_FILE)
