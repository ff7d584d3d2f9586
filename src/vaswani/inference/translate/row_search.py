"""Search the translations of a batch, and turn the tokens that an engine finds into texts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from vaswani.data.text_codec import source_prefix
from vaswani.inference.align.words import Words, words_of_texts
from vaswani.inference.batches import within_memory
from vaswani.inference.sides import Sides
from vaswani.inference.translate.constraints import Constraints
from vaswani.inference.translate.engine import Demands, Engine, Output, SearchOptions
from vaswani.inference.translate.phrases import Line, find_spelling
from vaswani.inference.translate.reranking import Reranking
from vaswani.inference.translate.results import Hypothesis, Translation, ranked_by_score
from vaswani.inference.translate.unknown_words import UnknownWords
from vaswani.inference.translate.word_alignment import WordAlignment, word_alignment

_MAX_SPELLINGS = 200  # of banned phrases, found in outputs of a sentence and then suppressed


@dataclass(frozen=True)
class Row:
    """A line with the tokens of its source, which may be truncated, and constraints on its translation."""

    line: Line
    token_ids: list[int]
    demands: Demands
    cut_off: bool


@dataclass(frozen=True)
class Request:
    """How many hypotheses of each row are wanted, and whether with scores."""

    n_best: int
    with_scores: bool


class _DecodedOutput(NamedTuple):
    """A hypothesis of an engine with its text."""

    text: str
    output: Output
    alignment: WordAlignment | None = None


@dataclass(frozen=True)
class RowSearch:
    """Searches the rows of a batch.

    Args:
        engine: finds the tokens of hypotheses.
        sides: decodes them.
        constraints: what texts must satisfy.
        options: options of the search; with `attention_of="all"`, words are aligned.
        unknown_words: replaces unknown tokens in texts; None leaves them.
        reranking: ranks all hypotheses of a search, or samples; None leaves the scores of the search.
    """

    engine: Engine
    sides: Sides
    constraints: Constraints
    options: SearchOptions
    unknown_words: UnknownWords | None
    reranking: Reranking | None = None

    def translations(self, rows: list[Row], request: Request) -> list[Translation]:
        """Return the translation of each row."""
        with within_memory("sentences", len(rows), len(rows[0].token_ids)):
            found = self._search(rows, self.options, request)
        whole = [self._translation(row, written, request) for row, written in zip(rows, found, strict=True)]
        if self.reranking is not None:
            whole = self.reranking(whole, map(self._read, rows))
        return [
            replace(each, hypotheses=each.hypotheses[: request.n_best], source_cut_off=row.cut_off)
            for row, each in zip(rows, whole, strict=True)
        ]

    def _read(self, row: Row) -> str:
        """Return the text that is translated: without a part that was cut off, and without a tag."""
        sources, text = self.sides.sources, row.line.sentence
        if row.cut_off:
            whole = sources.decode([row.token_ids])[0].strip("\ufffd ")  # the cut can divide a character
            text = whole.removeprefix(source_prefix(sources.tokenizer).strip()).lstrip()
        tag = next(filter(text.startswith, sources.tags), None)
        return text if tag is None else text.removeprefix(tag).lstrip()

    def _search(
        self, rows: list[Row], options: SearchOptions, request: Request
    ) -> list[list[_DecodedOutput]]:
        """Return the outputs of the engine with their texts; to rank them again, all of the search."""
        if self.reranking is not None:
            request = Request(max(request.n_best, self.options.num_beams), with_scores=True)
        found = self.engine.search(
            [row.token_ids for row in rows],
            [self.constraints.limit(len(row.token_ids)) for row in rows],
            options,
            start_options=self.sides.start_options,
            demands=[row.demands for row in rows],
            n_best=request.n_best,
            with_scores=request.with_scores,
        )
        texts = iter(self.sides.targets.decode([output.token_ids for output in chain.from_iterable(found)]))
        words = self._words_of_sources(rows) if options.attention_of is not None else [None] * len(rows)
        return [
            [self._decoded(next(texts), output, row.line.sentence, of_source) for output in outputs]
            for row, outputs, of_source in zip(rows, found, words, strict=True)
        ]

    def _words_of_sources(self, rows: list[Row]) -> list[Words | None]:
        """Return the word of each token of the sources; None where no token belongs to a word."""
        sentences, token_ids = [row.line.sentence for row in rows], [row.token_ids for row in rows]
        found = words_of_texts(self.sides.sources, sentences, token_ids)
        return [words if any(word is not None for word in words or ()) else None for words in found]

    def _decoded(
        self, text: str, output: Output, sentence: str, source_words: Words | None
    ) -> _DecodedOutput:
        """Return an output with its text and alignment; replace unknown words in the text."""
        if source_words is None:
            return _DecodedOutput(text, output)
        if self.unknown_words is not None and output.attention:
            text = self.unknown_words.text(output, sentence.split(), source_words)
        if self.options.attention_of != "all":
            return _DecodedOutput(text, output)
        return _DecodedOutput(text, output, word_alignment(self.sides.targets, source_words, output))

    def _translation(self, row: Row, written: list[_DecodedOutput], request: Request) -> Translation:
        """Return the translation of a row, with all hypotheses that meet the constraints."""
        sentence = row.line.sentence
        found = self._without_banned_phrases(row, written, request)
        if found is None:
            return Translation(sentence, problem="every translation that was found has a banned phrase")
        # Words that replace unknown ones may still contain a banned phrase.
        kept = [each for each in found if self.constraints.are_met(each.text, row.line)]
        if not kept:
            problem = "no translation that was found has the prefix and required phrases and no banned phrase"
            return Translation(sentence, problem=problem)
        hypotheses = tuple(self._hypothesis(each) for each in kept)
        if self.engine.ranks_by_score(self.options):  # without scores, this keeps the order
            hypotheses = ranked_by_score(hypotheses)
        return Translation(sentence, hypotheses)

    def _without_banned_phrases(
        self, row: Row, found: list[_DecodedOutput], request: Request
    ) -> list[_DecodedOutput] | None:
        """Search again until no hypothesis has a banned phrase; return None if that fails.

        Each search suppresses the tokens that wrote banned phrases in all earlier searches.
        """
        options = self.options
        while spellings := self._banned_spellings(found):
            suppressed = (*options.suppress_sequences, *spellings)
            was_forced = len({*suppressed}) < len(suppressed)  # written though it was suppressed
            if was_forced or len(suppressed) - len(self.options.suppress_sequences) > _MAX_SPELLINGS:
                return None
            options = replace(options, suppress_sequences=suppressed)
            (found,) = self._search([row], options, request)
        return found

    def _banned_spellings(self, found: list[_DecodedOutput]) -> set[tuple[int, ...]]:
        """Return the token sequences that write banned phrases in outputs."""
        written = (
            find_spelling(self.sides.targets, each.output.token_ids, phrase)
            for each in found
            for phrase in self.constraints.banned
            if phrase in each.text
        )
        return {tokens for tokens in written if tokens is not None}

    def _hypothesis(self, written: _DecodedOutput) -> Hypothesis:
        output = written.output
        score = output.score(self.options.length_penalty)
        return Hypothesis(written.text, output.complete, score, output.log_prob, written.alignment)
