"""Load a model that was exported to ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.tokenization import load_tokenizers
from vaswani.errors import UserError, check_positive, one_line
from vaswani.files.json_files import read_object
from vaswani.hub.checkpoint import check_serves, local_folder
from vaswani.hub.run_metadata import auto_class_of, read_config
from vaswani.hub.vocabulary import check_vocabulary
from vaswani.inference.onnx.encoder_decoder import OnnxEncoderDecoder
from vaswani.inference.onnx.one_stack import OnnxCausalModel, OnnxModel
from vaswani.inference.onnx.sessions import open_session
from vaswani.interop.to_onnx import DECODER, DECODER_WITH_PAST, ENCODER, MODEL
from vaswani.model.configuration_vaswani import VaswaniConfig, VaswaniFamilyConfig


def load_onnx_checkpoint(
    name: str | Path, revision: str | None = None, auto_class: Any = None, allow_mismatch: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """Return a model that was exported to ONNX with its source and target tokenizers.

    Args:
        name: a folder, or a name on the Hub.
        revision: branch, tag or commit on the Hub; None means `main`.
        auto_class: Auto class of the model; None accepts all.
        allow_mismatch: accept tokenizers that seem to belong to another model.

    Raises:
        UserError: as `load_onnx`; the model is of another Auto class; or a tokenizer is missing or of another
            model.
    """
    path = local_folder(name, revision, weights="*.onnx*")
    if auto_class is not None:
        _check_class(auto_class, path)
    model = load_onnx(path)
    source, target = load_tokenizers(path)
    check_vocabulary(path, model, source, target, allow_mismatch=allow_mismatch)
    return model, source, target


def refuse_types(
    device: str | torch.device | None, dtype: str | torch.dtype | None, quantization: str | None
) -> None:
    """Raise a UserError for another device than the CPU, or for types, which the export fixed."""
    if str(device or "cpu") != "cpu":
        raise UserError(f"device {str(device)!r} cannot be used by engine=onnx; it runs on the 'cpu'")
    for field, value in {"dtype": dtype, "quantization": quantization}.items():
        if value is not None:
            raise UserError(
                f"{field}={value} has no effect with engine=onnx, whose types are those of the export; "
                "leave it out, or export with --quantization"
            )


def load_onnx(folder: str | Path, threads: int | None = None) -> Any:
    """Load a model that was exported to ONNX, without its tokenizers.

        model = load_onnx("runs/dates_onnx")
        Translator(model, *load_tokenizers(Path("runs/dates_onnx")))

    Args:
        folder: folder that `vaswani export --to onnx` has written.
        threads: number of threads of an operation; None means as many as PyTorch uses.

    Returns:
        An `OnnxEncoderDecoder`, an `OnnxCausalModel` or, for other models, an `OnnxModel`.

    Raises:
        UserError: ONNX Runtime is not installed, the folder holds no such model, or a file of the model is
            missing or damaged.
    """
    threads = torch.get_num_threads() if threads is None else threads
    check_positive(threads=threads)
    folder = Path(folder)
    config = read_config(folder)  # raises if the folder holds no model, or one of CTranslate2
    if not isinstance(config, VaswaniFamilyConfig):
        raise UserError(f"{folder} holds a model of type {config.model_type!r}; expected one of vaswani")
    names = (ENCODER, DECODER, DECODER_WITH_PAST) if isinstance(config, VaswaniConfig) else (MODEL,)
    missing = [name for name in names if not (folder / name).is_file()]
    if len(missing) == len(names):
        raise UserError(
            f"{folder} holds no model in ONNX ({', '.join(names)}); export one with: vaswani export --to "
            "onnx MODEL FOLDER"
        )
    if missing:
        raise UserError(f"{folder / missing[0]} is missing; export the model again")
    sessions = [open_session(folder / name, threads) for name in names]
    if isinstance(config, VaswaniConfig):
        return OnnxEncoderDecoder(config, _generation_config(folder), sessions)
    if "VaswaniForCausalLM" in (config.architectures or ()):
        return OnnxCausalModel(config, _generation_config(folder), *sessions)
    return OnnxModel(config, *sessions)


def _check_class(auto_class: Any, folder: Path) -> None:
    """Raise a UserError unless a folder holds a model of an Auto class."""
    config = read_config(folder)
    check_serves(auto_class, config, folder)
    if auto_class_of(config) is not auto_class:
        held = ", ".join(config.architectures or ()) or f"a model of type {config.model_type!r}"
        raise UserError(f"{folder} holds {held}; expected a model of {auto_class.__name__}")


def _generation_config(folder: Path) -> GenerationConfig:
    path = folder / "generation_config.json"
    try:
        return GenerationConfig.from_dict(read_object(path))
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be used: {one_line(error)}; export the model again") from error
