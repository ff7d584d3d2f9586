"""Average the weights of checkpoints (Vaswani et al., 2017, arXiv:1706.03762, section 6.1)."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from safetensors import safe_open
from safetensors.torch import save_file

from vaswani.errors import UserError
from vaswani.files.atomic_files import check_output_folder, whole_folder, write_json
from vaswani.files.json_files import read_object
from vaswani.files.run_files import AVERAGED_FILE, CORPUS_FILE, EVALUATION_FILE, MANIFEST, SETTINGS_FILE
from vaswani.files.run_settings import read_settings
from vaswani.hub.card import write_card
from vaswani.hub.checkpoint import local_folder
from vaswani.hub.hashes import check_whole, tokenizer_files, write_hashes
from vaswani.hub.push import code_files
from vaswani.hub.run_metadata import count_parameters, read_config, read_run_metadata
from vaswani.hub.stored_tensors import StoredTensor, stored_tensors
from vaswani.hub.weights import (
    WEIGHTS_INDEX,
    check_finite,
    check_weights,
    weight_files,
)
from vaswani.model.configuration_vaswani import VaswaniFamilyConfig

logger = logging.getLogger(__name__)

UNRELATED_COSINE = 0.1  # cosine: weights of separate trainings have nearly 0, checkpoints of one run nearly 1
CONFIGS = ("config.json", "generation_config.json")
# Fields that may differ between equal models: the version that saved them, where a tokenizer was loaded from
# (which changes when a run is resumed), and how it was last called.
IGNORED = (
    *("transformers_version", "_name_or_path", "name_or_path", "is_local", "local_files_only"),
    *("padding", "truncation"),
)
# Fields of the examples in `evaluation.json` that a model reads.
MODEL_INPUTS = ("source", "text", "text_pair", "question", "context", "prompt")
_ABSENT = "no value"
_LONGEST = 60  # characters of a value in a message


class Places(NamedTuple):
    """The tensors of a checkpoint and the files that hold them."""

    folder: Path
    files: dict[str, Path]
    tensors: dict[str, StoredTensor]


def average(checkpoints: Sequence[str | Path], output: str | Path) -> int:
    """Save a model whose weights are the mean over checkpoints, with their tokenizers and settings.

    Sums are float64 and follow the order of the checkpoints. Means are saved in the checkpoints' own dtype,
    in files with the names of the first checkpoint's. Memory holds one such file, and one tensor of a
    checkpoint.

    Models that were trained separately from random weights have unrelated units, and their mean hardly works.
    A warning names checkpoints that seem unrelated, by the cosine of their weights.

    Args:
        checkpoints: folders, or names on the Hub.
        output: a folder that is empty or does not exist yet.

    Returns:
        The number of parameters.

    Raises:
        UserError: there are no checkpoints or one is given twice; one is incomplete, damaged, not of
            safetensors, or an adapter; two differ in a field of their configuration, a tokenizer, or the
            name, shape or dtype of a tensor; a weight is not finite.
        RunError: the disk is full or not writable; nothing is left.
    """
    output = Path(output)
    check_output_folder(output, "the model")
    folders = [local_folder(name) for name in checkpoints]
    places = _check_alike(folders)
    with whole_folder(output, "the model") as unfinished:
        with ExitStack() as stack:
            sources = [_Source(each, stack) for each in places]
            for file in weight_files(folders[0]):
                means = {name: _mean(sources, name) for name in stored_tensors(file)}
                save_file(means, unfinished / file.name, metadata={"format": "pt"})
            _warn_of_unrelated(sources)
        _copy_files(folders, unfinished)
        write_hashes(unfinished)
        _record(folders, unfinished, output.absolute().name)
    return count_parameters(read_config(output))


def mean_weights(folders: Sequence[Path]) -> dict[str, torch.Tensor]:
    """Return the mean of each tensor of checkpoints, as `average` saves it.

    Raises:
        UserError: as `average` does.
    """
    places = _check_alike(folders)
    with ExitStack() as stack:
        sources = [_Source(each, stack) for each in places]
        return {name: _mean(sources, name) for name in places[0].tensors}


class _Source:
    """Reads the tensors of a checkpoint one at a time."""

    def __init__(self, places: Places, stack: ExitStack):
        self.folder, self.places = places.folder, places
        files = dict.fromkeys(places.files.values())
        self.opened: dict[Path, Any] = {
            file: stack.enter_context(safe_open(file, framework="pt")) for file in files
        }

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor; raise a UserError if it holds NaN or infinity."""
        tensor = self.opened[self.places.files[name]].get_tensor(name)
        check_finite([(name, tensor)], self.folder)
        return tensor


