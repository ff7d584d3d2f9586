"""What `push_to_hub` does in a training: complete pushes, and no training lost to a bad connection."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers import PreTrainedConfig, Trainer, TrainingArguments
from transformers.trainer_utils import HubStrategy
from transformers.utils import PushInProgress, logging

from vaswani.errors import RunError, UserError
from vaswani.files.atomic_files import discard_unfinished, unfinished_path, write_whole
from vaswani.files.hub_client import use_patient_client
from vaswani.files.run_files import HISTORY
from vaswani.hub.card import write_card
from vaswani.hub.failures import HUB_ERRORS, describe_hub_failure
from vaswani.hub.hashes import HASHES
from vaswani.hub.push import PUSHED, allowed_files, code_files, push_folder
from vaswani.hub.run_metadata import RunMetadata, read_run_metadata
from vaswani.model.configuration_vaswani import VaswaniFamilyConfig
from vaswani.training.config.arguments import training_settings
from vaswani.training.trainer.checkpoints import MANIFEST, read_manifest

logger = logging.get_logger(__name__)

# What a checkpoint holds beside the model.
STATE = (
    *(
        "config.json",
        "trainer_state.json",
        "training_args.bin",
        "manifest.json",
        HASHES,
        "to_teacher_width.safetensors",
    ),
    *("optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth", "rng_state_*.pth"),
)

PLACES = (
    *("output_dir", "dataset", "train_file", "validation_file", "test_file", "teacher_cache"),
    *("model", "teacher", "student", "generation_config", "deepspeed", "accelerator_config"),
)

_API = HfApi()  # its background pushes are made one after the other


def push_options(args: TrainingArguments) -> dict[str, Any]:
    """Where a training's arguments have its model pushed, and with which right."""
    return {"token": args.hub_token, "revision": args.hub_revision, "private": args.hub_private_repo}


class PublishingTrainer(Trainer):
    """A transformers `Trainer` whose pushes arrive complete, under a card that tells what is known."""

    args: Any
    hub_model_id: Any
    push_in_progress: Any

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """As in transformers; what stands in the way is told before anything is trained."""
        use_patient_client()
        try:
            super().init_hf_repo(token, private)
        except HUB_ERRORS as error:
            name = self.args.hub_model_id or self._folder.absolute().name
            raise UserError(f"push_to_hub cannot work: {describe_hub_failure(error, name)}") from error

    def create_model_card(  # type: ignore[override]  # the library's other fields are not asked for, but known
        self,
        language: str | list[str] | None = None,
        license: str | None = None,
        model_name: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Write `README.md` in `output_dir` from the model and what the folder tells of the run.

        Args:
            language: codes, in place of those that the run's configuration states.
            license: of the model, likewise.
            model_name: title; default the name of the repository or of the folder.
            kwargs: the library's other fields, which a run knows better.
        """
        if self.is_world_process_zero():
            name = model_name or self.hub_model_id or self._folder.absolute().name
            write_card(self._folder, self._run_metadata(language, license), name)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """As in transformers, but `training_args.bin` holds no token: it is pushed with checkpoints."""
        token, self.args.hub_token = self.args.hub_token, None
        try:
            super()._save(output_dir, state_dict)
        finally:
            self.args.hub_token = token

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Save the model in `output_dir` and push it with its code, tokenizers and card.

        Args:
            commit_message: of the one commit.
            blocking: whether to wait for its end.
            token: default `hub_token`, or that of `hf auth login`.
            revision: branch; default `hub_revision`, or `main`.
            private: whether a repository that is made is private; default `hub_private_repo`.
            kwargs: fields of the card, as for `create_model_card`.

        Returns:
            The repository's address in the main process, or a `Future` of it; None in the others.

        Raises:
            UserError, RunError: it could not be pushed; the model is saved.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token, private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        facts = self._run_metadata(kwargs.get("language"), kwargs.get("license"))
        write_card(self._folder, facts, kwargs.get("model_name") or self.hub_model_id)
        self._finish_current_push()
        given = {"token": token, "revision": revision, "message": commit_message}
        options = push_options(self.args) | {name: value for name, value in given.items() if value}
        if blocking:
            return push_folder(self._folder, self.hub_model_id, facts, **options)
        return _API.run_as_future(push_folder, self._folder, self.hub_model_id, facts, **options)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        args = self.args
        if not self.is_world_process_zero() or args.hub_strategy == HubStrategy.END:
            return
        if not args.hub_always_push and self.push_in_progress and not self.push_in_progress.is_done():
            return
        self.callback_handler.on_push_begin(args, self.state, self.control)
        config = self.accelerator.unwrap_model(self.model).config
        try:  # a copy, for the checkpoint itself may be deleted for newer ones
            copy = _linked_copy(Path(checkpoint_folder), config)
        except UserError as error:
            logger.warning("%s was not pushed; training goes on. %s", checkpoint_folder, error)
            return
        step = f"update {self.state.global_step:,} of {self.state.max_steps:,}"
        facts = replace(self._run_metadata(), unfinished=step, evaluation={}, distillation="")
        options = push_options(args)  # now: the token is not always there
        job = _API.run_as_future(self._push_copy, copy, Path(checkpoint_folder).name, step, facts, options)
        if self.push_in_progress is None or self.push_in_progress.is_done():
            self.push_in_progress = PushInProgress([job])  # type: ignore[arg-type]  # as the library does
        else:
            self.push_in_progress.jobs.append(job)

    def _push_copy(
        self, copy: Path, checkpoint: str, step: str, facts: RunMetadata, options: dict[str, Any]
    ) -> None:
        """In the background: whatever happens, training goes on."""
        strategy = self.args.hub_strategy
        message = f"In training: {step}"
        try:
            push_folder(copy, self.hub_model_id, facts, **options, message=message)
            if strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
                _API.upload_folder(
                    repo_id=self.hub_model_id,
                    folder_path=copy,
                    path_in_repo="last-checkpoint" if strategy == HubStrategy.CHECKPOINT else checkpoint,
                    commit_message=f"{message}, to resume from",
                    token=options["token"],
                    revision=options["revision"],
                )
        except (UserError, RunError) as error:
            logger.warning("%s was not pushed; training goes on, and the next is pushed. %s", step, error)
        except HUB_ERRORS as error:
            reason = describe_hub_failure(error, self.hub_model_id)
            logger.warning("the state of %s was not pushed; training goes on. %s", step, reason)
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def _run_metadata(
        self, language: str | list[str] | None = None, license: str | None = None
    ) -> RunMetadata:
        """What the folder tells, with this trainer's arguments where no configuration file is."""
        config = self.accelerator.unwrap_model(self.model).config
        facts = read_run_metadata(self._folder, config)
        if not facts.settings:
            facts = replace(facts, settings=training_settings(self.args))
        languages = [language] if isinstance(language, str) else language
        return facts.with_settings(language=languages, license=license)

    @property
    def _folder(self) -> Path:
        return Path(self.args.output_dir or ".")


def _linked_copy(folder: Path, config: PreTrainedConfig) -> Path:
    """A copy beside a checkpoint of what may be pushed of it; where the disk allows it, it takes no room.

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
        _link(path, copy / name)
    if (copy / MANIFEST).is_file():
        hide_folders(copy)
    return copy


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def hide_folders(checkpoint: Path) -> None:
    """Leave names of files and folders in a checkpoint's manifest, without where they are on this machine."""
    manifest = read_manifest(checkpoint)
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
