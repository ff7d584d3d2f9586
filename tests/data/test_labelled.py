"""Labelled rows of every source and format, with row counts; and errors for unreadable data."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

from vaswani.data.labels.labelled import LabelledSpec, load_labelled
from vaswani.errors import UserError

ROWS = [{"text": "so good", "label": "pos"}, {"text": "so bad", "label": "neg"}]


def write_rows(path: Path, rows: list) -> str:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return str(path)


def train_rows(**spec) -> list[dict]:
    return list(load_labelled(LabelledSpec(**spec)).splits["train"])


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "csv", "tsv", "parquet"])
def test_every_format_gives_the_same_rows(tmp_path, ending):
    path = tmp_path / f"rows.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif "json" in ending:
        write_rows(path, ROWS)
    else:
        mark = "," if ending == "csv" else "\t"
        path.write_text("".join(mark.join(row) + "\n" for row in (ROWS[0], *map(dict.values, ROWS))))
    assert train_rows(train_file=[str(path)]) == ROWS


def test_fields_have_the_names_that_are_given_and_pairs_two_texts(tmp_path):
    rows = [{"a": {"first": "so good"}, "second": "really", "is": 1}, {"a": {"first": "x"}, "is": 0}]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    spec = LabelledSpec(train_file=[path], text_field="a.first", text_pair_field="second", label_field="is")
    corpus = load_labelled(spec)
    assert list(corpus.splits["train"]) == [{"text": "so good", "text_pair": "really", "label": "1"}]
    assert str(corpus.reports["train"]) == "kept 1 of 2 rows; left out: 1 without text"


@pytest.mark.parametrize(
    ("task", "label", "read"),
    [
        ("classification", 1, "1"),
        ("regression", 0.25, 0.25),
        ("multi_label", ["a", "b"], ["a", "b"]),
        ("multi_label", [], []),
    ],
)
def test_labels_need_not_be_text(tmp_path, task, label, read):
    rows = [{"text": "a", "label": label}, {"text": "b", "label": label}]
    jsonl = write_rows(tmp_path / "rows.jsonl", rows)
    Dataset.from_list(
        rows, features=Features({"text": Value("string"), "label": _feature(label)})
    ).to_parquet(tmp_path / "rows.parquet")
    for path in (jsonl, str(tmp_path / "rows.parquet")):
        assert [row["label"] for row in train_rows(train_file=[path], task=task)] == [read, read]


def _feature(label: object) -> Value | List:
    kinds = {int: Value("int64"), float: Value("float64"), list: List(Value("string"))}
    return kinds[type(label)]


def test_classes_of_a_saved_data_set_have_their_names(tmp_path):
    kinds = ClassLabel(names=["neg", "pos"])
    features = Features({"text": Value("string"), "label": kinds, "tags": List(kinds)})
    rows = Dataset.from_dict({"text": ["so good", "bad"], "label": [1, 0], "tags": [[0, 1], [0]]}, features)
    untold = rows.map(lambda row: {"label": -1})
    DatasetDict(train=rows, test=untold, other=rows).save_to_disk(str(tmp_path / "saved"))
    corpus = load_labelled(LabelledSpec(dataset=str(tmp_path / "saved")))
    assert corpus.splits["train"]["label"][:] == ["pos", "neg"]
    assert list(corpus.splits) == ["train"]  # no row of test has a label
    tagged = train_rows(dataset=str(tmp_path / "saved"), task="tagging", label_field="tags")
    assert tagged == [{"text": ["so", "good"], "label": ["neg", "pos"]}, {"text": ["bad"], "label": ["neg"]}]
    rows.to_parquet(tmp_path / "rows.parquet")
    assert [row["label"] for row in train_rows(train_file=[str(tmp_path / "rows.parquet")])] == ["pos", "neg"]


def test_categorical_and_nested_columns_of_parquet_are_read(tmp_path):
    """Columns as pandas writes them, with an unused column and a name that contains a dot."""
    kinds = pa.DictionaryArray.from_arrays(pa.array([1, 0]), pa.array(["neg", "pos"]))
    nested = pa.array([{"text": "so good"}, {"text": "bad"}])
    columns = {"a.b": kinds, "row": nested, "more": pa.array([b"", b""])}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    fields = {"text_field": "row.text", "label_field": "a.b"}
    rows = train_rows(train_file=[str(tmp_path / "rows.parquet")], **fields)
    assert rows == [{"text": "so good", "label": "pos"}, {"text": "bad", "label": "neg"}]


def test_two_text_files_pair_texts_and_labels(tmp_path):
    (tmp_path / "texts").write_text("so good\nbad\n")
    (tmp_path / "labels").write_text("pos\nneg\n")
    (tmp_path / "tags").write_text("O ADJ\nADJ\n")
    texts, labels, tags = (str(tmp_path / name) for name in ("texts", "labels", "tags"))
    assert train_rows(train_file=[texts, labels])[1] == {"text": "bad", "label": "neg"}
    assert train_rows(train_file=[texts, tags], task="tagging") == [
        {"text": ["so", "good"], "label": ["O", "ADJ"]},
        {"text": ["bad"], "label": ["ADJ"]},
    ]


def test_text_files_of_different_lengths_raise_an_error(tmp_path):
    (tmp_path / "texts").write_text("so good\nbad\nso bad\n")
    (tmp_path / "labels").write_text("pos\nneg\n")
    with pytest.raises(
        UserError, match=r"texts and .*labels must have .* only one of them has line 3; correct"
    ):
        train_rows(train_file=[str(tmp_path / "texts"), str(tmp_path / "labels")])


CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

Peter B-PER
\t
Blackburn
"""