def _mean(sources: Sequence[_Source], name: str) -> torch.Tensor:
    """Return the mean of a tensor [...]; for integers, the value that all sources have."""
    first = sources[0].read(name)
    if not first.is_floating_point():
        for source in sources[1:]:
            if not torch.equal(source.read(name), first):
                raise UserError(
                    f"{name} holds {first.dtype} and differs between {sources[0].folder} and "
                    f"{source.folder}: integers have no mean; average models that share them"
                )
        return first
    total = first.to(torch.float64, copy=True)  # not added to zeros, which would turn -0.0 into 0.0
    for source in sources[1:]:
        total += source.read(name).to(torch.float64)
    return (total / len(sources)).to(first.dtype)


def _warn_of_unrelated(sources: Sequence[_Source]) -> None:
    """Log a warning that names checkpoints whose weights are unrelated to those of the first.

    Only the largest matrix is compared, because norms and biases are similar in all models.
    """
    stored = sources[0].places.tensors
    matrices = [name for name, tensor in stored.items() if tensor.is_float and len(tensor.shape) > 1]
    if not matrices:
        return
    name = max(matrices, key=lambda name: stored[name].num_elements)
    first = sources[0].read(name).double()
    strangers = []
    for source in sources[1:]:
        other = source.read(name).double()
        if (first * other).sum() < UNRELATED_COSINE * first.norm() * other.norm():
            strangers.append(str(source.folder))
    if strangers:
        logger.warning(
            f"the weights of {' '.join(strangers)} are unrelated to those of {sources[0].folder}, as after "
            "separate trainings from random weights: their mean hardly works; average checkpoints of one "
            "run, or translate with an ensemble (--model A --model B)"
        )


# ---------------------------------------------------------------------------------------------------- checks


def _check_alike(folders: Sequence[Path]) -> list[Places]:
    """Raise a UserError unless these folders hold complete checkpoints of one model (see `average`).

    Returns:
        The tensors and files of each checkpoint.
    """
    if not folders:
        raise UserError("nothing to average: give the folders of checkpoints")
    resolved = [folder.resolve() for folder in folders]
    for folder in folders:
        if resolved.count(folder.resolve()) > 1:
            raise UserError(f"{folder} is given more than once; give each checkpoint once")
        check_whole(folder)
    configs = [read_config(folder) for folder in folders]
    for folder in folders[1:]:
        _check_same_configs(folders[0], folder)
        _check_same_tokenizers(folders[0], folder)
    for folder, config in zip(folders, configs, strict=True):
        _check_safetensors(folder)
        check_weights(folder, config)
    places = [_places(folder) for folder in folders]
    for found in places[1:]:
        _check_same_tensors(places[0], found)
    return places


def _check_same_configs(one: Path, other: Path) -> None:
    """Raise `UserError` if two models differ; warn if only their settings of `generate` differ."""
    shapes, searches = (
        [read_object(path / name) if (path / name).exists() else {} for path in (one, other)]
        for name in CONFIGS
    )
    kinds = [{"model_type": shape.get("model_type", _ABSENT)} | shape for shape in shapes]  # named first
    tokens = [{key: value for key, value in each.items() if key.endswith("_token_id")} for each in searches]
    for name, values in zip(CONFIGS, (kinds, tokens), strict=True):
        if found := _difference(*values):
            raise _unlike(f"{name} has {found[0]}", found[1], one, found[2], other)
    if found := _difference(*searches):
        logger.warning(
            "%s has %s %s in %s and %s in %s; the mean keeps that of the first.",
            *(CONFIGS[1], found[0], found[1], one, found[2], other),
        )


def _check_same_tokenizers(one: Path, other: Path) -> None:
    files, others = tokenizer_files(one), tokenizer_files(other)
    for name in sorted({*files, *others}):
        if name not in files or name not in others:
            has, lacks = (one, other) if name in files else (other, one)
            raise UserError(
                f"{has} has {name} but {lacks} does not: only checkpoints with one tokenizer can be averaged"
            )
        if name.endswith(".json"):
            if found := _difference(read_object(files[name]), read_object(others[name])):
                raise _unlike(f"{name} has {found[0]}", found[1], one, found[2], other)
        elif files[name].read_bytes() != others[name].read_bytes():
            size, other_size = (f"{path.stat().st_size:,} bytes" for path in (files[name], others[name]))
            raise _unlike(f"{name} has different contents:", size, one, other_size, other)


