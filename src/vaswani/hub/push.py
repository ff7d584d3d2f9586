"""Push a trained model to the Hub in one commit: only the files that are needed to use it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import RemoteEntryNotFoundError
from transformers.dynamic_module_utils import get_relative_import_files

from vaswani.data.tokenization import TARGET_SUBFOLDER
from vaswani.errors import RunError, UserError, listing
from vaswani.files.hub_client import use_patient_client
from vaswani.files.run_files import (
    ADAPTED_SAMPLE,
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    AVERAGED_FILE,
    COMBINED_FILE,
    CORPUS_FILE,
    EVALUATION_FILE,
    REPORT_PLOT,
    REPORT_TEXT,
    SETTINGS_FILE,
)
from vaswani.hub.adapters import adapted_model, check_published_base
from vaswani.hub.card import handwritten_card, model_card
from vaswani.hub.checkpoint import load_checkpoint
from vaswani.hub.failures import HUB_ERRORS, describe_hub_failure
from vaswani.hub.hashes import TOKENIZER_FILES
from vaswani.hub.plain_card import CARD_FILE_NAME, MARK
from vaswani.hub.run_metadata import RunMetadata
from vaswani.hub.weights import check_finite_files, holds_adapter
from vaswani.model import configuration_vaswani
from vaswani.model.configuration_vaswani import VaswaniFamilyConfig

logger = logging.getLogger(__name__)

WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json")
TOKENIZERS = (
    *TOKENIZER_FILES,
    *("vocab.json", "vocab.txt", "*.spm", "spiece.model", "sentencepiece.bpe.model", "spm.model"),
    *("target_vocab.json", "vocab-src.json", "vocab-tgt.json", "tokenizer.model"),
)
ADAPTERS = (ADAPTER_CONFIG, ADAPTER_WEIGHTS, ADAPTED_SAMPLE)
PUSHED = ("generation_config.json", REPORT_PLOT, *WEIGHTS, *ADAPTERS, *TOKENIZERS)
# Files from which the pushed configuration and card are made.
_READ = (
    *("config.json", CARD_FILE_NAME, SETTINGS_FILE, CORPUS_FILE, EVALUATION_FILE, AVERAGED_FILE),
    *(COMBINED_FILE, REPORT_TEXT),
)


def allowed_files(folder: Path, patterns: Iterable[str]) -> dict[str, Path]:
    """Return the files of a folder that may be uploaded, with those of its target tokenizer, by name.

    Args:
        folder: the folder of a model.
        patterns: patterns of the names that may be uploaded.

    Raises:
        UserError: one of them is a symbolic link, which may point to any file of this machine.
    """
    target = folder / TARGET_SUBFOLDER
    _refuse_link(target)
    files = {path.name: path for path in _matching(folder, patterns)}
    if target.is_dir():
        files |= {f"{TARGET_SUBFOLDER}/{path.name}": path for path in _matching(target, TOKENIZERS)}
        if others := sorted(
            {path.name for path in target.iterdir()} - {path.name for path in files.values()}
        ):
            logger.warning("%s in %s is not pushed: it is not a tokenizer file.", listing(others), target)
    return files


def _matching(folder: Path, patterns: Iterable[str]) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if any(fnmatchcase(path.name, pattern) for pattern in patterns):
            _refuse_link(path)
            if path.is_file():
                yield path


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise UserError(
            f"{path} is a symbolic link, and links are not pushed; push a copy of the folder without links "
            "(cp -rL)"
        )


def check_folder(folder: Path) -> None:
    """Raise a UserError unless the model in a folder can be loaded and has safetensors weights."""
    load_checkpoint(folder, device="cpu", auto_class=None)
    if holds_adapter(folder):
        check_published_base(adapted_model(folder))
        return
    if not any(folder.glob("model*.safetensors")):
        raise UserError(
            f"{folder} has pickled weights, which are not pushed; load the model and save it again"
        )


def push_folder(
    folder: Path,
    repo_id: str,
    metadata: RunMetadata,
    *,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    message: str = "Upload model",
) -> str:
    """Push a model with its code, tokenizers and card in one commit.

    Only files with known names are uploaded. Checkpoints, optimizer states, the run's configuration with its
    paths and all other files are not uploaded, and links are not followed. A card that was written by hand,
    in the folder or in the repository, is kept.

    Args:
        folder: the folder of the model.
        repo_id: `owner/name`, or a name in the user's own namespace; created if it does not exist.
        metadata: the content of the card.
        private: make a new repository private.
        revision: branch to push to, created if it does not exist; default `main`.
        token: access token; default the one of `hf auth login` or HF_TOKEN.
        message: commit message.

    Returns:
        The URL of the repository.

    Raises:
        UserError: the folder holds no model, its weights are not finite, a file is a link, or the name, token
            or permission is wrong.
        RunError: the Hub or the connection failed; nothing was published.
    """
    for name in _READ:
        _refuse_link(folder / name)
    allowed_files(folder, PUSHED)  # fail before a repository is created
    check_finite_files(folder)
    use_patient_client()
    api = HfApi(token=token)
    try:
        url = api.create_repo(repo_id, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(url.repo_id, branch=revision, exist_ok=True)
        files = _files(folder, metadata, _card(api, url.repo_id, revision, folder, metadata))
        operations = [CommitOperationAdd(name, content) for name, content in files.items()]
        stale = [CommitOperationDelete(name) for name in _stale(api, url.repo_id, revision, files)]
        api.create_commit(
            url.repo_id, [*operations, *stale], commit_message=message, revision=revision or "main"
        )
    except HUB_ERRORS as error:
        reason = describe_hub_failure(error, repo_id, revision)
        kind = UserError if _is_user_error(error) else RunError
        raise kind(f"{folder} was not published: {reason}") from error
    return str(url)


def _is_user_error(error: BaseException) -> bool:
    """Return True if the user's input is wrong, False if the Hub or the connection failed."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    refused = status is not None and 400 <= status < 500 and status not in (408, 412, 429)
    return isinstance(error, ValueError) or refused


