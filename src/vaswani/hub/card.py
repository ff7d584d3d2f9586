"""The model card: metadata for the Hub and a Markdown text, which state only what is known."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from vaswani.data.sources.directions import columns_of, parse_directions
from vaswani.data.sources.reading import table_format
from vaswani.data.text.gap_sentences import PEGASUS_MASK
from vaswani.data.text.span_denoising import sentinel_names
from vaswani.errors import UserError, names_of_files, one_line
from vaswani.files.atomic_files import write_whole
from vaswani.files.run_files import HISTORY, REPORT_PLOT
from vaswani.hub.plain_card import (
    CARD_FILE_NAME,
    MARK,
    NEUTRAL_QUESTION,
    architecture_table,
    card_of,
    describe,
    markdown_table,
    model_tags,
    neutral_example,
    usage,
)
from vaswani.hub.run_metadata import RunMetadata, new_parts
from vaswani.model.configuration_vaswani import VaswaniFamilyConfig

# Training settings that the card lists if they are known.
LISTED_SETTINGS = (
    *("max_steps", "num_train_epochs", "max_tokens_per_batch", "gradient_accumulation_steps"),
    *("learning_rate", "lr_scheduler_type", "warmup_steps", "label_smoothing_factor", "weight_decay"),
    *("lm_loss_weight", "consistency_weight", "average_checkpoints"),
    *("freeze", "lora_rank", "lora_alpha", "lora_targets"),
    *("max_grad_norm", "optim", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("dropout", "attention_dropout", "activation_dropout", "word_dropout", "bpe_dropout"),
    *("bf16", "fp16", "seed"),
    *("teacher", "targets", "teacher_num_beams", "prompt_tokens", "generation_temperature"),
    *("generation_top_p", "unlabelled_file", "student", "student_layers"),
    *("label_weight", "soft_target_weight"),
    *("divergence", "temperature", "teacher_top_k", "soft_target_tokens"),
    *("cosine_weight", "relation_weight"),
)
# Of these, the ones that have no effect unless the student learns from its teacher's texts.
OF_TEACHERS_TEXTS = ("teacher_num_beams", "prompt_tokens", "generation_temperature", "generation_top_p")
NOT_STATED = "not stated"


# The Hub's name of a task, by the end of the model's class name.
PIPELINES = {
    "ForMaskedLM": "fill-mask",
    "ForPreTraining": "fill-mask",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",  # GPT-2's
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
}

# What each pre-training objective of encoder-decoders removes from the texts.
REMOVED = {"span_denoising": "spans of tokens", "gap_sentences": "sentences"}

_HUB_METRICS = {
    "bleu_lowercased": "bleu",
    **dict.fromkeys(("micro_f1", "macro_f1"), "f1"),
    **dict.fromkeys(("subset_accuracy", "token_accuracy", "next_sentence_accuracy"), "accuracy"),
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "has_answer_exact_match": "exact_match",
    "has_answer_f1": "f1",
    "no_answer_accuracy": "accuracy",
    "matthews": "matthews_correlation",
}


def check_repo_name(name: str, what: str = "repo") -> None:
    """Raise a UserError if a name cannot be that of a repository on the Hub; `what` is the option to name."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(f"{what}={name!r}: {one_line(error)}") from error


def _pipeline(run: RunMetadata) -> str:
    if run.settings.get("objective") in REMOVED:
        return "text-generation"
    found = (task for suffix, task in PIPELINES.items() if _class_name(run).endswith(suffix))
    return next(found, "summarization" if run.settings.get("task") == "summarization" else "translation")


def _class_name(run: RunMetadata) -> str:
    return next(iter(run.config.architectures or ()), "")


def _is_trained_on_pairs(run: RunMetadata) -> bool:
    return _pipeline(run) in ("translation", "summarization")


def model_card(run: RunMetadata, repo_id: str) -> ModelCard:
    """Return the card of a model.

    Args:
        run: what is known about the model and its training.
        repo_id: name from which the model is loaded; its last part is the model's name.
    """
    name = repo_id.rpartition("/")[2]
    sections = {
        "Use": _usage(run, repo_id),
        "Results": _results(run, repo_id),
        "Data": _data(run),
        "Training": _training(run),
        "Architecture": architecture_table(run.config, run.num_parameters, run.adapter_parameters)
        if isinstance(run.config, VaswaniFamilyConfig)
        else f"That of `{_class_name(run)}` in transformers; see `config.json`.",
        "Limits": "\n".join(f"- {limit}" for limit in _limits(run)),
    }
    parts = [f"# {name}", _summary(run)]
    parts += [f"## {title}\n\n{text}" for title, text in sections.items() if text]
    if run.distillation:
        picture = f"\n\n![Quality against speed]({REPORT_PLOT})" if run.has_plot else ""
        parts.insert(-1, run.distillation.strip() + picture)
    return card_of(_metadata(run, name), parts)


