"""Convert a SentencePiece model (Kudo and Richardson, 2018, arXiv:1808.06226) to a tokenizer of transformers.

For unigram and BPE models, with their own normalization, the tokenizer gives the same token ids as
`sentencepiece` itself, except in two rare cases: the name of a control symbol ("</s>") or of a byte
("<0x41>") is split after its first character, and the tokenizers library drops combining marks after a
character that normalization replaces. Decomposed letters, such as those of Korean and Vietnamese texts from a
Mac, are composed (NFC) first, because the library does not look for them.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from vaswani.data.text_codec import PLAIN_TEXTS
from vaswani.errors import UserError, one_line
from vaswani.files.json_files import unreadable

_UNIGRAM, _BPE = 1, 2  # `trainer_spec.model_type`
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6  # types of pieces
SPACE = "▁"


def sentencepiece_tokenizer(file: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a SentencePiece model; it adds no special tokens to texts.

    Args:
        file: `NAME.model`.

    Raises:
        UserError: the package is missing, or the file is not a SentencePiece model of type unigram or BPE.
    """
    model = _read(file)
    tokenizer = Tokenizer(_model_of(model, file))
    tokenizer.normalizer = _normalizer(model.normalizer_spec)
    steps = [pre_tokenizers.Split(_starts_of_names(model.pieces), "merged_with_previous")]
    if given := _user_defined_pieces(model.pieces):
        steps.append(pre_tokenizers.Split(Regex("|".join(map(re.escape, given))), "isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    strip = [decoders.Strip(" ", 1, 0)] if model.normalizer_spec.add_dummy_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace(SPACE, " "), *strip]
    )
    names = {number: piece.piece for number, piece in enumerate(model.pieces)}
    ids = {kind: getattr(model.trainer_spec, f"{kind}_id") for kind in ("unk", "bos", "eos", "pad")}
    special = {
        f"{kind}_token": names[number]
        for kind, number in ids.items()
        if number in names and model.pieces[number].type in (_CONTROL, _UNKNOWN)
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="right",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        **{PLAIN_TEXTS: True, **special},
    )


def _read(file: Path) -> Any:
    try:
        from sentencepiece import sentencepiece_model_pb2 as messages
    except ImportError as error:
        raise UserError(
            f"{file} needs packages ({one_line(error)}): pip install 'vaswani[tokenizers]'"
        ) from error
    model = messages.ModelProto()  # type: ignore[attr-defined]  # protobuf makes it at the import
    try:
        model.ParseFromString(file.read_bytes())
    except OSError as error:
        raise UserError(unreadable(file, error)) from error
    except Exception as error:  # protobuf's DecodeError, whose module depends on its version
        raise UserError(f"{file} is no SentencePiece model, or is damaged ({one_line(error)})") from error
    if not model.pieces:
        raise UserError(f"{file} is no SentencePiece model: it has no pieces")
    return model


def _model_of(model: Any, file: Path) -> Any:
    spec = model.trainer_spec
    if spec.treat_whitespace_as_suffix or spec.model_type not in (_UNIGRAM, _BPE):
        kind = "with spaces at the ends of words" if spec.treat_whitespace_as_suffix else "of this kind"
        raise UserError(
            f"{file}: SentencePiece models {kind} are not supported; train one of type unigram or bpe"
        )
    has_bytes = any(piece.type == _BYTE for piece in model.pieces)
    if spec.model_type == _UNIGRAM:
        pieces = [(piece.piece, piece.score) for piece in model.pieces]
        return models.Unigram(pieces, spec.unk_id, byte_fallback=has_bytes)
    vocabulary = {piece.piece: number for number, piece in enumerate(model.pieces)}
    return models.BPE(
        vocabulary,
        _merges(model.pieces, vocabulary),
        unk_token=model.pieces[spec.unk_id].piece,
        fuse_unk=True,
        byte_fallback=has_bytes,
        ignore_merges=bool(_user_defined_pieces(model.pieces)),  # user-defined pieces have no merges
    )


def _merges(pieces: Any, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Return all pairs of pieces that form a piece, best first, as SentencePiece merges them."""
    ranked = sorted(
        (number for number, piece in enumerate(pieces) if piece.type not in (_UNKNOWN, _CONTROL, _BYTE)),
        key=lambda number: -pieces[number].score,
    )
    return [
        (name[:cut], name[cut:])
        for name in (pieces[number].piece for number in ranked)
        for cut in range(1, len(name))
        if name[:cut] in vocabulary and name[cut:] in vocabulary
    ]


def _voiced_katakana(mark: str, combining: str) -> Any:
    """Replace a sound mark after half-width Katakana that compose with it by the combining mark."""
    halves = (chr(code) for code in range(0xFF66, 0xFF9E))
    letters = "".join(half for half in halves if len(unicodedata.normalize("NFKC", half + mark)) == 1)
    return normalizers.Replace(Regex(f"(?<=[{letters}]){mark}"), combining)


_VOICED_KATAKANA = (_voiced_katakana("\uff9e", "\u3099"), _voiced_katakana("\uff9f", "\u309a"))


def _normalizer(spec: Any) -> Any:
    steps: list[Any] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if "nfkc" in spec.name:  # the map of a character does not see the marks after it, as SentencePiece does
        steps = [normalizers.NFC(), *_VOICED_KATAKANA, *steps, normalizers.NFC()]
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])


def _user_defined_pieces(pieces: Any) -> list[str]:
    """Return the user-defined pieces, longest first; each is a token wherever it occurs."""
    given = (piece.piece for piece in pieces if piece.type == _USER_DEFINED)
    return sorted(given, key=len, reverse=True)


def _starts_of_names(pieces: Any) -> Regex:
    """Match the first character of the name of a control symbol or of a byte (`<0x41>`) in a text.

    The text is split after it, so that the name is encoded as ordinary text.
    """
    names = [piece.piece for piece in pieces if piece.type in (_UNKNOWN, _CONTROL)]
    starts = [f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names]
    if any(piece.type == _BYTE for piece in pieces):
        starts.append("<(?=0x[0-9A-F]{2}>)")
    return Regex("|".join(starts))