def _files(folder: Path, metadata: RunMetadata, card: bytes | None) -> dict[str, Path | bytes]:
    """Return the files to push: paths or contents by name."""
    files: dict[str, Path | bytes] = {
        "config.json": _config(folder, metadata),
        **allowed_files(folder, PUSHED),
    }
    if isinstance(metadata.config, VaswaniFamilyConfig):
        files |= {path.name: path for path in code_files(metadata.config)}
    if card is not None:
        files[CARD_FILE_NAME] = card
    return files


def _config(folder: Path, metadata: RunMetadata) -> bytes:
    """Return the configuration, with the `auto_map` that older checkpoints lack."""
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if isinstance(metadata.config, VaswaniFamilyConfig):
        values["auto_map"] = metadata.config.auto_classes
    return (json.dumps(values, indent=2, sort_keys=True) + "\n").encode()


def code_files(config: VaswaniFamilyConfig) -> list[Path]:
    """Return the modeling file of a model and the files beside it that it imports."""
    module = config.auto_classes["AutoModel"].partition(".")[0]
    modeling = Path(configuration_vaswani.__file__).with_name(f"{module}.py")
    return [modeling, *map(Path, sorted(get_relative_import_files(str(modeling))))]


def _card(
    api: HfApi, repo_id: str, revision: str | None, folder: Path, metadata: RunMetadata
) -> bytes | None:
    """Return the folder's own card or a generated one; None keeps the card in the repository."""
    if (here := handwritten_card(folder)) is not None:
        return here.encode()
    with suppress(RemoteEntryNotFoundError):
        there = api.hf_hub_download(repo_id, CARD_FILE_NAME, revision=revision)
        if MARK not in Path(there).read_text(encoding="utf-8", errors="replace"):
            logger.warning("The card of %s was edited and is kept; delete it there for a new one.", repo_id)
            return None
    return str(model_card(metadata, repo_id)).encode()


def _stale(api: HfApi, repo_id: str, revision: str | None, files: dict[str, Any]) -> Iterator[str]:
    """Yield files of earlier pushes that would stay in the repository and be loaded instead of the new ones.

    Tokenizers stay if this push has none, because they may have been pushed separately.
    """
    has_tokenizers = any(fnmatchcase(name, pattern) for name in files for pattern in TOKENIZERS)
    of_tokenizers = (*TOKENIZERS, f"{TARGET_SUBFOLDER}/*") if has_tokenizers else ()
    for name in api.list_repo_files(repo_id, revision=revision):
        patterns = (*WEIGHTS, *ADAPTERS, *of_tokenizers)
        if name not in files and any(fnmatchcase(name, pattern) for pattern in patterns):
            yield name
