"""Every way to specify a corpus, its row counts, and the errors for mistakes."""

import gzip
import json
import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict, IterableDatasetDict

import vaswani.data.sources.dates
from vaswani.data.sources import corpus as corpus_module
from vaswani.data.sources.corpus import load_corpus
from vaswani.data.sources.corpus_spec import CorpusSpec
from vaswani.data.sources.row_report import RowReport
from vaswani.errors import UserError

PAIRS = [("Two men.", "Zwei Männer."), ('He said "no"', "„Nein“, null"), ("007", "NA")]
MULTI30K = Path(__file__).parents[3] / "shared" / "data" / "multi30k"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    return folder


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def jsonl(rows):
    return "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in rows)


def write(folder, name, rows=PAIRS):
    """Write rows in the format of the name; returns what a `CorpusSpec` takes as files."""
    path = folder / name
    sources, targets = [s for s, _ in rows], [t for _, t in rows]
    if name.endswith(".txt"):
        paths = [folder / f"{side}-{name}" for side in ("source", "target")]
        for path, lines in zip(paths, (sources, targets), strict=True):
            path.write_text("".join(line + "\n" for line in lines))
        return [str(path) for path in paths]
    if name.endswith(".parquet"):
        pq.write_table(pa.table({"source": sources, "target": targets}), path)
    elif name.endswith((".csv", ".tsv")):
        mark = "," if name.endswith(".csv") else "\t"
        quote = (lambda cell: '"' + cell.replace('"', '""') + '"') if mark == "," else str
        path.write_text("".join(quote(s) + mark + quote(t) + "\n" for s, t in [("source", "target"), *rows]))
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(jsonl(rows).encode()))
    else:
        path.write_text(jsonl(rows))
    return [str(path)]


def load(files, split="train", **options):
    return load_corpus(CorpusSpec(**{f"{split}_file": files}, **options))


def pairs(split):
    return [(row["source"], row["target"]) for row in split]


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def spoiled_file(data):
    path = data / "spoiled.jsonl"
    good = jsonl([("a", "b"), ("c", "d"), ("g", "h"), ("i", "j"), ("k", "l"), ("m", "n")]).encode()
    bad = b'{"source": "\xff", "target": "b"}\n{"source": \n\n{"source": "e"}\n{"target": "f"}\n'
    path.write_bytes(good + bad)
    return [str(path)]


SPOILED = RowReport(kept=6, empty=1, not_utf8=1, malformed=1, missing_source=1, missing_target=1)


