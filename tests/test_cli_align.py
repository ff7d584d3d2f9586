"""`vaswani align` as a user runs it: tables, files of lines, two directions, gold links, wrong inputs."""

import json
from pathlib import Path
from typing import Any

import pytest

from jsonl import write_jsonl
from library_translators import save_translator
from toy_alignment import reversed_rows, save_reversing_checkpoint
from toy_labels import save_toy_encoder
from vaswani import Aligner
from vaswani.cli import run
from vaswani.data.tokenization import load_tokenizers
from vaswani.inference.align.aligner import SymmetricAligner
from vaswani.inference.align.links import METHODS, symmetrize, to_pharaoh

PAIRS = [*reversed_rows(12, seed=-3), ("one two", "")]
ROWS = [{"id": at, "source": source, "target": target} for at, (source, target) in enumerate(PAIRS)]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_reversing_checkpoint(folder / "forward")
    save_reversing_checkpoint(folder / "backward", turned=True)
    save_toy_encoder(folder / "encoder")
    return folder


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Pairs as a table and as lines, and gold links that are right."""
    names = {name: tmp_path / name for name in ("rows.jsonl", "source", "target", "gold")}
    write_jsonl(names["rows.jsonl"], ROWS)
    names["source"].write_text("".join(f"{source}\n" for source, _ in PAIRS))
    names["target"].write_text("".join(f"{target}\n" for _, target in PAIRS))
    names["gold"].write_text("".join(to_pharaoh(right(target)) + "\n" for _, target in PAIRS))
    return names


def right(target: str) -> set[tuple[int, int]]:
    count = len(target.split())
    return {(count - 1 - at, at) for at in range(count)}


def align(capfd, models: Path, *arguments: object, model: str = "forward") -> tuple[int, list[str], str]:
    flags = ["--model", models / model, "--device", "cpu", *arguments]
    status = run(["align", *map(str, flags)])
    captured = capfd.readouterr()
    return status, captured.out.split("\n")[:-1], captured.err


@pytest.mark.slow
def test_lines_and_rows_are_aligned(models: Path, files: dict[str, Path], tmp_path: Path, capfd) -> None:
    expected = [to_pharaoh(found.links) for found in Aligner.from_pretrained(models / "forward")(PAIRS)]
    status, lines, errors = align(capfd, models, "--input", files["source"], files["target"])
    assert (status, lines) == (0, expected)
    assert errors.splitlines()[-1] == "vaswani: aligned 13 lines; 1 empty"
    output = tmp_path / "out.jsonl"
    for flags, field in (([], "alignment"), (["--output_field", "links"], "links")):
        status, lines, _ = align(capfd, models, "--input", files["rows.jsonl"], "--output", output, *flags)
        assert (status, lines) == (0, [])
        rows = [json.loads(line) for line in output.read_text().splitlines()]
        assert rows == [{**row, field: links} for row, links in zip(ROWS, expected, strict=True)]
    named = tmp_path / "named.jsonl"
    named.write_text(
        "".join(json.dumps({"x": {"a": source}, "y": target}) + "\n" for source, target in PAIRS)
    )
    flags = ["--source_field", "x.a", "--target_field", "y"]
    found = align(capfd, models, "--input", named, *flags)[1]
    assert [json.loads(line)["alignment"] for line in found] == expected


@pytest.mark.slow
def test_options_change_the_error_rates(models: Path, files: dict[str, Path], capfd) -> None:
    pairs = ["--input", files["source"], files["target"], "--gold", files["gold"]]
    rates, links = {}, {}
    for flags in ("", "--layer 0", "--layer 0 --heads 1", "--layer all --step read", "--step read"):
        status, lines, errors = align(capfd, models, *pairs, *flags.split())
        assert (status, len(lines)) == (0, len(PAIRS))
        assert "aligned 13 lines; 1 empty: precision " in errors
        rates[flags], links[flags] = float(errors.split()[-1]), tuple(lines)
    assert rates[""] < 8
    assert rates[""] < min(rates["--layer 0"], rates["--step read"])
    assert len(set(links.values())) == len(links), rates
    again = align(capfd, models, *pairs, "--layer", "-1", "--heads", "0,1")[2]
    assert float(again.split()[-1]) == rates[""]
    small = align(capfd, models, *pairs, "--max_tokens_per_batch", "1", "--buffer_size", "2")[2]
    assert float(small.split()[-1]) == rates[""]


@pytest.mark.slow
def test_two_models_are_combined(models: Path, files: dict[str, Path], capfd) -> None:
    pairs = ["--input", files["source"], files["target"], "--layer", "0"]
    flags = ["--reverse_model", models / "backward"]
    forward, backward = (Aligner.from_pretrained(models / name, layer=0) for name in ("forward", "backward"))
    sides = forward(PAIRS), backward([(target, source) for source, target in PAIRS])
    found = {}
    for method in METHODS:
        status, lines, _ = align(capfd, models, *pairs, *flags, "--symmetrize", method)
        found[method] = lines
        turned = [{(source, target) for target, source in each.links} for each in sides[1]]
        expected = [
            to_pharaoh(symmetrize(one.links, other, method))
            for one, other in zip(sides[0], turned, strict=True)
        ]
        assert (status, lines) == (0, expected)
    assert len(set(map(tuple, found.values()))) >= 4
    assert align(capfd, models, *pairs, *flags)[1] == found["grow-diag-final-and"]


def test_each_direction_has_its_prefix(models: Path, files: dict[str, Path], capfd) -> None:
    """With the options of a multilingual model, one model may be both."""
    pairs = ["--input", files["source"], files["target"], "--symmetrize", "union"]
    given = ["--reverse_model", models / "forward", "--source_prefix", "two "]
    aligners = [Aligner.from_pretrained(models / "forward", source_prefix=each) for each in ("two ", "one ")]
    expected = SymmetricAligner(*aligners, "union")(PAIRS)
    status, lines, _ = align(capfd, models, *pairs, *given, "--reverse_source_prefix", "one ")
    assert (status, lines) == (0, [to_pharaoh(each.links) for each in expected])
    assert lines != align(capfd, models, *pairs, *given, "--reverse_source_prefix", "")[1]


@pytest.mark.parametrize(
    ("given", "turned"),
    [
        (["--source_language", "de", "--target_language", "fr"], ("fr", "de")),
        (["--source_language", "fr"], ("{tgt}", "fr")),
        (["--target_language", "fr"], ("fr", "{src}")),
    ],
    ids=str,
)
def test_languages_are_exchanged(
    models: Path, files: dict[str, Path], tmp_path: Path, capfd, given: list[str], turned: tuple[str, str]
) -> None:
    """A reverse model without languages gets none; else one that is not given is the saved one."""
    folder = save_translator("m2m100", tmp_path / "m2m100")
    known: Any = load_tokenizers(folder)[0]
    of_forward = {flag.removeprefix("--"): value for flag, value in zip(given[::2], given[1::2], strict=True)}
    forward = Aligner.from_pretrained(folder, **of_forward)
    names = [each.format(src=known.src_lang, tgt=known.tgt_lang) for each in turned]
    of_reverse = {"source_language": names[0], "target_language": names[1]}
    pairs = ["--input", files["source"], files["target"], "--symmetrize", "union"]
    for reverse, options in (folder, of_reverse), (models / "backward", {}):
        backward = Aligner.from_pretrained(reverse, **options)
        expected = SymmetricAligner(forward, backward, "union")(PAIRS)
        status, lines, _ = align(capfd, models, *pairs, "--reverse_model", reverse, *given, model=str(folder))
        assert (status, lines) == (0, [to_pharaoh(each.links) for each in expected])


def test_pairs_that_are_not_aligned_are_named(models: Path, files: dict[str, Path], capfd) -> None:
    pairs = ["--input", files["source"], files["target"], "--gold", files["gold"]]
    status, lines, errors = align(capfd, models, *pairs, "--max_length", "5")
    longest = max(range(len(PAIRS)), key=lambda at: len(PAIRS[at][1]))
    tokens = 1 + len(PAIRS[longest][1].split())
    assert status == 0
    assert lines[longest] == ""
    assert (
        f"line {longest + 1} is not aligned: its target has {tokens} tokens, more than max_length=5" in errors
    )
    assert " not aligned: precision" in errors
    cut = align(capfd, models, *pairs, "--max_source_length", "3")[2]
    assert "is not aligned: its source has" in cut
    assert "of which only the beginning was read" not in cut
    status, lines, errors = align(capfd, models, *pairs, "--max_source_length", "3", "--too_long", "cut")
    assert "is not aligned" not in errors
    assert "of which only the beginning was read" in errors
    assert {source for line in lines for source, _ in (link.split("-") for link in line.split())} == {
        "0",
        "1",
    }


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--layer", "2"], "layer=2: the model's decoder has 2; expected 0 to 1, or -2 to -1"),
        (["--layer", "last"], "--layer last: expected all, or a number such as 2 or -1"),
        (["--heads", "0,2"], "heads=2: the model's decoder has 2"),
        (["--heads", "0,0"], "heads=0,0 names a head twice"),
        (["--heads", "first"], "--heads first: expected all, or numbers such as 0,3"),
        (["--step", "write"], "step=write is unknown; expected predict or read"),
        (
            ["--reverse_source_prefix", "x"],
            "--reverse_source_prefix is for two directions; add --reverse_model",
        ),
        (["--symmetrize", "union"], "--symmetrize is for two directions; add --reverse_model"),
        (["--reverse_model", "{forward}", "--symmetrize", "grow"], "symmetrize=grow is unknown; expected"),
        (
            ["--reverse_model", "{forward}"],
            "forward, which reads one direction only; give a model from target",
        ),
        (
            ["--reverse_model", "{forward}", "--source_prefix", "x ", "--reverse_source_prefix", "x "],
            "source_prefix and reverse_source_prefix are both 'x ', with which",
        ),
        (["--reverse_model", "{encoder}"], "which does not translate; expected an encoder-decoder"),
        (["--gold", "{short}"], "short has 1 lines, and there are 13 pairs; give a line per pair"),
        (["--gold", "{wrong}"], "line 2 of "),
        (["--gold", "{wrong}"], "holds '1:1'; expected links such as 0-0 (sure) and 1p2 (possible)"),
        (["--gold", "nowhere"], "cannot read nowhere: No such file"),
        (["--gold", "{gold}", "--output", "{gold}"], "would replace the input"),
        (["--source_field", "x"], "--source_field x is for tables"),
        (["--output_field", "links"], "--output_field links is for tables, and "),
        (
            ["--output", "a.jsonl"],
            "--output a.jsonl would hold lines of text, not JSON; end it in .txt, or give",
        ),
        (["--too_long", "keep"], "too_long='keep' is unknown; expected 'cut' or 'skip'"),
        (["--source_language", "de"], "does not mark languages"),
    ],
)
def test_wrong_options_give_a_one_line_error(
    models: Path, files: dict[str, Path], tmp_path: Path, capfd, flags: list[str], message: str
) -> None:
    (tmp_path / "short").write_text("0-0\n")
    (tmp_path / "wrong").write_text("0-0\n1:1\n" + "\n" * 11)
    places: dict[str, Any] = {name: tmp_path / name for name in ("short", "wrong", "gold")}
    places |= {name: models / name for name in ("forward", "encoder")}
    given = [flag.format(**places) for flag in flags]
    status, lines, errors = align(capfd, models, "--input", files["source"], files["target"], *given)
    assert (status, lines) == (2, [])
    assert message in errors
    assert errors.count("\n") == 1


def test_gold_links_of_other_pairs_give_an_error(
    models: Path, files: dict[str, Path], tmp_path: Path, capfd
) -> None:
    gold = tmp_path / "other"
    gold.write_text("17-0\n" + "\n" * 12)
    status, _, errors = align(capfd, models, "--input", files["source"], files["target"], "--gold", gold)
    assert status == 2
    assert f"line 1 of {gold} links words 17 and 0, and the pair has" in errors
    (tmp_path / "rows").write_bytes(files["rows.jsonl"].read_bytes())  # JSON Lines whose number is not known
    for count, message in (
        (12, "the gold links end before line 13 of "),
        (14, f"ends before line 14 of {gold}"),
    ):
        gold.write_text("\n" * count)
        status, _, errors = align(capfd, models, "--input", tmp_path / "rows", "--gold", gold)
        assert status == 2
        assert message in errors


def test_a_row_with_an_alignment_field_gives_an_error(models: Path, tmp_path: Path, capfd) -> None:
    table = tmp_path / "rows.jsonl"
    table.write_text(json.dumps({**ROWS[0], "alignment": "0-0"}) + "\n")
    status, _, errors = align(capfd, models, "--input", table)
    assert status == 2
    assert f"line 1 of {table} has a field 'alignment', which the output adds; rename it" in errors
    assert align(capfd, models, "--input", table, "--output_field", "links")[0] == 0
