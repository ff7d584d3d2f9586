"""The corpus of dates, against Babel's own formatting and against its two rules."""

import datetime
import os
import random
import re
import subprocess
import sys
import unicodedata
from collections import defaultdict

import babel
import pytest
from babel import localedata
from babel.dates import format_date
from datasets import DatasetDict

from vaswani.data.sources.dates import (
    DATE_FORMATS,
    DEFAULT_LOCALES,
    FIRST_DAY,
    LAST_DAY,
    DateWriter,
    ambiguous_texts,
    available_locales,
    describe_dates,
    generate_dates,
    normalize,
)
from vaswani.errors import UserError

SMALL = {"train_rows": 600, "validation_rows": 60, "test_rows": 60}


def rows_of(dates: DatasetDict) -> list[dict[str, str]]:
    return [row for split in dates.values() for row in split]


def babel_texts(day: datetime.date, locale: str) -> set[str]:
    return {normalize(format_date(day, date_format, locale)) for date_format in DATE_FORMATS}


@pytest.fixture(scope="module")
def default_dates() -> DatasetDict:
    return generate_dates(train_rows=3000, validation_rows=300, test_rows=300)


# --- Babel is the reference -----------------------------------------------------------------------


def test_every_locale_writes_as_babel_does():
    generator = random.Random(1)
    for locale in localedata.locale_identifiers():
        for date_format in DATE_FORMATS:
            day = FIRST_DAY + datetime.timedelta(generator.randrange((LAST_DAY - FIRST_DAY).days))
            expected = normalize(format_date(day, date_format, locale))
            assert DateWriter.from_babel(locale, date_format).write(day) == expected, (locale, date_format)


def test_rows_say_what_babel_says(default_dates):
    for row in rows_of(default_dates):
        day = datetime.date.fromisoformat(row["target"])
        assert FIRST_DAY <= day <= LAST_DAY
        assert row["source"] in babel_texts(day, row["locale"])


def test_every_format_occurs(default_dates):
    used = set()
    for row in default_dates["train"]:
        day = datetime.date.fromisoformat(row["target"])
        texts = [normalize(format_date(day, date_format, row["locale"])) for date_format in DATE_FORMATS]
        if len(set(texts)) == len(texts):
            used.add(DATE_FORMATS[texts.index(row["source"])])
    assert used == set(DATE_FORMATS)


def test_texts_are_normalised(default_dates):
    day = datetime.date(1999, 1, 27)
    raw = format_date(day, "medium", "ar") + format_date(day, "long", "ru")
    assert "\u200f" in raw  # so there is something to strip
    assert "\u202f" in raw  # and something that NFKC changes
    for row in rows_of(default_dates):
        assert row["source"] == unicodedata.normalize("NFKC", row["source"])
        assert not re.search("[\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]", row["source"])


# --- the locales ----------------------------------------------------------------------------------


def test_the_default_has_forty_languages_or_more(default_dates):
    languages = {locale.partition("_")[0] for locale in DEFAULT_LOCALES}
    assert len(languages) >= 40
    assert len(languages) == len(DEFAULT_LOCALES)
    assert set(default_dates["train"]["locale"]) == set(DEFAULT_LOCALES)


def test_available_locales_are_those_with_ascii_digits():
    available = set(available_locales())
    assert available >= set(DEFAULT_LOCALES)
    days = [datetime.date(1999, month, 10 + month) for month in range(1, 13)]
    for locale in localedata.locale_identifiers():
        text = "".join(text for day in days for text in babel_texts(day, locale))
        has_other_digits = any(character.isdecimal() and not character.isascii() for character in text)
        assert (locale not in available) == has_other_digits, locale
    assert {"bo", "dz"}.isdisjoint(available)  # Tibetan digits in the names of the months


def test_a_writer_without_a_gregorian_year_is_not_legible():
    writer = DateWriter.from_babel("en", "long")
    assert writer.is_legible
    buddhist = DateWriter(writer.template.replace("{year}", "2542"), writer.months, writer.days, ())
    assert not buddhist.is_legible


@pytest.mark.slow
def test_all_locales_on_request():
    dates = generate_dates("all", train_rows=1200, validation_rows=0, test_rows=0)
    locales = set(dates["train"]["locale"])
    assert len(locales) > 1000
    assert locales <= set(available_locales())
    assert len(dates["validation"]) == 0
    assert dates["validation"].column_names == ["source", "target", "locale"]


@pytest.mark.parametrize(
    ("locales", "expected"),
    [
        (["de", "en", "de"], {"de", "en"}),
        ("pt-br, en", {"pt_BR", "en"}),
        (["zh-TW"], {"zh_Hant_TW"}),
    ],
)
def test_names_of_locales(locales, expected):
    assert set(generate_dates(locales, **SMALL)["train"]["locale"]) == expected


@pytest.mark.parametrize(
    ("locales", "parts"),
    [
        (["german"], ["'german'", "did you mean 'de'"]),
        (["en", "englsh"], ["'englsh'", "'en'"]),
        ("xx", ["unknown locale 'xx'"]),
        ("", ["unknown locale ''"]),
        ([], ["no locales"]),
        ([False], ["unknown locale False"]),  # what YAML makes of Norwegian's `no`
        (["dz"], ["'dz'", "digits 0 to 9"]),
    ],
)
def test_an_unsupported_locale_raises_an_error(locales, parts):
    with pytest.raises(UserError) as error:
        generate_dates(locales, **SMALL)
    assert all(part in str(error.value) for part in parts), error.value
    assert "\n" not in str(error.value)


def test_locales_take_turns():
    locales = generate_dates(["fr", "ja", "hi"], **SMALL)["test"]["locale"]
    assert list(locales) == ["fr", "ja", "hi"] * 20


