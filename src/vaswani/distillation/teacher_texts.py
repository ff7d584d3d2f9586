"""Sequence-level distillation of a causal language model: the student is trained on the teacher's texts.

The teacher continues the beginning of each text of the corpus. Tokens drawn from its distribution
(temperature 1) give an unbiased estimate of the loss of Kim & Rush (2016, arXiv:1606.07947, section 3.2), a
sum over all sequences; greedy search approximates the mode, as their beam search does. MiniLLM (Gu et al.,
2024, arXiv:2306.08543) applies this to language models as its baseline SeqKD.

A continuation ends at the teacher's end token, or at the length of the text of the corpus. Only in the first
case does the student learn to end there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from datasets import Dataset, Features, Value

from vaswani.data.text.sequences import boundary_token_ids
from vaswani.data.text_codec import TextCodec
from vaswani.distillation.fingerprints import fingerprint_config, fingerprint_tokenizer
from vaswani.distillation.output_cache import OutputCache
from vaswani.distillation.teacher_targets import TeacherRows
from vaswani.inference.continuing import Prompt
from vaswani.inference.generation_options import GenerationOptions
from vaswani.inference.language_model import GREEDY, Draft, LanguageModel


class TeacherText(NamedTuple):
    """The beginning of a text with the teacher's continuation."""

    text: str
    complete: bool  # False if the continuation was cut off at the length of the text


@dataclass(frozen=True)
class ContinuationSettings:
    """The settings with which a teacher continues texts.

    Args:
        prompt_tokens: number of first tokens of each text that the teacher continues.
        most_tokens: most tokens of a prompt with its continuation, which is also no longer than the text was.
        temperature: sampling temperature; 0 for greedy search.
        top_p: draw from the likeliest tokens that together have this probability.
        seed: seed of the draws.
    """

    prompt_tokens: int
    most_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0

    @property
    def options(self) -> GenerationOptions:
        """How tokens are chosen."""
        if not self.temperature:
            return GREEDY
        return GenerationOptions(temperature=self.temperature, top_p=self.top_p)

    def identity(self, teacher: LanguageModel) -> dict[str, Any]:
        """Return everything that a continuation depends on besides the teacher's weights and the text."""
        tokenizer = teacher.tokenizer
        draws = {"top_p": self.top_p, "seed": self.seed} if self.temperature else {}
        return {
            "prompt_tokens": self.prompt_tokens,
            "most_tokens": self.most_tokens,
            "temperature": float(self.temperature),
            **draws,
            "begin_token_id": boundary_token_ids(tokenizer)[0],
            "tokenizer": fingerprint_tokenizer(tokenizer),
            "generation_config": fingerprint_config(teacher.model.generation_config),
            "fields": list(TeacherText._fields),
        }


def continue_texts(
    teacher: LanguageModel,
    texts: Sequence[str],
    numbers: Sequence[int],
    settings: ContinuationSettings,
    progress: Callable[[int], object] | None = None,
) -> list[TeacherText | None]:
    """Return the beginning of each text with the teacher's continuation; None for a text of the prompt alone.

    Args:
        teacher: the teacher with its tokenizer.
        texts: texts of the corpus.
        numbers: the index of each text in the corpus, which seeds its draws: they do not depend on the batch.
        settings: how the teacher continues them.
        progress: called after each batch with its number of texts.

    Raises:
        RunError: a batch does not fit into the device's memory, or the scores are not finite.
    """
    codec, begin = TextCodec(teacher.tokenizer), boundary_token_ids(teacher.tokenizer)[0]
    encoded = codec.token_ids(texts, add_special_tokens=False, split_special_tokens=True)
    drafts = {}
    for number, token_ids in zip(numbers, encoded, strict=True):
        length = min(len(token_ids), settings.most_tokens)
        if length > settings.prompt_tokens:
            prompt = Prompt((begin, *token_ids[: settings.prompt_tokens]))
            seed = (settings.seed, number) if settings.temperature else ()
            drafts[number] = Draft(prompt, length - settings.prompt_tokens, seed)
    if progress:
        progress(len(texts) - len(drafts))
    found = teacher.continue_drafts(list(drafts.values()), settings.options, progress=progress)
    # Decoded with the prompt: a character of several bytes may be in both.
    whole = [[*draft.prompt.token_ids, *new] for draft, new in zip(drafts.values(), found, strict=True)]
    complete = [len(new) < draft.max_new_tokens for draft, new in zip(drafts.values(), found, strict=True)]
    decoded = zip(codec.decode(whole), complete, strict=True)
    # A text may be cut off within a character of several bytes.
    made = [TeacherText(text if done else text.rstrip("\ufffd"), done) for text, done in decoded]
    written = dict(zip(drafts, made, strict=True))
    return [written.get(number) for number in numbers]


def store_texts(
    cache: OutputCache,
    teacher: LanguageModel,
    texts: Sequence[str],
    settings: ContinuationSettings,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Continue the texts of the missing shards (see `continue_texts`).

    Args:
        cache: of `len(texts)` rows; its identity should include `settings.identity(teacher)`.
        teacher: the teacher with its tokenizer.
        texts: a list of texts, or a column of a data set.
        settings: how the teacher continues them.
        progress: called after each batch with its number of texts.

    Raises:
        RunError: a batch does not fit into the device's memory, or a shard cannot be written.
    """
    for shard in cache.missing_shards():
        rows = cache.rows_of(shard)
        written = continue_texts(teacher, texts[rows.start : rows.stop], rows, settings, progress)
        cache.write_lines(shard, written)


def read_texts(cache: OutputCache) -> list[TeacherText | None]:
    """The teacher's texts for all rows, in order; None for texts that it did not continue.

    Raises:
        UserError: shards are missing or damaged.
    """
    return [fields and TeacherText(*fields) for fields in cache.read_lines()]


def with_teacher_texts(
    rows: Dataset, texts: Sequence[TeacherText | None], keep_references: bool
) -> TeacherRows:
    """Replace texts by the teacher's; keep the texts that it did not continue.

    Args:
        rows: a column `text`; others are dropped.
        texts: the teacher's texts for all rows.
        keep_references: also keep all original texts, placed before the teacher's.

    Returns:
        Rows with the columns `text` and `complete` (see `TeacherText`); texts of the corpus are complete.
    """
    references = [TeacherText(text, True) for text in rows["text"]]
    if keep_references:
        taught = [*references, *(text for text in texts if text is not None)]
    else:
        pairs = zip(texts, references, strict=True)
        taught = [reference if text is None else text for text, reference in pairs]
    columns = {name: [getattr(text, name) for text in taught] for name in TeacherText._fields}
    features = Features({**rows.select_columns("text").features, "complete": Value("bool")})
    return TeacherRows(Dataset.from_dict(columns, features=features), sum(text is None for text in texts))
