"""Hashes of a saved model's files, which detect bits that flip on a disk.

Training and conversion write `model_hashes.json` beside the model, and loading compares the files with it. A
model without that file, as other software saves it, is not checked.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from vaswani.data.tokenization import TARGET_SUBFOLDER
from vaswani.errors import UserError
from vaswani.files.atomic_files import sha256_of, write_whole
from vaswani.files.json_files import read_object, unreadable
from vaswani.files.run_files import (
    ADAPTED_SAMPLE,
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    MANIFEST,
    is_checkpoint,
)

HASHES = "model_hashes.json"
_MODEL_FILES = (
    *("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json"),
    *(ADAPTER_CONFIG, ADAPTER_WEIGHTS, ADAPTED_SAMPLE),
)
# Files that any tokenizer may have; vocabularies have many names.
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("merges.txt", "chat_template.jinja"),
)
_TOKENIZER_FILES = (*TOKENIZER_FILES, "*vocab*", "*.spm", "*.model")


def write_hashes(folder: Path) -> None:
    """Write the hashes of the saved model and tokenizers in a folder.

    Weights also get the permissions of other new files; safetensors lets nobody but their owner read them.
    """
    files = _found(folder, _MODEL_FILES) | tokenizer_files(folder)
    hashes = {name: sha256_of(files[name]) for name in sorted(files)}
    write_whole(folder / HASHES, (json.dumps({"sha256": hashes}, indent=2) + "\n").encode())
    for path in files.values():
        shutil.copymode(folder / HASHES, path)


def tokenizer_files(folder: Path) -> dict[str, Path]:
    """Return the files of the source and target tokenizers in a folder, by their relative names."""
    return _found(folder, (*_TOKENIZER_FILES, *(f"{TARGET_SUBFOLDER}/{name}" for name in _TOKENIZER_FILES)))


def _found(folder: Path, patterns: tuple[str, ...]) -> dict[str, Path]:
    files = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return {path.relative_to(folder).as_posix(): path for path in files}


def forget_hashes(folder: Path) -> None:
    """Delete the hashes in a folder before its model is saved again."""
    (folder / HASHES).unlink(missing_ok=True)


def check_hashes(folder: Path) -> None:
    """Raise a UserError if a file differs from its hash, is missing or unreadable, or the hashes are damaged.

    Does nothing if the folder has no hashes. Hashing 260 MB takes 0.3 s.
    """
    path = folder / HASHES
    if not path.exists():
        return
    for name, expected in _hashes_in(path, "sha256", "delete it to load the model without a check").items():
        try:
            if not (folder / name).is_file():
                raise FileNotFoundError
            found = sha256_of(folder / name)
        except OSError as error:
            raise UserError(unreadable(folder / name, error)) from error
        if found != expected:
            raise UserError(
                f"{folder / name} is damaged: its hash differs from the one in {HASHES}; use another "
                f"checkpoint, or delete {HASHES} if you changed the file yourself"
            )


def check_whole(folder: Path) -> None:
    """Raise a UserError if a checkpoint is not complete or does not pass `check_hashes`.

    The manifest of a training's checkpoint is written last and lists its files. A folder that has the name of
    a checkpoint but no manifest is therefore half-written.
    """
    path = folder / MANIFEST
    if path.exists():
        files = _hashes_in(path, "files", "use another checkpoint")
        missing = next((name for name in files if not (folder / name).is_file()), None)
        if missing is not None:
            raise UserError(f"{folder} is not a complete checkpoint: {missing} is missing; use another one")
    elif is_checkpoint(folder):
        raise UserError(
            f"{folder} is not a complete checkpoint: {MANIFEST}, which is written last, is missing; use "
            "another one"
        )
    check_hashes(folder)


def _hashes_in(path: Path, key: str, remedy: str) -> dict[str, str]:
    """Return the hashes in a file, by the names of the files beside it."""
    hashes = read_object(path).get(key)
    if not isinstance(hashes, dict) or any(Path(name).is_absolute() or ".." in name for name in hashes):
        raise UserError(f"{path} has no valid hashes; {remedy}")
    return hashes