def _check_safetensors(folder: Path) -> None:
    for file in weight_files(folder):
        if file.suffix != ".safetensors":
            raise UserError(
                f"{file} is pickled; only safetensors can be averaged: save the model with them, by "
                f"AutoModelForSeq2SeqLM.from_pretrained({str(folder)!r}).save_pretrained(FOLDER)"
            )


def _check_same_tensors(first: Places, second: Places) -> None:
    one, other = first.folder, second.folder
    for name in dict.fromkeys([*first.tensors, *second.tensors]):
        found, expected = second.tensors.get(name), first.tensors.get(name)
        if found is None or expected is None:
            has, lacks = (one, other) if found is None else (other, one)
            raise UserError(
                f"{has} has a tensor {name} but {lacks} does not: only equal models can be averaged"
            )
        if found.shape != expected.shape:
            raise _unlike(f"{name} has shape", [*expected.shape], one, [*found.shape], other)
        if found.dtype != expected.dtype:
            raise _unlike(f"{name} has dtype", expected.dtype, one, found.dtype, other)


def _places(folder: Path) -> Places:
    files: dict[str, Path] = {}
    tensors: dict[str, StoredTensor] = {}
    for file in weight_files(folder):
        stored = stored_tensors(file)
        files |= dict.fromkeys(stored, file)
        tensors |= stored
    return Places(folder, files, tensors)


def _difference(one: Any, other: Any, *, name: str = "") -> tuple[str, Any, Any] | None:
    """Return the name of the first field in which two JSON values differ, and both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [key for key in dict.fromkeys([*one, *other]) if name or key not in IGNORED]
        parts = [(str(key), one.get(key, _ABSENT), other.get(key, _ABSENT)) for key in keys]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        parts = [(str(number), *pair) for number, pair in enumerate(zip(one, other, strict=True))]
    else:
        return None if one == other else (name, one, other)
    inner = (_difference(value, found, name=f"{name}.{key}".lstrip(".")) for key, value, found in parts)
    return next(filter(None, inner), None)


def _unlike(what: str, value: Any, one: Path, other_value: Any, other: Path) -> UserError:
    return UserError(
        f"{what} {_shortened(value)} in {one} and {_shortened(other_value)} in {other}: only checkpoints of "
        "one model can be averaged"
    )


def _shortened(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


# ------------------------------------------------------------------------------------- what is saved with it


def _copy_files(folders: Sequence[Path], output: Path) -> None:
    """Copy the files of the model besides its weights; these files are the same in all folders."""
    names = (*CONFIGS, WEIGHTS_INDEX)
    files = {name: folders[0] / name for name in names if (folders[0] / name).is_file()}
    config = read_config(folders[0])
    if isinstance(config, VaswaniFamilyConfig):
        files |= {path.name: path for path in code_files(config)}
    for name, path in {**files, **tokenizer_files(folders[0])}.items():
        (output / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(path, output / name)


def _record(folders: Sequence[Path], output: Path, name: str) -> None:
    """Write the names of the averaged checkpoints, what is known about their training, and the card."""
    runs = list(dict.fromkeys(_run_of(folder) for folder in folders))
    averaged = {"checkpoints": [folder.resolve().name for folder in folders], "example": _example(runs)}
    write_json(output / AVERAGED_FILE, averaged)
    if len(runs) == 1 and (runs[0] / SETTINGS_FILE).is_file():
        shutil.copyfile(runs[0] / SETTINGS_FILE, output / SETTINGS_FILE)
    elif settings := _shared([read_settings(run) for run in runs]):
        text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
        header = "# The settings that the trainings of the averaged models share.\n"
        (output / SETTINGS_FILE).write_text(header + text, encoding="utf-8")
    corpora = [run / CORPUS_FILE for run in runs]
    if all(path.is_file() for path in corpora) and len({path.read_bytes() for path in corpora}) == 1:
        shutil.copyfile(corpora[0], output / CORPUS_FILE)
    write_card(output, read_run_metadata(output), name)


def _example(runs: Iterable[Path]) -> dict[str, Any]:
    """Return the texts of the first row that a run's evaluation shows, for the card; empty if none does."""
    for path in (run / EVALUATION_FILE for run in runs):
        if examples := path.is_file() and read_object(path).get("examples"):
            return {field: examples[0][field] for field in MODEL_INPUTS if field in examples[0]}
    return {}


def _run_of(folder: Path) -> Path:
    """Return the folder of the run that a checkpoint belongs to, or of the model that a run saved."""
    return folder.resolve().parent if (folder / MANIFEST).is_file() else folder.resolve()


def _shared(settings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first, *others = settings
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }
