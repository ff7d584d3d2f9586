"""Questions with answers in all formats: SQuAD's own JSON, tables and data sets; counts and refusals."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from jsonl import write_jsonl
from toy_questions import nested, toy_questions
from vaswani.data.questions.question_rows import QuestionSpec, load_questions, read_answers
from vaswani.errors import UserError

ROWS = list(toy_questions(12, seed=0, unanswerable=0.4))
GOOD = {"context": "Ann saw Rome.", "question": "Who?", "answers": {"text": ["Ann"], "answer_start": [0]}}


def load(path: Path, split: str = "train", **options: Any) -> list[dict[str, Any]]:
    corpus = load_questions(QuestionSpec(**{f"{split}_file": [str(path)], **options}))
    return list(corpus.splits[split])


def objects(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers as a list of objects, as SQuAD's own JSON has them."""
    texts, starts = row["answers"].values()
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]


def write(folder: Path, form: str) -> Path:
    """`ROWS` in a format."""
    path = folder / f"rows.{form.partition(' ')[0]}"
    if form.endswith("nested"):
        text = json.dumps(nested(ROWS))
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(json.dumps(nested(ROWS), indent=1) if "pretty" in form else text)
    elif form == "json":
        path.write_text(json.dumps(ROWS))
    elif form.startswith("jsonl"):
        write_jsonl(path, [{**row, "answers": objects(row)} if "objects" in form else row for row in ROWS])
    elif form == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(ROWS[0]))
            writer.writeheader()
            writer.writerows({**row, "answers": json.dumps(row["answers"])} for row in ROWS)
    else:
        rows = [{**row, "answers": objects(row)} for row in ROWS] if "objects" in form else ROWS
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize(
    "form",
    [
        *("json nested", "json pretty nested", "json.gz nested", "json", "jsonl", "jsonl objects", "csv"),
        *("parquet", "parquet objects"),
    ],
)
def test_every_format_gives_the_same_rows(tmp_path, form):
    assert load(write(tmp_path, form)) == ROWS


def test_squad_1_files_without_is_impossible_are_read(tmp_path):
    answerable = [row for row in ROWS if row["answers"]["text"]]
    (tmp_path / "rows.json").write_text(json.dumps(nested(answerable, "1.1")))
    assert load(tmp_path / "rows.json") == answerable


def test_answers_of_impossible_questions_are_not_used(tmp_path):
    """They are plausible ones in some files."""
    squad = nested([{**GOOD, "id": "a"}])
    squad["data"][0]["paragraphs"][0]["qas"][0]["is_impossible"] = True
    (tmp_path / "rows.json").write_text(json.dumps(squad))
    assert load(tmp_path / "rows.json")[0]["answers"] == {"text": [], "answer_start": []}


@pytest.mark.parametrize("as_objects", [False, True])
def test_a_saved_data_set_and_a_folder_of_files(tmp_path, as_objects):
    rows = [{**row, "answers": objects(row)} for row in ROWS] if as_objects else ROWS
    saved = DatasetDict({"train": Dataset.from_list(rows), "validation": Dataset.from_list(rows[:3])})
    saved.save_to_disk(tmp_path / "saved")
    corpus = load_questions(QuestionSpec(dataset=str(tmp_path / "saved")))
    assert list(corpus.splits["train"]) == ROWS
    assert list(corpus.splits["validation"]) == ROWS[:3]
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "test.json").write_text(json.dumps(nested(ROWS)))
    assert list(load_questions(QuestionSpec(dataset=str(tmp_path / "files"))).splits["test"]) == ROWS


