"""How sentence-transformers makes the vectors of texts with a model that it has saved: its `modules.json`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from vaswani.errors import UserError, listing, one_line
from vaswani.files.json_files import read_object
from vaswani.interop.sentence_modules import (
    MODULES,
    SETTINGS_OF_MODEL,
    SETTINGS_OF_VECTORS,
    sentence_modules,
)

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
        UserError: the files cannot be read, or name a module or a setting that is not known here.
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
    _check_settings(folder, folder_of.get("Transformer", folder))
    pooling = next((ours for ours, theirs in POOLINGS.items() if theirs == mode), mode)
    return SentencePooling(pooling, "Normalize" in folder_of)


def _check_settings(folder: Path, model_folder: Path) -> None:
    """Raise a UserError if a setting of sentence-transformers would change vectors and is not applied here.

    These are a shorter vector, a prompt before each text, and texts in lower case.
    """
    vectors, model = folder / SETTINGS_OF_VECTORS, model_folder / SETTINGS_OF_MODEL
    of_vectors, of_model = (read_object(path) if path.is_file() else {} for path in (vectors, model))
    prompts, default = of_vectors.get("prompts"), of_vectors.get("default_prompt_name")
    has_prompt = isinstance(prompts, dict) and bool(prompts.get(default))
    for path, name, value in (
        (vectors, "truncate_dim", of_vectors.get("truncate_dim")),
        (vectors, "default_prompt_name", default if has_prompt else None),
        (model, "do_lower_case", of_model.get("do_lower_case")),
    ):
        if value:
            raise UserError(f"{path} sets {name}={value!r}, which is not applied here; {REMEDY}")
