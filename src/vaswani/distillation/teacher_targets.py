"""Sequence-level distillation: the student learns to write what the teacher would write.

The mode of the teacher's distribution over sentences, as its beam search finds it, takes the place of the
reference (Kim & Rush, 2016, arXiv:1606.07947, section 3.2). Teacher and student need no common vocabulary.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from datasets import Dataset, concatenate_datasets

from vaswani.data.sources.corpus import TEXT_FEATURES
from vaswani.data.text_codec import TextCodec, marks_languages
from vaswani.distillation.output_cache import OutputCache, canonical_config
from vaswani.inference.translate.translation import Translation, Translator


class TeacherTarget(NamedTuple):
    """What the teacher makes of one source.

    Args:
        text: its best translation; empty for an empty source and for one with a problem.
        complete: whether it ends by itself, and not because it reached the length that it may have.
        problem: why the source could not be translated.
    """

    text: str
    complete: bool
    problem: str | None

    @property
    def is_usable(self) -> bool:
        """Whether it is a whole translation, that a student should learn."""
        return self.complete and bool(self.text.strip())


def search_identity(translator: Translator) -> dict[str, Any]:
    """What a translation depends on, beside the teacher's weights and the source.

    `max_tokens_per_batch` is not part of it: a sentence gets the same translation whatever it is batched with
    (see `Translator`), so a run that was out of memory can go on with less.
    """
    return {
        "num_beams": translator.num_beams,
        "length_penalty": float(translator.length_penalty),
        "max_source_length": translator.max_source_length,
        "max_length": translator.max_length,
        "source_tokenizer": _fingerprint_tokenizer(TextCodec(translator.source_tokenizer, "source")),
        "target_tokenizer": _fingerprint_tokenizer(TextCodec(translator.target_tokenizer, "target")),
        "generation_config": _sha256(canonical_config(translator.model.generation_config)),
        **translator.start_options,
    }


def _fingerprint_tokenizer(codec: TextCodec) -> str:
    backend = getattr(codec.tokenizer, "backend_tokenizer", None)
    if backend is None:
        is_marked = codec.side == "source" and marks_languages(codec.tokenizer)
        language = str(codec.frame()) if is_marked else ""  # of targets see `start_options`
        return _sha256(json.dumps(codec.vocabulary(), sort_keys=True) + language)
    of_last_call = {"padding": None, "truncation": None}  # set by each call, and not part of a tokenizer
    return _sha256(json.dumps({**json.loads(backend.to_str()), **of_last_call}, sort_keys=True))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def decode_targets(
    cache: OutputCache,
    translator: Translator,
    sources: Sequence[str],
    *,
    process_index: int = 0,
    num_processes: int = 1,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Translate the rows whose shards are missing, and store the best translation of each.

    Each shard is translated by itself, so that its batches do not depend on where a run began.

    Args:
        cache: of `len(sources)` rows; its identity should hold `search_identity(translator)`.
        translator: the teacher, with the options of its search.
        sources: a list of texts, or a column of a data set.
        process_index: number of this process.
        num_processes: processes that share the shards.
        progress: is told of so many more rows done, batch by batch.

    Raises:
        RunError: a batch does not fit into the device's memory, or a shard cannot be written.
    """
    for shard in cache.missing_shards(process_index, num_processes):
        rows = cache.rows_of(shard)
        translations = translator.translate(
            sources[rows.start : rows.stop], with_scores=False, progress=progress
        )
        lines = [
            json.dumps(_target(translation)._asdict(), ensure_ascii=False) for translation in translations
        ]
        cache.write(shard, "".join(f"{line}\n" for line in lines).encode())


def _target(translation: Translation) -> TeacherTarget:
    complete = any(best.complete for best in translation.hypotheses[:1])
    return TeacherTarget(translation.text, complete, translation.problem)


def read_targets(cache: OutputCache) -> list[TeacherTarget]:
    """The teacher's translations of all rows, in their order.

    Raises:
        UserError: shards are missing or damaged.
    """
    lines = (line for content in cache.read_all() for line in content.decode().split("\n")[:-1])
    return [TeacherTarget(**json.loads(line)) for line in lines]


@dataclass(frozen=True)
class TargetReport:
    """How many rows there are, and how many kept their reference for want of a whole translation."""

    rows: int
    references: int

    def __str__(self) -> str:
        taught = f"{self.rows - self.references:,} of {self.rows:,} rows have the teacher's translation"
        return taught + (f"; for {self.references:,} it is empty or cut off" if self.references else "")


class TaughtRows(NamedTuple):
    """Rows of text, and what became of their targets."""

    rows: Dataset
    report: TargetReport


def with_teacher_targets(
    rows: Dataset, targets: Sequence[TeacherTarget], keep_references: bool
) -> TaughtRows:
    """The rows with what the teacher would write in place of their targets.

    Where that is empty, or was cut off at the length limit, the reference stays.

    Args:
        rows: text columns `source` and `target`; others are left out.
        targets: the teacher's, of all rows.
        keep_references: put the rows as they are before those with the teacher's targets.

    Returns:
        Text columns `source` and `target`, as many rows or twice as many, and a report.
    """
    pairs = zip(targets, rows["target"], strict=True)
    taught = Dataset.from_dict(
        {
            "source": list(rows["source"]),
            "target": [target.text if target.is_usable else reference for target, reference in pairs],
        },
        features=TEXT_FEATURES,
    )
    report = TargetReport(len(rows), sum(not target.is_usable for target in targets))
    if keep_references:
        taught = concatenate_datasets([rows.select_columns(list(TEXT_FEATURES)), taught])
    return TaughtRows(taught, report)
