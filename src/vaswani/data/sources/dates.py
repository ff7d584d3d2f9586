"""The default corpus: dates in 55 languages and in ISO 8601.

A row is, for example, `mercredi 27 janvier 1999` and `1999-01-27`. The sources follow the Unicode CLDR
locale data inside Babel, so the corpus needs no download. It is a pure function of its arguments and of the
Babel version; `describe_dates` returns that version and a hash of all rows.

Two rules keep the targets right:

1. A text that can mean two days is left out. Either two locales write different days the same way
   (`30 Kas 1999` is in November in Turkish and in May in Taita), or day and month are numbers, the year is
   last, and swapping the numbers gives another day (`05/06/1999`; but `27/01/1999`, `05/05/1999` and
   `1999/06/05` stay).
2. A day belongs to one split, so no day of the validation and test splits occurs in training.
"""

from __future__ import annotations

import datetime
import difflib
import hashlib
import random
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import cycle, islice
from typing import Literal, get_args

import babel
import pyarrow as pa
from babel import Locale, UnknownLocaleError, localedata
from babel.dates import format_date, get_date_format, tokenize_pattern
from datasets import Dataset, DatasetDict

from vaswani.errors import UserError

DateFormat = Literal["full", "long", "medium"]  # CLDR's "short" often leaves out the century
DATE_FORMATS: tuple[DateFormat, ...] = get_args(DateFormat)
FIRST_DAY = datetime.date(1900, 1, 1)
LAST_DAY = datetime.date(2099, 12, 31)

# One locale for each widely written language.
DEFAULT_LOCALES = (
    *("am", "ar", "az", "bg", "bn", "ca", "cs", "da", "de", "el", "en", "es", "fa", "fi"),
    *("fil", "fr", "gu", "ha", "he", "hi", "hu", "id", "it", "ja", "jv", "kk", "km", "kn"),
    *("ko", "ml", "mr", "ms", "my", "nb", "ne", "nl", "pa", "pl", "pt", "ro", "ru", "sk"),
    *("sr", "sv", "sw", "ta", "te", "th", "tr", "uk", "ur", "uz", "vi", "yo", "zh"),
)

# The part of a date that each letter of a CLDR pattern writes.
_PARTS = {"G": "era", "y": "year", "M": "month", "L": "month", "d": "day", "E": "weekday", "c": "weekday"}

# Days that show every word of a locale: its one era, twelve months, 31 days, seven weekdays (from a Monday).
_EXAMPLES = {
    "era": [datetime.date(2001, 1, 1)],
    "month": [datetime.date(2001, month, 1) for month in range(1, 13)],
    "day": [datetime.date(2001, 1, day) for day in range(1, 32)],
    "weekday": [datetime.date(2001, 1, day) for day in range(1, 8)],
}
_DIRECTIONAL_MARKS = re.compile("[\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]")
_NON_ASCII_DIGIT = re.compile(r"[^\D0-9]")
_SCHEMA = pa.schema([("source", pa.string()), ("target", pa.string()), ("locale", pa.string())])
_ANY_YEAR = "YYYY"  # replaces the year when only the rest of a text matters


def normalize(text: str) -> str:
    """Return a text in NFKC without directional marks."""
    return _DIRECTIONAL_MARKS.sub("", unicodedata.normalize("NFKC", text))


