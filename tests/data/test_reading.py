"""Rows read from each file format, from clean and from damaged files."""

import csv
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vaswani.data.sources import reading
from vaswani.data.sources.reading import problem_of, read_text_pair, table_format
from vaswani.errors import UserError

PAIRS = [("Two men.", "Zwei Männer."), ('He said "no"', "„Nein“"), ("007", "NA"), ("null", "1.0")]

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
texts_for_csv = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
same_folder = settings(
    max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


def rows_of(path, source="source", target="target"):
    return list(table_format(path).rows(path, source, target))


def write(path, content):
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def jsonl(rows):
    return "".join(json.dumps({"source": s, "target": t}, ensure_ascii=False) + "\n" for s, t in rows)


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("source", "target"), *rows])
    return path


def parquet_of_bytes(path, sources, targets):
    """A Parquet file whose text columns hold these bytes, checked by nobody."""
    columns = []
    for cells in (sources, targets):
        binary = pa.array(cells, pa.binary())
        columns.append(pa.Array.from_buffers(pa.string(), len(cells), binary.buffers()))
    pq.write_table(pa.table(columns, names=["source", "target"]), path)
    return path


class TestProblems:
    @pytest.mark.parametrize(
        ("row", "problem"),
        [
            (("a", "b"), None),
            (("a\u3000", "Ω"), None),
            (None, "malformed"),
            ((None, "b"), "missing_source"),
            (("a", None), "missing_target"),
            ((5, "b"), "missing_source"),
            (("a", {"de": "b"}), "missing_target"),
            (("a\udcff", "b"), "not_utf8"),
            (("", "b"), "empty"),
            (("a", " \t\u3000\x85"), "empty"),
        ],
    )
    def test_the_problem_of_each_row_is_found(self, row, problem):
        assert problem_of(row) == problem


class TestJsonLines:
    @given(rows=st.lists(st.tuples(texts, texts)))
    @same_folder
    def test_gives_back_any_text(self, rows, tmp_path):
        assert rows_of(write(tmp_path / "a.jsonl", jsonl(rows))) == rows

    def test_bad_rows_do_not_touch_their_neighbours(self, tmp_path):
        lines = [
            b'{"source": "a", "target": "b"}',
            b'{"source": "\xff", "target": "b"}',
            b'{"source": "a", "target":',
            b'{"source": "\\ud800", "target": "b"}',
            b'["a", "b"]',
            b"[" * 100_000,
            b"",
            b'{"source": null, "target": "b"}',
            b'{"source": "a", "target": 5}',
            b'{"source": "a"}',
            b'{"source": "c", "target": "d"}',  # and no newline at the end
        ]
        rows = rows_of(write(tmp_path / "a.jsonl", b"\n".join(lines)))
        assert [problem_of(row) for row in rows] == [
            None,
            "not_utf8",
            "malformed",
            "not_utf8",
            "malformed",
            "malformed",
            "empty",
            "missing_source",
            "missing_target",
            "missing_target",
            None,
        ]
        assert rows[-1] == ("c", "d")

    def test_a_bad_byte_in_an_unused_field_is_ignored(self, tmp_path):
        path = write(tmp_path / "a.jsonl", b'{"source": "a", "note": "\xff", "target": "b"}\n')
        assert rows_of(path) == [("a", "b")]

    def test_byte_order_mark_carriage_returns_and_line_separators(self, tmp_path):
        content = '\ufeff{"source": "a\u2028b\x85c", "target": "d"}\r\n{"source": "e", "target": "f"}'
        assert rows_of(write(tmp_path / "a.jsonl", content)) == [("a\u2028b\x85c", "d"), ("e", "f")]

    def test_dots_reach_into_nested_fields_unless_a_name_holds_the_dot(self, tmp_path):
        content = '{"t": {"en": "a", "de": "b"}, "t.en": "c"}\n{"t": "x"}\n{"t": null, "t.en": "c"}\n'
        path = write(tmp_path / "a.jsonl", content)
        assert rows_of(path, "t.en", "t.de") == [("c", "b"), (None, None), ("c", None)]
        assert table_format(path).fields(path) == ["t.en", "t.de", "t"]