def test_fields_have_any_names_and_places(tmp_path):
    rows = [
        {"key": row["id"], "text": {"of": row["context"]}, "q": row["question"], "a": row["answers"]}
        for row in ROWS
    ]
    options = {"id_field": "key", "context_field": "text.of", "question_field": "q", "answers_field": "a"}
    assert load(write_jsonl(tmp_path / "rows.jsonl", rows), **options) == ROWS


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_an_answer_and_its_place_may_have_columns_of_their_own(tmp_path, ending):
    rows = []
    for row in ROWS:
        texts, starts = row["answers"].values()
        nothing = "" if ending == "csv" else None
        text, start = (texts[0], starts[0]) if texts else (nothing, nothing)
        rows.append({**row, "answers": text, "begins": start})
    path = tmp_path / f"rows.{ending}"
    if ending == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif ending == "jsonl":
        write_jsonl(path, rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    assert load(path, answer_start_field="begins") == ROWS


def test_rows_without_a_name_are_numbered(tmp_path):
    rows = [{name: value for name, value in row.items() if name != "id"} for row in ROWS]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    assert [row["id"] for row in load(path)] == [str(number) for number in range(len(ROWS))]
    with pytest.raises(UserError, match=r"id_field: .* has no field 'key'"):
        load(path, id_field="key")


def test_white_space_around_an_answer_is_not_a_part_of_it(tmp_path):
    row = {**GOOD, "answers": {"text": ["Ann ", " Rome"], "answer_start": [0, 7]}}
    path = write_jsonl(tmp_path / "rows.jsonl", [row])
    assert load(path)[0]["answers"] == {"text": ["Ann", "Rome"], "answer_start": [0, 8]}


def test_rows_that_cannot_be_used_are_counted(tmp_path):
    bad = [
        *({**GOOD, "context": " "}, {**GOOD, "question": None}, {**GOOD, "answers": None}),
        {**GOOD, "context": "Ann\udcff"},
    ]
    path = write_jsonl(tmp_path / "rows.jsonl", [GOOD, *bad])
    with path.open("a") as file:
        file.write("no JSON\n")
    report = load_questions(QuestionSpec(train_file=[str(path)])).reports["train"]
    assert str(report) == (
        "kept 1 of 6 rows; left out: 1 empty, 1 not UTF-8, 1 malformed, 1 without text, 1 without answers"
    )
    assert (report.rows, report.kept) == (6, 1)


def test_a_test_split_without_answers_is_skipped(tmp_path, caplog):
    write_jsonl(tmp_path / "train.jsonl", [GOOD])
    write_jsonl(tmp_path / "test.jsonl", [{**GOOD, "answers": None}])
    assert list(load_questions(QuestionSpec(dataset=str(tmp_path))).splits) == ["train"]
    assert "test.jsonl has no answers and is skipped: kept 0 of 1 rows" in caplog.text


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            {"text": ["Bob"], "answer_start": [0]},
            "every answer must be in its text, but row 2 of .* has the answer 'Bob' at answer_start=0, where "
            "its text has 'Ann': correct",
        ),
        ({"text": ["Ann"], "answer_start": [99]}, "answer_start=99, where its text of 13 characters ends"),
        ({"text": ["Bob", "Al"], "answer_start": [0, 1]}, r"\(2 answers are not\)"),
        ({"text": ["Ann"], "answer_start": []}, "row 2 of .* has 1 answers and 0 places where they start"),
        ({"text": [""], "answer_start": [0]}, "row 2 of .* has the answer ''; expected a text"),
        ({"text": [7], "answer_start": [0]}, "row 2 of .* has the answer 7; expected a text"),
        ({"text": ["Ann"], "answer_start": [-1]}, "has answer_start=-1; expected a number of characters"),
        ({"text": ["Ann"], "answer_start": ["a"]}, "has answer_start='a'; expected a number"),
        ({"text": ["Ann"], "answer_start": [True]}, "has answer_start=True; expected a number"),
        ("Ann", "has 'Ann' where answers are expected in JSON; see answers_field"),
        (7, "has 7 where answers are expected, such as"),
    ],
)
def test_an_answer_that_is_not_in_its_text_is_named(tmp_path, answers, message):
    path = write_jsonl(tmp_path / "rows.jsonl", [GOOD, {**GOOD, "answers": answers}])
    with pytest.raises(UserError, match=message):
        load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": [{}]}, "article 1 of .* has no list 'paragraphs'"),
        ({"data": [{"paragraphs": [{}]}]}, "a paragraph of article 1 of .* has no list 'qas'"),
        ({"data": [{"paragraphs": [{"qas": [7]}]}]}, "no row of .* can be used: .* 1 malformed"),
        ({"other": []}, "has no field 'context'"),
    ],
)
def test_malformed_squad_files_raise_an_error(tmp_path, content, message):
    (tmp_path / "rows.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        load(tmp_path / "rows.json")


def test_files_of_other_kinds_are_refused(tmp_path):
    (tmp_path / "rows.txt").write_text("a")
    with pytest.raises(UserError, match=r"rows.txt has none of the known endings .jsonl"):
        load(tmp_path / "rows.txt")
    (tmp_path / "twice.json").write_text('{"data": [], "data": []}')
    with pytest.raises(UserError, match=r"twice.json: .*; leave one of them"):
        load(tmp_path / "twice.json")


def test_a_blank_cell_has_no_answers():
    assert read_answers(" ") is None
    assert read_answers('[{"text": "Ann", "answer_start": 0}]') == {"text": ["Ann"], "answer_start": [0]}
    assert read_answers(["Ann", "Bob"], [0, 4.0]) == {"text": ["Ann", "Bob"], "answer_start": [0, 4]}
