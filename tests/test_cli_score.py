"""`vaswani score` as a user runs it: tables, files of lines, n-best lists, language models, wrong inputs."""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import toy_labels
from in_process import outcome
from jsonl import write_jsonl
from toy_translation import save_toy_checkpoint, toy_model, toy_rows, toy_tokenizer
from vaswani import Scorer

ROWS = [
    {"source": source, "target": target, "id": str(at)} for at, (source, target) in enumerate(toy_rows(6, 4))
]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_toy_checkpoint(folder / "translator")
    toy_labels.save_toy_encoder(folder / "masked")
    toy_labels.save_toy_decoder(folder / "causal")
    return folder


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return Scorer(toy_model(), toy_tokenizer())


def score(capfd, models: Path, *arguments: object, kind: str = "translator") -> tuple[int, list[Any], str]:
    flags = ["--model", models / kind, "--device", "cpu"]
    status, output, errors = outcome(capfd, "score", *flags, *arguments)
    return status, [json.loads(line) for line in output.splitlines()], errors


# Pairs.


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_every_row_comes_back_with_its_score(
    models: Path, scorer: Scorer, tmp_path: Path, capfd, ending: str
) -> None:
    path = tmp_path / f"rows{ending}"
    if ending == ".jsonl":
        write_jsonl(path, ROWS)
    elif ending == ".csv":
        path.write_text("\n".join(["source,target,id", *(",".join(row.values()) for row in ROWS)]))
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    output = tmp_path / "out.jsonl"
    status, lines, errors = score(capfd, models, "--input", path, "--output", output)
    assert (status, lines) == (0, [])
    expected = scorer([(row["source"], row["target"]) for row in ROWS])
    found = [json.loads(line) for line in output.read_text().splitlines()]
    for row, line, each in zip(ROWS, found, expected, strict=True):
        assert line.keys() == {*row, "log_prob", "num_tokens", "perplexity"}
        assert row.items() <= line.items()
        assert line["log_prob"] == pytest.approx(each.log_prob, abs=1e-4)
        assert line["num_tokens"] == each.num_tokens
        assert line["perplexity"] == pytest.approx(each.perplexity, rel=1e-4)
    total, tokens = sum(each.log_prob or 0 for each in expected), sum(each.num_tokens for each in expected)
    told = f"vaswani: scored 6 rows: log_prob {total:.4f} of {tokens} tokens, perplexity "
    assert errors.splitlines()[-1] == f"{told}{math.exp(-total / tokens):.4f}"


def test_two_files_and_renamed_fields_give_the_same_scores(models: Path, tmp_path: Path, capfd) -> None:
    table = write_jsonl(
        tmp_path / "rows.jsonl", [{"x": {"en": row["source"]}, "y": row["target"]} for row in ROWS]
    )
    named = score(capfd, models, "--input", table, "--source_field", "x.en", "--target_field", "y")[1]
    for side in ("source", "target"):
        (tmp_path / side).write_text("\n".join(row[side] for row in ROWS))
    lines = score(capfd, models, "--input", tmp_path / "source", tmp_path / "target")[1]
    assert [line["log_prob"] for line in lines] == [line["log_prob"] for line in named]
    assert [(line["source"], line["target"]) for line in lines] == [
        (row["source"], row["target"]) for row in ROWS
    ]


def test_token_scores_and_batch_options_take_effect(models: Path, tmp_path: Path, capfd) -> None:
    table = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    lines = score(capfd, models, "--input", table, "--tokens")[1]
    for line in lines:
        assert sum(token["log_prob"] for token in line["tokens"]) == pytest.approx(line["log_prob"])
        assert len(line["tokens"]) == line["num_tokens"]
        assert line["tokens"][-1]["token"] == "</s>"
    small = score(capfd, models, "--input", table, "--max_tokens_per_batch", "1", "--buffer_size", "2")[1]
    assert [line["log_prob"] for line in small] == pytest.approx(
        [line["log_prob"] for line in lines], abs=1e-4
    )
    rounded = score(capfd, models, "--input", table, "--dtype", "bfloat16")[1]
    assert [line["log_prob"] for line in rounded] != [line["log_prob"] for line in lines]
    prefixed = score(capfd, models, "--input", table, "--source_prefix", "one ")[1]
    assert [line["log_prob"] for line in prefixed] != [line["log_prob"] for line in lines]