class TestJson:
    def test_one_array_or_lines(self, tmp_path):
        array = json.dumps([{"source": s, "target": t} for s, t in PAIRS] + [None], indent=1)
        assert rows_of(write(tmp_path / "a.json", "\n " + array)) == [*PAIRS, None]
        assert rows_of(write(tmp_path / "b.json", jsonl(PAIRS))) == PAIRS

    def test_a_broken_array_is_one_clear_error(self, tmp_path):
        path = write(tmp_path / "a.json", '[{"source": "a", "target": "b"},')
        with pytest.raises(UserError, match=r"a\.json begins a JSON array but is not valid JSON.*line 1"):
            rows_of(path)


class TestCsv:
    @given(rows=st.lists(st.tuples(texts_for_csv, texts_for_csv)))
    @same_folder
    def test_gives_back_any_text(self, rows, tmp_path):
        """Commas, quotes, line ends inside cells: whatever Python's writer quotes."""
        assert rows_of(write_csv(tmp_path / "a.csv", rows)) == rows

    def test_words_and_numbers_stay_text(self, tmp_path):
        content = "source,target\nNA,null\n007,1.0\nNone,nan\n"
        assert rows_of(write(tmp_path / "a.csv", content)) == [
            ("NA", "null"),
            ("007", "1.0"),
            ("None", "nan"),
        ]

    def test_rows_with_broken_quotes_or_a_wrong_cell_count_are_malformed(self, tmp_path):
        content = (
            'source,target\r\n"Hi" he said,x\r\nhe said "Hi",y\r\na,b,c\r\nonly\r\n\r\n"open,z\r\nlast,w\r\n'
        )
        rows = rows_of(write(tmp_path / "a.csv", "\ufeff" + content))
        # The quote that is never closed takes the two last lines with it: both are counted.
        assert rows == [None, ('he said "Hi"', "y"), None, ("only", None), ("", ""), None, None]

    def test_an_unquoted_carriage_return_does_not_split_a_row(self, tmp_path):
        content = 'target,source\nBonjour tout le monde,Hello\reverybody\nfoo,"b\rc"\nx,y\n'
        rows = rows_of(write(tmp_path / "a.csv", content))
        assert rows == [None, ("b\rc", "foo"), ("y", "x")]

    def test_lines_that_end_as_on_old_macs(self, tmp_path):
        assert rows_of(write(tmp_path / "a.csv", "source,target\ra,b\rc,d\r")) == [("a", "b"), ("c", "d")]

    @pytest.mark.parametrize("separator", [";", "\t"])
    def test_other_separators_if_the_header_has_no_comma(self, separator, tmp_path):
        content = f'\nsource{separator}"target"\n"a, b; c",d\n1,5{separator}"x""y{separator}\nz"\n'
        rows = rows_of(write(tmp_path / "a.csv", content.replace('c",d', f'c"{separator}d')))
        assert rows == [("a, b; c", "d"), ("1,5", f'x"y{separator}\nz')]

    def test_a_comma_in_the_header_is_the_separator(self, tmp_path):
        rows = rows_of(write(tmp_path / "a.csv", "source,target,a;b\nx;y,z,1\n"))
        assert rows == [("x;y", "z")]

    def test_a_missing_cell_of_three_columns_does_not_shift_the_others(self, tmp_path):
        content = "id,source,target\n1,a,b\n2 c,d\n3\n"
        rows = rows_of(write(tmp_path / "a.csv", content))
        assert [problem_of(row) for row in rows] == [None, "missing_target", "missing_source"]

    def test_a_bad_byte_costs_its_row(self, tmp_path):
        rows = rows_of(write(tmp_path / "a.csv", b"source,target\na,b\n\xff,d\ne,f\n"))
        assert [problem_of(row) for row in rows] == [None, "not_utf8", None]

    def test_long_cells(self, tmp_path):
        rows = [("long " * 100_000, "x")]
        assert rows_of(write_csv(tmp_path / "a.csv", rows)) == rows


