"""Hashes of a saved model's files: a bit that flips on a disk changes what a model says, and nothing else.

Trainings and conversions write `model_hashes.json` beside the model; whoever loads the model here compares.
A model without such a file, as other software writes it, is loaded unchecked.
"""

from __future__ import annotations

import json
from pathlib import Path

from vaswani.data.tokenization import TARGET_SUBFOLDER
from vaswani.errors import UserError
from vaswani.files.atomic_files import sha256_of, write_whole
from vaswani.files.json_files import read_object, unreadable

HASHES = "model_hashes.json"
_OF_MODEL = ("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json")
_OF_TOKENIZERS = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("*vocab*", "merges.txt", "*.spm", "*.model"),
)


def write_hashes(folder: Path) -> None:
    """Write the hashes of the model and the tokenizers in a folder, once all of them are saved."""
    patterns = (*_OF_MODEL, *_OF_TOKENIZERS, *(f"{TARGET_SUBFOLDER}/{name}" for name in _OF_TOKENIZERS))
    files = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    hashes = {path.relative_to(folder).as_posix(): sha256_of(path) for path in sorted(files)}
    write_whole(folder / HASHES, (json.dumps({"sha256": hashes}, indent=2) + "\n").encode())


def forget_hashes(folder: Path) -> None:
    """Delete the hashes in a folder, whose model is about to be saved anew."""
    (folder / HASHES).unlink(missing_ok=True)


def check_hashes(folder: Path) -> None:
    """Compare the files of a model with their hashes, where there are any; 260 MB take 0.3 s.

    Raises:
        UserError: a file is missing, unreadable or not what was written, or the hashes are damaged.
    """
    path = folder / HASHES
    if not path.exists():
        return
    hashes = read_object(path).get("sha256")
    if not isinstance(hashes, dict) or any(Path(name).is_absolute() or ".." in name for name in hashes):
        raise UserError(f"{path} holds no hashes; delete it to load the model without them")
    for name, expected in hashes.items():
        try:
            if not (folder / name).is_file():
                raise FileNotFoundError
            found = sha256_of(folder / name)
        except OSError as error:
            raise UserError(unreadable(folder / name, error)) from error
        if found != expected:
            raise UserError(
                f"{folder / name} is not what was written: its hash is another than in {HASHES}; use another "
                f"checkpoint, or delete {HASHES} if you changed the file yourself"
            )
