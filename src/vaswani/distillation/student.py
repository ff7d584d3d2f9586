"""Build a student from some of its teacher's layers: "shrink and fine-tune".

Shleifer & Rush (2020, arXiv:2010.13002) copy evenly spaced layers of the teacher and fine-tune: the student
starts near its teacher, not at random. For translation, keep a deep encoder and a shallow decoder (Kasai et
al., 2021, arXiv:2006.10369): the decoder runs once per generated token, the encoder once per sentence.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
import yaml
from accelerate import PartialState
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from vaswani.data.evenly_spread import evenly_spread
from vaswani.data.tokenization import save_tokenizers
from vaswani.distillation.recording import stacks
from vaswani.errors import UserError
from vaswani.files.atomic_files import check_output_folder, whole_folder
from vaswani.files.run_files import SETTINGS_FILE
from vaswani.files.run_settings import read_settings
from vaswani.hub.checkpoint import load_checkpoint, local_folder
from vaswani.hub.hashes import write_hashes
from vaswani.inference.translate.ensembling import Ensemble

logger = logging.getLogger(__name__)

# Settings of the teacher's training that an evaluation of the student needs.
_TASK_SETTINGS = (
    *("task", "objective", "documents", "source_field", "target_field", "text_field", "text_pair_field"),
    *("label_field", "label_separator", "context_field", "question_field", "answers_field"),
    *("answer_start_field", "prompt_field", "completion_field", "messages_field", "max_length", "truncate"),
    *("max_source_length", "max_target_length"),
    *("generation_max_length", "generation_num_beams", "generation_length_penalty"),
)

Layers: TypeAlias = "int | Sequence[int] | None"  # a number, evenly spaced; indices in order; None for all

# Names of the depth of each stack in configurations of encoder-decoders (`num_layers` is T5's).
_DEPTH_FIELDS = {
    "encoder": ("encoder_layers", "num_encoder_layers", "num_layers"),
    "decoder": ("decoder_layers", "num_decoder_layers"),
}
# Lists with a value for each layer, in encoder-decoders: ours, and LED's.
_PER_LAYER_FIELDS = {"encoder": ("encoder_attention", "attention_window"), "decoder": ("decoder_attention",)}


def student_from_teacher(
    teacher: PreTrainedModel,
    encoder_layers: Layers = None,
    decoder_layers: Layers = None,
    **fields: Any,
) -> PreTrainedModel:
    """Return a model of the teacher's class with some of its layers and all its other weights.

    The student is in evaluation mode. Its weights are copies on the teacher's device, with the same dtypes
    and ties. Properties that depend on a layer's position, such as the random blocks of sparse attention,
    follow the position in the student.

    Args:
        teacher: a model of transformers with the layers of each stack in one list.
        encoder_layers: their number, evenly spaced, or their indices in the student's order; None for all.
        decoder_layers: likewise. For a model of one stack, None for the other.
        fields: fields of the configuration that differ from the teacher's, such as `dropout`.

    Raises:
        UserError: no layers or more than the teacher has; an index that is repeated or out of range; a
            teacher that is an ensemble or has no such lists.
    """
    if isinstance(teacher, Ensemble):
        raise UserError("an ensemble has no layers to copy; give one of its models as the student's teacher")
    config = copy.deepcopy(teacher.config)
    copied: dict[str, list[int]] = {}  # name of a list of layers -> the teacher's index of each
    for stack, wanted in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        if wanted is not None:
            name, num_layers = _find_layers(teacher, stack)
            copied[name] = choose_layers(wanted, num_layers, f"{stack}_layers")
            _set_depth(config, stack, copied[name])
    for name, value in fields.items():
        setattr(config, name, value)

    student = type(teacher)(config)
    weights = teacher.state_dict()
    of_student = {
        name: weights[_teacher_name(name, copied, weights)].clone() for name in student.state_dict()
    }
    student.load_state_dict(of_student, assign=True)  # keeps the dtypes, but not the ties
    student.tie_weights()
    if teacher.can_generate():
        student.generation_config = copy.deepcopy(teacher.generation_config)
    return student.to(teacher.device).eval()  # type: ignore[arg-type]


def parse_layers(text: str | None, name: str) -> Layers:
    """Parse an option: "6" is a number of layers, "0,2,5" are indices, "5," is one index.

    Raises:
        UserError: for any other text; the message contains the option's `name`.
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
    """Build a student from a checkpoint; save it with the teacher's tokenizers.

    Args:
        teacher: folder or Hub name of a model.
        output: a folder that is empty or does not exist yet.
        encoder_layers: as in `student_from_teacher`.
        decoder_layers: likewise.
        allow_mismatch: accept tokenizers or weights that seem to belong to another model.

    Returns:
        The number of parameters of the teacher and of the student; tied ones count once.

    Raises:
        UserError: the student cannot be built or saved; nothing is written.
        RunError: writing failed, for example because the disk is full; nothing is left.
    """
    check_output_folder(output, "the student")
    model, source_tokenizer, target_tokenizer = load_checkpoint(
        teacher, device="cpu", auto_class=None, allow_mismatch=allow_mismatch
    )
    student = student_from_teacher(model, encoder_layers, decoder_layers)
    with whole_folder(output, "the student") as folder:
        student.save_pretrained(folder)
        save_tokenizers(source_tokenizer, target_tokenizer, folder)
        _keep_task(local_folder(teacher, weights=False), folder)
        write_hashes(folder)
    return model.num_parameters(), student.num_parameters()