class TestFiles:
    @pytest.mark.parametrize("streaming", [False, True])
    @pytest.mark.parametrize(
        "name", ["a.jsonl", "a.json", "a.jsonl.gz", "a.csv", "a.tsv", "a.parquet", "a.txt"]
    )
    def test_every_format_gives_the_same_rows(self, name, streaming, data):
        corpus = load(write(data, name), streaming=streaming)
        assert isinstance(corpus.splits["train"], datasets.IterableDataset if streaming else Dataset)
        assert corpus.splits["train"].column_names == ["source", "target"]
        assert pairs(corpus.splits["train"]) == PAIRS
        assert corpus.reports["train"] == RowReport(kept=3)

    def test_clean_files_give_what_the_builders_of_datasets_give(self, data):
        """The one difference that is meant: words and numbers in CSV stay text."""
        rows = [(f"line {i}", f'Zeile "{i}", Ω\u2028') for i in range(300)]
        for name, builder in [("a.jsonl", "json"), ("a.csv", "csv"), ("a.parquet", "parquet")]:
            files = write(data, name, rows)
            theirs = datasets.load_dataset(builder, data_files=files, split="train")
            assert pairs(load(files).splits["train"]) == pairs(theirs) == rows

    def test_each_split_has_its_own_files(self, data):
        spec = CorpusSpec(
            train_file=write(data, "a.jsonl"), test_file=write(data, "b.txt", PAIRS[:1]), validation_file=[]
        )
        corpus = load_corpus(spec)
        assert {name: len(split) for name, split in corpus.splits.items()} == {"train": 3, "test": 1}
        assert corpus.available == ["train", "test"]
        assert list(load_corpus(spec, ["test"]).splits) == ["test"]
        with pytest.raises(UserError, match="no split 'validation'; it has 'train', 'test'"):
            corpus.split("validation")
        with pytest.raises(UserError, match="none of the splits 'validation'; it has 'train', 'test'"):
            load_corpus(spec, ["validation"])

    def test_a_single_name_need_not_be_a_list(self, data):
        assert len(load(write(data, "a.csv")[0]).splits["train"]) == 3

    def test_a_tilde_stands_for_the_home_folder(self, data, monkeypatch):
        monkeypatch.setenv("HOME", str(data))
        write(data, "a.csv")
        assert len(load(["~/a.csv"]).splits["train"]) == 3

    def test_fields(self, data):
        path = data / "a.jsonl"
        path.write_text('{"t": {"en": "a", "de": "b"}, "n": 1}\n')
        corpus = load([str(path)], source_field="t.en", target_field="t.de")
        assert pairs(corpus.splits["train"]) == [("a", "b")]
        swapped = load([str(path)], source_field="t.de", target_field="t.en")
        assert pairs(swapped.splits["train"]) == [("b", "a")]

    @pytest.mark.parametrize("streaming", [False, True])
    @pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet"])
    def test_an_unknown_field_raises_an_error_with_the_existing_fields(self, name, streaming, data):
        message = rf"^target_field: .*{name} has no field 'de'; it has 'source', 'target'$"
        with pytest.raises(UserError, match=message):
            load(write(data, name), target_field="de", streaming=streaming)

    @pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.parquet"])
    def test_a_used_field_that_occurs_twice_raises_an_error(self, name, data):
        path, names, row = data / name, ["source", "note", "target", "source", "note"], list("vwxyz")
        if name.endswith(".parquet"):
            pq.write_table(pa.table([[cell] for cell in row], names=names), path)
        else:
            path.write_text("".join("\t,"[name == "a.csv"].join(line) + "\n" for line in (names, row)))
        with pytest.raises(
            UserError, match=rf"^source_field: .*{name} has 2 fields 'source'; rename all but one"
        ):
            load([str(path)])
        if not name.endswith(".parquet"):
            path.write_text(path.read_text().replace("source", "first", 1))
            assert pairs(load([str(path)]).splits["train"]) == [("y", "x")]  # notes are not asked for

    def test_a_field_of_nested_fields_raises_an_error_that_names_them(self, data):
        path = data / "a.jsonl"
        path.write_text('{"t": {"en": "a", "de": "b"}}\n')
        with pytest.raises(UserError, match=r"no field 't'; it has 't\.en', 't\.de'"):
            load([str(path)], source_field="t")

    def test_a_field_missing_in_the_first_row_is_found(self, data):
        path = data / "a.jsonl"
        path.write_text('{"source": "a"}\n{"source": "b", "target": "c"}\n{"source": "d", "target": "e"}\n')
        assert load([str(path)]).reports["train"] == RowReport(kept=2, missing_target=1)


MORE_PAIRS = [("Three dogs.", "Drei Hunde."), ("", "leer"), ("Two men.", "Zwei Männer.")]


