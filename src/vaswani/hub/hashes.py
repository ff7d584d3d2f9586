"""Hashes of a saved model's files, which detect bits that flip on a disk.

Training and conversion write `model_hashes.json` beside the model, and loading compares the files with it. A
model without that file, as other software saves it, is not checked.
"""

from __future__ import annotations

import json
from pathlib import Path

from vaswani.data.tokenization import TARGET_SUBFOLDER
from vaswani.errors import UserError
from vaswani.files.atomic_files import sha256_of, write_whole
from vaswani.files.json_files import read_object, unreadable

HASHES = "model_hashes.json"
_OF_MODEL = (
    *("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json"),
    *("adapter_config.json", "adapter_model.safetensors"),
)
_OF_TOKENIZERS = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("*vocab*", "merges.txt", "*.spm", "*.model"),
)


def write_hashes(folder: Path) -> None:
    """Write the hashes of the saved model and tokenizers in a folder."""
    patterns = (*_OF_MODEL, *_OF_TOKENIZERS, *(f"{TARGET_SUBFOLDER}/{name}" for name in _OF_TOKENIZERS))
    files = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    hashes = {path.relative_to(folder).as_posix(): sha256_of(path) for path in sorted(files)}
    write_whole(folder / HASHES, (json.dumps({"sha256": hashes}, indent=2) + "\n").encode())


def forget_hashes(folder: Path) -> None:
    """Delete the hashes in a folder before its model is saved again."""
    (folder / HASHES).unlink(missing_ok=True)


def check_hashes(folder: Path) -> None:
    """Raise a UserError if a file differs from its hash, is missing or unreadable, or the hashes are damaged.

    Does nothing where there are no hashes. 260 MB take 0.3 s.
    """
    path = folder / HASHES
    if not path.exists():
        return
    hashes = read_object(path).get("sha256")
    if not isinstance(hashes, dict) or any(Path(name).is_absolute() or ".." in name for name in hashes):
        raise UserError(f"{path} has no valid hashes; delete it to load the model without a check")
    for name, expected in hashes.items():
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
