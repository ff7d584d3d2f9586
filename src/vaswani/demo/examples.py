"""Find texts to try: from the model card, else from the corpus that the model was trained on."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from yaml import YAMLError

from vaswani.data.sources.corpus_spec import BUILT_IN_DATES
from vaswani.data.sources.dates import generate_dates
from vaswani.errors import UserError
from vaswani.files.json_files import read_object
from vaswani.files.run_files import CORPUS_FILE, EVALUATION_FILE
from vaswani.hub.plain_card import CARD_FILE_NAME
from vaswani.inference.inputs import open_texts

MAX_EXAMPLES = 5
MAX_CHARACTERS = 200  # of an example
MAX_ROWS_READ = 200  # rows of a file to look through


def find_examples(folder: Path) -> list[str]:
    """Return up to `MAX_EXAMPLES` texts to try with a model; empty if its card and corpus have none."""
    return _of_card(folder) or _of_corpus(folder)


def find_pairs(folder: Path, first: str, second: str) -> list[tuple[str, str]]:
    """Return up to `MAX_EXAMPLES` pairs of texts, such as questions with contexts, of a folder's evaluation.

    Args:
        folder: folder of a model.
        first: field of the first text in the rows of the evaluation.
        second: field of the second text.
    """
    try:
        found = read_object(folder / EVALUATION_FILE).get("examples")
    except UserError:
        return []
    rows = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    pairs = [(str(each.get(first, "")), str(each.get(second, ""))) for each in rows]
    return [pair for pair in pairs if all(pair)][:MAX_EXAMPLES]


def _of_card(folder: Path) -> list[str]:
    """Return the texts of the card's field `widget`, the examples on the Hub's page of a model."""
    path = folder / CARD_FILE_NAME
    if not path.is_file():
        return []
    try:
        widget = ModelCard.load(path, ignore_metadata_errors=True).data.to_dict().get("widget")
    except (OSError, ValueError, YAMLError):
        return []
    found = widget if isinstance(widget, list) else []
    return _short(each.get("text") for each in found if isinstance(each, dict))


def _of_corpus(folder: Path) -> list[str]:
    """Return rows of the built-in dates, or of the test or validation file if it still exists."""
    try:
        corpus = read_object(folder / CORPUS_FILE)
    except UserError:
        return []
    if corpus.get("dataset") == BUILT_IN_DATES:
        locales = [name for name in ("en", "fr", "ja", "ru", "ar") if name in corpus.get("locales", [])]
        rows = generate_dates(locales or None, train_rows=0, validation_rows=0, test_rows=MAX_EXAMPLES)
        return rows["test"]["source"][:]
    split = corpus.get("test") or corpus.get("validation")
    return _of_file(split) if isinstance(split, dict) else []


def _of_file(split: dict[str, Any]) -> list[str]:
    field = split.get("source_field") or split.get("text_field")
    name = str(split.get("name", ""))
    if field is None or not Path(name).is_file():
        return []
    try:
        with open_texts(name, field, option="source_field", default=field, added=[]) as texts:
            return _short(islice(texts, MAX_ROWS_READ))
    except UserError:
        return []


def _short(texts: Iterable[Any]) -> list[str]:
    """Return the first texts that are short enough to be examples."""
    short = (text for text in texts if isinstance(text, str) and 0 < len(text) <= MAX_CHARACTERS)
    return [*islice(short, MAX_EXAMPLES)]