class TestSeveralTables:
    @pytest.mark.parametrize("streaming", [False, True])
    @pytest.mark.parametrize("names", [["a.jsonl", "b.jsonl"], ["a.csv", "b.parquet"], ["a.tsv", "b.json"]])
    def test_tables_are_read_in_the_given_order(self, data, names, streaming):
        first, second = write(data, names[0]), write(data, names[1], MORE_PAIRS)
        corpus = load([*first, *second, *first], streaming=streaming)
        usable = [MORE_PAIRS[0], MORE_PAIRS[2]]
        assert pairs(corpus.split("train")) == [*PAIRS, *usable, *PAIRS]
        assert corpus.reports["train"] == RowReport(kept=8, empty=1)
        files = corpus.fingerprint["train"]["files"]
        assert [file["path"] for file in files] == [*first, *second, *first]

    def test_the_identity_depends_on_order_and_contents(self, data):
        (first,), (second,) = write(data, "a.jsonl"), write(data, "b.jsonl", MORE_PAIRS)
        orders = [load(files).identity() for files in ([first, second], [second, first], [first])]
        assert not any(orders[one] == orders[other] for one, other in ((0, 1), (0, 2), (1, 2)))

    def test_each_table_must_have_the_fields(self, data):
        files = [*write(data, "a.jsonl"), str(data / "b.jsonl")]
        (data / "b.jsonl").write_text(json.dumps({"source": "x", "de": "y"}) + "\n")
        with pytest.raises(UserError, match=r"target_field: .*b\.jsonl has no field 'target'; it has"):
            load(files)


