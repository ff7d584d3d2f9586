"""Find the weights in a folder, compare them with the configuration, load them, and check for NaN."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.distributed.tensor import DTensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from vaswani.errors import UserError, one_line
from vaswani.files.json_files import read_object
from vaswani.files.run_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from vaswani.hub.hashes import check_hashes
from vaswani.hub.run_metadata import meta_model
from vaswani.hub.stored_tensors import StoredTensor, stored_tensors

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
PICKLED_WEIGHTS = "pytorch_model*.bin"  # the only weights of many older checkpoints on the Hub
OTHER_CHECKPOINT = "they are incomplete, or belong to another model: use another checkpoint"
POOLER = "pooler"  # of a base model; pretraining does not train it
_MAX_UNSAVED = 1 << 20  # parameters that may be computed instead of loaded, such as sinusoidal positions


# ----------------------------------------------------------------------------------------------------- files


def weight_files(directory: Path) -> list[Path]:
    """Return the weight files in a folder, in the order in which transformers looks for them.

    Raises:
        UserError: the folder has no weights, or the index of the shards is damaged.
    """
    if (directory / WEIGHTS).exists():
        return [directory / WEIGHTS]
    if (directory / WEIGHTS_INDEX).exists():
        return _shards(directory)
    if pickled := sorted(directory.glob(PICKLED_WEIGHTS)):
        return pickled
    check_not_adapter(directory)
    check_not_onnx(directory)
    raise UserError(f"{directory} has no weights ({WEIGHTS}); it may be half-written: use another checkpoint")


def check_not_adapter(directory: Path) -> None:
    """Raise a UserError if a folder holds an adapter."""
    if holds_adapter(directory):
        raise UserError(
            f"{directory} holds an adapter, and a whole model is needed: vaswani merge {directory} OUTPUT"
        )


def check_not_onnx(directory: Path) -> None:
    """Raise a UserError if a folder holds a model for ONNX Runtime."""
    if any(directory.glob("*.onnx")):
        raise UserError(
            f"{directory} holds a model in ONNX, which runs with engine=onnx (vaswani translate, predict, "
            "embed, generate, evaluate and others with --engine onnx); elsewhere give the folder it was "
            "exported from"
        )


def holds_adapter(directory: Path) -> bool:
    """Return whether a folder holds an adapter instead of the weights of a whole model."""
    return (directory / ADAPTER_CONFIG).is_file() and not (directory / WEIGHTS).exists()


def _shards(directory: Path) -> list[Path]:
    index = directory / WEIGHTS_INDEX
    places = read_object(index).get("weight_map")
    names = list(places.values()) if isinstance(places, dict) else []
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise UserError(
            f"{index} is damaged: its weight_map must name a file beside it for each weight; use another "
            "checkpoint"
        )
    return [directory / name for name in sorted(set(names))]


# ---------------------------------------------------------------------------------------------------- checks


def _unknown_value(config: PreTrainedConfig, error: Exception) -> str | None:
    """Return which setting has the value that the library did not find in a table, such as an activation."""
    if not isinstance(error, KeyError) or len(error.args) != 1:
        return None
    (value,) = error.args
    names = [name for name, set_to in config.to_dict().items() if set_to == value]
    return f"{' and '.join(names)}={value!r} is unknown to the library" if names else None


def check_weights(directory: Path, config: PreTrainedConfig) -> None:
    """Raise a UserError unless the weights are complete and match the configuration in size and dtype.

    Reads only the headers of the files, before a model is allocated for a configuration that may be wrong.
    """
    stored: dict[str, StoredTensor] = {}
    for file in weight_files(directory):
        stored |= stored_tensors(file)
    held = sum(tensor.num_elements for tensor in stored.values())
    try:
        model = meta_model(config)
    except Exception as error:  # for example sizes beyond 64 bits
        reason = _unknown_value(config, error) or one_line(error)
        raise UserError(f"{directory / 'config.json'} cannot be used: {reason}") from error
    needed = model.num_parameters()
    # Some models do not save their table of sinusoids, which is not trained.
    unsaved = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    if needed - min(unsaved, _MAX_UNSAVED) > 2 * held:
        raise UserError(
            f"{directory / 'config.json'} describes a model of {needed:,} parameters, and the weights beside "
            f"it hold {held:,}; they do not belong together: use another checkpoint"
        )
    if not getattr(config, "quantization_config", None):  # quantized integers are not cast
        _check_dtypes(directory, stored, model)


def _check_dtypes(directory: Path, stored: dict[str, StoredTensor], model: PreTrainedModel) -> None:
    """Raise a UserError if a checkpoint has integers where the model has floating-point numbers."""
    floats = [name for name, weight in model.state_dict().items() if weight.is_floating_point()]
    for name, tensor in stored.items():
        if tensor.is_float:
            continue
        if any(f".{place}".endswith(f".{name}") or f".{name}".endswith(f".{place}") for place in floats):
            raise UserError(
                f"the weights in {directory} hold {name} as {tensor.dtype}, and the model needs "
                "floating-point numbers; use a checkpoint that is not quantized"
            )


def check_tensor_names(
    directory: Path, missing: Iterable[str], unexpected: Iterable[str], remedy: str = OTHER_CHECKPOINT
) -> None:
    """Raise a UserError unless the weights have exactly the model's tensors.

    Args:
        directory: the folder of the weights.
        missing: names of the model's tensors that the weights lack.
        unexpected: names of weights that the model has no parameter for.
        remedy: the advice in the message.
    """
    for names, problem in (
        (sorted(missing), "lack {} of the model's"),
        (sorted(unexpected), "hold {} that the model has no parameter for"),
    ):
        if names:
            raise UserError(
                f"the weights in {directory} {problem.format(len(names))}, such as {names[0]}; {remedy}"
            )


def is_of_base_model(name: str, model: PreTrainedModel) -> bool:
    """Return True if a weight belongs to the base model, and not to a pooler or a head."""
    inner = name.removeprefix(f"{model.base_model_prefix}.")
    parts = {child for child, _ in model.base_model.named_children()}
    return (inner != name or inner.partition(".")[0] in parts) and f".{POOLER}." not in f".{name}"


def check_finite(weights: Iterable[tuple[str, torch.Tensor]], where: str | Path) -> None:
    """Raise a UserError if a weight holds NaN or infinity; 65 million numbers take 30 ms.

    Args:
        weights: names with weights.
        where: the file or folder, for the message.
    """
    for name, weight in weights:
        local = weight.to_local() if isinstance(weight, DTensor) else weight
        if not _is_finite(local):
            raise UserError(
                f"the weights in {where} are not finite numbers: {name} holds NaN or infinity in "
                f"{str(local.dtype).removeprefix('torch.')}; use another checkpoint, such as an earlier one "
                "of the training, or a dtype with a larger range"
            )


def _is_finite(weight: torch.Tensor) -> bool:
    if not weight.is_floating_point() or not weight.numel() or weight.is_meta:
        return True
    if weight.element_size() == 1:  # torch cannot compare 8-bit floating-point numbers
        weight = weight.float()
    low, high = weight.detach().aminmax()
    return bool(low.isfinite() & high.isfinite())


def check_finite_files(directory: Path) -> None:
    """Raise a UserError if a safetensors file in a folder holds NaN or infinity, or cannot be read."""
    check_hashes(directory)
    files = [directory / ADAPTER_WEIGHTS] if holds_adapter(directory) else weight_files(directory)
    for file in files:
        names = stored_tensors(file)
        if file.suffix == ".safetensors":
            check_finite_tensors(file, names)


def check_finite_tensors(file: Path, names: Iterable[str]) -> None:
    """Raise a UserError if one of the named tensors in a safetensors file holds NaN or infinity."""
    with safe_open(file, framework="pt") as weights:
        check_finite(((name, weights.get_tensor(name)) for name in names), file)


# --------------------------------------------------------------------------------------------------- loading


def load_weights(
    directory: Path,
    model_class: Any,
    config: PreTrainedConfig,
    *,
    ignore_mismatched_sizes: bool = False,
    **options: Any,
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a model from a local folder without running a checkpoint's own code.

    Args:
        directory: the folder.
        model_class: the model's class, or an Auto class.
        config: the model's configuration.
        ignore_mismatched_sizes: leave out weights whose shapes differ from the configuration.
        options: options of `from_pretrained`.

    Returns:
        The model, and the loading report: `missing_keys`, `unexpected_keys` and `mismatched_keys`.

    Raises:
        UserError: pickled weights are truncated or hold more than tensors, shapes differ from the
            configuration, a weight is NaN or infinite, a file has changed since it was written, or an option
            is invalid.
    """
    check_hashes(directory)
    try:
        with silenced_load_report():  # `check_tensor_names` reports what matters
            model, report = model_class.from_pretrained(
                directory,
                config=config,
                local_files_only=True,
                output_loading_info=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # reported below
                **options,
            )
    except Exception as error:  # from torch, safetensors or transformers
        reason = one_line(error.__cause__ or error)
        raise UserError(f"the weights in {directory} cannot be loaded: {reason}") from error
    if not ignore_mismatched_sizes and (mismatched := sorted(report["mismatched_keys"])):
        name, stored, expected = mismatched[0]
        raise UserError(
            f"the weights in {directory} hold {name} as {[*stored]}, and its config.json needs "
            f"{[*expected]}; they do not belong together: use another checkpoint"
        )
    check_finite(_saved_tensors(model), directory)
    return model, report


def _saved_tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers that a checkpoint holds; tied ones once."""
    seen = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


class _Silence:
    """The number of active `silenced_load_report` blocks, and the verbosity before the first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0
        self.verbosity = 0


_silence = _Silence()


@contextmanager
def silenced_load_report() -> Iterator[None]:
    """Silence the library's table of missing and unexpected weights.

    The verbosity applies to the whole process, and several threads may load models: the first to enter lowers
    it, and the last to leave restores it.
    """
    with _silence.lock:
        if _silence.depth == 0:
            _silence.verbosity = logging.get_verbosity()
            logging.set_verbosity_error()
        _silence.depth += 1
    try:
        yield
    finally:
        with _silence.lock:
            _silence.depth -= 1
            if _silence.depth == 0:
                logging.set_verbosity(_silence.verbosity)