class TestTsv:
    @given(rows=st.lists(st.tuples(texts, texts)))
    @same_folder
    def test_gives_back_any_text_that_a_cell_can_hold(self, rows, tmp_path):
        table = str.maketrans("\t\n\r", "   ")
        rows = [(s.translate(table), t.translate(table)) for s, t in rows]
        content = "".join(f"{s}\t{t}\n" for s, t in [("source", "target"), *rows])
        assert rows_of(write(tmp_path / "a.tsv", content)) == rows

    def test_quotes_are_text(self, tmp_path):
        content = 'source\ttarget\n"Hi" he said\tx\n"open\ty\nlast\tz'
        rows = [('"Hi" he said', "x"), ('"open', "y"), ("last", "z")]
        assert rows_of(write(tmp_path / "a.tsv", content)) == rows

    def test_wrong_number_of_cells(self, tmp_path):
        rows = rows_of(write(tmp_path / "a.tsv", "\nsource\ttarget\r\na\tb\tc\r\nonly\r\n\r\na\tb\r\n"))
        assert rows == [None, ("only", None), ("", ""), ("a", "b")]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "csv.gz", "tsv.gz", "jsonl.gz"])
def test_files_with_the_line_ends_of_old_macs(tmp_path, ending):
    separator = "\t" if "tsv" in ending else ","
    content = jsonl(PAIRS[2:])
    if "json" not in ending:
        content = "".join(separator.join(row) + "\n" for row in [("source", "target"), *PAIRS[2:]])
    path = write(tmp_path / f"a.{ending}", content.replace("\n", "\r"))
    assert rows_of(path) == PAIRS[2:]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "json", "csv.gz", "tsv.gz", "jsonl.gz"])
def test_an_overlong_line_raises_an_error_before_it_fills_memory(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(reading, "LONGEST_ROW", 100)
    row = ("a" * 60, "b" * 60)
    separator = "\t" if "tsv" in ending else ","
    if "json" in ending:
        content = jsonl([("a", "b"), row])
    else:
        content = "\n".join(separator.join(each) for each in [("source", "target"), row])
    path = write(tmp_path / f"a.{ending}", content)
    with pytest.raises(UserError, match=rf"line 2 of {path} has more than 100 characters; expected a line"):
        rows_of(path)
    monkeypatch.setattr(reading, "LONGEST_ROW", 200)
    assert rows_of(path)[-1] == row


class TestTextPair:
    def test_line_ends_of_old_macs(self, tmp_path):
        assert self.read(tmp_path, "a\rb\r", "c\nd\n") == [("a", "c"), ("b", "d")]

    def read(self, tmp_path, source, target):
        return list(read_text_pair(write(tmp_path / "a.en", source), write(tmp_path / "a.de", target)))

    @given(rows=st.lists(st.tuples(texts, texts)))
    @same_folder
    def test_only_newlines_end_lines(self, rows, tmp_path):
        """U+2028, U+0085, form feeds and lone carriage returns stay inside their lines."""
        rows = [(s.replace("\n", "").rstrip("\r"), t.replace("\n", "").rstrip("\r")) for s, t in rows]
        source, target = ("".join(row[side] + "\n" for row in rows) for side in (0, 1))
        if not source.startswith("\ufeff") and not target.startswith(
            "\ufeff"
        ):  # a byte order mark is no text
            assert self.read(tmp_path, source, target) == rows

    def test_line_separators_do_not_shift_a_side(self, tmp_path):
        source = "a\u2028b\x85c\x0cd\re\x1cf\nsecond\n"
        assert self.read(tmp_path, source, "x\ny\n") == [("a\u2028b\x85c\x0cd\re\x1cf", "x"), ("second", "y")]

    def test_crlf_byte_order_mark_and_a_last_line_without_end(self, tmp_path):
        assert self.read(tmp_path, "\ufeffa\r\nb\r\n", "x\ny") == [("a", "x"), ("b", "y")]

    def test_surplus_lines_of_the_longer_side_have_no_partner(self, tmp_path):
        assert self.read(tmp_path, "a\nb\nc\n", "x\n") == [("a", "x"), ("b", None), ("c", None)]

    def test_a_bad_byte_costs_its_row(self, tmp_path):
        rows = self.read(tmp_path, b"a\n\xff\xfeb\nc\n", "x\ny\nz\n")
        assert [problem_of(row) for row in rows] == [None, "not_utf8", None]

    def test_utf16_is_refused(self, tmp_path):
        with pytest.raises(UserError, match=r"a\.en is UTF-16"):
            self.read(tmp_path, "a\nb\n".encode("utf-16"), "x\ny\n")
        with pytest.raises(UserError, match=r"a\.en is UTF-16"):
            self.read(tmp_path, "one two\nthree\n".encode("utf-16-le"), "x\ny\n")


class TestParquet:
    @given(rows=st.lists(st.tuples(st.none() | texts, texts)))
    @same_folder
    def test_gives_back_any_text(self, rows, tmp_path):
        columns = {"source": [s for s, _ in rows], "target": [t for _, t in rows], "id": range(len(rows))}
        schema = pa.schema([("source", pa.string()), ("target", pa.string()), ("id", pa.int64())])
        pq.write_table(pa.table(columns, schema=schema), tmp_path / "a.parquet")
        assert rows_of(tmp_path / "a.parquet") == rows

    def test_a_bad_byte_costs_its_row(self, tmp_path):
        path = parquet_of_bytes(tmp_path / "a.parquet", [b"a", b"\xff", b"c"], [b"x", b"y", b"z"])
        assert [problem_of(row) for row in rows_of(path)] == [None, "not_utf8", None]

    def test_nested_dictionary_and_binary_columns(self, tmp_path):
        table = pa.table(
            {
                "t": pa.array([{"de": "b", "n": 1}, None, {"de": None, "n": 2}]),
                "t.en": pa.array(["a", "c", "e"]).dictionary_encode(),
                "raw": pa.array([b"x", b"\xff", b"z"], pa.binary()),
            }
        )
        path = tmp_path / "a.parquet"
        pq.write_table(table, path)
        assert rows_of(path, "t.en", "t.de") == [("a", "b"), ("c", None), ("e", None)]
        assert rows_of(path, "raw", "t.en") == [("x", "a"), ("\udcff", "c"), ("z", "e")]
        assert table_format(path).fields(path) == ["t.de", "t.n", "t.en", "raw"]

    def test_a_column_of_numbers_raises_an_error(self, tmp_path):
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({"source": ["a"], "target": [1]}), path)
        with pytest.raises(UserError, match=r"'target' of .*a\.parquet holds int64; expected a text field"):
            rows_of(path)

    def test_a_file_of_another_kind(self, tmp_path):
        path = write(tmp_path / "a.parquet", "not Parquet at all")
        with pytest.raises(UserError, match=r"a\.parquet is damaged or not a Parquet file"):
            table_format(path).fields(path)


