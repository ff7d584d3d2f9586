"""A model of the other direction, from target to source, beside one from source to target."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from vaswani.data.text_codec import Tokenizers, marks_languages
from vaswani.errors import UserError
from vaswani.files.run_settings import read_settings

Languages = tuple[str | None, str | None]  # of the sources and of the targets; None if not given


def check_other_direction(
    model: str | Path,
    reverse_model: str | Path,
    languages: Languages = (None, None),
    prefixes: tuple[str | None, str | None] = (None, None),
    allow_mismatch: bool = False,
) -> None:
    """Raise a UserError if a reverse model is the model itself, or was trained on the same direction.

    With languages or a prefix, which select the direction of a multilingual model, one model can be both.

    Args:
        model: folder, or name on the Hub, of the model from source to target.
        reverse_model: the same for the model from target to source.
        languages: the languages of the model.
        prefixes: the source prefixes of the model and of the reverse model; None if not given.
        allow_mismatch: accept models that were trained from and to columns of the same names.
    """
    prefix, reverse_prefix = prefixes
    is_one = Path(reverse_model).resolve() == Path(model).resolve()
    if is_one and reverse_prefix and reverse_prefix == prefix and not any(languages):
        raise UserError(
            f"source_prefix and reverse_source_prefix are both {prefix!r}, with which {model} writes one "
            "language in both directions; give the prefix for the language of the sources as "
            "reverse_source_prefix"
        )
    if any(languages) or reverse_prefix is not None:
        return
    if is_one:
        raise UserError(
            f"the model and the reverse_model are both {model}, which reads one direction only; give a model "
            "from target to source, or, for a multilingual model, the languages or a reverse_source_prefix"
        )
    directions = [_trained_direction(each) for each in (model, reverse_model)]
    if directions[0] is not None and directions[0] == directions[1] and not allow_mismatch:
        source, target = directions[0]
        raise UserError(
            f"the model {model} and the reverse_model {reverse_model} were both trained from the column "
            f"{source!r} to {target!r}; give a reverse model that was trained with --source_field {target} "
            f"--target_field {source}, or --allow_mismatch if the columns held other languages"
        )


def exchanged_languages(
    languages: Languages, tokenizers: Tokenizers, reverse_tokenizers: Tokenizers
) -> Languages:
    """Return the languages of a reverse model: those that are given, exchanged if both models mark languages.

    Args:
        languages: the languages that are given for the model from source to target. If only one is given, the
            other one is that of its tokenizers. Without any, each model keeps those of its own tokenizers.
        tokenizers: of the model from source to target.
        reverse_tokenizers: of the model from target to source.

    Raises:
        UserError: only one language is given, and the tokenizers do not name the other one; or none is given,
            and both models have tokenizers for the same direction.
    """
    if not all(map(marks_languages, (*tokenizers, *reverse_tokenizers))):
        return None, None
    saved, of_reverse = _saved_languages(tokenizers), _saved_languages(reverse_tokenizers)
    if not any(languages):
        if saved == of_reverse and all(saved) and saved[0] != saved[1]:
            raise UserError(
                f"the tokenizers of the model and of the reverse_model are for {saved[0]} to {saved[1]}; "
                "give source_language and target_language, which are exchanged for the reverse_model"
            )
        return None, None
    source, target = (given or known for given, known in zip(languages, saved, strict=True))
    for option, language in {"source_language": source, "target_language": target}.items():
        if language is None:
            raise UserError(
                f"the reverse_model needs both languages, and the tokenizer of the model has no {option}; "
                "give it too"
            )
    return target, source


def _saved_languages(tokenizers: Tokenizers) -> Languages:
    source, target = cast(Any, tokenizers)
    return source.src_lang, target.tgt_lang


def _trained_direction(model: str | Path) -> tuple[str, str] | None:
    """Return the columns of sources and targets in a model's training; None if they name no direction.

    Two text files have the default columns in either direction.
    """
    settings = read_settings(Path(model))
    source, target = settings.get("source_field"), settings.get("target_field")
    if source is None or target is None or (source, target) == ("source", "target"):
        return None
    return source, target
