"""How many rows of a split are kept, and how many are left out for which reason."""

from dataclasses import asdict, dataclass, fields


@dataclass
class RowReport:
    """Counts of the rows of one split that have been read so far.

    `kept` rows are used; some of them may be `truncated`. A row is left out if a side has only white space
    (`empty`), too many tokens (`over_long`), bytes that are not UTF-8 (`not_utf8`) or no text at all
    (`missing_source`, `missing_target`, or `missing_text` in a corpus of plain texts), if it does not state
    its label or its answers (`missing_label`, `missing_answers`), or if it does not parse (`malformed`).
    `in_training` counts rows of another split, before those with too many tokens are left out, that are also
    training rows.
    """

    kept: int = 0
    empty: int = 0
    over_long: int = 0
    not_utf8: int = 0
    malformed: int = 0
    missing_source: int = 0
    missing_target: int = 0
    truncated: int = 0
    missing_text: int = 0
    missing_label: int = 0
    missing_answers: int = 0
    in_training: int = 0

    @property
    def mispaired(self) -> int:
        """Number of rows without text on a side, such as the last lines of the longer of two text files."""
        return self.missing_source + self.missing_target

    @property
    def rows(self) -> int:
        """Number of all rows read."""
        return sum(asdict(self).values()) - self.truncated - self.in_training

    @property
    def left_out(self) -> int:
        """Number of rows that are not used."""
        return self.rows - self.kept

    def reset(self) -> None:
        """Reset all counts for a new pass over the rows."""
        for count in fields(self):
            setattr(self, count.name, 0)

    def count(self, problem: str, rows: int = 1) -> None:
        """Add to the field that counts a problem, such as `empty`."""
        setattr(self, problem, getattr(self, problem) + rows)

    def leave_out(self, problem: str, count: int) -> None:
        """Move rows from `kept` to the field that counts a problem, such as `over_long`."""
        self.kept -= count
        self.count(problem, count)

    @property
    def lacks(self) -> str | None:
        """What some rows lack for training, "labels" or "answers"; None if they lack neither."""
        if self.missing_label:
            return "labels"
        return "answers" if self.missing_answers else None

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self, used: str = "") -> str:
        """Return the counts in words; `used` says how the kept rows are used."""
        sources, targets = self.rows - self.missing_source, self.rows - self.missing_target
        counts = {
            "empty": self.empty,
            "over-long": self.over_long,
            "not UTF-8": self.not_utf8,
            "malformed": self.malformed,
            f"mispaired ({sources:,} sources, {targets:,} targets)": self.mispaired,
            "without text": self.missing_text,
            "without label": self.missing_label,
            "without answers": self.missing_answers,
        }
        problems = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        cut = f", {self.truncated:,} of them cut off" if self.truncated else ""
        left_out = f"; left out: {problems}" if problems else ""
        seen = f"; also in the training split: {self.in_training:,}" if self.in_training else ""
        return f"kept {self.kept:,} of {self.rows:,} rows{cut}{used}{left_out}{seen}"
