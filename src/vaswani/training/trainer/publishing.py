"""Pushes of a training with `push_to_hub`: each is complete, and a failed one does not stop the training."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import HfApi
from transformers import PreTrainedConfig
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import HubStrategy
from transformers.utils import PushInProgress, logging

from vaswani.errors import RunError, UserError
from vaswani.files.atomic_files import discard_unfinished, sha256_of, unfinished_path, write_whole
from vaswani.files.hub_client import use_patient_client
from vaswani.files.json_files import read_object
from vaswani.files.run_files import HISTORY, LOG_FILE, MANIFEST
from vaswani.hub.card import write_card
from vaswani.hub.failures import HUB_ERRORS, describe_hub_failure
from vaswani.hub.hashes import HASHES
from vaswani.hub.push import PUSHED, allowed_files, code_files, push_folder
from vaswani.hub.run_metadata import RunMetadata, read_run_metadata
from vaswani.model.configuration_vaswani import VaswaniFamilyConfig
from vaswani.training.config.options import training_settings
from vaswani.training.config.training_arguments import JSON_FILES
from vaswani.training.trainer.checkpoints import read_manifest

if TYPE_CHECKING:
    from vaswani.training.trainer.base import BaseTrainer

logger = logging.get_logger(__name__)

# Files of a checkpoint besides the model.
STATE = (
    *("config.json", LOG_FILE, MANIFEST, HASHES),
    *("to_teacher_width.safetensors", "optimizer.pt", "scheduler.pt", "scaler.pt"),
    *("rng_state.pth", "rng_state_*.pth"),
)
# Settings that name files and folders of this machine.
PLACES = (
    *("output_dir", "dataset", "train_file", "validation_file", "test_file", "teacher_cache"),
    *(
        "model",
        "tokenizer",
        "target_tokenizer",
        "teacher",
        "student",
        "generation_config",
        "unlabelled_file",
        *JSON_FILES,
    ),
)

_API = HfApi()  # it makes background pushes one after the other


class Publisher:
    """Writes the card of a trainer's model, and pushes the model and its checkpoints."""

    def __init__(self, trainer: BaseTrainer):
        self.trainer = trainer

    def open_repository(self, token: str | None, private: bool | None) -> None:
        """Make the repository, if it does not exist; raise `UserError` if a push cannot work."""
        trainer, args = self.trainer, self.trainer.args
        trainer.push_in_progress = None
        if not trainer.is_world_process_zero():
            return
        use_patient_client()
        name = args.hub_model_id or trainer.output_dir.absolute().name
        private = args.hub_private_repo if private is None else private
        try:
            repository = _API.create_repo(name, token=token or args.hub_token, private=private, exist_ok=True)
        except HUB_ERRORS as error:
            raise UserError(f"push_to_hub cannot work: {describe_hub_failure(error, name)}") from error
        trainer.hub_model_id = repository.repo_id

    def write_card(
        self,
        language: str | list[str] | None = None,
        license: str | None = None,
        model_name: str | None = None,
        **_: Any,
    ) -> RunMetadata:
        """Write the card from the model, the files of the run and these fields; ignore all others."""
        folder = self.trainer.output_dir
        metadata = self._run_metadata()
        languages = [language] if isinstance(language, str) else language
        metadata = metadata.with_settings(language=languages, license=license)
        write_card(folder, metadata, model_name or self.trainer.hub_model_id or folder.absolute().name)
        return metadata

    def push(self, blocking: bool, card: dict[str, Any], options: dict[str, Any]) -> Any:
        """Push the model in the run's folder; return the address of the repository, or a `Future` of it.

        Args:
            blocking: whether to wait for the end.
            card: fields of the card (see `write_card`).
            options: options of `push_folder`, in place of those in the training arguments.
        """
        trainer = self.trainer
        metadata = self.write_card(**card)
        if trainer.push_in_progress is not None:
            trainer.push_in_progress.wait_until_done()
        options = trainer.args.push_options() | options
        job = push_folder if blocking else partial(_API.run_as_future, push_folder)
        return job(trainer.output_dir, trainer.hub_model_id, metadata, **options)

    def push_checkpoint(self, checkpoint: Path) -> None:
        """Push a checkpoint in the background, as `hub_strategy` says; a failure does not stop training."""
        trainer, args = self.trainer, self.trainer.args
        running = trainer.push_in_progress is not None and not trainer.push_in_progress.is_done()
        is_due = args.hub_always_push or not running
        if not trainer.is_world_process_zero() or args.hub_strategy == HubStrategy.END or not is_due:
            return
        trainer.callback_handler.on_push_begin(args, trainer.state, trainer.control)
        try:  # a copy, because newer checkpoints may replace this one
            copy = _linked_copy(checkpoint, self._config)
        except UserError as error:
            logger.warning("%s was not pushed; training goes on. %s", checkpoint, error)
            return
        step = f"update {trainer.state.global_step:,} of {trainer.state.max_steps:,}"
        metadata = replace(self._run_metadata(), unfinished=step, evaluation={}, distillation="")
        job = _API.run_as_future(self._push_copy, copy, checkpoint.name, step, metadata, args.push_options())
        if running:
            trainer.push_in_progress.jobs.append(job)
        else:
            # The library waits for this at the end; its own jobs are in a list, too.
            trainer.push_in_progress = PushInProgress([job])  # type: ignore[arg-type]

    def _push_copy(
        self, copy: Path, checkpoint: str, step: str, metadata: RunMetadata, options: dict[str, Any]
    ) -> None:
        strategy, repository = self.trainer.args.hub_strategy, self.trainer.hub_model_id
        message = f"In training: {step}"
        try:
            push_folder(copy, repository, metadata, **options, message=message)
            if strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
                _API.upload_folder(
                    repo_id=repository,
                    folder_path=copy,
                    path_in_repo="last-checkpoint" if strategy == HubStrategy.CHECKPOINT else checkpoint,
                    commit_message=f"{message}, to resume from",
                    token=options["token"],
                    revision=options["revision"],
                )
        except (UserError, RunError) as error:
            logger.warning("%s was not pushed; training goes on, and the next is pushed. %s", step, error)
        except HUB_ERRORS as error:
            reason = describe_hub_failure(error, repository)
            logger.warning("the state of %s was not pushed; training goes on. %s", step, reason)
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def _run_metadata(self) -> RunMetadata:
        """Read the run's metadata; the trainer's arguments replace a missing configuration file."""
        metadata = read_run_metadata(self.trainer.output_dir, self._config)
        if metadata.settings:
            return metadata
        return replace(metadata, settings=training_settings(self.trainer.args))

    @property
    def _config(self) -> PreTrainedConfig:
        return self.trainer.accelerator.unwrap_model(self.trainer.model).config