# --- rule 1: no text that can be read as two days -------------------------------------------------


def test_a_text_of_two_days_is_left_out():
    """30 Kas is November in Turkish (tr) and May in Taita (dav)."""
    alone = generate_dates(["tr"], **SMALL)
    together = generate_dates(["tr", "dav"], **SMALL)
    assert any(" Kas " in row["source"] for row in rows_of(alone))
    assert not any(" Kas " in row["source"] for row in rows_of(together))
    assert any(" Kasım " in row["source"] for row in rows_of(together))


def test_ambiguous_texts_equal_those_of_an_exhaustive_search():
    locales = ["tr", "dav", "teo", "id", "st", "es_PA", "en_GB", "ar", "he"]
    writers = [
        DateWriter.from_babel(locale, date_format) for locale in locales for date_format in DATE_FORMATS
    ]
    year = 2024
    days_of_text = defaultdict(set)
    for number in range(366):
        day = datetime.date(year, 1, 1) + datetime.timedelta(number)
        for locale in locales:
            for text in babel_texts(day, locale):
                days_of_text[text].add(day)
    expected = {text for text, days in days_of_text.items() if len(days) > 1}
    assert {"30 Kas 2024", "05/06/2024"} <= expected
    assert {text.replace("YYYY", str(year)) for text in ambiguous_texts(writers)} == expected
    for row in rows_of(generate_dates(locales, train_rows=5000, validation_rows=500, test_rows=500)):
        assert row["source"].replace(row["target"][:4], str(year)) not in expected


def test_numbers_that_can_be_exchanged_are_left_out():
    """Year-last dates in numbers alone survive only where day and month cannot be taken for each other."""
    numeric = re.compile(r"(\d{1,2})\D{1,2}(\d{1,2})\D{1,2}\d{4}\D*")
    dates = generate_dates(["ar", "de", "cs", "fi"], train_rows=4000, validation_rows=0, test_rows=0)
    pairs = [match.groups() for row in rows_of(dates) if (match := numeric.fullmatch(row["source"]))]
    assert len(pairs) > 500
    assert all(int(day) > 12 or int(day) == int(month) for day, month in pairs)
    assert any(int(day) == int(month) for day, month in pairs)


@pytest.mark.parametrize(
    ("locale", "left_out"),
    [
        ("ar", True),  # 05/06/1999
        ("es_PR", True),  # 06/05/1999, month first
        ("ja", False),  # 1999/06/05
        ("lt", False),  # 1999-06-05
        ("vi", False),  # 5 thg 6, 1999: the month says that it is one
        ("fr", False),  # 5 juin 1999
    ],
)
def test_only_year_last_numbers_can_be_exchanged(locale, left_out):
    writer = DateWriter.from_babel(locale, "medium")
    assert writer.allows_exchange(datetime.date(1999, 6, 5)) is left_out
    assert not writer.allows_exchange(datetime.date(1999, 6, 6))
    assert not writer.allows_exchange(datetime.date(1999, 6, 13))


# --- rule 2: a day belongs to one split -----------------------------------------------------------


def test_splits_share_no_day_and_no_text(default_dates):
    for column in ("target", "source"):
        train, validation, test = (set(default_dates[split][column]) for split in default_dates)
        assert train.isdisjoint(validation)
        assert train.isdisjoint(test)
        assert validation.isdisjoint(test)


def test_held_out_days_are_never_trained_on_in_any_locale():
    held_out = set(generate_dates(["en"], train_rows=0, validation_rows=0, test_rows=3000)["test"]["target"])
    trained = set(
        generate_dates(["de"], train_rows=30_000, validation_rows=0, test_rows=0)["train"]["target"]
    )
    assert held_out.isdisjoint(trained)


def test_the_seed_decides_which_days_are_held_out():
    def held_out(seed: int) -> set[str]:
        dates = generate_dates(["en"], seed, train_rows=0, validation_rows=0, test_rows=3000)
        return set(dates["test"]["target"])

    assert len(held_out(0) & held_out(1)) < 0.2 * len(held_out(0))


# --- a pure function ------------------------------------------------------------------------------


@pytest.mark.process
def test_the_same_arguments_give_the_same_rows_in_every_process():
    program = (
        "from vaswani.data.sources.dates import *;"
        f"print(describe_dates(generate_dates(['tr', 'dav', 'ko'], 3, **{SMALL}))['sha256'])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    other = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert other.stdout.strip() == describe_dates(generate_dates(["tr", "dav", "ko"], 3, **SMALL))["sha256"]


def test_the_global_random_state_is_neither_used_nor_changed():
    random.seed(0)
    before = random.getstate()
    first = describe_dates(generate_dates(["en"], **SMALL))
    assert random.getstate() == before
    random.seed(1)
    assert describe_dates(generate_dates(["en"], **SMALL)) == first


def test_the_size_of_one_split_does_not_change_another():
    small = generate_dates(["en", "de"], **SMALL)
    large = generate_dates(["en", "de"], **{**SMALL, "train_rows": 900})
    assert large["test"].to_dict() == small["test"].to_dict()
    assert large["train"].select(range(600)).to_dict() == small["train"].to_dict()


def test_description():
    dates = generate_dates(["fr", "de"], **SMALL)
    description = describe_dates(dates)
    assert description["babel_version"] == babel.__version__
    assert description["locales"] == ["de", "fr"]
    assert description["rows"] == {"train": 600, "validation": 60, "test": 60}

    def change_one(row: dict[str, str], index: int) -> dict[str, str]:
        return {"source": row["source"] + "." if index == 5 else row["source"]}

    changed = DatasetDict({**dates, "test": dates["test"].map(change_one, with_indices=True)})
    assert describe_dates(changed)["sha256"] != description["sha256"]
