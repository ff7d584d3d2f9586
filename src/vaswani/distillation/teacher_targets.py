"""Sequence-level distillation: the student is trained on the teacher's translations.

The result of the teacher's beam search, an approximation to the mode of its distribution over sentences,
replaces the reference (Kim & Rush, 2016, arXiv:1606.07947, section 3.2). Teacher and student need no common
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset, concatenate_datasets

from vaswani.data.sources.corpus_spec import TEXT_FEATURES
from vaswani.distillation.fingerprints import fingerprint_config, fingerprint_tokenizer
from vaswani.distillation.output_cache import OutputCache
from vaswani.inference.translate.results import Translation
from vaswani.inference.translate.translation import Translator


class TeacherTarget(NamedTuple):
    """The teacher's translation of one source."""

    text: str  # empty for an empty source, or if there is a problem
    complete: bool  # False if the translation was cut off at the length limit
    problem: str | None  # why the source could not be translated

    @property
    def is_usable(self) -> bool:
        """True if a student should learn from this translation: it is complete and not empty."""
        return self.complete and bool(self.text.strip())


def search_identity(translator: Translator) -> dict[str, Any]:
    """Return everything that a translation depends on besides the teacher's weights and the source.

    `max_tokens_per_batch` is left out: a translation does not depend on its batch (see `Translator`), so a
    run that was out of memory can be resumed with smaller batches.
    """
    return {
        "num_beams": translator.options.num_beams,
        "length_penalty": float(translator.options.length_penalty),
        "max_source_length": translator.max_source_length,
        "max_length": translator.max_length,
        "source_tokenizer": fingerprint_tokenizer(translator.source_tokenizer, "source"),
        "target_tokenizer": fingerprint_tokenizer(translator.target_tokenizer, "target"),
        "generation_config": fingerprint_config(translator.model.generation_config),
        **translator.start_options,
    }


def decode_targets(
    cache: OutputCache,
    translator: Translator,
    sources: Sequence[str],
    progress: Callable[[int], object] | None = None,
) -> None:
    """Translate the rows of the missing shards; store the best translation of each row.

    Args:
        cache: of `len(sources)` rows; its identity should include `search_identity(translator)`.
        translator: the teacher with its search options.
        sources: a list of texts, or a column of a data set.
        progress: called after each batch with its number of rows.

    Raises:
        RunError: a batch does not fit into the device's memory, or a shard cannot be written.
    """
    for shard in cache.missing_shards():
        rows = cache.rows_of(shard)
        translations = translator.translate(
            sources[rows.start : rows.stop], with_scores=False, progress=progress
        )
        cache.write_lines(shard, (_target(translation)._asdict() for translation in translations))


def _target(translation: Translation) -> TeacherTarget:
    complete = any(best.complete for best in translation.hypotheses[:1])
    return TeacherTarget(translation.text, complete, translation.problem)


def read_targets(cache: OutputCache) -> list[TeacherTarget]:
    """The teacher's translations of all rows, in their order.

    Raises:
        UserError: shards are missing or damaged.
    """
    return [TeacherTarget(**fields) for fields in cache.read_lines()]


class TeacherRows(NamedTuple):
    """Rows with the teacher's translations as targets, or with its texts."""

    rows: Dataset
    num_lacking: int  # rows for which the teacher has no whole translation, or no text


def with_teacher_targets(
    rows: Dataset, targets: Sequence[TeacherTarget], keep_references: bool
) -> TeacherRows:
    """Replace the targets of rows by the teacher's translations; keep the reference if one is unusable.

    With `keep_references`, a row whose translation is unusable is there once, with its reference.

    Args:
        rows: text columns `source` and `target`; others are dropped. The target of a row without a reference
            is empty; such a row is left out if its translation is unusable.
        targets: the teacher's translations of all rows.
        keep_references: also keep all rows with their references, placed before the others.

    Returns:
        Text columns `source` and `target` of these rows.
    """
    others = [""] * len(rows) if keep_references else rows["target"]
    pairs = zip(targets, others, strict=True)
    taught = Dataset.from_dict(
        {
            "source": list(rows["source"]),
            "target": [target.text if target.is_usable else other for target, other in pairs],
        },
        features=TEXT_FEATURES,
    )
    if keep_references:
        taught = concatenate_datasets([rows.select_columns(list(TEXT_FEATURES)), taught])
    has_target = [bool(target) for target in taught["target"]]
    if not all(has_target):
        taught = taught.select(np.flatnonzero(has_target))
    return TeacherRows(taught, sum(not target.is_usable for target in targets))