def write_card(folder: Path, run: RunMetadata, repo_id: str) -> None:
    """Write the card into a folder, unless a card written by hand is there."""
    if handwritten_card(folder) is None:
        write_whole(folder / CARD_FILE_NAME, str(model_card(run, repo_id)).encode())


def handwritten_card(folder: Path) -> str | None:
    """Return the text of a card that was written by hand; None for a generated card or none.

    Raises:
        UserError: the file cannot be read or is not UTF-8.
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
    return None if MARK in text else text


_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*|code|multilingual")
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")


def check_stated(language: Sequence[str], license_name: str | None) -> None:
    """Raise `UserError` for language or licence codes that the Hub does not accept."""
    for code in language:
        if not _LANGUAGE.fullmatch(code):
            raise UserError(f"language={code!r} is not a language code; expected one such as 'de' or 'pt-BR'")
    if license_name is not None and not _LICENSE.fullmatch(license_name):
        raise UserError(
            f"license={license_name!r} is not an identifier of the Hub; expected one such as 'apache-2.0' "
            "or 'mit'"
        )


# ------------------------------------------------------------------------------------------------- metadata


def _metadata(run: RunMetadata, name: str) -> ModelCardData:
    hub_dataset = _hub_dataset(run)
    return ModelCardData(
        language=_languages(run) or None,
        license=run.settings.get("license"),
        library_name="peft" if run.adapter else "transformers",
        base_model=run.corpus.get("base_model"),
        pipeline_tag=_pipeline(run) if run.evaluation or run.settings else None,
        tags=[*model_tags(run.config), *["knowledge-distillation"] * _is_distilled(run)],
        datasets=[hub_dataset] if hub_dataset else None,
        metrics=list(dict.fromkeys(map(_hub_metric, run.evaluation.get("metrics", {})))) or None,
        model_name=name,
        eval_results=list(_eval_results(run)) or None,
    )


def _is_distilled(run: RunMetadata) -> bool:
    return bool(run.settings.get("teacher")) or run.distillation.startswith("## Distillation")


def _eval_results(run: RunMetadata) -> Iterator[EvalResult]:
    evaluation, task = run.evaluation, _pipeline(run)
    for metric, score in evaluation.get("metrics", {}).items():
        yield EvalResult(
            task_type=task,
            task_name=task.replace("-", " ").capitalize(),
            dataset_type=evaluation.get("data") or _hub_dataset(run) or evaluated_data(run),
            dataset_name=evaluated_data(run),
            dataset_config=evaluation.get("dataset_config", run.settings.get("dataset_config")),
            dataset_split=evaluation["split"],
            metric_type=_hub_metric(metric),
            metric_name=score["name"],
            metric_value=round(score["value"], 2),
            metric_args={"signature": score["signature"]} if score.get("signature") else None,
        )


def evaluated_data(run: RunMetadata) -> str:
    """Return the name of the data of `vaswani evaluate --save_scores`, else that of the training's split."""
    return run.evaluation.get("data") or name_of_data(run, run.evaluation["split"])


def _hub_metric(name: str) -> str:
    """Return the Hub's name of a metric; variants of a metric share it."""
    return "rouge" if name.startswith("rouge") else _HUB_METRICS.get(name, name)


def _languages(run: RunMetadata) -> list[str]:
    """Return language codes without script and region, as the Hub expects them."""
    stated = run.settings.get("language") or run.corpus.get("locales") or _named_languages(run)
    return sorted({code.replace("_", "-").partition("-")[0] for code in stated})


def _named_languages(run: RunMetadata) -> list[str]:
    """Return the language codes that name the columns of a multilingual corpus, if all of them are codes."""
    columns = columns_of(parse_directions(run.settings.get("directions") or []))
    names = [column.rpartition(".")[2].replace("_", "-") for column in columns]
    return names if all(map(_LANGUAGE.fullmatch, names)) else []


def _hub_dataset(run: RunMetadata) -> str | None:
    """Return the name of a data set from the Hub, or None."""
    splits = [value for value in run.corpus.values() if isinstance(value, dict)]
    return next((split["dataset"] for split in splits if split.get("dataset")), None)