def _keep_task(teacher: Path, folder: Path) -> None:
    """Write the task, the columns and the lengths of the teacher's training, if they are recorded."""
    settings = read_settings(teacher)
    kept = {name: settings[name] for name in _TASK_SETTINGS if settings.get(name) is not None}
    if kept:
        (folder / SETTINGS_FILE).write_text(
            yaml.safe_dump(kept, sort_keys=False, allow_unicode=True), "utf-8"
        )


def warn_unless_smaller(student: PreTrainedModel, teacher: PreTrainedModel, remedy: str) -> None:
    """Log a warning if a student has as many parameters as its teacher, or more; tied ones count once."""
    size, most = student.num_parameters(), teacher.num_parameters()
    if size >= most and PartialState().is_main_process:
        logger.warning(
            f"the student has {size:,} parameters, no fewer than its teacher's {most:,}; for a smaller one, "
            f"{remedy}"
        )


def _find_layers(teacher: PreTrainedModel, stack: str) -> tuple[str, int]:
    """The name and the length of the module list that holds a stack's layers."""
    found = stacks(teacher).get(stack)
    children = () if found is None else found.children()
    lists = [child for child in children if isinstance(child, nn.ModuleList)]
    if len(lists) != 1:
        raise UserError(
            f"a {teacher.config.model_type!r} model has no list of {stack} layers; leave out {stack}_layers"
        )
    depth = _depth(teacher.config, stack)
    if len(lists[0]) != depth:
        raise UserError(
            f"a {teacher.config.model_type!r} model shares weights between its {depth} {stack} layers, so "
            "that none can be left out; give a smaller model as the student"
        )
    return next(name for name, module in teacher.named_modules() if module is lists[0]), depth


def choose_layers(wanted: int | Sequence[int], num_layers: int, option: str) -> list[int]:
    """Return the teacher's indices of the student's layers.

    Raises:
        UserError: the teacher has no such layers; the message contains the name of the option.
    """
    if isinstance(wanted, int):
        if not 1 <= wanted <= num_layers:
            raise UserError(
                f"{option}={wanted} is impossible: the teacher has {num_layers}; give 1 to {num_layers}"
            )
        # A single layer is the first, as in DistilBERT and in Shleifer & Rush: no other layer has learned to
        # read embeddings.
        return evenly_spread(num_layers, wanted)
    layers = list(wanted)
    given = f"{option}={layers}"
    if outside := [index for index in layers if not 0 <= index < num_layers]:
        raise UserError(f"{given} names layer {outside[0]}, but the teacher's are 0 to {num_layers - 1}")
    if len(set(layers)) < len(layers) or not layers:
        raise UserError(f"{given} must name one layer or more, each once")
    return layers


def _depth_fields(config: PreTrainedConfig, stack: str) -> tuple[str, ...]:
    return _DEPTH_FIELDS[stack] if config.is_encoder_decoder else ("num_hidden_layers",)


def _depth(config: PreTrainedConfig, stack: str) -> int:
    """The number of a stack's layers."""
    return next(getattr(config, name) for name in _depth_fields(config, stack) if hasattr(config, name))


def _set_depth(config: PreTrainedConfig, stack: str, layers: list[int]) -> None:
    """Change the configuration so that the stack has only these layers."""
    names, depth = _depth_fields(config, stack), _depth(config, stack)
    if hasattr(config, "attention_types"):
        raise UserError(
            f"a {config.model_type!r} model sets the attention of its layers with attention_types, which "
            f"cannot be reduced to some layers; leave out {stack}_layers"
        )
    for name, value in config.to_dict().items():
        is_of_layers = (
            name in _PER_LAYER_FIELDS[stack] if config.is_encoder_decoder else _may_be_of_layers(name)
        )
        if is_of_layers and isinstance(value, list | tuple) and len(value) == depth:
            setattr(config, name, [value[index] for index in layers])
    for name in names:
        if hasattr(config, name):
            setattr(config, name, len(layers))


def _may_be_of_layers(name: str) -> bool:
    """Return True if a list in a configuration can have a value for each layer, such as `layer_types`."""
    return name != "architectures" and "token" not in name


def _teacher_name(name: str, copied: dict[str, list[int]], weights: dict[str, torch.Tensor]) -> str:
    """The teacher's name for a weight of the student."""
    for prefix, layers in copied.items():
        if name.startswith(f"{prefix}."):
            place, rest = name.removeprefix(f"{prefix}.").split(".", 1)
            renumbered = f"{prefix}.{layers[int(place)]}.{rest}"
            # The first layer of T5 holds the position bias of all layers: it keeps its name.
            return renumbered if renumbered in weights else name
    return name