def _linked_copy(folder: Path, config: PreTrainedConfig) -> Path:
    """Copy the files of a checkpoint that may be pushed to a folder beside it, by hard links if possible.

    Raises:
        UserError: a file that would be pushed is a symbolic link.
    """
    code = [path.name for path in code_files(config)] if isinstance(config, VaswaniFamilyConfig) else []
    files = allowed_files(folder, (*PUSHED, *STATE, *code))
    discard_unfinished(folder.parent)  # copies of trainings that were killed while they pushed
    owner = unfinished_path(folder.with_name("pushed-")).name
    copy = Path(tempfile.mkdtemp(prefix=owner, dir=folder.parent))
    for name, path in files.items():
        (copy / name).parent.mkdir(exist_ok=True)
        try:
            os.link(path, copy / name)
        except OSError:
            shutil.copy2(path, copy / name)
    if (copy / MANIFEST).is_file():
        hide_folders(copy)
    return copy


def hide_folders(checkpoint: Path) -> None:
    """Reduce absolute paths in a checkpoint's manifest and state to the names of the files and folders."""
    manifest, path = read_manifest(checkpoint), checkpoint / LOG_FILE
    manifest["files"].pop(TRAINING_ARGS_NAME, None)  # not pushed: it holds local paths, and no user needs it
    if path.is_file() and (best := (state := read_object(path)).get("best_model_checkpoint")):
        write_whole(
            path, json.dumps({**state, "best_model_checkpoint": _name_alone(best)}, indent=2).encode()
        )
        manifest["files"][LOG_FILE] = sha256_of(path)
    for settings in (
        manifest.get("settings", {}),
        *(entry["changed"] for entry in manifest.get(HISTORY, ())),
    ):
        settings.update({name: _name_alone(settings[name]) for name in PLACES if name in settings})
    write_whole(checkpoint / MANIFEST, json.dumps(manifest, indent=2).encode())


def _name_alone(value: Any) -> Any:
    if isinstance(value, list):
        return [_name_alone(each) for each in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
