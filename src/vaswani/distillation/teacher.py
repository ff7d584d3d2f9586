"""The teacher of a distillation: one model, the average of several, or a model that is trained first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_NAME, logging

from vaswani.data.sources.corpus_spec import CorpusSpec
from vaswani.data.text_codec import Tokenizers, check_same_tokens, for_languages
from vaswani.data.tokenization import load_tokenizers
from vaswani.distillation.arguments import FROM_TEACHER, RANDOM
from vaswani.distillation.config import DistillationConfig
from vaswani.distillation.fingerprints import fingerprint_model
from vaswani.errors import UserError
from vaswani.files.run_files import SETTINGS_FILE
from vaswani.files.run_settings import read_settings
from vaswani.hub.checkpoint import load_checkpoint, local_folder
from vaswani.hub.run_metadata import read_config
from vaswani.inference.translate.ensembling import Ensemble
from vaswani.training.config.arguments import RunConfig
from vaswani.training.config.config_file import load_config
from vaswani.training.runs.translation import fill_in_special_tokens, train, use_start_token_of_tokenizer
from vaswani.training.trainer.allowed_changes import MAY_CHANGE

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Teacher:
    """An encoder-decoder, or the average of several, with its tokenizers."""

    model: PreTrainedModel
    source_tokenizer: PreTrainedTokenizerBase
    target_tokenizer: PreTrainedTokenizerBase

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the model in the caches of its outputs."""
        return fingerprint_model(self.model)

    @property
    def tokenizers(self) -> Tokenizers:
        """The source and the target tokenizer."""
        return self.source_tokenizer, self.target_tokenizer


def load_teacher(config: DistillationConfig) -> Teacher:
    """Load the teacher of a run, or the average of several, on the run's device.

    Raises:
        UserError: a teacher cannot be loaded, or the teachers have different vocabularies.
    """
    names = config.distillation.teacher
    folders = [_trained_folder(name, config) if _is_config_file(name) else name for name in names]
    loaded = [_loaded(name, config) for name in folders]
    if len(loaded) == 1:
        return loaded[0]
    for name, other in zip(folders[1:], loaded[1:], strict=True):
        check_same_vocabulary(loaded[0].tokenizers, other.tokenizers, f"the teachers {folders[0]} and {name}")
    return replace(loaded[0], model=Ensemble([teacher.model for teacher in loaded]).eval())


def _loaded(name: str | Path, config: DistillationConfig) -> Teacher:
    """A teacher for the run's languages, with the start token and padding that its student learns."""
    options = config.distillation
    model, source, target = load_checkpoint(name, config.training.device, options.teacher_dtype)
    teacher = Teacher(model, *for_languages(source, target, **options.languages))
    use_start_token_of_tokenizer(teacher.model, teacher.target_tokenizer)
    fill_in_special_tokens(teacher.model, teacher.source_tokenizer)
    return teacher


def check_teachers(config: DistillationConfig) -> None:
    """Raise `UserError` for a missing teacher or student, or an unknown language; load no weights."""
    options = config.distillation
    given = [("teacher", name) for name in options.teacher]
    if options.student not in (RANDOM, FROM_TEACHER):
        given.append(("student", options.student))
    for option, name in given:
        try:
            if option == "teacher" and _is_config_file(name):
                load_config(name)
            else:
                read_config(folder := local_folder(name))
                if option == "teacher" and options.languages:
                    source, target = load_tokenizers(folder)
                    for_languages(source, target, **options.languages)
        except UserError as error:
            raise UserError(f"{option}={name}: {error}") from error


def check_same_vocabulary(
    tokenizers: Sequence[PreTrainedTokenizerBase], others: Sequence[PreTrainedTokenizerBase], whose: str
) -> None:
    """Raise `UserError` unless both pairs of tokenizers (source, target) make the same tokens of a text."""
    remedy = (
        "their distributions cannot be compared, so distil by sequences: one teacher, targets=teacher, and "
        "soft_target_weight, cosine_weight and relation_weight 0"
    )
    check_same_tokens(tokenizers, others, whose, remedy)


def _is_config_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def _trained_folder(name: str, config: DistillationConfig) -> Path:
    """The folder of a configuration file's model; a missing model is first trained on this run's corpus."""
    teacher = load_config(name)
    if (teacher.output_dir / SAFE_WEIGHTS_NAME).is_file():  # training has finished
        _warn_of_differences(name, teacher)
        return teacher.output_dir
    corpus = {field.name: getattr(config.data, field.name) for field in fields(CorpusSpec)}
    teacher.data = replace(teacher.data, **corpus)
    if (teacher.output_dir / SETTINGS_FILE).is_file():  # training was interrupted
        teacher.training.resume_from_checkpoint = "true"
    print(f"training the teacher of {name} in {teacher.output_dir}", flush=True)
    train(teacher)
    return teacher.output_dir


def _warn_of_differences(name: str, teacher: RunConfig) -> None:
    """Warn if a teacher was trained with other settings than its configuration file has now."""
    before, now = (
        teacher.default_settings() | settings
        for settings in (read_settings(teacher.output_dir), teacher.to_dict())
    )
    # The corpus is the distillation's, and a None is resolved when training begins.
    ignored = {*MAY_CHANGE, *(field.name for field in fields(CorpusSpec))} - {"max_steps", "num_train_epochs"}
    changed = [
        f"{setting}={before[setting]}"
        for setting, value in now.items()
        if setting not in ignored and value not in (None, before[setting])
    ]
    if changed:
        folder, settings = teacher.output_dir, ", ".join(changed)
        logger.warning(
            f"The teacher in {folder} was trained with {settings} and is used as it is. "
            f"{name} has other values now: delete the folder to train it anew."
        )
