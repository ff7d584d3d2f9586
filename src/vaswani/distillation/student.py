"""Making a student of some of its teacher's layers: "shrink and fine-tune".

Shleifer & Rush (2020, arXiv:2010.13002) copy layers that are evenly spaced over the teacher's and train on:
the student starts near its teacher, not at random. For translation keep a deep encoder and a shallow decoder
(Kasai et al., 2021, arXiv:2006.10369): the decoder runs once for each generated token, the encoder once for a
sentence.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from vaswani.data.evenly_spread import evenly_spread
from vaswani.data.tokenization import save_tokenizers
from vaswani.errors import UserError
from vaswani.files.atomic_files import check_output_folder, whole_folder
from vaswani.hub.checkpoint import load_checkpoint
from vaswani.hub.hashes import write_hashes
from vaswani.inference.translate.ensembling import Ensemble

Layers: TypeAlias = "int | Sequence[int] | None"  # so many, evenly spaced; these, in this order; all

# Where the configurations of encoder-decoders keep the depth of each stack (`num_layers` is T5's).
_DEPTH_FIELDS = {
    "encoder": ("encoder_layers", "num_encoder_layers", "num_layers"),
    "decoder": ("decoder_layers", "num_decoder_layers"),
}


def student_from_teacher(
    teacher: PreTrainedModel,
    encoder_layers: Layers = None,
    decoder_layers: Layers = None,
    **fields: Any,
) -> PreTrainedModel:
    """Return a model of the teacher's kind with some of its layers and all else that it has.

    The student is in evaluation mode. Its weights are copies, on the teacher's device, in its dtypes and with
    its ties. What depends on a layer's place, as the random blocks of our sparse attention do, follows the
    place in the student.

    Args:
        teacher: a model of transformers that keeps the layers of each stack in one list.
        encoder_layers: so many, evenly spaced, or the indices of those to copy, in the student's order; None
            for all.
        decoder_layers: likewise. A model of one stack takes None for the other.
        fields: of the configuration, that the student has otherwise: such as `dropout`.

    Raises:
        UserError: more layers than the teacher has, or none; an index that the teacher has not, or twice; a
            teacher that is an ensemble, or keeps its layers in another way.
    """
    if isinstance(teacher, Ensemble):
        raise UserError("an ensemble has no layers to copy; give one of its models as the student's teacher")
    config = copy.deepcopy(teacher.config)
    copied: dict[str, list[int]] = {}  # the name of a list of layers -> the teacher's index of each
    for stack, wanted in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        if wanted is not None:
            name, num_layers = _find_layers(teacher, stack)
            copied[name] = _choose(wanted, num_layers, stack)
            _set_depth(config, stack, copied[name])
    for name, value in fields.items():
        setattr(config, name, value)

    student = type(teacher)(config)
    weights = teacher.state_dict()
    of_student = {
        name: weights[_teacher_name(name, copied, weights)].clone() for name in student.state_dict()
    }
    student.load_state_dict(of_student, assign=True)  # each keeps its dtype; ties are lost, and made again
    student.tie_weights()
    if teacher.can_generate():
        student.generation_config = copy.deepcopy(teacher.generation_config)
    return student.to(teacher.device).eval()  # type: ignore[arg-type]


def parse_layers(text: str | None, name: str) -> Layers:
    """Read the layers of a command line: "6" is a number of layers, "0,2,5" are layers, "5," is one.

    Raises:
        UserError: neither of these, naming the option by `name`.
    """
    if text is None:
        return None
    try:
        return [int(index) for index in text.removesuffix(",").split(",")] if "," in text else int(text)
    except ValueError:
        raise UserError(
            f"{name}={text!r} is not a number; give so many layers (6), or the teacher's to copy (0,2,5)"
        ) from None


def save_student(
    teacher: str | Path,
    output: Path,
    encoder_layers: Layers = None,
    decoder_layers: Layers = None,
    allow_mismatch: bool = False,
) -> tuple[int, int]:
    """Make a student of a checkpoint and save it, with the teacher's tokenizers, in a folder of its own.

    Args:
        teacher: any encoder-decoder that `load_checkpoint` takes.
        output: a folder that is empty, or does not exist yet.
        encoder_layers: as in `student_from_teacher`.
        decoder_layers: likewise.
        allow_mismatch: take tokenizers or weights that seem to be another model's.

    Returns:
        The number of parameters of the teacher and of the student; tied ones count once.

    Raises:
        UserError: what stands in the way, before anything is written.
        RunError: the disk is full or cannot be written; nothing is left.
    """
    check_output_folder(output, "the student")
    model, source_tokenizer, target_tokenizer = load_checkpoint(
        teacher, device="cpu", allow_mismatch=allow_mismatch
    )
    student = student_from_teacher(model, encoder_layers, decoder_layers)
    with whole_folder(output, "the student") as folder:
        student.save_pretrained(folder)
        save_tokenizers(source_tokenizer, target_tokenizer, folder)
        write_hashes(folder)
    return model.num_parameters(), student.num_parameters()


def _find_layers(teacher: PreTrainedModel, stack: str) -> tuple[str, int]:
    """The name of the module that lists a stack's layers, and how many there are."""
    children = (teacher.get_encoder() if stack == "encoder" else teacher.get_decoder()).children()
    lists = [child for child in children if isinstance(child, nn.ModuleList)]
    if len(lists) != 1:
        raise UserError(
            f"a {teacher.config.model_type!r} model has no list of {stack} layers; leave out {stack}_layers"
        )
    return next(name for name, module in teacher.named_modules() if module is lists[0]), len(lists[0])


def _choose(wanted: int | Sequence[int], num_layers: int, stack: str) -> list[int]:
    """The teacher's indices of the student's layers."""
    if isinstance(wanted, int):
        if not 1 <= wanted <= num_layers:
            raise UserError(
                f"{stack}_layers={wanted} is impossible: the teacher has {num_layers}; give 1 to {num_layers}"
            )
        # As in DistilBERT and in Shleifer & Rush, who keep the first where only one is kept: no other layer
        # has learned to read bare embeddings.
        return evenly_spread(num_layers, wanted)
    layers = list(wanted)
    given = f"{stack}_layers={layers}"
    if outside := [index for index in layers if not 0 <= index < num_layers]:
        raise UserError(f"{given} names layer {outside[0]}, but the teacher's are 0 to {num_layers - 1}")
    if len(set(layers)) < len(layers) or not layers:
        raise UserError(f"{given} must name one layer or more, each once")
    return layers


def _set_depth(config: PreTrainedConfig, stack: str, layers: list[int]) -> None:
    """Let the configuration be that of a stack of these layers of the teacher's."""
    names = _DEPTH_FIELDS[stack] if config.is_encoder_decoder else ("num_hidden_layers",)
    for name in names:
        if hasattr(config, name):
            setattr(config, name, len(layers))
    of_each_layer = getattr(config, f"{stack}_attention", None)  # ours: full or sparse
    if isinstance(of_each_layer, list):
        setattr(config, f"{stack}_attention", [of_each_layer[index] for index in layers])


def _teacher_name(name: str, copied: dict[str, list[int]], weights: dict[str, torch.Tensor]) -> str:
    """The teacher's name of one of the student's weights."""
    for prefix, layers in copied.items():
        if name.startswith(f"{prefix}."):
            place, rest = name.removeprefix(f"{prefix}.").split(".", 1)
            renumbered = f"{prefix}.{layers[int(place)]}.{rest}"
            # What one layer keeps for all, as T5's first its position bias, stays in its place.
            return renumbered if renumbered in weights else name
    return name