def name_of_data(run: RunMetadata, split: str = "train") -> str:
    """Return the stated name of the data, or the file names of a split, without their local folders."""
    settings = run.settings
    has_files = split != "train" and settings.get(f"{split}_file")
    if not has_files and (name := settings.get("data_name") or _hub_dataset(run)):
        return name
    paths = settings.get(f"{split}_file") or settings.get("train_file") or []
    if settings.get("dataset"):
        paths = [settings["dataset"]]
    if not paths and split == "train":
        paths = settings.get("unlabelled_file") or []
    return names_of_files([Path(path).name for path in paths]) or "unrecorded data"


# ------------------------------------------------------------------------------------------------- sections


def _summary(run: RunMetadata) -> str:
    parts = [f"{describe(run.config, run.num_parameters)}."]
    if run.corpus:
        parts.append(f"It was {_training_task(run)}, with the `vaswani` plugin.")
    if base := _adapted(run):
        parts.append(
            f"This is an adapter (LoRA) of rank {run.adapter.get('r')} for `{base}`, which it needs."
            + f" It holds {run.adapter_parameters:,} parameters." * (run.adapter_parameters > 0)
        )
    if run.combined:
        parts.append(_halves(run.combined))
    if run.averaged:
        names = ", ".join(f"`{name}`" for name in run.averaged)
        parts.append(f"Its weights are the mean of {len(run.averaged)} checkpoints ({names}).")
    if run.unfinished:
        parts.append(f"**Training is not finished: this is {run.unfinished}.**")
    return " ".join(parts)


def _halves(combined: dict[str, str | None]) -> str:
    """Name the trained halves of a combined model, and what is new in it."""
    trained = " and ".join(f"the {stack} of `{name}`" for stack, name in combined.items() if name)
    new = new_parts(combined)
    are = f"{' and '.join(new)} {'is' if len(new) == 1 else 'are'}"
    return (
        f"It has the weights of {trained}. **Its {are} new and untrained, so that its outputs mean nothing: "
        "train it first (`vaswani train --model`).**"
    )


def _training_task(run: RunMetadata) -> str:
    settings, pipeline, data = run.settings, _pipeline(run), name_of_data(run)
    distilled = "distilled" if settings.get("teacher") else None
    trained = distilled or _starting_point(settings) or "trained"
    if pipeline == "fill-mask":
        has_pairs = _class_name(run).endswith("ForPreTraining")
        pairs = ", and to predict whether one text follows another" * has_pairs
        return f"{trained} on {data} to fill in masked words{pairs}"
    if removed := REMOVED.get(settings.get("objective", "")):
        return f"{trained} on {data} to write {removed} that were removed from a text"
    if pipeline == "text-generation" and settings.get("task") == "completion":
        return f"{_starting_point(settings) or 'fine-tuned'} on {data} to write {_completions(settings)}"
    if pipeline == "text-generation":
        return f"{trained} on {data} to continue texts"
    if _is_trained_on_pairs(run):
        files = [Path(file) for file in settings.get("train_file") or []]
        if len(files) == 2 and not any(map(table_format, files)):  # lines, without fields
            return (
                f"{trained} on {data} to predict a line of `{files[1].name}` from that of `{files[0].name}`"
            )
        if directions := settings.get("directions"):
            pairs = ", ".join(f"`{each}`" for each in directions)
            return f"{trained} on {data} to predict one column of a row from another ({pairs})"
        source, target = (settings.get(f"{side}_field", side) for side in ("source", "target"))
        return f"{trained} on {data} to predict the `{target}` of a row from its `{source}`"
    scratch = "trained from new weights" if settings.get("from_scratch") else None
    how = distilled or scratch or _starting_point(settings) or "fine-tuned"
    if pipeline == "question-answering":
        return f"{how} on {data} to answer questions by parts of a text"
    of = "a text" if settings.get("text_pair_field") is None else "a pair of texts"
    label = f"`{settings.get('label_field', 'label')}`"
    if settings.get("task") == "multi_label":
        return f"{how} on {data} to predict any number of labels ({label}) of {of}"
    where = f"each word of {of}" if pipeline == "token-classification" else of
    return f"{how} on {data} to predict the {label} of {where}"


def _completions(settings: dict[str, Any]) -> str:
    if chats := settings.get("messages_field"):
        return f"the assistant's answers in the chats of `{chats}`"
    return "the `{completion_field}` of a row after its `{prompt_field}`".format(**settings)


def _starting_point(settings: dict[str, Any]) -> str | None:
    model = settings.get("model")
    return None if model is None else f"fine-tuned from {Path(str(model)).name}"


