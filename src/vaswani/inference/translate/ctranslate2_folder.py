"""Read the folder of a CTranslate2 translation model, for what the engine does not report about its model.

Such a folder has `model.bin`, `config.json` and one or two vocabularies. It also has the tokenizers and
`generation_config.json`, which `vaswani export` writes and CTranslate2's converters copy (`--copy_files`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from transformers import GenerationConfig
from transformers.utils import logging

from vaswani.data.text_codec import TextCodec, Tokenizers
from vaswani.data.tokenization import load_tokenizers
from vaswani.errors import UserError, one_line
from vaswani.files.json_files import read_object
from vaswani.hub.checkpoint import read_generation_config
from vaswani.hub.run_metadata import check_holds_model
from vaswani.hub.weights import check_not_onnx

logger = logging.get_logger(__name__)

WEIGHTS = "model.bin"
TRANSLATION_MODEL = "TransformerSpec"  # CTranslate2's name of an encoder-decoder
BINARY_VERSIONS = (4, 5, 6)  # versions of model.bin that store types and sizes of tensors
HALVES = {4: "float16", 5: "bfloat16"}  # by CTranslate2's number of a type
# By CTranslate2's number of a type: its numpy type, and the bits that are all set only in NaN and infinity.
EXPONENTS = {0: ("<u4", 0x7F80_0000), 4: ("<u2", 0x7C00), 5: ("<u2", 0x7F80)}  # float32, float16, bfloat16


@dataclass(frozen=True)
class CTranslate2Folder:
    """A translation model of CTranslate2 with its tokenizers.

    Args:
        path: the folder.
        config: the content of `config.json`.
        generation_config: the folder's options of `generate`; missing special tokens are from `config.json`.
        tokenizers: the source tokenizer and the target tokenizer.
        source_tokens: the engine's tokens, by the source tokenizer's ids.
        target_ids: the target tokenizer's ids, by the engine's tokens.
        source_positions: number of rows of the encoder's position table; None without a table.
        target_positions: number of rows of the decoder's position table; None without a table.
        half_precision: "float16" or "bfloat16" if weights are saved in that type; else None.
    """

    path: Path
    config: dict[str, Any]
    generation_config: GenerationConfig
    tokenizers: Tokenizers
    source_tokens: dict[int, str]
    target_ids: dict[str, int]
    source_positions: int | None
    target_positions: int | None
    half_precision: str | None = None


def read_ctranslate2_folder(path: Path, *, allow_mismatch: bool = False) -> CTranslate2Folder:
    """Read the files of a folder, and check the weights.

    Args:
        path: the folder.
        allow_mismatch: warn instead of raising if a tokenizer may belong to another model.

    Raises:
        UserError: the folder holds no translation model for CTranslate2; a file is missing or damaged;
            weights are NaN or infinite; a tokenizer is missing or belongs to another model.
    """
    if not (path / WEIGHTS).is_file():
        check_holds_model(path)
        check_not_onnx(path)
        raise UserError(
            f"{path} holds no model for CTranslate2 (it has no {WEIGHTS}); make one of a vaswani model with "
            f"vaswani export {path} OUT --to ctranslate2, or of another with ct2-transformers-converter"
        )
    positions, half_precision = _check_weights(path / WEIGHTS)
    config = read_object(path / "config.json")
    if not (path / "tokenizer_config.json").exists():
        raise UserError(
            f"{path} has no tokenizer; copy the files of the original model's tokenizer into it "
            "(tokenizer_config.json, vocabularies), and its generation_config.json"
        )
    tokenizers = load_tokenizers(path)
    vocabularies = _vocabularies(path)
    codecs = TextCodec(tokenizers[0], "source"), TextCodec(tokenizers[1], "target")
    ids = [
        _ids_by_token(path, codec, vocabulary, allow_mismatch)
        for codec, vocabulary in zip(codecs, vocabularies, strict=True)
    ]
    return CTranslate2Folder(
        path,
        config,
        _generation_config(path, config, ids[1]),
        tokenizers,
        {number: token for token, number in ids[0].items()},
        ids[1],
        positions.get("encoder"),
        positions.get("decoder"),
        half_precision,
    )


# --------------------------------------------------------------------------------------------------- tokens


def _vocabularies(path: Path) -> tuple[list[str], list[str]]:
    """Return the engine's tokens of both sides, in the order of its embeddings."""
    shared = _vocabulary(path, "shared")
    if shared is not None:
        return shared, shared
    source, target = _vocabulary(path, "source"), _vocabulary(path, "target")
    if source is None or target is None:
        raise UserError(f"{path} has no shared_vocabulary.json, which is the model's; export it again")
    return source, target


