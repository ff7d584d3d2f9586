"""Build the model that a configuration describes, without weights or data."""

from __future__ import annotations

from typing import Any

from transformers import CONFIG_MAPPING, AutoModelForSeq2SeqLM, PreTrainedModel

from vaswani.errors import UserError, listing, one_line
from vaswani.files.named_configs import command, config_names, find_config
from vaswani.files.yaml_files import read_mapping
from vaswani.hub.run_metadata import meta_model
from vaswani.training.config.config_file import load_config
from vaswani.training.config.pretraining_arguments import PretrainingConfig
from vaswani.training.runs.pretraining import run_of
from vaswani.training.runs.translation import model_config

NEW_MODELS = ("train", "pretrain")  # commands whose configurations describe a new model
REMEDY = "give one of `vaswani train` or `vaswani pretrain`, or a model's config.json"


def configured_model(given: str) -> PreTrainedModel:
    """Return the model of a configuration on the meta device, where parameters have shapes and no values.

    Args:
        given: a name that ships with the package or a file, for `vaswani train` or `vaswani pretrain`; or a
            model's own configuration, which has a `model_type`.

    Raises:
        UserError: there is no such configuration, or it does not describe a model.
    """
    values = read_mapping(find_config(given), "configuration file", REMEDY)
    if "model_type" in values:
        return meta_model(_own_config(given, values))
    known = given.removeprefix("configs/").removesuffix(".yaml")
    verb = command(known) if known in config_names() else None
    if verb not in (None, *NEW_MODELS):
        raise UserError(f"configuration {given} is for `{verb}` and describes no new model; {REMEDY}")
    if taken := [name for name in ("model", "teacher") if values.get(name)]:
        raise UserError(
            f"configuration {given} takes its model from {taken[0]}={values[taken[0]]}; give that model with "
            "--model"
        )
    if "objective" not in values:
        run = load_config(given)
        size = run.data.vocab_size
        shape = model_config(run.model, size, size, one_vocabulary=run.data.shared_vocab)
        return meta_model(shape, AutoModelForSeq2SeqLM)
    of_run = run_of(load_config(given, [], PretrainingConfig))
    return meta_model(of_run.model_config(None), of_run.auto_class)


def _own_config(given: str, values: dict[str, Any]) -> Any:
    """The configuration of one of this project's model types."""
    kinds = [name for name in CONFIG_MAPPING if name.startswith("vaswani")]
    if values["model_type"] not in kinds:
        raise UserError(
            f"configuration {given} has model_type={values['model_type']!r}; expected {listing(kinds)}"
        )
    try:
        return CONFIG_MAPPING[values["model_type"]].from_dict(values)
    except Exception as error:  # a field that fails its validation
        raise UserError(
            f"configuration {given} makes no model: {one_line(error.__cause__ or error)}"
        ) from error