def test_rows_that_are_not_scored_are_named(models: Path, tmp_path: Path, capfd) -> None:
    rows = [{"source": "one two", "target": "1 2"}, {"source": "one", "target": "1 2 3 4"}]
    rows += [{"source": "", "target": "1"}, {"source": "one", "target": ""}]
    rows += [{"source": "one", "target": None}, {"source": "one"}]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    flags = ["--max_length", "4", "--max_source_length", "2", "--too_long", "skip"]
    status, lines, errors = score(capfd, models, "--input", table, *flags)
    assert status == 0
    assert [line["log_prob"] is None for line in lines] == [True, True, True, False, True, True]
    assert lines[0]["problem"].startswith("its source has 3 tokens, more than max_source_length=2")
    assert lines[3]["num_tokens"] == 1
    assert f"line 2 of {table} is not scored: its target has 5 tokens, more than max_length=4" in errors
    assert f"line 3 of {table} is not scored: its source is empty" in errors
    assert [line.get("problem") for line in lines[3:]] == [None, "it has no target", "it has no target"]
    assert f"line 5 of {table} is not scored: it has no target" in errors
    assert "scored 6 rows; 1 empty; 5 not scored: log_prob" in errors
    assert errors.count(f"log_prob {lines[3]['log_prob']:.4f} of 1 token") == 1
    cut = score(capfd, models, "--input", table, "--max_source_length", "2")
    assert cut[1][0]["source_cut_off"]
    assert "1 of which only the beginning was read" in cut[2]


# N-best lists.


def test_an_n_best_list_of_translate_is_scored_as_the_search_scored_it(
    models: Path, tmp_path: Path, capfd
) -> None:
    source, found = tmp_path / "in.txt", tmp_path / "found.jsonl"
    source.write_text("".join(f"{row['source']}\n" for row in ROWS) + "\n" + "seven " * 2000 + "\n")
    flags = ["--model", models / "translator", "--input", source, "--output", found]
    assert outcome(capfd, "translate", *flags, "--n_best", "4", "--max_length", "6")[0] == 0
    before = [json.loads(line) for line in found.read_text().splitlines()]
    status, after, errors = score(capfd, models, "--input", found)
    assert status == 0
    for row, again in zip(before, after, strict=True):
        assert {**row, "hypotheses": None} == {**again, "hypotheses": None}
        assert [each["text"] for each in row["hypotheses"]] == [each["text"] for each in again["hypotheses"]]
        for one, other in zip(row["hypotheses"], again["hypotheses"], strict=True):
            assert one["complete"] == other["complete"]
            for name in ("score", "log_prob"):
                assert other[name] == pytest.approx(one[name], abs=2e-5)
    best = [row["hypotheses"][0]["log_prob"] for row in after if row["hypotheses"]]
    assert f"scored 8 rows; 2 empty: log_prob {sum(best):.4f} of" in errors
    (tmp_path / "found").write_bytes(found.read_bytes())  # without an ending it is JSON Lines too
    assert score(capfd, models, "--input", tmp_path / "found")[1] == after


def test_a_list_of_texts_is_sorted_by_score_and_length_penalty(
    models: Path, scorer: Scorer, tmp_path: Path, capfd
) -> None:
    texts = ["1", "1 2 3", "", "9 9 9 9 9 9"]
    rows = [{"id": 1, "source": "one two three", "of": {"all": texts}}, {"source": "one", "of": {"all": []}}]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    orders = {}
    for alpha in ("0", "0.6", "8"):
        flags = ["--target_field", "of.all", "--length_penalty", alpha]
        status, lines, _ = score(capfd, models, "--input", table, *flags)
        assert status == 0
        assert lines[1] == rows[1]
        assert lines[0]["id"] == 1
        listed = lines[0]["of"]["all"]
        scores = [each["log_prob"] / ((5 + each["num_tokens"]) / 6) ** float(alpha) for each in listed]
        assert [each["score"] for each in listed] == pytest.approx(scores)
        assert scores == sorted(scores, reverse=True)
        orders[alpha] = [each["text"] for each in listed]
        assert sorted(orders[alpha]) == sorted(texts)
    assert orders["0"] != orders["8"]
    assert orders["0.6"] == [text for text, _ in scorer.rank("one two three", texts)]


def test_a_too_long_target_of_a_list_is_ranked_last(models: Path, tmp_path: Path, capfd) -> None:
    table = write_jsonl(tmp_path / "rows.jsonl", [{"source": "one", "hypotheses": ["1 2 3 4", "9 9"]}])
    status, lines, errors = score(capfd, models, "--input", table, "--max_length", "4", "--tokens")
    assert status == 0
    best, worst = lines[0]["hypotheses"]
    assert (best["text"], len(best["tokens"])) == ("9 9", 3)
    assert (worst["log_prob"], worst["score"]) == (None, None)
    assert "its target has 5 tokens" in worst["problem"]
    assert "1 not scored" in errors


# Language models.


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_texts_are_scored_from_lines_and_tables(models: Path, tmp_path: Path, capfd, kind: str) -> None:
    texts = ["the film was great", "", "ann saw bob"]
    (tmp_path / "in.txt").write_text("\n".join(texts))
    expected = Scorer.from_pretrained(models / kind)(texts)
    status, lines, errors = score(capfd, models, "--input", tmp_path / "in.txt", kind=kind)
    assert status == 0
    assert [line["text"] for line in lines] == texts
    assert [line["log_prob"] for line in lines] == pytest.approx([each.log_prob for each in expected])
    assert "vaswani: scored 3 lines; 1 empty: log_prob" in errors
    table = write_jsonl(tmp_path / "rows.jsonl", [{"body": text, "id": 1} for text in texts])
    rows = score(capfd, models, "--input", table, "--text_field", "body", "--tokens", kind=kind)[1]
    assert [row["log_prob"] for row in rows] == [line["log_prob"] for line in lines]
    assert [len(row["tokens"]) for row in rows] == [line["num_tokens"] for line in lines]
    long = score(capfd, models, "--input", table, "--text_field", "body", "--max_length", "3", kind=kind)
    assert f"line 1 of {table} is not scored: it has" in long[2]