class TestGzip:
    @pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "tsv"])
    def test_gives_the_same_rows(self, ending, tmp_path):
        content = {
            "jsonl": jsonl(PAIRS),
            "json": "[" + ",".join(jsonl(PAIRS).splitlines()) + "]",
            "csv": "source,target\na,b\n",
            "tsv": "source\ttarget\na\tb\n",
        }[ending]
        plain, packed = tmp_path / f"a.{ending}", tmp_path / f"a.{ending}.gz"
        assert rows_of(write(packed, content)) == rows_of(write(plain, content))

    def test_text_pair(self, tmp_path):
        paths = write(tmp_path / "a.en.gz", "a\nb\n"), write(tmp_path / "a.de", "x\ny\n")
        assert list(read_text_pair(*paths)) == [("a", "x"), ("b", "y")]

    @pytest.mark.parametrize("damage", ["cut short", "not gzip"])
    def test_damage_is_one_clear_error(self, damage, tmp_path):
        path = write(tmp_path / "a.jsonl.gz", jsonl(PAIRS * 1000))
        path.write_bytes(path.read_bytes()[:-50] if damage == "cut short" else b"plain text")
        with pytest.raises(UserError, match=r"a\.jsonl\.gz is damaged or not gzip"):
            rows_of(path)


@pytest.mark.parametrize("name", ["a.txt", "a", "a.parquet.gz", "a.xlsx", "jsonl"])
def test_unknown_endings(name, tmp_path):
    assert table_format(tmp_path / name) is None


def test_endings_in_capitals(tmp_path):
    assert rows_of(write(tmp_path / "A.TSV", "source\ttarget\na\tb\n")) == [("a", "b")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            '{"source": "a"}\n{"source": "b", "n": {"x": 1, "x": 2}}\n',
            r"line 2 of .*a\.jsonl: .*'x' more",
        ),
        (
            "a.json",
            '[{"source": "a", "target": "b", "source": "c"}]',
            r"a\.json: .* key 'source' more than once",
        ),
    ],
)
def test_a_repeated_key_is_named(name, content, message, tmp_path):
    path = write(tmp_path / name, content)
    with pytest.raises(UserError, match=message):
        rows_of(path)
    with pytest.raises(UserError, match=message):
        table_format(path).fields(path)