class TestMistakes:
    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ({}, "no corpus was given; set dataset, or train_file"),
            ({"dataset": "dates", "train_file": ["a.csv"]}, "dataset=dates and files were both given"),
            ({"test_file": ["a", "b", "c"]}, "test_file takes tables, or two of plain text; got 3 files"),
            ({"train_file": ["a.csv", "b", "c.csv"]}, "train_file takes tables, or two of plain text; got 3"),
        ],
    )
    def test_in_the_specification(self, spec, message):
        with pytest.raises(UserError, match=message):
            CorpusSpec(**spec)

    @pytest.mark.parametrize("kind", ["pipe", "device", "link"])
    def test_pipes_devices_and_broken_links_raise_an_error(self, tmp_path, kind):
        path = tmp_path / "rows.jsonl"
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/null" if kind == "device" else tmp_path / "gone")
        with pytest.raises(
            UserError, match=rf"^{path} is a pipe, a device or a broken link, and a corpus is"
        ):
            load_corpus(CorpusSpec(train_file=[str(path)]))

    def test_a_missing_file_of_any_split_is_named_before_anything_is_read(self, data, cache):
        spec = CorpusSpec(train_file=write(data, "a.csv"), validation_file=[str(data / "gone.jsonl")])
        with pytest.raises(UserError, match=r"^no such file: .*gone\.jsonl$"):
            load_corpus(spec)
        assert not cache.exists()

    def test_names_that_do_not_fit(self, data):
        (text,) = write(data, "a.jsonl")
        with pytest.raises(UserError, match="is a folder, not a file; give a folder as dataset"):
            load([str(data)])
        shutil.copy(text, data / "a.text")
        with pytest.raises(UserError, match=r"tables, or two of plain text, not both.*'.*a\.text'"):
            load([text, str(data / "a.text")])
        with pytest.raises(
            UserError, match=r"a\.text has none of the known endings \.jsonl, .*\.parquet; plain"
        ):
            load([str(data / "a.text")])
        with pytest.raises(UserError, match=r"dataset=.*a\.jsonl is a file; give it as train_file"):
            load_corpus(CorpusSpec(dataset=text))
        for there in ({"dataset": str(data)}, {"train_file": [text]}):
            with pytest.raises(
                UserError, match="dataset_config=de chooses within a data set of the Hub, and"
            ):
                load_corpus(CorpusSpec(**there, dataset_config="de"))
        for missing in (str(data / "gone"), "./gone", "../gone/there", "~/gone", "a/b/c"):
            with pytest.raises(UserError, match=rf"dataset={missing}: no such folder"):
                load_corpus(CorpusSpec(dataset=missing))

    def test_an_unreadable_file_raises_an_error(self, data, monkeypatch):
        monkeypatch.setattr(os, "access", lambda *_: False)  # root may read everything
        with pytest.raises(UserError, match=r"cannot read .*a\.jsonl: permission denied"):
            load(write(data, "a.jsonl"))

    @pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet", "a.txt"])
    def test_no_rows(self, name, data):
        with pytest.raises(UserError, match=r"a\.\w+ holds no rows$"):
            load(write(data, name, []))
        with pytest.raises(UserError, match="holds no rows"):
            list(load(write(data, name, []), streaming=True).splits["train"])

    @pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv"])
    def test_an_empty_file(self, name, data):
        (data / name).touch()
        with pytest.raises(UserError, match="holds no rows"):
            load([str(data / name)])

    def test_no_usable_row(self, data):
        files = write(data, "a.tsv", [("", "b"), ("c", " ")])
        message = r"no row of .*a\.tsv can be used: kept 0 of 2 rows; left out: 2 empty$"
        with pytest.raises(UserError, match=message):
            load(files)
        with pytest.raises(UserError, match=message):
            list(load(files, streaming=True).splits["train"])

    def test_a_file_damaged_in_the_middle_leaves_nothing_behind(self, data, cache):
        (name,) = write(data, "a.jsonl.gz", PAIRS * 20_000)
        content = Path(name).read_bytes()
        Path(name).write_bytes(content[: len(content) // 2])
        with pytest.raises(UserError, match="is damaged"):
            load([name])
        assert [path.name for path in cache.glob("vaswani/*")] == ["locks"]


class TestReports:
    def test_every_problem_is_counted(self, data):
        corpus = load(spoiled_file(data))
        assert corpus.reports["train"] == SPOILED
        assert len(corpus.splits["train"]) == 6
        assert load(spoiled_file(data)).reports["train"] == SPOILED  # from the cache

    def test_a_report_is_one_readable_line(self):
        assert str(RowReport(kept=1200)) == "kept 1,200 of 1,200 rows"
        assert str(RowReport(9, truncated=2, in_training=3, empty=1)) == (
            "kept 9 of 10 rows, 2 of them cut off; left out: 1 empty; also in the training split: 3"
        )
        assert str(RowReport(1, 2, 3, 4, 5, 6, 7)) == (
            "kept 1 of 28 rows; left out: 2 empty, 3 over-long, 4 not UTF-8, 5 malformed, "
            "13 mispaired (22 sources, 21 targets)"
        )

    def test_a_stream_reports_the_rows_read_so_far_in_each_pass(self, data):
        corpus = load(spoiled_file(data), streaming=True)
        report = corpus.reports["train"]
        assert report == RowReport()
        list(islice(corpus.splits["train"], 2))
        assert report == RowReport(kept=2)
        for _ in range(2):
            list(corpus.splits["train"])
            assert report == SPOILED

    @pytest.mark.parametrize("streaming", [False, True])
    @pytest.mark.parametrize("longer", [0, 1])
    def test_text_files_of_different_length_raise_an_error(self, longer, streaming, data):
        files = data / "a.en", data / "a.de"
        files[longer].write_text("a\nb\nc\nd\ne\n")
        files[1 - longer].write_text("1\n2\n3\n")
        lines = (3, 5) if longer else (5, 3)
        with pytest.raises(UserError) as raised:
            list(load([str(file) for file in files], streaming=streaming).splits["train"])
        assert str(raised.value) == (
            f"{files[0]} has {lines[0]} lines and {files[1]} has {lines[1]}: give a pair per line"
        )

    @pytest.mark.parametrize("streaming", [False, True])
    @pytest.mark.parametrize(("bad", "warned"), [(3, False), (4, True)])
    def test_more_than_half_unusable_rows_give_a_warning(self, bad, warned, streaming, data, caplog):
        files = write(data, "a.jsonl", PAIRS + [("", "")] * bad)
        list(load(files, streaming=streaming).splits["train"])
        assert ("More than half of the rows" in caplog.text) == warned


class TestCache:
    def forbid_reading(self, monkeypatch):
        def refuse(*_):
            raise AssertionError("the rows were read again")

        monkeypatch.setattr(corpus_module, "_write_rows", refuse)

    def test_the_second_load_reads_no_rows(self, data, monkeypatch):
        files = write(data, "a.csv")
        load(files)
        self.forbid_reading(monkeypatch)
        corpus = load(files)
        assert pairs(corpus.splits["train"]) == PAIRS
        assert corpus.reports["train"] == RowReport(kept=3)

    def test_an_edited_file_is_read_again_even_with_its_old_size_and_time(self, data):
        files = write(data, "a.csv")
        load(files)
        before = os.stat(files[0])
        Path(files[0]).write_text(Path(files[0]).read_text().replace("Two", "Six"))
        os.utime(files[0], ns=(before.st_atime_ns, before.st_mtime_ns))
        assert pairs(load(files).splits["train"])[0] == ("Six men.", "Zwei Männer.")

    def test_other_fields_of_the_same_file_are_cached_separately(self, data):
        files = write(data, "a.csv")
        load(files)
        swapped = load(files, source_field="target", target_field="source")
        assert pairs(swapped.splits["train"]) == [(t, s) for s, t in PAIRS]

    def test_a_changed_reader_invalidates_the_cache(self, data, monkeypatch, tmp_path):
        files = write(data, "a.csv")
        load(files)
        newer = tmp_path / "reading.py"
        newer.write_text(Path(corpus_module.reading.__file__).read_text() + "# newer\n")
        monkeypatch.setattr(corpus_module.reading, "__file__", str(newer))
        self.forbid_reading(monkeypatch)
        with pytest.raises(AssertionError, match="read again"):
            load(files)

    def test_concurrent_loads_share_one_cache_entry(self, data, cache):
        files = write(data, "a.csv", PAIRS * 2000)
        with ThreadPoolExecutor(4) as pool:
            loaded = list(pool.map(lambda _: load(files), range(4)))
        assert all(corpus.reports["train"] == RowReport(kept=6000) for corpus in loaded)
        assert len(list(cache.glob("vaswani/*/rows.arrow"))) == 1

    @pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.parquet", "a.txt"])
    def test_loading_writes_no_files_beside_the_corpus(self, name, data):
        files = write(data, name)
        before = contents(data)
        load(files)
        list(load(files, streaming=True).splits["train"])
        assert contents(data) == before

    def test_streaming_writes_no_rows_anywhere(self, data, cache):
        list(load(write(data, "a.jsonl"), streaming=True).splits["train"])
        assert not any(contents(cache).values())  # nothing but an empty lock file

    def test_the_fingerprint_depends_on_the_contents(self, data):
        first = load(write(data, "a.jsonl")).fingerprint
        second = load(write(data, "a.jsonl", PAIRS[:2])).fingerprint
        assert json.loads(json.dumps(first)) == first
        assert first["train"]["files"][0]["path"] == second["train"]["files"][0]["path"]
        assert first["train"]["files"][0]["sha256"] != second["train"]["files"][0]["sha256"]


@pytest.mark.parametrize("streaming", [False, True])
class TestFolders:
    def test_with_a_file_for_each_split(self, streaming, data):
        write(data, "train.jsonl")
        write(data, "validation.csv", PAIRS[:2])
        write(data, "test.jsonl.gz", PAIRS[:1])
        corpus = load_corpus(CorpusSpec(dataset=str(data), streaming=streaming))
        assert {name: len(pairs(split)) for name, split in corpus.splits.items()} == {
            "train": 3,
            "validation": 2,
            "test": 1,
        }

    def test_saved_with_save_to_disk(self, streaming, data):
        nested = [{"translation": {"en": s, "de": t}, "id": 1} for s, t in [*PAIRS, (None, "x")]]
        saved = DatasetDict(train=Dataset.from_list(nested), test=Dataset.from_list(nested[:2]))
        saved.save_to_disk(data / "saved")
        before = contents(data)
        fields = {"source_field": "translation.en", "target_field": "translation.de"}
        corpus = load_corpus(CorpusSpec(dataset=str(data / "saved"), streaming=streaming, **fields))
        assert pairs(corpus.splits["train"]) == PAIRS
        assert pairs(corpus.splits["test"]) == PAIRS[:2]
        assert corpus.reports["train"] == RowReport(kept=3, missing_source=1)
        assert contents(data) == before
        with pytest.raises(UserError, match=r"has no field 'en'; it has 'translation\.\w+', .*'id'"):
            load_corpus(CorpusSpec(dataset=str(data / "saved"), source_field="en", streaming=streaming))

    def test_a_single_saved_data_set_is_for_training(self, streaming, data):
        Dataset.from_dict({"source": ["a"], "target": ["b"]}).save_to_disk(data / "saved")
        corpus = load_corpus(CorpusSpec(dataset=str(data / "saved"), streaming=streaming))
        assert pairs(corpus.split("train")) == [("a", "b")]

    def test_splits_that_the_library_would_keep_in_memory(self, streaming, data, monkeypatch):
        monkeypatch.setattr(datasets.config, "IN_MEMORY_MAX_SIZE", 10**9)
        splits = {name: Dataset.from_dict({"source": [name], "target": ["b"]}) for name in ("train", "test")}
        DatasetDict(splits).save_to_disk(data / "saved")
        corpus = load_corpus(CorpusSpec(dataset=str(data / "saved"), streaming=streaming))
        assert {name: pairs(rows) for name, rows in corpus.splits.items()} == {
            name: [(name, "b")] for name in splits
        }

    def test_a_saved_column_of_integers_raises_an_error(self, streaming, data):
        Dataset.from_dict({"source": ["a"], "target": [3]}).save_to_disk(data / "saved")
        with pytest.raises(
            UserError, match=r"'target' of .*saved \(train\) holds int64; expected a text field"
        ):
            load_corpus(CorpusSpec(dataset=str(data / "saved"), streaming=streaming))

    def test_a_folder_without_exactly_one_file_per_split_raises_an_error(self, streaming, data):
        spec = CorpusSpec(dataset=str(data), streaming=streaming)
        with pytest.raises(UserError, match="was not saved with save_to_disk, nor does it hold train"):
            load_corpus(spec)
        write(data, "train.csv")
        write(data, "train.jsonl")
        with pytest.raises(
            UserError, match=r"holds the split train more than once: .*train\.jsonl.*train\.csv"
        ):
            load_corpus(spec)

    def test_a_damaged_saved_folder(self, streaming, data):
        (data / "dataset_dict.json").write_text("{")
        with pytest.raises(UserError, match=r"^cannot open the data set saved in [^\n]*$"):
            load_corpus(CorpusSpec(dataset=str(data), streaming=streaming))


def test_a_saved_data_set_that_is_saved_anew_is_read_anew(data):
    for word in ("a", "b"):
        Dataset.from_dict({"source": [word], "target": ["x"]}).save_to_disk(data / "saved")
        corpus = load_corpus(CorpusSpec(dataset=str(data / "saved")))
        assert pairs(corpus.splits["train"]) == [(word, "x")]


class TestHub:
    def hub(self, monkeypatch, rows, streaming=False):
        """Stand in for the Hub: a data set of one split with a `Translation` column, as many there have."""
        features = datasets.Features(
            {"id": datasets.Value("int64"), "translation": datasets.Translation(languages=["en", "de"])}
        )
        nested = [{"id": i, "translation": {"en": s, "de": t}} for i, (s, t) in enumerate(rows)]
        split = Dataset.from_list(nested, features=features)
        asked = []

        def load_dataset(name, config, streaming):
            asked.append((name, config, streaming))
            if streaming:
                return IterableDatasetDict(train=split.to_iterable_dataset(), dev=split.to_iterable_dataset())
            return DatasetDict(train=split, dev=split)

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return asked

    @pytest.mark.parametrize("streaming", [False, True])
    def test_a_name_goes_to_the_hub(self, streaming, monkeypatch):
        asked = self.hub(monkeypatch, PAIRS, streaming)
        fields = {"source_field": "translation.en", "target_field": "translation.de"}
        spec = CorpusSpec(
            dataset="someone/some_corpus", dataset_config="de-en", streaming=streaming, **fields
        )
        corpus = load_corpus(spec)
        assert asked == [("someone/some_corpus", "de-en", streaming)]
        assert pairs(corpus.splits["train"]) == PAIRS
        assert corpus.available == ["train", "dev"]
        assert corpus.reports["train"] == RowReport(kept=3)

    @pytest.mark.parametrize("streaming", [False, True])
    def test_wrong_field(self, streaming, monkeypatch):
        self.hub(monkeypatch, PAIRS, streaming)
        message = r"some_corpus \(train\) has no field 'source'; it has 'id', 'translation\.de', "
        with pytest.raises(UserError, match=message):
            load_corpus(CorpusSpec(dataset="someone/some_corpus", streaming=streaming))

    @pytest.mark.parametrize("streaming", [False, True])
    def test_offline_mode_raises_a_one_line_error(self, streaming, monkeypatch):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(UserError) as raised:
            load_corpus(CorpusSpec(dataset="bentrevett/multi30k", streaming=streaming))
        assert "cannot load the data set 'bentrevett/multi30k' from the Hub" in str(raised.value)
        assert "or give a folder or files" in str(raised.value)
        assert "\n" not in str(raised.value)


class TestDates:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch):
        small = partial(
            vaswani.data.sources.dates.generate_dates, train_rows=60, validation_rows=10, test_rows=10
        )
        monkeypatch.setattr(vaswani.data.sources.dates, "generate_dates", small)

    @pytest.mark.parametrize("streaming", [False, True])
    def test_the_built_in_corpus(self, streaming):
        corpus = load_corpus(CorpusSpec(dataset="dates", streaming=streaming))
        assert {name: len(pairs(split)) for name, split in corpus.splits.items()} == {
            "train": 60,
            "validation": 10,
            "test": 10,
        }
        assert corpus.splits["train"].column_names == ["source", "target"]
        assert corpus.reports["train"] == RowReport(kept=60)
        assert {"babel_version", "sha256"} <= corpus.fingerprint.keys()

    def test_its_configuration_is_its_locales(self):
        assert load_corpus(CorpusSpec(dataset="dates", dataset_config="de,fr")).fingerprint["locales"] == [
            "de",
            "fr",
        ]

    def test_wrong_field(self):
        with pytest.raises(UserError, match="has no field 'en'; it has 'source', 'target'"):
            load_corpus(CorpusSpec(dataset="dates", source_field="en"))

    def test_only_the_requested_splits_are_loaded(self):
        corpus = load_corpus(CorpusSpec(dataset="dates"), ["test"])
        assert list(corpus.splits) == ["test"]
        assert corpus.available == ["train", "validation", "test"]


@pytest.mark.skipif(not MULTI30K.is_dir(), reason=f"needs the corpus in {MULTI30K}")
def test_a_real_corpus_is_kept_whole(caplog):
    caplog.set_level(logging.WARNING)
    corpus = load_corpus(CorpusSpec(dataset=str(MULTI30K), source_field="en", target_field="de"))
    kept = {name: str(report) for name, report in corpus.reports.items()}
    assert kept["train"] == "kept 29,000 of 29,000 rows"
    assert kept["validation"] == "kept 1,014 of 1,014 rows"
    assert not caplog.text
    assert corpus.splits["test"][0]["source"] == "A man in an orange hat starring at something."