@dataclass(frozen=True)
class DateWriter:
    """Writes the dates of a locale in one format, from a template and the words that fill it.

    This is about twenty times as fast as formatting with Babel.
    """

    template: str  # for example "{weekday}, {day} {month} {year}"
    months: tuple[str, ...]  # 12, from January
    days: tuple[str, ...]  # 31
    weekdays: tuple[str, ...]  # 7, from Monday; empty when the format names no weekday

    @classmethod
    def from_babel(cls, locale: str, date_format: DateFormat) -> DateWriter:
        """Read the CLDR pattern of `date_format` and its words from Babel."""
        babel_locale = Locale.parse(locale)
        template = ""
        words: dict[str, tuple[str, ...]] = {}
        for _, piece in tokenize_pattern(get_date_format(date_format, babel_locale).pattern):
            if isinstance(piece, str):
                template += normalize(piece).replace("{", "{{").replace("}", "}}")
                continue
            letter, width = piece
            part = _PARTS[letter]
            template += f"{{{part}}}"
            if part != "year":
                pattern = letter * width
                written = (format_date(day, pattern, babel_locale) for day in _EXAMPLES[part])
                words[part] = tuple(normalize(text) for text in written)
        template = template.replace("{era}", "".join(words.get("era", ())))
        return cls(template, words["month"], words["day"], words.get("weekday", ()))

    def write(self, day: datetime.date, year: str = "") -> str:
        """Return the normalized text of `day`; `year`, if given, replaces its year."""
        return self.template.format(
            year=year or day.year,
            month=self.months[day.month - 1],
            day=self.days[day.day - 1],
            weekday=self.weekdays and self.weekdays[day.weekday()],
        )

    @property
    def is_legible(self) -> bool:
        """True if year and day are Gregorian numbers in the digits 0 to 9."""
        for month in range(1, 13):
            day = datetime.date(1999, month, 12 + month)  # the days 13 to 24, and every weekday
            text = self.write(day)
            numbers = [int(number) for number in re.findall(r"\d+", text)]
            if _NON_ASCII_DIGIT.search(text) or numbers.count(day.year) != 1 or day.day not in numbers:
                return False
        return True

    @cached_property
    def is_numeric_with_year_last(self) -> bool:
        """True if the month is a number and comes before the year."""
        month_is_a_number = not any(character.isalpha() for character in self.months[0])
        return month_is_a_number and self.template.index("{month}") < self.template.index("{year}")

    def allows_exchange(self, day: datetime.date) -> bool:
        """Return True if swapping the numbers of day and month gives another day."""
        return self.is_numeric_with_year_last and day.day <= 12 and day.day != day.month


def ambiguous_texts(writers: Iterable[DateWriter]) -> set[str]:
    """Return the texts, with "YYYY" for the year, that the writers use for different days of a year.

    A legible text contains its year, so texts of different years are never equal.
    """
    day_of_text: dict[str, tuple[int, int]] = {}
    ambiguous = set()
    for writer in dict.fromkeys(writers):  # most regional locales write dates as their language does
        # Seven leap years in a row give every day of the year every weekday.
        for year in range(2000, 2028, 4) if writer.weekdays else [2000]:
            for day in _days(datetime.date(year, 1, 1), datetime.date(year, 12, 31)):
                text = writer.write(day, year=_ANY_YEAR)
                if day_of_text.setdefault(text, (day.month, day.day)) != (day.month, day.day):
                    ambiguous.add(text)
    return ambiguous


def available_locales() -> tuple[str, ...]:
    """Return all locales with a Gregorian calendar and ASCII digits (takes seconds)."""
    names = sorted(localedata.locale_identifiers())
    return tuple(name for name in names if all(writer.is_legible for writer in _writers(name)))


def generate_dates(
    locales: Sequence[str] | str | None = None,
    seed: int = 0,
    *,
    train_rows: int = 200_000,
    validation_rows: int = 2_000,
    test_rows: int = 5_000,
) -> DatasetDict:
    """Generate the corpus of dates.

    Each split cycles through the locales and draws random formats and days, so all locales have the same
    share, except for ambiguous texts, which are left out. Uses only its own random generator.

    Args:
        locales: names as in Babel (`"de"`, `"pt_BR"`), in a list or separated by commas; `"all"` for
            `available_locales`; None for `DEFAULT_LOCALES`.
        seed: selects the held-out days and the rows.
        train_rows: rows of the training split (the sizes of the other splits do not change its rows).
        validation_rows: rows of the validation split.
        test_rows: rows of the test split.

    Returns:
        The splits `train`, `validation` and `test` with the text columns `source`, `target` and `locale`.

    Raises:
        UserError: a locale is unknown or does not use ASCII digits.
    """
    writers = {name: _writers(name) for name in _resolve_locales(locales)}
    ambiguous = ambiguous_texts(writer for group in writers.values() for writer in group)
    days = _split_days(seed)
    splits = {}
    for split, size in [("train", train_rows), ("validation", validation_rows), ("test", test_rows)]:
        rows = _draw_rows(writers, ambiguous, days[split], random.Random(f"{seed}/{split}"))
        splits[split] = Dataset(pa.Table.from_pylist(list(islice(rows, size)), schema=_SCHEMA))
    return DatasetDict(splits)