def _usage(run: RunMetadata, repo_id: str) -> str:
    example: dict[str, Any] = next(iter(run.evaluation.get("examples", ())), run.example)
    text = next((example[name] for name in ("source", "text", "prompt") if name in example), _neutral(run))
    text = " ".join(text) if isinstance(text, list) else text  # words that were tagged
    tags = run.source_tags
    prefix = run.source_prefix or (f"{tags[0]} " if tags else "")
    text = text if text.startswith((prefix, *tags)) else prefix + text
    text = text if "prompt" in example else _shortened(text)  # a completion follows the end of its prompt
    if _pipeline(run) == "question-answering":
        pair = (example["question"], example["context"]) if "question" in example else NEUTRAL_QUESTION
        question, context = map(_shortened, pair)
        return usage(run.config, repo_id, question, context, adapts=_adapted(run))
    reads_pairs = run.settings.get("text_pair_field") is not None
    second = _shortened(example.get("text_pair", "A second text.")) if reads_pairs else None
    target = run.target_tokenizer
    snippets = usage(
        run.config,
        repo_id,
        text,
        second,
        target_tokenizer=target,
        adapts=_adapted(run),
        text_code=_gap_text(run),
        is_chat=run.settings.get("messages_field") is not None,
    )
    if not tags:
        return snippets
    shown = ", ".join(f"`{tag}`" for tag in tags)
    return f"Each source begins with the tag of its target's language: {shown}.\n\n{snippets}"


def _neutral(run: RunMetadata) -> str:
    """Return a text for a model without examples of its own."""
    if run.settings.get("objective") == "span_denoising":
        return f"The weather {sentinel_names(1)[0]} today."
    return "A text to summarize." if _pipeline(run) == "summarization" else neutral_example(run.config)


def _gap_text(run: RunMetadata) -> str | None:
    """Return code of a text without a sentence, for a model that writes it; None for other models."""
    if run.settings.get("objective") != "gap_sentences":
        return None
    mask = PEGASUS_MASK if run.config.model_type == "pegasus" else "{tokenizer.mask_token}"
    return f'f"Ann saw Rome. {mask} Then she went home."'


def _adapted(run: RunMetadata) -> str | None:
    """Return the name of an adapter's model, without local folders; None for a whole model."""
    name = run.adapter.get("base_model_name_or_path")
    return Path(name).name if name and Path(name).is_absolute() else name


def _results(run: RunMetadata, repo_id: str) -> str:
    evaluation = run.evaluation
    if not evaluation and run.averaged and not run.unfinished:
        command = f"vaswani evaluate --model {repo_id} --data DATA --save_scores"
        return f"No scores are known: the mean of the checkpoints has not been evaluated (`{command}`)."
    if not (evaluation or run.settings or run.corpus or run.unfinished):
        return "No scores are known: the folder has no record of a training."
    if not evaluation:
        return "No scores are known: the run had no evaluation data, or is not finished."
    options = evaluation.get("search", {})
    set_options = ((name, str(value).strip()) for name, value in options.items() if not _is_off(name, value))
    search = ", ".join(f"{name} {value}" for name, value in set_options)
    how = "decoded with" if "num_beams" in evaluation.get("search", {}) else "with"
    rows = map(_score_cells, evaluation["metrics"].values())
    scored = f"{evaluation['rows']:,} {evaluation.get('unit', 'rows')}"
    parts = [
        f"On the {scored} of the {evaluation['split']} split of "
        + evaluated_data(run)
        + (f", {how} {search}:" if search else ":"),
        markdown_table(["Metric", "Score", "95 % interval", "Signature"], rows, numbers=["Score"]),
        f"Intervals: {evaluation['intervals']}.",
    ]
    if scores := evaluation.get("directions"):
        signatures = evaluation.get("signatures_of_directions", {})
        each = (f"{name} {score:.2f}{_in_brackets(signatures.get(name))}" for name, score in scores.items())
        parts.append(f"By direction: {', '.join(each)}.")
    if evaluation.get("examples"):
        parts += ["Evenly spaced rows of that split:", _examples(evaluation["examples"])]
    return "\n\n".join(parts)


def _is_off(name: str, value: Any) -> bool:
    """Return whether an option of a search changes nothing."""
    return value is None or value is False or (name == "coverage_penalty" and value == 0)


def _score_cells(score: dict[str, Any]) -> tuple[str, ...]:
    signature = f"`{score['signature']}`" if score.get("signature") else ""
    return score["name"], f"{score['value']:.2f}", f"{score['low']:.2f} to {score['high']:.2f}", signature


