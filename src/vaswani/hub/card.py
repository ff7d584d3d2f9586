"""The model card: a Markdown file for people, under metadata for the Hub; both say only what is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from vaswani.errors import UserError
from vaswani.files.atomic_files import write_whole
from vaswani.files.run_files import HISTORY
from vaswani.hub.plain_card import (
    CARD_FILE_NAME,
    architecture_table,
    card_of,
    describe,
    is_written_by_us,
    markdown_table,
    model_tags,
    usage,
)
from vaswani.hub.run_metadata import DISTILLATION_PLOT, RunMetadata
from vaswani.model.configuration_vaswani import VaswaniFamilyConfig

# Fields of a training's configuration that the card lists, if they are known.
LISTED_SETTINGS = (
    *("max_steps", "num_train_epochs", "max_tokens_per_batch", "gradient_accumulation_steps"),
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "label_smoothing_factor", "weight_decay"),
    *("max_grad_norm", "optim", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("dropout", "attention_dropout", "activation_dropout", "bpe_dropout", "bf16", "fp16", "seed"),
    *("teacher", "targets", "student", "label_weight", "soft_target_weight", "divergence", "temperature"),
    *("cosine_weight", "relation_weight"),
)
NOT_STATED = "not stated"


class Kind(NamedTuple):
    """What models of a kind do.

    Args:
        pipeline: as the Hub calls it.
        errs: what one does wrong.
        trained: on what it was trained to do what.
    """

    pipeline: str
    errs: str
    trained: Callable[[RunMetadata], str]


def _trained_on_pairs(facts: RunMetadata) -> str:
    source, target = (facts.settings.get(f"{side}_field", side) for side in ("source", "target"))
    way = "distilled" if facts.settings.get("teacher") else "trained"
    return f"{way} on {name_of_data(facts)} to write the `{target}` of a row when it is given the `{source}`"


def _trained_on_labels(facts: RunMetadata) -> str:
    begin = facts.settings.get("model")
    what = f"fine-tuned from {Path(str(begin)).name}" if begin else "fine-tuned"
    if facts.settings.get("from_scratch"):
        what = "trained from new weights"
    label = facts.settings.get("label_field", "label")
    return f"{what} on {name_of_data(facts)} to tell the `{label}` of a text"


KIND_OF_TASK = {  # of models that were trained on pairs of texts
    task: Kind(task, "writes something wrong", _trained_on_pairs) for task in ("translation", "summarization")
}


def _trained_to(do: str) -> Callable[[RunMetadata], str]:
    return lambda facts: f"trained on {name_of_data(facts)} to {do}"


_FILL_IN, _FOLLOWS = "fill in masked words", ", and to tell whether one text follows another"
KINDS = {
    "ForMaskedLM": Kind("fill-mask", "fills in something wrong", _trained_to(_FILL_IN)),
    "ForPreTraining": Kind("fill-mask", "fills in something wrong", _trained_to(_FILL_IN + _FOLLOWS)),
    "ForCausalLM": Kind("text-generation", "writes something wrong", _trained_to("continue texts")),
    "ForSequenceClassification": Kind("text-classification", "tells something wrong", _trained_on_labels),
    "ForTokenClassification": Kind("token-classification", "tells something wrong", _trained_on_labels),
}


def _kind(facts: RunMetadata) -> Kind:
    names = facts.config.architectures or [""]
    found = (kind for suffix, kind in KINDS.items() if names[0].endswith(suffix))
    return next(found, KIND_OF_TASK.get(facts.settings.get("task", ""), KIND_OF_TASK["translation"]))


def model_card(facts: RunMetadata, repo_id: str) -> ModelCard:
    """The card of a model.

    Args:
        facts: what is known of it.
        repo_id: where the model can be loaded from; its last part is the model's name.
    """
    name = repo_id.rpartition("/")[2]
    sections = {
        "Use": _usage(facts, repo_id),
        "Results": _results(facts),
        "Data": _data(facts),
        "Training": _training(facts),
        "Architecture": _architecture(facts),
        "Limits": "\n".join(f"- {limit}" for limit in _limits(facts)),
    }
    parts = [f"# {name}", _summary(facts)]
    parts += [f"## {title}\n\n{text}" for title, text in sections.items() if text]
    if facts.distillation:
        picture = f"\n\n![Quality against speed]({DISTILLATION_PLOT})" if facts.has_plot else ""
        parts.insert(-1, facts.distillation.strip() + picture)
    return card_of(_metadata(facts, name), parts)


def write_card(folder: Path, facts: RunMetadata, repo_id: str) -> None:
    """Write the card into a folder, unless there is one that someone wrote."""
    if handwritten_card(folder) is None:
        write_whole(folder / CARD_FILE_NAME, str(model_card(facts, repo_id)).encode())


def handwritten_card(folder: Path) -> str | None:
    """The card in a folder that someone wrote; None where there is none, or one of ours.

    Raises:
        UserError: it cannot be read, or is not UTF-8.
    """
    path = folder / CARD_FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); move it away") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 ({error.reason}); convert it, or move it away") from error
    return None if is_written_by_us(text) else text


_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*|code|multilingual")
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")


def check_stated(language: Sequence[str], license_name: str | None) -> None:
    """Raise `UserError` for codes that the Hub does not take in the metadata of a card."""
    for code in language:
        if not _LANGUAGE.fullmatch(code):
            raise UserError(f"language={code!r} is no language code; expected one such as 'de' or 'pt-BR'")
    if license_name is not None and not _LICENSE.fullmatch(license_name):
        raise UserError(
            f"license={license_name!r} is no name of the Hub's; expected one such as 'apache-2.0' or 'mit'"
        )


# ------------------------------------------------------------------------------------------------- metadata


def _metadata(facts: RunMetadata, name: str) -> ModelCardData:
    hub_dataset = _hub_dataset(facts)
    return ModelCardData(
        language=_languages(facts) or None,
        license=facts.settings.get("license"),
        library_name="transformers",
        pipeline_tag=_kind(facts).pipeline if facts.evaluation else None,
        tags=_tags(facts),
        datasets=[hub_dataset] if hub_dataset else None,
        metrics=list(dict.fromkeys(map(_hub_metric, facts.evaluation.get("metrics", {})))) or None,
        model_name=name,
        eval_results=list(_eval_results(facts)) or None,
    )


def _tags(facts: RunMetadata) -> list[str]:
    config = facts.config
    tags = (
        model_tags(config)
        if isinstance(config, VaswaniFamilyConfig)
        else [config.model_type, *(["encoder-decoder"] if config.is_encoder_decoder else [])]
    )
    return [*tags, *(["knowledge-distillation"] if facts.distillation else [])]


def _eval_results(facts: RunMetadata) -> Iterator[EvalResult]:
    evaluation, task = facts.evaluation, _kind(facts).pipeline
    for metric, score in evaluation.get("metrics", {}).items():
        yield EvalResult(
            task_type=task,
            task_name=task.replace("-", " ").capitalize(),
            dataset_type=_hub_dataset(facts) or name_of_data(facts),
            dataset_name=name_of_data(facts),
            dataset_config=facts.settings.get("dataset_config"),
            dataset_split=evaluation["split"],
            metric_type=_hub_metric(metric),
            metric_name=score["name"],
            metric_value=round(score["value"], 2),
            metric_args={"signature": score["signature"]} if score.get("signature") else None,
        )


def _hub_metric(name: str) -> str:
    """As the Hub calls it: one `rouge` of several kinds."""
    return "rouge" if name.startswith("rouge") else name


def _languages(facts: RunMetadata) -> list[str]:
    """Codes of languages, as the Hub takes them: without scripts and regions."""
    stated = facts.settings.get("language") or facts.corpus.get("locales") or []
    return sorted({code.replace("_", "-").partition("-")[0] for code in stated})


def _hub_dataset(facts: RunMetadata) -> str | None:
    """The name of a data set that came from the Hub."""
    splits = [value for value in facts.corpus.values() if isinstance(value, dict)]
    return next((split["dataset"] for split in splits if split.get("dataset")), None)


def name_of_data(facts: RunMetadata) -> str:
    """What the data are called: as stated, or as they were given, without the folders of this machine."""
    settings = facts.settings
    if name := settings.get("data_name") or _hub_dataset(facts):
        return name
    paths = [settings["dataset"]] if settings.get("dataset") else settings.get("train_file") or []
    return " and ".join(Path(path).name for path in paths) or "data that were not recorded"


# ------------------------------------------------------------------------------------------------- sections


def _summary(facts: RunMetadata) -> str:
    config = facts.config
    if isinstance(config, VaswaniFamilyConfig):
        what = describe(config, facts.num_parameters)
    else:
        kind = "An encoder-decoder" if config.is_encoder_decoder else "A model"
        what = f"{kind} of type {config.model_type} with {facts.num_parameters:,} parameters"
    parts = [f"{what}."]
    if facts.corpus:
        parts.append(f"It was {_kind(facts).trained(facts)}, with the `vaswani` plugin.")
    if facts.unfinished:
        parts.append(f"**Its training goes on: this is {facts.unfinished}.**")
    return " ".join(parts)


def _usage(facts: RunMetadata, repo_id: str) -> str:
    example: dict[str, Any] = next(iter(facts.evaluation.get("examples", ())), {})
    text = example.get("source", example.get("text", "Guten Tag!"))
    text = " ".join(text) if isinstance(text, list) else text  # words that were tagged
    return usage(facts.config, repo_id, _shortened(text), facts.target_tokenizer)


def _results(facts: RunMetadata) -> str:
    evaluation = facts.evaluation
    if not evaluation:
        return "No scores are known: the training had nothing to evaluate on, or has not come to its end."
    search = ", ".join(f"{name} {value}" for name, value in evaluation.get("search", {}).items())
    rows = map(_score_cells, evaluation["metrics"].values())
    parts = [
        f"On the {evaluation['rows']:,} rows of the {evaluation['split']} split of {name_of_data(facts)}"
        + (f", decoded with {search}:" if search else ":"),
        markdown_table(["Metric", "Score", "95 % interval", "Signature"], rows, numbers=["Score"]),
        f"Intervals: {evaluation['intervals']}.",
    ]
    if evaluation.get("examples"):
        parts += ["Rows of that split, evenly spread and not chosen:", _examples(evaluation["examples"])]
    return "\n\n".join(parts)


def _score_cells(score: dict[str, Any]) -> tuple[str, ...]:
    signature = f"`{_cell(score['signature'])}`" if score.get("signature") else ""
    return score["name"], f"{score['value']:.2f}", f"{score['low']:.2f} to {score['high']:.2f}", signature


def _examples(examples: list[dict[str, Any]]) -> str:
    titles = {"translation": "Written by the model", "text_pair": "Second text"}
    columns = {name: titles.get(name, name.capitalize()) for name in examples[0]}
    rows = ([_cell(example[name]) for name in columns] for example in examples)
    return markdown_table(list(columns.values()), rows)


def _cell(value: Any) -> str:
    """A text, a label, or a list of words or labels."""
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return " ".join(_shortened(text).split()).replace("|", "\\|")


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]} …"


def _data(facts: RunMetadata) -> str:
    corpus, settings = facts.corpus, facts.settings
    lines = [
        f"- Name: {name_of_data(facts)}" + _in_brackets(settings.get("dataset_config")),
        f"- Source: {settings.get('data_url') or corpus.get('source') or _origin(facts)}",
        f"- Licence: {settings.get('data_license') or corpus.get('license') or NOT_STATED}",
        f"- Languages: {', '.join(_languages(facts)) or NOT_STATED}",
    ]
    for split, count in corpus.get("rows", {}).items():
        files = corpus.get(split, {}).get("files", [])
        hashes = ", ".join(
            f"`{Path(file['path']).name}` SHA-256 `{file['sha256']}`"
            for file in files
            if "sha256" in file  # a stream is not read for it
        )
        rows = f"{count:,} rows" if isinstance(count, int) else count
        lines.append(f"- {split}: {rows}" + _in_brackets(hashes))
    if "sha256" in corpus:
        lines.append(f"- SHA-256 of all rows: `{corpus['sha256']}`")
    return "\n".join(lines)


def _in_brackets(text: str | None) -> str:
    return f" ({text})" if text else ""


def _origin(facts: RunMetadata) -> str:
    name = _hub_dataset(facts)
    return f"https://huggingface.co/datasets/{name}" if name else NOT_STATED


def _training(facts: RunMetadata) -> str:
    rows = [(f"`{name}`", _plain(value)) for name, value in _listed_settings(facts)]
    if not rows:
        return ""
    versions = facts.evaluation.get("versions", {})
    made_with = ", ".join(f"{name} {version}" for name, version in versions.items())
    parts = [markdown_table(["Setting", "Value"], rows), *_resumptions(facts)]
    return "\n\n".join([*parts, *([f"With {made_with}."] if made_with else [])])


def _resumptions(facts: RunMetadata) -> Iterator[str]:
    """What changed when the run was resumed, of the settings that are listed."""
    for resumption in facts.settings.get(HISTORY, ()):
        changes = [
            f"`{name}` was {_plain(before)} and is {_plain(now)}"
            for name, (before, now) in resumption["changed"].items()
            if name in LISTED_SETTINGS or name == "num_processes"
        ]
        if changes:
            yield f"Resumed after update {resumption['update']:,}, from which on {', '.join(changes)}."


def _listed_settings(facts: RunMetadata) -> Iterator[tuple[str, Any]]:
    for name in LISTED_SETTINGS:
        value = facts.settings.get(name)
        if value is not None and value != [] and not (name == "max_steps" and value <= 0):
            yield name, value


def _plain(value: Any) -> str:
    """A setting without the folders of this machine."""
    values = value if isinstance(value, list) else [value]
    return ", ".join(Path(each).name if isinstance(each, str) else str(each) for each in values)


def _architecture(facts: RunMetadata) -> str:
    if isinstance(facts.config, VaswaniFamilyConfig):
        return architecture_table(facts.config, facts.num_parameters)
    return f"As transformers' `{', '.join(facts.config.architectures or [])}`; see `config.json`."


def _limits(facts: RunMetadata) -> Iterator[str]:
    settings, config = facts.settings, facts.config
    yield (
        "It knows what its data taught it: on text of other kinds, domains or languages it "
        f"{_kind(facts).errs}, without a sign that it is."
    )
    if {"max_source_length", "max_target_length"} <= settings.keys():
        yield (
            f"It was trained on sources of up to {settings['max_source_length']:,} tokens and targets of up "
            f"to {settings['max_target_length']:,}, and has not been tested beyond."
        )
    if isinstance(config, VaswaniFamilyConfig) and config.position_embedding == "learned":
        yield f"It has positions for {config.max_position_embeddings:,} tokens and takes no longer texts."
    if facts.evaluation and _kind(facts) in KIND_OF_TASK.values():
        yield "Its scores are against one reference for each row, of the kind of text that it was trained on."
    yield "It was not examined for bias, nor for harmful or private text that it may repeat."
    if not settings.get("license"):
        yield "Under which licence it may be used is not stated: ask those who published it."
