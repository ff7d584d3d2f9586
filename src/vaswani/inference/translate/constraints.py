"""What the translation of each line must satisfy: its lengths, its prefix, and its required phrases."""

from __future__ import annotations

from collections.abc import Sequence

from vaswani.errors import UserError
from vaswani.inference.required_phrases import Phrase, tokens_needed
from vaswani.inference.sides import EncodedText, Sides
from vaswani.inference.translate.engine import Demands, Engine
from vaswani.inference.translate.lengths import TargetLengths
from vaswani.inference.translate.phrases import Line, check_phrases, prefix_tokens, required_phrase


class Constraints:
    """The constraints of a `Translator`, which turns them into the demands on each translation.

    Args:
        engine: its model may limit lengths.
        sides: the targets, and the token that the model may force them to begin with.
        lengths: the length limits.
        banned: phrases that no translation contains.
        required: phrases that every translation contains.

    Raises:
        UserError: the minimum length exceeds the positions of the model.
    """

    def __init__(
        self,
        engine: Engine,
        sides: Sides,
        lengths: TargetLengths,
        banned: tuple[str, ...],
        required: tuple[str, ...],
    ):
        self.lengths, self.banned, self.required = lengths, banned, required
        self.max_length = min(lengths.max_length, engine.target_positions or lengths.max_length)
        if (lengths.min_length or 0) > self.max_length:
            raise UserError(
                f"min_length={lengths.min_length} is more than the {self.max_length} positions of the "
                "model; lower it"
            )
        self._targets = sides.targets
        self._forced_tokens = int(sides.forced_token_id is not None)
        self._spellings: dict[str, Phrase] = {}

    def limit(self, source_length: int) -> int:
        """Return the maximum length of a translation for a source of this length (see `TargetLengths`)."""
        return min(self.lengths.max_tokens(source_length), self.max_length)

    def demands(self, line: Line, source: EncodedText, number: int) -> Demands:
        """Return the constraints on the translation of a line; `number` is its number in the stream.

        Raises:
            UserError: the line cannot be translated; the message says why.
        """
        if source.problem:
            raise UserError(f"it {source.problem}")
        prefix = prefix_tokens(self._targets, line.prefix, self.banned) if line.prefix else ()
        _, required = check_phrases(self.banned, (*self.required, *line.required))
        limit = self.limit(len(source.token_ids))
        phrases = self.spellings(required, len(prefix), limit)
        least = min(self.lengths.min_tokens(len(source.token_ids)), limit)
        return Demands(min_length=least, number=number, prefix=prefix, required=phrases)

    def spellings(
        self, required: Sequence[str], prefix_length: int = 0, limit: int | None = None
    ) -> tuple[Phrase, ...]:
        """Return the spellings of phrases; raise a UserError if prefix and phrases exceed a length limit."""
        for phrase in required:
            if phrase not in self._spellings:
                self._spellings[phrase] = required_phrase(self._targets, phrase)
        phrases = tuple(self._spellings[phrase] for phrase in required)
        needed = prefix_length + tokens_needed(phrases)
        most = (self.max_length if limit is None else limit) - self._forced_tokens
        if needed and needed >= most:
            raise UserError(
                f"the prefix and required phrases take {needed} tokens and the end token, and a translation "
                f"may have {most}; raise max_length or max_length_ratio, or require less"
            )
        return phrases

    def are_met(self, text: str, line: Line) -> bool:
        """Return whether a text has the prefix and the phrases of a line, and no banned phrase."""
        return (
            text.startswith(line.prefix)
            and all(phrase in text for phrase in (*self.required, *line.required))
            and not any(phrase in text for phrase in self.banned)
        )
