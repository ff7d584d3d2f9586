"""Commands that read tables: the field of each row, in every format, and the rows with their results."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from every_command import save_models
from in_process import outcome
from vaswani.files.line_files import LONGEST_LINE
from vaswani.inference.embed.embedding import Embedder
from vaswani.inference.translate.torch_engine import TorchEngine
from vaswani.inference.translate.translation import Translator

ROWS = [
    {"id": "7", "text": "one two\nthree", "label": "é"},
    {"id": "007", "text": "", "label": "NA"},
    {"id": "9", "text": "four, five", "label": "c"},
]
SEARCH = ["--num_beams", "1", "--max_length", "6", "--device", "cpu"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def translator(models: Path) -> Translator:
    return Translator.from_pretrained(models / "translator", num_beams=1, max_length=6)


def write_table(folder: Path, ending: str, rows: list[dict[str, Any]] = ROWS) -> Path:
    """The rows in a format; without the line feeds that TSV cannot hold."""
    path = folder / f"rows{ending}"
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    opened = gzip.open if ending.endswith(".gz") else open
    with opened(path, "wt", encoding="utf-8", newline="") as file:
        if ending.startswith(".jsonl"):
            file.writelines(json.dumps(row) + "\n" for row in rows)
        elif ending.startswith(".json"):
            json.dump(rows, file)
        elif ending.startswith(".csv"):
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        else:
            cells = [list(rows[0]), *(list(row.values()) for row in rows)]
            file.writelines("\t".join(row).replace("\n", " ") + "\n" for row in cells)
    return path


def translate(capfd, models: Path, *arguments: object) -> tuple[int, str, str]:
    return outcome(capfd, "translate", "--model", models / "translator", *SEARCH, *arguments)


ENDINGS = [".jsonl", ".jsonl.gz", ".json", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_row_comes_back_with_its_translation(
    models: Path, translator: Translator, tmp_path: Path, capfd, ending: str
) -> None:
    rows = ROWS if "tsv" not in ending else [{**row, "text": row["text"].replace("\n", " ")} for row in ROWS]
    output = tmp_path / "out.jsonl"
    table = write_table(tmp_path, ending)
    status, stdout, errors = translate(
        capfd, models, "--input", table, "--source_field", "text", "--output", output
    )
    assert (status, stdout) == (0, ""), errors
    expected = [
        {**row, "translation": text}
        for row, text in zip(rows, translator([row["text"] for row in rows]), strict=True)
    ]
    assert [json.loads(line) for line in output.read_text().splitlines()] == expected
    assert "vaswani: translated 3 rows; 1 empty" in errors


def test_standard_input_is_json_lines_where_a_field_is_named(
    models: Path, tmp_path: Path, capfd, monkeypatch
) -> None:
    table = write_table(tmp_path, ".jsonl")
    expected = translate(capfd, models, "--input", table, "--source_field", "text")[1]
    for text, status, message in (
        (table.read_bytes(), 0, "translated 3 rows"),
        (b'{"id": 1}\n', 2, "line 1 of standard input has no field 'text'; it has 'id'"),
        (b'{"text": "one"}\n[1]\n', 2, "line 2 of standard input holds a JSON list; expected an object"),
        (b'{"text": "one"}\n{\n', 2, "line 2 of standard input is not JSON ("),
    ):
        (tmp_path / "stdin").write_bytes(text)
        with (tmp_path / "stdin").open() as stream:
            monkeypatch.setattr("sys.stdin", stream)
            found = translate(capfd, models, "--source_field", "text")
        assert found[0] == status
        assert message in found[2]
        if status == 0:
            assert found[1] == expected


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_each_row_can_have_its_own_prefix_and_phrases(
    models: Path, translator: Translator, tmp_path: Path, capfd, ending: str
) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "one two three", "begin": "9", "words": "4"},
        {"text": "four", "begin": "", "words": ""},
        {"text": "four", "begin": "7 7", "words": ""},
    ]
    if ending != ".csv":
        rows = [{**row, "words": [word for word in [row["words"], "5"] if word]} for row in rows]
    table = write_table(tmp_path, ending, rows)
    fields = ["--source_field", "text", "--prefix_field", "begin", "--require_field", "words"]
    status, output, errors = translate(capfd, models, "--input", table, *fields)
    assert status == 0, errors
    found = [json.loads(line)["translation"] for line in output.splitlines()]
    phrases = [[row["words"]] if ending == ".csv" else row["words"] for row in rows]
    required = [[phrase for phrase in each if phrase] for each in phrases]
    begins = [row["begin"] for row in rows]
    expected = translator.translate([row["text"] for row in rows], prefixes=begins, required=required)
    assert found == [translation.text for translation in expected]
    for text, begin, each in zip(found, begins, required, strict=True):
        assert text.startswith(begin)
        assert all(phrase in text for phrase in each)
    n_best = translate(capfd, models, "--input", table, *fields, "--scores")[1]
    assert [json.loads(line)["hypotheses"][0]["text"] for line in n_best.splitlines()] == found
    for wrong, message in (
        (["--prefix_field", "start"], "start"),
        (["--require_field", "phrases"], "phrases"),
    ):
        status, output, errors = translate(capfd, models, "--input", table, "--source_field", "text", *wrong)
        assert (status, output) == (2, "")
        assert message in errors
    (tmp_path / "in.txt").write_text("one\n")
    status, _, errors = translate(capfd, models, "--input", tmp_path / "in.txt", "--prefix_field", "begin")
    assert status == 2
    assert "--prefix_field begin is for tables" in errors


def test_output_fields_do_not_replace_existing_ones(models: Path, tmp_path: Path, capfd) -> None:
    rows = [{"translation": {"de": "one", "en": "two"}, "source": "one"}]
    table = write_table(tmp_path, ".jsonl", rows)
    status, _, errors = translate(capfd, models, "--input", table)
    assert status == 2
    assert f"line 1 of {table} has a field 'translation', which the output adds; choose ano" in errors
    _, output, _ = translate(capfd, models, "--input", table, "--output_field", "digits")
    assert json.loads(output).keys() == {"translation", "source", "digits"}
    nested = translate(capfd, models, "--input", table, "--source_field", "translation.de", "--scores")[1]
    record = json.loads(nested)
    assert record.keys() == {"translation", "source", "hypotheses"}
    assert record["hypotheses"][0]["text"] == json.loads(output)["digits"]


def test_a_translation_can_replace_a_field(models: Path, tmp_path: Path, capfd) -> None:
    rows = [{"en": "old", "de": "one two", "id": 1}, {"en": "old", "de": "two", "id": 2}]
    flags = ["--input", write_table(tmp_path, ".jsonl", rows), "--source_field", "de", "--output_field"]
    _, output, _ = translate(capfd, models, *flags, "en", "--replace")
    found = [json.loads(line) for line in output.splitlines()]
    _, output, _ = translate(capfd, models, *flags, "new")
    assert found == [
        {**row, "en": json.loads(line)["new"]} for row, line in zip(rows, output.splitlines(), strict=True)
    ]
    assert all(row["en"] != "old" for row in found)
    # Nested fields too.
    nested = [{"translation": {"en": row["en"], "de": row["de"]}} for row in rows]
    flags = ["--input", write_table(tmp_path, ".jsonl", nested), "--source_field", "translation.de"]
    _, _, errors = translate(capfd, models, *flags, "--output_field", "translation.en")
    assert "has a field 'translation.en', which the output adds" in errors
    _, output, _ = translate(capfd, models, *flags, "--output_field", "translation.en", "--replace")
    assert [json.loads(line) for line in output.splitlines()] == [
        {"translation": {"en": row["en"], "de": row["de"]}} for row in found
    ]
    flags = ["--input", write_table(tmp_path, ".jsonl", rows), "--source_field", "de", "--output_field"]
    (tmp_path / "in.txt").write_text("one\n")
    for wrong, message in (
        ([*flags, "en"], "which the output adds; choose another with --output_field, or --replace it"),
        ([*flags, "en", "--replace", "--scores"], "--replace replaces a field by one text, without scores"),
        (["--input", tmp_path / "in.txt", "--replace"], "--replace is for tables, and"),
        (["--input", tmp_path / "in.txt", "--output_field", "x"], "--output_field is for tables, and"),
        (
            [*flags, "x", "--scores"],
            "--output_field x has no effect with scores or alternatives; leave it out",
        ),
    ):
        status, output, errors = translate(capfd, models, *wrong)
        assert (status, output) == (2, "")
        assert message in errors


@pytest.mark.parametrize(
    ("name", "content", "flags", "message"),
    [
        ("a.jsonl", '{"b": "x", "c": {"d": "x"}}', [], "PATH has no field 'source'; it has 'b', 'c.d'"),
        ("a.csv", "a,b\n1,2\n", ["--source_field", "text"], "PATH has no field 'text'; it has 'a', 'b'"),
        ("a.csv", "a,a\n1,2\n", ["--source_field", "a"], "PATH has 2 fields 'a'; rename all but one"),
        ("a.jsonl", '{"source": "x"}\n\n{"source"', [], "line 3 of PATH is not JSON ("),
        ("a.jsonl", '{"source": "x"}\n"x"\n', [], "line 2 of PATH holds a JSON str; expected an object"),
        ("a.json", '[{"source": "x"}, 1]', [], "row 2 of PATH holds a JSON int; expected an object"),
        ("a.jsonl", '{"source": "x"}\n{"source": [1]}', [], "line 2 of PATH: field 'source' holds [1]; "),
        ("a.csv", 'source,b\n"x\ny",2\n1\n', [], "line 4 of PATH has 1 cells, and the header has 2"),
        ("a.csv", 'source,b\n"x"y,2\n', [], "line 2 of PATH has broken quotes; correct them"),
        ("a.tsv", "source\tb\nx\ty\tz\n", [], "line 2 of PATH has 3 cells, and the header has 2"),
        ("a.txt", "one\n", ["--source_field", "b"], "--source_field b is for tables, and PATH is read"),
        ("a.parquet", "one\n", [], "PATH is damaged or not a Parquet file"),
        ("a.jsonl.gz", "one\n", [], "PATH is damaged or not gzip"),
        ("a.txt.gz", "one\n", [], "the input is damaged or not gzip"),
    ],
)  # fmt: skip
def test_unreadable_tables_give_an_error_before_any_work(
    models: Path, tmp_path: Path, capfd, monkeypatch, name: str, content: str, flags: list[str], message: str
) -> None:
    monkeypatch.setattr(TorchEngine, "search", lambda *_: pytest.fail("decoding begins"))
    path = tmp_path / name
    path.write_text(content)
    status, output, errors = translate(capfd, models, "--input", path, *flags)
    assert (status, output) == (2, "")
    assert message.replace("PATH", str(path)) in errors
    assert errors.count("\n") == 1


def test_a_numeric_parquet_column_gives_an_error(models: Path, tmp_path: Path, capfd) -> None:
    table = write_table(tmp_path, ".parquet", [{"source": 1}])
    status, _, errors = translate(capfd, models, "--input", table)
    assert status == 2
    assert f"field 'source' of {table} holds int64; expected a text field" in errors


def test_values_without_a_json_form_are_converted(models: Path, tmp_path: Path, capfd) -> None:
    day = pa.array([1, None], pa.date32())
    columns = {"source": ["one", None], "day": day, "share": [float("nan"), 0.5], "raw": [b"a\xff", b""]}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    _, output, errors = translate(capfd, models, "--input", tmp_path / "rows.parquet")
    first, second = map(json.loads, output.splitlines())
    assert (first["day"], first["share"]) == ("1970-01-02", None)
    assert (second["day"], second["share"], second["translation"]) == (None, 0.5, "")
    assert "translated 2 rows; 1 empty" in errors


def test_bad_bytes_are_read_as_they_are_in_lines(models: Path, tmp_path: Path, capfd) -> None:
    (tmp_path / "rows.csv").write_bytes(b"source,b\nt\xffwo,x\n")
    _, output, errors = translate(capfd, models, "--input", tmp_path / "rows.csv")
    assert "1 not UTF-8 (their bad bytes were read as U+FFFD)" in errors
    (tmp_path / "in.txt").write_bytes(b"t\xffwo\n")
    line = translate(capfd, models, "--input", tmp_path / "in.txt")[1]
    assert json.loads(output)["translation"] == line.removesuffix("\n")


def test_a_gzipped_text_is_read_as_lines(models: Path, tmp_path: Path, capfd) -> None:
    text = (models / "in.txt").read_bytes()
    (tmp_path / "in.txt.gz").write_bytes(gzip.compress(text))
    packed = translate(capfd, models, "--input", tmp_path / "in.txt.gz")
    assert packed == translate(capfd, models, "--input", models / "in.txt")
    assert packed[1].count("\n") == text.count(b"\n")


def test_a_row_can_be_longer_than_the_line_limit(models: Path, tmp_path: Path, capfd) -> None:
    rows = [{"source": "one", "more": "x" * (LONGEST_LINE + 1)}]
    status, output, _ = translate(capfd, models, "--input", write_table(tmp_path, ".jsonl", rows))
    assert status == 0
    assert json.loads(output)["more"] == rows[0]["more"]


# Summaries.


def summarize(capfd, models: Path, *arguments: object) -> tuple[int, str, str]:
    return outcome(capfd, "summarize", "--model", models / "translator", *SEARCH, *arguments)


def test_the_documents_option_splits_the_input(
    models: Path, tmp_path: Path, capfd, translator: Translator
) -> None:
    (tmp_path / "in.txt").write_text("one\ntwo\n\n\nthree\n")
    texts = {"file": ["one\ntwo\n\n\nthree"], "blank_line": ["one\ntwo", "three"]}
    texts["line"] = ["one", "two", "", "", "three"]
    for documents, expected in texts.items():
        flags = ["--documents", documents, "--scores"]
        _, output, errors = summarize(capfd, models, "--input", tmp_path / "in.txt", *flags)
        assert [json.loads(line)["source"] for line in output.splitlines()] == expected
        assert f"summarized {len(expected)} {'line' if documents == 'line' else 'document'}" in errors
    assert summarize(capfd, models, "--input", tmp_path / "in.txt")[1].count("\n") == 1
    status, _, errors = summarize(capfd, models, "--scores", "--n_best", "2")
    assert status == 2
    assert "--scores has no effect with --n_best 2, which writes scores too; leave it out" in errors
    status, _, errors = summarize(capfd, models, "--input", tmp_path / "in.txt", "--documents", "page")
    assert (status, errors) == (2, "vaswani: documents=page is unknown; expected line, blank_line, file\n")
    table = write_table(tmp_path, ".jsonl", [{"text": "one"}])
    status, _, errors = summarize(capfd, models, "--input", table, "--documents", "line")
    assert status == 2
    assert f"--documents is for plain text, and {table} is read as a table; leave it out" in errors


def test_long_documents_are_truncated_before_summarizing(models: Path, tmp_path: Path, capfd) -> None:
    table = write_table(tmp_path, ".jsonl", [{"text": "seven " * 2000}, {"text": "one"}])
    status, output, errors = summarize(capfd, models, "--input", table)
    assert status == 0
    assert all(json.loads(line)["summary"] for line in output.splitlines())
    assert "summarized 2 rows; 1 of which only the beginning was read" in errors


def test_summaries_repeat_no_three_tokens_by_default(
    models: Path, tmp_path: Path, capfd, monkeypatch
) -> None:
    asked = []
    generate = Translator.from_pretrained(models / "translator").model.generate.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        "vaswani.model.modeling_vaswani.VaswaniForConditionalGeneration.generate",
        lambda self, **options: (
            asked.append(options.get("no_repeat_ngram_size")) or generate(self, **options)
        ),
        raising=False,
    )
    table = write_table(tmp_path, ".jsonl", [{"text": "one", "source": "one"}])
    summarize(capfd, models, "--input", table)
    summarize(capfd, models, "--input", table, "--no_repeat_ngram_size", "1")
    translate(capfd, models, "--input", table)
    assert asked == [3, 1, None]


# Vectors.


@pytest.mark.parametrize(("flags", "fields"), [([], ["vector"]), (["--words"], ["words", "vectors"])])
def test_every_row_comes_back_with_its_vectors(
    models: Path, tmp_path: Path, capfd, flags: list[str], fields: list[str]
) -> None:
    table = write_table(tmp_path, ".csv")
    status, output, errors = outcome(capfd, "embed", "--model", models / "encoder", "--input", table, *flags)
    assert status == 0, errors
    records = [json.loads(line) for line in output.splitlines()]
    assert [{name: record[name] for name in ROWS[0]} for record in records] == ROWS
    assert all(list(record)[3:] == fields for record in records)
    embedder = Embedder.from_pretrained(models / "encoder")
    if not flags:
        expected = embedder.embed([row["text"] for row in ROWS])
        for record, vector in zip(records, expected, strict=True):
            assert record["vector"] == pytest.approx(vector.tolist(), abs=1e-5)
    by_label = outcome(
        capfd, "embed", "--model", models / "encoder", "--input", table, *flags, "--text_field", "label"
    )[1]
    assert [json.loads(line)[fields[-1]] for line in by_label.splitlines()] != [
        record[fields[-1]] for record in records
    ]
    assert "embedded 3 rows" in errors


def test_arrays_of_the_vectors_of_a_table(models: Path, tmp_path: Path, capfd) -> None:
    import numpy as np

    flags = ["--input", write_table(tmp_path, ".jsonl"), "--output", tmp_path / "out.npy"]
    status, _, errors = outcome(capfd, "embed", "--model", models / "encoder", *flags)
    assert (status, errors) == (0, "vaswani: embedded 3 rows; 1 empty\n")
    assert len(np.load(tmp_path / "out.npy")) == 3
