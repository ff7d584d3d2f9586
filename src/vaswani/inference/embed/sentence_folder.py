"""How sentence-transformers makes the vectors of texts with a model that it has saved: its `modules.json`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from vaswani.errors import UserError, listing, one_line
from vaswani.interop.sentence_modules import MODULES, sentence_modules

POOLINGS = {"mean": "mean", "cls": "cls", "max": "max", "last": "lasttoken"}  # sentence-transformers' names
KNOWN_MODULES = {"Transformer", "Pooling", "Normalize"}
REMEDY = "use sentence_transformers.SentenceTransformer, or name a pooling, which leaves its modules out"


class SentencePooling(NamedTuple):
    """How the states of a text are pooled, and whether its vector is divided by its length."""

    pooling: str = "mean"
    normalizes: bool = False


def sentence_pooling(folder: Path) -> SentencePooling:
    """Return how vectors of texts are made; the mean if sentence-transformers has not saved the folder.

    Raises:
        UserError: the files cannot be read, or name a module that is not known here.
    """
    path = folder / MODULES
    if not path.is_file():
        return SentencePooling()
    try:
        from sentence_transformers.sentence_transformer.modules import Pooling  # slow to import

        folder_of = {kind: folder / place for kind, place in sentence_modules(folder)}
        given = Pooling.load(str(folder_of["Pooling"])).pooling_mode if "Pooling" in folder_of else ()
    except Exception as error:  # a damaged file can raise anything
        raise UserError(f"{path} cannot be read ({one_line(error)}); {REMEDY}") from error
    mode = given if isinstance(given, str) else "_".join(given)  # several poolings are concatenated
    if folder_of.keys() - KNOWN_MODULES or not mode:
        raise UserError(
            f"{path} has the modules {listing(folder_of)}, and known are {listing(sorted(KNOWN_MODULES))}; "
            f"{REMEDY}"
        )
    pooling = next((ours for ours, theirs in POOLINGS.items() if theirs == mode), mode)
    return SentencePooling(pooling, "Normalize" in folder_of)