def _examples(examples: list[dict[str, Any]]) -> str:
    titles = {"translation": "Written by the model", "text_pair": "Second text"}
    columns = {name: titles.get(name, name.capitalize()) for name in examples[0]}
    rows = ([_cell(example[name]) for name in columns] for example in examples)
    return markdown_table(list(columns.values()), rows)


def _cell(value: Any) -> str:
    """Return a table cell for a text, a label, or a list of words or labels."""
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    printable = "".join(letter if letter.isprintable() else " " for letter in _shortened(text))
    escaped = re.sub(r"([\\`*_\[\]~$])", r"\\\1", html.escape(printable, quote=False))
    return " ".join(escaped.split())


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]} …"


def _data(run: RunMetadata) -> str:
    corpus, settings, hub_dataset = run.corpus, run.settings, _hub_dataset(run)
    origin = hub_dataset and f"https://huggingface.co/datasets/{hub_dataset}"
    lines = [
        f"- Name: {name_of_data(run)}" + _in_brackets(settings.get("dataset_config")),
        f"- Source: {settings.get('data_url') or corpus.get('source') or origin or NOT_STATED}",
        f"- Licence: {settings.get('data_license') or corpus.get('license') or NOT_STATED}",
        f"- Languages: {', '.join(_languages(run)) or NOT_STATED}",
    ]
    for split, count in corpus.get("rows", {}).items():
        files = corpus.get(split, {}).get("files", [])
        hashes = ", ".join(
            f"`{Path(file['path']).name}` SHA-256 `{file['sha256']}`"
            for file in files
            if "sha256" in file  # streamed files are not hashed
        )
        rows = f"{count:,} rows" if isinstance(count, int) else count
        lines.append(f"- {split}: {rows}" + _in_brackets(hashes))
    if "sha256" in corpus:
        lines.append(f"- SHA-256 of all rows: `{corpus['sha256']}`")
    return "\n".join(lines)


def _in_brackets(text: str | None) -> str:
    return f" ({text})" if text else ""


def _training(run: RunMetadata) -> str:
    known = {name: run.settings.get(name) for name in LISTED_SETTINGS}
    if run.settings.get("targets") not in ("teacher", "both"):
        known |= dict.fromkeys(OF_TEACHERS_TEXTS)
    rows = [(f"`{name}`", _plain(value)) for name, value in known.items() if _is_set(name, value)]
    if not rows:
        return ""
    parts = [markdown_table(["Setting", "Value"], rows), *_resumptions(run)]
    if versions := run.evaluation.get("versions"):
        parts.append(f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}.")
    return "\n\n".join(parts)


def _is_set(name: str, value: Any) -> bool:
    return value is not None and value != [] and not (name == "max_steps" and value <= 0)


def _resumptions(run: RunMetadata) -> Iterator[str]:
    """Yield a sentence for each resumption that changed a listed setting."""
    for resumption in run.settings.get(HISTORY, ()):
        changes = [
            f"`{name}` changed from {_plain(before)} to {_plain(now)}"
            for name, (before, now) in resumption["changed"].items()
            if name in LISTED_SETTINGS or name == "num_processes"
        ]
        if changes:
            yield f"Resumed after update {resumption['update']:,}: {', '.join(changes)}."


def _plain(value: Any) -> str:
    """Return a setting without local folders."""
    values = value if isinstance(value, list) else [value]
    return ", ".join(Path(each).name if isinstance(each, str) else str(each) for each in values)


def _limits(run: RunMetadata) -> Iterator[str]:
    settings, config = run.settings, run.config
    yield "Outside the domains and languages of its training data, expect errors without warning."
    if settings.get("objective") in REMOVED:
        yield "It fills in removed text only; fine-tune it for a task (`vaswani train --model`)."
    if {"max_source_length", "max_target_length"} <= settings.keys():
        yield (
            f"It was trained on sources of up to {settings['max_source_length']:,} tokens and targets of up "
            f"to {settings['max_target_length']:,} tokens; longer texts are untested."
        )
    if isinstance(config, VaswaniFamilyConfig) and config.position_embedding == "learned":
        yield f"It has positions for {config.max_position_embeddings:,} tokens and rejects longer texts."
    if run.evaluation and _is_trained_on_pairs(run):
        same_source = "" if "data" in run.evaluation else ", from the same source as the training data"
        yield f"Scores compare with one reference per row{same_source}."
    yield "It has not been examined for bias, or for harmful or private text that it may repeat."
    if not settings.get("license"):
        yield "No licence is stated; ask the publisher before you use it."