def describe_dates(dates: DatasetDict) -> dict[str, object]:
    """Return the origin, licence, locales, sizes and SHA-256 hash of a corpus from `generate_dates`."""
    digest = hashlib.sha256()
    locales: set[str] = set()
    for split, rows in dates.items():
        columns = rows.to_dict()
        for row in zip(columns["locale"], columns["source"], columns["target"], strict=True):
            digest.update("\t".join((split, *row)).encode() + b"\n")
        locales.update(columns["locale"])
    return {
        "source": f"https://cldr.unicode.org, the locale data inside Babel {babel.__version__}; generated",
        "license": "Unicode-3.0",
        "babel_version": babel.__version__,
        "sha256": digest.hexdigest(),
        "locales": sorted(locales),
        "rows": {split: len(rows) for split, rows in dates.items()},
    }


@cache
def _writers(locale: str) -> tuple[DateWriter, ...]:
    return tuple(DateWriter.from_babel(locale, date_format) for date_format in DATE_FORMATS)


def _days(first: datetime.date, last: datetime.date) -> Iterator[datetime.date]:
    for ordinal in range(first.toordinal(), last.toordinal() + 1):
        yield datetime.date.fromordinal(ordinal)


def _split_days(seed: int) -> dict[str, list[datetime.date]]:
    """Assign each day to a split by a hash of seed and day, in a ratio of 18 : 1 : 1."""
    days: dict[str, list[datetime.date]] = {"train": [], "validation": [], "test": []}
    for day in _days(FIRST_DAY, LAST_DAY):
        remainder = int(hashlib.sha256(f"{seed}/{day}".encode()).hexdigest(), 16) % 20
        days[{0: "validation", 1: "test"}.get(remainder, "train")].append(day)
    return days


def _draw_rows(
    writers: dict[str, tuple[DateWriter, ...]],
    ambiguous: set[str],
    days: Sequence[datetime.date],
    generator: random.Random,
) -> Iterator[dict[str, str]]:
    """Yield rows forever."""
    for locale in cycle(writers):
        # Only random() gives the same numbers in every Python version.
        writer = writers[locale][int(generator.random() * len(writers[locale]))]
        day = days[int(generator.random() * len(days))]
        if not writer.allows_exchange(day) and writer.write(day, year=_ANY_YEAR) not in ambiguous:
            yield {"source": writer.write(day), "target": day.isoformat(), "locale": locale}


def _resolve_locales(locales: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return the canonical names of the locales asked for, each once."""
    if locales is None:
        return DEFAULT_LOCALES
    if locales == "all":
        return available_locales()
    names = locales.split(",") if isinstance(locales, str) else locales
    resolved = tuple(dict.fromkeys(_canonical_name(name) for name in names))
    if not resolved:
        raise UserError(
            "no locales given; give at least one, such as 'en', or 'all', or leave the option out"
        )
    for name in resolved:
        if not all(writer.is_legible for writer in _writers(name)):
            raise UserError(
                f"locale {name!r} does not write its dates in the digits 0 to 9; choose another locale"
            )
    return resolved


def _canonical_name(name: str) -> str:
    known = localedata.locale_identifiers()
    try:
        canonical = str(Locale.parse(str(name).strip().replace("-", "_")))  # "zh-TW" is "zh_Hant_TW"
    except (ValueError, UnknownLocaleError):
        canonical = ""
    if canonical in known:
        return canonical
    # Suggest by the English name as well: "german" is closer to "German" than to "de".
    codes = {code.lower(): code for code in known}
    codes |= {language.lower(): code for code, language in Locale("en").languages.items() if code in known}
    near = difflib.get_close_matches(str(name).strip().lower(), codes, n=3, cutoff=0.7)
    suggestion = f"; did you mean {' or '.join(repr(codes[match]) for match in near)}?" if near else ""
    raise UserError(
        f"unknown locale {name!r}{suggestion} (names are as in 'de' or 'pt_BR'; 'all' takes every one)"
    )