# What cannot be scored.


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        ("translator", ["--text_field", "x"], "--text_field is for a language model, and the model is an"),
        ("causal", ["--source_field", "x"], "--source_field is for an encoder-decoder, and the model is a"),
        ("masked", ["--too_long", "cut"], "--too_long is for an encoder-decoder"),
        ("masked", ["--length_penalty", "1"], "--length_penalty is for an encoder-decoder"),
        ("causal", ["--source_prefix", "x"], "--source_prefix is for an encoder-decoder"),
        ("causal", ["--max_source_length", "9"], "--max_source_length is for an encoder-decoder"),
        ("causal", ["other.txt"], "TARGET_FILE other.txt is for an encoder-decoder"),
        ("translator", ["--input", "{lines}"], "lines.txt is not JSON (Expecting value"),
        ("translator", ["--input", "{lines}"], "for a file of sources, give that of the targets after it"),
        (
            "translator",
            ["--input", "{lines}", "{more}"],
            "have different numbers of lines: 1 and 2; give a pair",
        ),
        ("translator", ["--input", "{lines}", "{rows}"], "rows.jsonl is a table; give one table, or two"),
        (
            "translator",
            ["--input", "{lines}", "{more}", "--target_field", "x"],
            "--target_field x is for tab",
        ),
        (
            "translator",
            ["--input", "{lines}", "{one}", "--length_penalty", "1"],
            "--length_penalty=1.0 sorts lists of targets, and",
        ),
        ("translator", ["--input", "{lines}", "nowhere"], "cannot read nowhere: No such file"),
        ("translator", ["--input", "{rows}", "--source_field", "x"], "--source_field: "),
        ("translator", ["--input", "{rows}", "--target_field", "x"], "has no field 'x'; it has"),
        ("translator", ["--input", "{both}"], "has fields 'target' and 'hypotheses'; choose with --target"),
        ("translator", ["--input", "{scored}"], "has a field 'log_prob', which the output adds; rename it"),
        ("translator", ["--input", "{number}"], "field 'target' holds 3; expected a text"),
        ("translator", ["--input", "{numbers}"], "the list 'hypotheses' holds 3; expected texts, or objects"),
        ("translator", ["--input", "{rows}", "--too_long", "drop"], "too_long='drop' is unknown"),
        ("translator", ["--input", "{rows}", "--target_language", "de"], "does not mark languages"),
        ("translator", ["--input", "{rows}", "--output", "{rows}"], "would replace the input"),
        ("translator", ["--input", "{lines}", "{more}", "--output", "{more}"], "would replace the input"),
        ("masked", ["--input", "{rows}"], "has no field 'text'; it has"),
    ],
)
def test_wrong_inputs_give_a_one_line_error(
    models: Path, tmp_path: Path, capfd, kind: str, flags: list[str], message: str
) -> None:
    pair = {"source": "one", "target": "1"}
    tables = {
        "rows": pair,
        "both": {**pair, "hypotheses": ["1"]},
        "scored": {**pair, "log_prob": 0},
        "number": {**pair, "target": 3},
        "numbers": {"source": "one", "hypotheses": ["1", 3]},
    }
    names = {name: write_jsonl(tmp_path / f"{name}.jsonl", [row]) for name, row in tables.items()}
    names |= {"lines": tmp_path / "lines.txt", "more": tmp_path / "more.txt"}
    names["lines"].write_text("one\n")
    names["more"].write_text("1\n2")
    names["one"] = tmp_path / "one.txt"
    names["one"].write_text("1\n")
    flags = [flag.format(**names) for flag in flags]
    status, lines, errors = score(capfd, models, *flags, kind=kind)
    assert (status, lines) == (2, [])
    assert message in errors
    assert errors.count("\n") == 1


def test_json_lines_are_read_from_a_pipe(models: Path, tmp_path: Path, capfd, monkeypatch) -> None:
    table = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    expected = score(capfd, models, "--input", table)[1]
    with table.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert score(capfd, models)[1] == expected


def test_a_field_with_invalid_utf8_is_scored_and_reported(models: Path, tmp_path: Path, capfd) -> None:
    table = tmp_path / "rows.jsonl"
    table.write_bytes(b'{"source": "one", "target": "1\\ud800"}\n{"source": "t\xffwo", "target": "2"}\n')
    status, lines, errors = score(capfd, models, "--input", table)
    assert (status, len(lines)) == (0, 2)
    assert "2 not UTF-8 (their bad bytes were read as U+FFFD)" in errors
