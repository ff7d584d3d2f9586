"""The engines of a `Translator` by name, with the functions that load a model and its tokenizers for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerBase

from vaswani.data.text_codec import check_same_tokens
from vaswani.errors import UserError
from vaswani.hub.checkpoint import local_folder
from vaswani.inference.loading import Checkpoint, LoadOptions, load_for_onnx, load_for_torch
from vaswani.inference.translate.ctranslate2_engine import CTranslate2Engine
from vaswani.inference.translate.ctranslate2_folder import WEIGHTS, read_ctranslate2_folder
from vaswani.inference.translate.engine import Engine
from vaswani.inference.translate.ensembling import AVERAGES, Ensemble, check_averaging
from vaswani.inference.translate.torch_engine import TorchEngine
from vaswani.interop.to_ctranslate2 import check_engine

EngineName = Literal["torch", "ctranslate2", "onnx"]
Loaded = tuple[Engine, PreTrainedTokenizerBase, PreTrainedTokenizerBase]


def load_engine(engine: str, name: str | Path, options: LoadOptions) -> Loaded:
    """Load a model for an engine, with its source and target tokenizers.

    Args:
        engine: one of `ENGINES`.
        name: the folder, or the name on the Hub, of a model that the engine can run.
        options: how to load the model.

    Raises:
        UserError: the engine is unknown or not installed, or cannot load the model.
    """
    if engine not in ENGINES:
        raise UserError(f"engine={engine!r} is unknown; expected {', '.join(ENGINES)}")
    return ENGINES[engine](name, options)


@dataclass(frozen=True, kw_only=True)
class EnsembleOptions:
    """Options for averaging the predictions of several models; see `Ensemble`."""

    weights: Sequence[float] | None = None
    average: str | None = None

    def check(self, models: int, engine: str, options: LoadOptions) -> None:
        """Raise a UserError unless this number of models can be loaded with these options."""
        if not models:
            raise UserError("an ensemble needs models; give one or more")
        if models == 1:
            for name, value in {"ensemble_weights": self.weights, "ensemble_average": self.average}.items():
                if value is not None:
                    raise UserError(f"{name} is for several models, and there is one; leave it out")
            return
        if engine != "torch":
            raise UserError(
                f"{models} models form an ensemble, which engine={engine} does not support; use engine=torch"
            )
        if options.revision is not None:
            raise UserError(
                f"revision={options.revision!r} is of one model, and there are {models}; leave it out, or "
                "give folders"
            )
        check_averaging(models, self.weights, self.average or AVERAGES[0])


def load_ensemble(names: Sequence[str | Path], options: LoadOptions, ensemble: EnsembleOptions) -> Loaded:
    """Load several models as an `Ensemble`, with the tokenizers of the first.

    Raises:
        UserError: a model cannot be loaded, or the tokens of the models differ.
    """
    loaded = [load_for_torch(name, options, AutoModelForSeq2SeqLM) for name in names]
    first = loaded[0]
    for name, other in zip(names[1:], loaded[1:], strict=True):
        whose = f"{names[0]} and {name}"
        check_same_tokens(first[1:], other[1:], whose, "an ensemble needs the same tokens")
    average = ensemble.average or AVERAGES[0]
    return TorchEngine(Ensemble([model for model, *_ in loaded], ensemble.weights, average)), *first[1:]


def _load_model(load: Callable[..., Checkpoint], name: str | Path, options: LoadOptions) -> Loaded:
    """Load a model that `generate` searches with."""
    model, source, target = load(name, options, AutoModelForSeq2SeqLM)
    return TorchEngine(model), source, target


def _load_ctranslate2(name: str | Path, options: LoadOptions) -> Loaded:
    if options.quantization is not None:
        raise UserError(
            f"quantization={options.quantization} has no effect with engine=ctranslate2, whose types are "
            f"dtypes; give dtype {options.quantization}, or export with --quantization"
        )
    check_engine(None)
    path = local_folder(name, options.revision, weights=WEIGHTS)
    folder = read_ctranslate2_folder(path, allow_mismatch=options.allow_mismatch)
    dtype: Any = options.dtype
    compute_type = "default" if dtype is None else str(dtype).removeprefix("torch.")
    return CTranslate2Engine(folder, options.device, compute_type), *folder.tokenizers


ENGINES: dict[str, Callable[[str | Path, LoadOptions], Loaded]] = {
    "torch": partial(_load_model, load_for_torch),
    "ctranslate2": _load_ctranslate2,
    "onnx": partial(_load_model, load_for_onnx),
}