@pytest.mark.parametrize("name", ["train.conll", "train.txt"])
def test_columns_of_conll(tmp_path, name):
    (tmp_path / name).write_text(CONLL)
    corpus = load_labelled(LabelledSpec(dataset=str(tmp_path), task="tagging"))
    assert list(corpus.splits["train"]) == [
        {"text": ["EU", "rejects"], "label": ["B-ORG", "O"]},
        {"text": ["Peter"], "label": ["B-PER"]},
    ]
    assert str(corpus.reports["train"]) == "kept 2 of 3 rows; left out: 1 malformed"


def test_conll_with_comments_tabs_and_other_spaces(tmp_path):
    lines = "# sent_id = 1\n# text = Ann saw\nAnn\tB-PER\nNew York\tB-LOC\n10\u00a0000\tO\n\n# # O\n5 CD O\n"
    (tmp_path / "train.conll").write_text(lines)
    corpus = load_labelled(LabelledSpec(dataset=str(tmp_path), task="tagging"))
    assert list(corpus.splits["train"]) == [
        {"text": ["Ann", "New York", "10\u00a0000"], "label": ["B-PER", "B-LOC", "O"]},
        {"text": ["#", "5"], "label": ["O", "O"]},
    ]


@pytest.mark.parametrize(
    "sentence",
    ["Bob\tNNP\tB-PER\nsaw\tVB\t\n", "Bob NNP B-PER\nsaw VB\n", "Rome\tNNP\t\n", "\tNNP\tO\n", "Rome\n"],
)
def test_a_sentence_with_a_missing_tag_is_malformed(tmp_path, sentence):
    (tmp_path / "train.conll").write_text(f"Ann NNP B-PER\n\n{sentence}\nhere  RB   O \n")
    corpus = load_labelled(LabelledSpec(dataset=str(tmp_path), task="tagging"))
    assert [row["label"] for row in corpus.splits["train"]] == [["B-PER"], ["O"]]
    assert corpus.reports["train"].malformed == 1


def test_rows_that_cannot_be_used_are_counted(tmp_path):
    rows = [*ROWS, *ROWS, {"text": " ", "label": "pos"}, {"label": "pos"}, {"text": "a", "label": None}]
    rows += [{"text": "a", "label": " "}, {"text": "a\udcff", "label": "pos"}, 3]
    corpus = load_labelled(LabelledSpec(train_file=[write_rows(tmp_path / "rows.jsonl", rows)]))
    assert str(corpus.reports["train"]) == (
        "kept 4 of 10 rows; left out: 2 empty, 1 not UTF-8, 1 malformed, 1 without text, 1 without label"
    )
    only = load_labelled(LabelledSpec(train_file=[write_rows(tmp_path / "few.jsonl", [*ROWS, rows[6]])]))
    assert str(only.reports["train"]) == "kept 2 of 3 rows; left out: 1 without label"