def _vocabulary(path: Path, name: str) -> list[str] | None:
    """Return the tokens of a vocabulary file, JSON or (from older converters) lines; None without a file."""
    for ending in ("json", "txt"):
        file = path / f"{name}_vocabulary.{ending}"
        if file.is_file():
            try:
                text = file.read_text(encoding="utf-8")
                tokens = json.loads(text) if ending == "json" else text.removesuffix("\n").split("\n")
                return [str(token) for token in tokens]
            except (OSError, ValueError, TypeError) as error:
                raise UserError(f"{file} is damaged ({one_line(error)}); export the model again") from error
    return None


def _ids_by_token(
    path: Path, codec: TextCodec, vocabulary: Sequence[str], allow_mismatch: bool
) -> dict[str, int]:
    """Return a tokenizer's id for each of the engine's tokens; a token that it lacks gets its index as id.

    Converters leave out some tokens of a tokenizer, such as Marian's padding. A tokenizer that lacks more
    than a tenth of the engine's tokens belongs to another model.
    """
    known = codec.vocabulary()
    unused = {token: number for number, token in enumerate(vocabulary) if token not in known}
    named = {
        token: number for token, number in unused.items() if not token.startswith(("<unused ", "madeupword"))
    }
    if len(named) > len(vocabulary) // 10:
        problem = (
            f"the {codec.side} tokenizer in {path} lacks {len(named):,} of the model's {len(vocabulary):,} "
            f"tokens, such as {next(iter(named))!r}; they do not belong together"
        )
        if not allow_mismatch:
            raise UserError(f"{problem}: copy the original model's, or give --allow_mismatch")
        logger.warning(f"{problem}; allow_mismatch accepts them.")
    return {token: known.get(token, number) for number, token in enumerate(vocabulary)}


def _generation_config(path: Path, config: dict[str, Any], target_ids: dict[str, int]) -> GenerationConfig:
    """Return the folder's options of `generate`; take missing special tokens from the engine's config."""
    generation = read_generation_config(path, None)
    if generation is None:
        logger.warning(f"{path} has no generation_config.json, which may suppress or force tokens")
        generation = GenerationConfig()
    for field, token in (
        ("eos_token_id", config.get("eos_token")),
        ("decoder_start_token_id", config.get("decoder_start_token")),
    ):
        if getattr(generation, field) is None:
            setattr(generation, field, target_ids.get(token))  # type: ignore[arg-type]
    return generation


# -------------------------------------------------------------------------------------------------- weights


def _check_weights(path: Path) -> tuple[dict[str, int], str | None]:
    """Check the weights; return the number of rows of each stack's position table, and `half_precision`."""
    try:
        with path.open("rb") as file:
            return _read_weights(file, path)
    except (OSError, ValueError, struct.error) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is damaged or half-written ({one_line(error)}); export it again") from error


def _read_weights(file: BinaryIO, path: Path) -> tuple[dict[str, int], str | None]:
    (version,) = _unpack(file, "I")
    if version not in BINARY_VERSIONS:
        raise UserError(
            f"{path} has version {version} of CTranslate2's format; versions {BINARY_VERSIONS[0]} to "
            f"{BINARY_VERSIONS[-1]} are supported: export the model again"
        )
    kind, _ = _string(file), _unpack(file, "I")
    if kind != TRANSLATION_MODEL:
        raise UserError(
            f"{path} holds a {kind} of CTranslate2, which does not translate; export an encoder-decoder"
        )
    rows: dict[str, int] = {}
    half_precision = None
    for name, shape, kind_of_number in _tensors(file, path):
        rows[name] = shape[0] if shape else 0
        half_precision = HALVES.get(kind_of_number, half_precision)
    for _ in range(_unpack(file, "I")[0]):  # equal tensors are stored once
        alias, name = _string(file), _string(file)
        rows[alias] = rows[name]
    tables = {stack: f"{stack}/position_encodings/encodings" for stack in ("encoder", "decoder")}
    return {stack: rows[name] for stack, name in tables.items() if name in rows}, half_precision


def _tensors(file: BinaryIO, path: Path) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Yield name, shape and type of each tensor; raise a UserError if one holds NaN or infinity."""
    for _ in range(_unpack(file, "I")[0]):
        name = _string(file)
        shape = _unpack(file, f"{_unpack(file, 'B')[0]}I")
        kind, size = _unpack(file, "B")[0], _unpack(file, "I")[0]
        content = _read(file, size)
        if kind in EXPONENTS:
            dtype, exponent = EXPONENTS[kind]
            if (np.frombuffer(content, dtype) & exponent == exponent).any():
                raise UserError(f"{path} holds NaN or infinity in {name}; export another checkpoint")
        yield name, shape, kind


def _unpack(file: BinaryIO, layout: str) -> tuple[int, ...]:
    layout = f"<{layout}"
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


def _string(file: BinaryIO) -> str:
    return _read(file, _unpack(file, "H")[0])[:-1].decode("utf-8")  # ends with a zero


def _read(file: BinaryIO, size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise ValueError(f"it ends {size - len(content):,} bytes early")
    return content
