"""Load a model that was exported to ONNX."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.tokenization import load_tokenizers
from vaswani.errors import UserError, check_positive
from vaswani.hub.checkpoint import check_serves, local_folder, read_generation_config
from vaswani.hub.run_metadata import auto_class_of, class_name, meta_model, read_config
from vaswani.hub.vocabulary import check_vocabulary
from vaswani.inference.onnx.encoder_decoder import OnnxEncoderDecoder
from vaswani.inference.onnx.one_stack import OnnxCausalModel, OnnxModel
from vaswani.inference.onnx.sessions import open_session
from vaswani.interop.to_onnx import (
    DECODER,
    DECODER_WITH_PAST,
    ENCODER,
    GRAPHS,
    MODEL,
    Graph,
    check_exportable,
)
from vaswani.model.configuration_vaswani import VaswaniConfig, VaswaniFamilyConfig

# Settings of `generate` for features that an exported model lacks.
_WITHOUT_EFFECT = ("cache_implementation", "output_attentions", "output_hidden_states")


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
    model = meta_model(copy.deepcopy(config))  # it changes its configuration
    sessions = [open_session(folder / name, threads) for name in names]
    check_exportable(model)
    graphs = {graph.file: graph for graph in GRAPHS[type(model).__name__](model)}
    for name, session in zip(names, sessions, strict=True):
        _check_belongs(folder / name, session, graphs[name], model)
    if not model.can_generate():
        return OnnxModel(config, *sessions)
    generation_config = _generation_config(folder, model)
    if isinstance(config, VaswaniConfig):
        return OnnxEncoderDecoder(config, generation_config, sessions)
    return OnnxCausalModel(config, generation_config, *sessions)


def _check_belongs(path: Path, session: Any, graph: Graph, model: PreTrainedModel) -> None:
    """Raise a UserError unless a file has the inputs and outputs of a model; sizes are compared if fixed."""
    expected = {name: _fixed(shape) for name, shape in graph.inputs.items()}
    found = {each.name: _fixed(each.shape) for each in session.get_inputs()}
    outputs = {each.name: each.shape for each in session.get_outputs()}
    same = found == expected and [*outputs] == graph.outputs
    if same and "logits" in outputs and isinstance(width := outputs["logits"][-1], int):
        same = width == _num_logits(model)
    if not same:
        raise UserError(
            f"{path} is not the model that config.json beside it describes ({type(model).__name__}); export "
            "the model again"
        )


def _fixed(shape: Sequence[int | str]) -> list[int | None]:
    """Return a shape with None in place of the axes that are free."""
    return [size if isinstance(size, int) else None for size in shape]


def _num_logits(model: PreTrainedModel) -> int | None:
    """Return the number of logits of a token, or of a text."""
    output: Any = model.get_output_embeddings()
    if output is not None:
        return len(output.weight)
    return 1 if type(model).__name__.endswith("ForMultipleChoice") else model.config.num_labels


def _check_class(auto_class: Any, folder: Path) -> None:
    """Raise a UserError unless a folder holds a model of an Auto class."""
    config = read_config(folder)
    check_serves(auto_class, config, folder)
    if auto_class_of(config) is not auto_class:
        raise UserError(f"{folder} holds {class_name(config)}; expected a model of {auto_class.__name__}")


def _generation_config(folder: Path, model: PreTrainedModel) -> GenerationConfig:
    """Return the settings of `generate`, without those that an exported model cannot have."""
    generation_config = read_generation_config(folder, model)
    if generation_config is None:
        raise UserError(f"{folder / 'generation_config.json'} is missing; export the model again")
    generation_config.update(**dict.fromkeys(_WITHOUT_EFFECT))
    return generation_config