def test_empty_words_and_empty_lists_are_counted(tmp_path):
    rows = [{"text": ["a", ""], "label": ["O", "O"]}, {"text": [], "label": []}]
    rows += [{"text": ["a"], "label": ["O"]}]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    corpus = load_labelled(LabelledSpec(train_file=[path], task="tagging"))
    assert str(corpus.reports["train"]) == "kept 1 of 3 rows; left out: 2 empty"


def test_the_identity_covers_every_setting_that_affects_the_rows(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", [{"text": "a b", "pair": "c", "label": "a,b"}])

    def identity(**options) -> str:
        return json.dumps(load_labelled(LabelledSpec(train_file=[path], **options)).identity())

    same, others = (
        identity(),
        [
            identity(task="multi_label"),
            identity(task="multi_label", label_separator=";"),
            identity(text_pair_field="pair"),
            identity(text_field="pair"),
            identity(label_field="pair"),
        ],
    )
    assert same == identity()
    assert len({same, *others}) == 6


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (ROWS, {"label_field": "stars"}, "label_field: .* has no field 'stars'; it has 'text', 'label'"),
        (ROWS, {"text_field": "words"}, "text_field: .* has no field 'words'; it has 'text', 'label'"),
        (ROWS, {"text_pair_field": "b"}, "text_pair_field: .* has no field 'b'"),
        (
            [{"text": "a", "label": "1"}, {"text": "b", "label": "high"}],
            {"task": "regression"},
            "row 2 of .*rows.jsonl has 'high' where task=regression takes a number",
        ),
        (
            [{"text": "a b", "label": "O"}, {"text": "c", "label": "O"}, {"text": "c", "label": "O O"}],
            {"task": "tagging"},
            r"every word needs a tag, but row 1 of .* has 2 words and 1 tags \(2 rows are uneven\)",
        ),
        (
            [{"text": "a", "label": ["x"]}],
            {},
            r"row 1 of .* has a list, \['x'\], where one label is expected",
        ),
        ([{"text": ["a"], "label": "x"}], {}, r"row 1 of .* has a list, \['a'\], where .* takes a text"),
        ([{"text": "a", "label": None}], {}, "no row of .* can be used: .*1 without label"),
    ],
)
def test_invalid_rows_raise_a_one_line_error(tmp_path, rows, options, message):
    path = write_rows(tmp_path / "rows.jsonl", rows)
    with pytest.raises(UserError, match=message) as raised:
        load_labelled(LabelledSpec(train_file=[path], **options))
    assert "\n" not in str(raised.value)


def test_fields_of_data_sets_are_checked(tmp_path):
    Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    Dataset.from_list(ROWS).to_parquet(tmp_path / "rows.parquet")
    for place in ({"dataset": str(tmp_path / "saved")}, {"train_file": [str(tmp_path / "rows.parquet")]}):
        with pytest.raises(UserError, match=r"label_field: .* has no field 'stars'; it has 'text', 'label'"):
            load_labelled(LabelledSpec(**place, label_field="stars"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"train_file": ["nowhere.jsonl"]}, "no such file: nowhere.jsonl"),
        ({"train_file": ["{}/a.txt"]}, "a.txt has none of the known endings .jsonl, .* plain text takes two"),
        ({"train_file": ["{}/a.doc"], "task": "tagging"}, "a.doc has none of the known endings .*, .conll"),
        ({"train_file": ["{}/a.txt", "{}/rows.jsonl"]}, "two files must be of plain text, texts and labels"),
        ({"train_file": ["{}/a.txt"] * 2, "text_pair_field": "b"}, "two files must be of plain text"),
        ({"dataset": "{}/rows.jsonl"}, "is a file; give it as train_file"),
        ({"dataset": "{}/nothing"}, "no such folder"),
        ({"dataset": "{}"}, "nor does it hold train, validation or test"),
    ],
)
def test_paths_without_usable_data_raise_an_error(tmp_path, spec, message):
    write_rows(tmp_path / "rows.jsonl", ROWS)
    for name in ("a.txt", "a.doc"):
        (tmp_path / name).write_text("a O\n")
    spec = {
        name: [one.format(tmp_path) for one in value] if isinstance(value, list) else value.format(tmp_path)
        for name, value in spec.items()
    }
    with pytest.raises(UserError, match=message):
        load_labelled(LabelledSpec(**spec))
