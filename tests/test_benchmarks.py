"""The benchmarks run, compare equal settings, and end with their JSON."""

import argparse
import dataclasses
import datetime
import importlib
import itertools
import json
import math
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from forking import ForkingPython
from jsonl import write_jsonl
from tiny_runs import TINY_MODEL, TINY_RUN, as_flags
from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.data.sources.dates import DATE_FORMATS, DateWriter, generate_dates
from vaswani.data.tokenization import save_tokenizers, train_tokenizer
from vaswani.errors import UserError
from vaswani.files.run_files import SETTINGS_FILE
from vaswani.kernels import sparse_native
from vaswani.training.config.arguments import RunConfig
from vaswani.training.config.config_file import load_config
from vaswani.training.runs.translation import train

pytestmark = pytest.mark.script

Table = tuple[list[list[str]], dict[str, Any]]
Run = Callable[..., Table]
BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def side_by_side(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("side_by_side")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Rows with fields of their own names, in which each side has its own length."""
    words = ["one", "two", "three", "four", "five", "six", "seven"]
    rows = [
        {"en": " ".join(words[: 1 + i % 7]), "de": " ".join(words[i % 5 :]) + f" {i}"} for i in range(400)
    ]
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, rows)
    return path


@pytest.fixture
def long_texts(tmp_path: Path) -> Path:
    """Texts of some 3,500 bytes, whose words come back near and far."""
    words = [
        "".join(syllables) for syllables in itertools.product(("ba", "di", "ku", "lo", "me", "ra"), repeat=3)
    ]
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(len(words), (20, 500), generator=generator).tolist()
    path = tmp_path / "texts.jsonl"
    rows = (json.dumps({"text": " ".join(words[i] for i in row)}) for row in places)
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


@pytest.fixture
def run(forking_python: ForkingPython, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a benchmark.

    Returns:
        The cells of its table, head and rule left out, and the object that should stand on the last line.
    """

    def run_script(script: str, *arguments: object, last_line: bool = True) -> Table:
        command = [BENCHMARKS / script, "--quick", "--json", *arguments]
        result = forking_python.run(command, tmp_path_factory.mktemp("printed"))
        assert result.returncode == 0, result.stderr
        lines = result.stdout.splitlines()
        found = [line.strip("|").split("|") for line in lines if line.startswith("|")]
        rows = [[cell.strip() for cell in cells] for cells in found]
        return rows[2:], json.loads(lines[-1]) if last_line else {}

    return run_script


def test_both_sides_compute_the_same_function(side_by_side: ModuleType):
    ours = VaswaniForConditionalGeneration(side_by_side.our_config("tiny", vocab_size=50)).eval()
    marian = side_by_side.marian_twin(ours)
    assert sum(p.numel() for p in marian.parameters() if p.requires_grad) == ours.num_parameters()
    ids = torch.randint(3, 50, (2, 9))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": ids[:, :5]}
    torch.testing.assert_close(marian(**batch).logits, ours(**batch).logits)


def test_the_table_has_aligned_columns(side_by_side: ModuleType, capsys: pytest.CaptureFixture[str]):
    side_by_side.print_table(("what", "with", "number"), [("a", "long name", "1"), ("bb", "c", "12,345")])
    lines = capsys.readouterr().out.splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1].endswith("-: |")


def test_baseline_summaries_need_no_model(run: Run, tmp_path: Path):
    data = tmp_path / "test.jsonl"
    articles = [("one two three four five", "one two three"), ("six seven eight nine", "eight nine ten")]
    rows = [json.dumps({"text": text, "summary": summary}) for text, summary in articles]
    data.write_text("\n".join(rows), encoding="utf-8")
    rows, result = run("summary_baselines.py", "--data", data, "--words", 3, 9)
    found = {name: scores["rouge1"]["value"] for name, scores in result.items()}
    assert found == pytest.approx(
        {
            "the first 3 words": 100 * (1 + 1 / 3) / 2,
            "the first 9 words": 100 * (6 / 8 + 4 / 7) / 2,
            "the summary of the next article": 0.0,
        }
    )
    assert [row[0] for row in rows] == list(found)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_ways_to_translate_give_mostly_equal_translations(run: Run, corpus: Path, tmp_path: Path):
    folder = tmp_path / "run"
    options = {**TINY_RUN, "train_file": corpus, "source_field": "en", "target_field": "de"}
    options |= {"save_steps": 1, "max_steps": 6, "norm_order": "post", "output_dir": folder}
    train(load_config(None, as_flags(options)))
    rows, result = run("ways_to_translate.py", "--data", corpus, "--model", folder, folder)
    same = {row[0]: row[1] for row in rows}
    for way in ("ctranslate2, greedy", "onnx, beam 4", "marian, beam 4", "marian, greedy"):
        assert re.match(r"(\d+) of \1", same[way]), way
    assert result["ensemble of 2"]["bleu"][1] == pytest.approx(0.0)
    assert result["mean of the last 5 checkpoints"]["chrf"][1] != 0.0
    assert result["torch, beam 4, int8"].keys() == {"bleu", "chrf"}


@pytest.mark.slow
def test_training_speed(run: Run, corpus: Path):
    rows, result = run("training_speed.py", "--data", corpus)
    assert result.keys() == {"ratio_vs_stock", "ratio_vs_length_grouped"}
    assert all(ratio > 0 for ratio in result.values())
    padding = {row[1]: int(row[4].rstrip("%")) for row in rows}
    assert padding["vaswani, token budget"] < padding["MarianMT, stock (random)"]
    assert len(padding) == 3


@pytest.mark.exhaustive
@pytest.mark.slow
def test_training_speed_in_bfloat16(run: Run, corpus: Path):
    rows, _ = run("training_speed.py", "--data", corpus, "--bf16")
    assert [row[1] for row in rows][-1] == "vaswani, token budget, float32"
    assert len(rows) == 4


def test_result_pictures_show_the_numbers_of_the_tables(tmp_path: Path):
    drawing: Any = importlib.import_module("results_pictures")
    docs = shutil.copytree(BENCHMARKS.parent / "docs" / "results", tmp_path / "results").parent
    page = (BENCHMARKS.parent / "docs" / "results.md").read_text()
    for name, draw in drawing.PICTURES.items():
        assert f"(results/{name}.png)" in page
        assert (docs / "results" / f"{name}.png").stat().st_size > 10_000
        shown = []
        for text in (page, page.replace("| 2.6 million | 39.95 BLEU", "| 2.6 million | 12.3 BLEU")):
            (docs / "results.md").write_text(text)
            lines = draw(docs / "results").axes[0].get_lines()
            shown.append([(each.get_label(), *each.get_xydata().tolist()) for each in lines])
        assert len(shown[0]) >= 3
        moved = [each for each, other in zip(*shown, strict=True) if each != other and "nan" not in str(each)]
        assert len(moved) == (name == "by_size")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_equal_learning(run: Run, corpus: Path, tmp_path: Path):
    command = ("equal_learning.py", "--data", corpus, "--output", tmp_path / "out")
    rows, result = run(*command, "--picture", tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").exists()
    first = {side: found["losses"][0] for side, found in result.items()}
    assert len(first) == 4
    assert max([*first.values()][:3]) - min([*first.values()][:3]) < 0.1  # all begin with the same weights
    assert all(found["losses"][-1] < found["losses"][0] for found in result.values())
    assert [row[3] == "" for row in rows] == [False, False, True, False]
    assert [len(found["updates"]) for found in result.values()] == [4] * 4
    for path in (tmp_path / "out").glob("*-*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "losses": [5.0, 4.0, 3.0, 2.0]}))
    assert all(found["losses"] == [5.0, 4.0, 3.0, 2.0] for found in run(*command)[1].values())


@pytest.mark.parametrize(
    ("losses", "share"), [([4.0, 2.0, 1.0], 0.3), ([3.0, 2.5, 1.0], 0.2), ([9.0, 8.0, 7.0], math.nan)]
)
def test_the_time_to_a_loss_is_interpolated_linearly(side_by_side: ModuleType, losses, share):
    equal_learning = importlib.import_module("equal_learning")
    ours = equal_learning.Learning([1, 2, 3], losses, [2.0, 4.0, 6.0])
    other = equal_learning.Learning([1, 2, 3], [9.0, 8.0, 3.0], [3.0, 6.0, 10.0])
    assert equal_learning.time_to_loss(ours, other) == pytest.approx(share, nan_ok=True)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_decoding_profile(run: Run):
    rows, result = run("decoding_profile.py")
    assert len(result) == 2  # greedy, and with beams
    for name, found in result.items():
        microseconds = {row[1]: int(row[2]) for row in rows if row[0] == name}
        parts = {*microseconds} - {"a step", "least"}
        assert sum(microseconds[part] for part in parts) == pytest.approx(
            microseconds["a step"], abs=len(parts)
        )
        assert {"encoder", "decoder and output projection, C++"} < parts
        assert ("choosing beams" in parts) == ("4 beams" in name)
        assert found["least"] > 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_training_profile(run: Run, corpus: Path):
    rows, result = run("training_profile.py", "--data", corpus)
    (seconds,) = result.values()
    found = {row[1]: row for row in rows}
    assert {"linear layers, forward", "linear layers, backward", "attention", "optimizer"} < seconds.keys()
    assert found.keys() == {*seconds, "the update"}
    assert all(row[4].endswith("GFLOP") for part, row in found.items() if "linear" in part)
    assert all(row[4].endswith("GB") for part, row in found.items() if part in ("dropout", "optimizer"))
    assert sum(float(row[2]) for row in rows[:-1]) == pytest.approx(float(found["the update"][2]), abs=1)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_scaling(run: Run):
    rows, result = run("scaling.py")
    assert [row[2] for row in rows] == ["1", "2 ddp", "2 fsdp"]
    assert result["predicted_over_measured"]["small ddp"]["traffic"] == pytest.approx(1, abs=0.2)
    assert result["predicted_over_measured"]["small fsdp"]["traffic"] == pytest.approx(1, abs=0.3)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_estimates_are_compared_with_measured_times(run: Run):
    rows, result = run("estimate_against_measured.py")
    phases = ["training step", "reading", "decoding step", "reading and writing"]
    assert [row[2] for row in rows] == phases
    assert list(result["reached"]["tiny"]) == [phase.replace(" ", "_") for phase in phases]
    assert all(share > 0 for share in result["reached"]["tiny"].values())


def test_the_plan_of_scaling_needs_no_measuring(run: Run):
    rows, _ = run("scaling.py", "--plan", last_line=False)
    assert {row[1] for row in rows} == {"1", "2", "8", "16", "64", "256", "1,024"}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_startup(run: Run):
    rows, result = run("startup.py")
    assert {row[0]: row[3] for row in rows} == {
        "`from transformers import AutoModelForSeq2SeqLM`": "yes",
        "`import vaswani`": "no",
        "`import vaswani; from transformers import AutoModelForSeq2SeqLM`": "yes",
        "`from vaswani import Translator`": "yes",
        "`vaswani --help`": "no",
        "`vaswani train --help`": "no",
    }
    assert all(seconds > 0 for seconds in result["cpu_seconds"].values())


@pytest.mark.slow
def test_streaming(run: Run, tmp_path: Path):
    rows, result = run("streaming.py", "--output", tmp_path)
    assert rows[0][0] == "20,000"
    assert result["memory_growth"] < 0.1
    assert (tmp_path / "streaming.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_date_attention(run: Run, tmp_path: Path):
    """With equal attention, the shares are those that stand beside them."""
    tokenizer = train_tokenizer(["1 2"] * 4, 300)
    save_tokenizers(tokenizer, tokenizer, tmp_path / "run")
    model = VaswaniForConditionalGeneration(VaswaniConfig(**{**TINY_MODEL, "vocab_size": len(tokenizer)}))
    for layer in model.model.decoder.layers:
        torch.nn.init.zeros_(layer.encoder_attn.q_proj.weight)
    model.save_pretrained(tmp_path / "run")
    rows, result = run("date_attention.py", "--model", tmp_path / "run", "--output", tmp_path)
    assert [*result] == ["de", "en", "es", "zh"]
    assert [row[0] for row in rows] == ["German", "English", "Spanish", "Chinese", "mean"]
    for row in rows:
        for cell in row[1:4]:
            share, equal = cell.rstrip(")").split(" (")
            assert share == equal
    assert all(0 < share < 1 for shares in result.values() for share in shares.values())
    assert (tmp_path / "date_attention.png").read_bytes().startswith(b"\x89PNG")


def test_the_parts_of_a_date_are_found_in_its_source(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    benchmark = importlib.import_module("date_attention")
    for row in generate_dates("de,en,ja,hi,hu", train_rows=0, validation_rows=0, test_rows=100)["test"]:
        source, day = row["source"], datetime.date.fromisoformat(row["target"])
        writers = [DateWriter.from_babel(row["locale"], form) for form in DATE_FORMATS]
        spans = benchmark.spans_of_parts(source, row["target"], writers)
        found = {part: source[slice(*span)] for part, span in spans.items()}
        assert int(found["year"]) == day.year
        assert int(found["day"]) == day.day
        assert found["month"] in {month for writer in writers for month in writer.months}
        assert found.get("weekday", "") in ("", *(name for writer in writers for name in writer.weekdays))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_memory_growth(run: Run, tmp_path: Path):
    source = BENCHMARKS.parent / "src"
    rows, result = run("memory_growth.py", "--works", "embed", "--baseline", source, "--output", tmp_path)
    assert [row[:2] for row in rows] == [["embed", "vaswani"], ["embed", "baseline"], ["embed", "BERT"]]
    assert result["memory_growth"].keys() == {"embed"}
    assert (tmp_path / "memory_growth.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_distillation_objectives(run: Run, tmp_path: Path):
    for split, rows in (("train", 40), ("validation", 5), ("test", 5)):
        pairs = [{"en": f"one two {row % 7}", "de": f"eins zwei {row % 7}"} for row in range(rows)]
        lines = "".join(json.dumps(pair) + "\n" for pair in pairs)
        (tmp_path / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    fields = {"source_field": "en", "target_field": "de", "dataset": str(tmp_path), "vocab_size": 300}
    teacher = {**TINY_RUN, **fields, "output_dir": str(tmp_path / "teacher")}
    train(load_config(None, as_flags(teacher)))
    places = ("--teacher", tmp_path / "teacher", "--output", tmp_path / "out")
    rows, result = run("distillation_objectives.py", "--data", tmp_path, *places, "--seeds", "1", "2")
    ways = ["translations", "labels, translations", "labels, soft targets"]
    ways += ["labels, translations, soft targets", "these and cosine", "these and relations"]
    assert [row[0] for row in rows] == ["teacher", "labels alone", *ways]
    assert [len(row[1].split(", ")) for row in rows] == [1, *[2] * (len(ways) + 1)]
    assert list(result["gain"]) == ways
    places = [tmp_path / "out" / seed / way for seed in ("1", "2") for way in ways]
    assert len({(place / "model.safetensors").read_bytes() for place in places}) == len(places)


@pytest.fixture
def variations(side_by_side: ModuleType) -> ModuleType:
    return importlib.import_module("variations")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_variations_of_a_translator(run: Run, tmp_path: Path, variations: ModuleType):
    for split, rows in (("train", 40), ("validation", 10)):
        pairs = [{"en": f"one two {row % 7}", "de": f"eins zwei {row % 7}"} for row in range(rows)]
        lines = "".join(json.dumps(pair) + "\n" for pair in pairs)
        (tmp_path / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    where = ("--data", tmp_path, "--output", tmp_path / "out")
    rows, result = run("table3.py", *where, "--rows", "base", "post-norm")
    assert [row[0] for row in rows] == [*result] == ["base", "post-norm"]
    assert result["base"]["perplexity"]["difference"] == 0
    assert result["post-norm"]["perplexity"]["difference"] != 0
    for numbers in result.values():
        first, second = numbers["perplexity"]["seeds"]
        assert first != second
    # What is there stays; a training that was stopped goes on.
    folder = tmp_path / "out" / "base-1"
    weights = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/model.safetensors")}
    (folder / variations.RESULT_FILE).unlink()
    picture = tmp_path / "differences.svg"
    assert run("table3.py", *where, "--rows", "base", "--picture", picture)[1] == result
    assert picture.read_text().count("post-norm") == 1
    again = {path: path.stat().st_mtime_ns for path in weights}
    assert [path.parent.name for path in weights if again[path] != weights[path]] == ["base-1"]
    where = ("--data", tmp_path, "--output", tmp_path / "recipe", "--picture", tmp_path / "recipe.svg")
    rows, result = run("recipe.py", *where, "--seeds", "1", "--rows", "base", "batches of 2,048", "--bf16")
    assert [(row[0], row[2]) for row in rows] == [("base", "2"), ("batches of 2,048", "4")]


def configs_of_study(variations: ModuleType, name: str, folder: Path) -> dict[str, RunConfig]:
    study = importlib.import_module(name).STUDY
    args = argparse.Namespace(output=folder / "out", data=folder, max_steps=8, bf16=False, quick=False)
    return {name: variations.config_of(study, args, name, 0) for name in study.variations}


def test_trainings_with_other_options_raise_an_error(side_by_side: ModuleType, tmp_path: Path):
    options = {"rows": 8, "flags": ["--bf16"]}
    side_by_side.check_options(tmp_path / "runs", options)
    (tmp_path / "runs" / "base-0").mkdir()
    side_by_side.check_options(tmp_path / "runs", options)
    with pytest.raises(UserError, match="runs holds trainings with rows=8, not 9; give another --output"):
        side_by_side.check_options(tmp_path / "runs", {**options, "rows": 9})


def test_a_folder_without_trainings_takes_other_options(side_by_side: ModuleType, tmp_path: Path):
    side_by_side.check_options(tmp_path / "runs", {"data": "misspelled"})
    side_by_side.check_options(tmp_path / "runs", {"data": "corpus"})
    assert json.loads((tmp_path / "runs" / "options.json").read_text()) == {"data": "corpus"}


def call(monkeypatch: pytest.MonkeyPatch, script: str, *arguments: object) -> None:
    """Call a benchmark in this process."""
    monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
    monkeypatch.setattr(importlib.import_module("side_by_side"), "quiet", lambda: None)
    runpy.run_path(str(BENCHMARKS / script), run_name="__main__")


@pytest.mark.parametrize(
    ("script", "needed", "recorded"),
    [
        ("equal_learning.py", ["--data", "corpus"], {"learning_rate": 0.1}),
        ("equal_learning.py", ["--data", "corpus"], {"data": "other"}),
        ("long_documents.py", ["--articles", "texts", "--reviews", "films"], {"articles": "other"}),
        ("long_documents.py", ["--articles", "texts", "--reviews", "films"], {"reviews": "other"}),
    ],
)
def test_a_benchmark_does_not_mix_options(
    side_by_side, monkeypatch, tmp_path, script: str, needed: list[str], recorded: dict[str, Any]
):
    side_by_side.check_options(tmp_path, recorded)
    (tmp_path / "0-0.json").write_text("{}")  # a training
    [(name, value)] = recorded.items()
    with pytest.raises(UserError, match=f"holds trainings with {name}={value}, not"):
        call(monkeypatch, script, *needed, "--output", tmp_path)


@pytest.mark.parametrize(
    ("script", "needed"),
    [
        ("equal_learning.py", ["--data", "missing", "--picture"]),
        ("table3.py", ["--data", "missing", "--picture"]),
        ("finetune_from_pretrained.py", ["--data", "missing", "--model", ".", "--picture"]),
        ("sparse_attention.py", ["--quick", "--plot"]),
    ],
)
def test_a_benchmark_checks_its_picture_before_its_work(
    side_by_side, monkeypatch, capsys, tmp_path, script: str, needed: list[str]
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"a\.bmp"):
        call(monkeypatch, script, *needed, "a.bmp")
    assert not [*tmp_path.iterdir()]
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "needed", "message"),
    [
        ("finetune_from_pretrained.py", ["--data", "texts", "--model"], "there is no such folder"),
        ("memory_growth.py", ["--quick", "--baseline"], "there is no folder vaswani in it"),
    ],
)
def test_a_benchmark_needs_the_folder_that_it_compares(
    side_by_side, monkeypatch, tmp_path, capsys, script: str, needed: list[str], message: str
):
    with pytest.raises(SystemExit):
        call(monkeypatch, script, *needed, tmp_path / "missing")
    assert f"missing: {message}" in capsys.readouterr().err


@pytest.mark.parametrize("seed", [["--seed", "7"], ["--seed=7"]])
@pytest.mark.parametrize(
    "needed", [("finetune_from_pretrained", "model"), ("distillation_objectives", "teacher")]
)
def test_the_seed_of_a_configuration_is_not_taken_for_the_seeds_of_a_benchmark(
    side_by_side, monkeypatch, tmp_path, capsys, needed: tuple[str, str], seed: list[str]
):
    with pytest.raises(SystemExit):
        call(monkeypatch, f"{needed[0]}.py", "--data", "texts", f"--{needed[1]}", tmp_path, *seed)
    assert "--seed: the trainings have different seeds; give --seeds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "option"),
    [
        ("equal_learning", "--seeds"),
        ("finetune_from_pretrained", "--seeds"),
        ("long_documents", "--seeds"),
        ("table3", "--seeds"),
        ("decoding_speed", "--rounds"),
        ("decoding_profile", "--sentences"),
        ("training_speed", "--rounds"),
        ("training_profile", "--updates"),
    ],
)
def test_a_benchmark_refuses_to_measure_nothing(side_by_side, monkeypatch, capsys, script: str, option: str):
    with pytest.raises(SystemExit):
        call(monkeypatch, f"{script}.py", option, 0)
    assert f"argument {option}: 0: give 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize("study", ["table3", "recipe"])
def test_each_variation_changes_only_its_setting(variations: ModuleType, study: str, tmp_path: Path):
    configs = configs_of_study(variations, study, tmp_path)
    base = configs.pop("base")
    for name, config in configs.items():
        settings = [each.to_dict() for each in (base, config)]
        changed = {field for field in settings[0] if settings[0][field] != settings[1][field]}
        assert len({field.partition("coder_")[2] or field for field in changed - {"output_dir"}}) == (
            2 if name == "separate embeddings" or name.startswith("batches") else 1
        )


def test_an_interrupted_training_of_a_variation_is_resumed(variations: ModuleType, tmp_path: Path):
    def resumes() -> str:
        return configs_of_study(variations, "table3", tmp_path)["base"].training.resume_from_checkpoint

    assert resumes() == "false"
    (tmp_path / "out" / "base-0").mkdir(parents=True)
    (tmp_path / "out" / "base-0" / SETTINGS_FILE).touch()
    assert resumes() == "true"


@pytest.mark.parametrize(
    ("difference", "paper", "expected"),
    [(-2.0, -0.5, "yes"), (2.0, -0.5, "no"), (0.5, -0.5, "open"), (0.5, 0.0, "yes"), (2.0, 0.0, "no")],
)
def test_the_sign_of_a_difference_agrees_if_its_interval_excludes_the_other(
    variations: ModuleType, difference: float, paper: float, expected: str
):
    assert variations.agreement(difference, 1.0, paper) == expected


@pytest.mark.skipif(sparse_native.library() is None, reason="NO C++ KERNEL to profile: there is no compiler")
def test_sparse_profile():
    command = [sys.executable, str(BENCHMARKS / "sparse_profile.py"), "--length", "1024"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    shares = {
        cells[1].strip(): int(cells[3].strip().rstrip("%"))
        for cells in (line.split("|") for line in lines)
        if len(cells) == 5 and "%" in cells[3]
    }
    assert sum(shares.values()) == pytest.approx(100, abs=4)
    assert shares["matrix products"] > shares["softmax and its gradient"] > 0


@pytest.mark.slow
def test_sparse_attention(run: Run, tmp_path: Path):
    rows, result = run("sparse_attention.py", "--plot", tmp_path / "times.png")
    both = ("speedup_vs_dense", "speedup_vs_bigbird")
    assert result.keys() == {*both, "memory_growth", "layer_share_of_flop_speedup"}
    assert {block: times.keys() for block, times in result["speedup_vs_dense"].items()} == {
        "64": {"256", "512"},
        "128": {"256", "512"},
    }
    assert result["speedup_vs_bigbird"].keys() == {"512"}
    peers = ("vaswani", "dense SDPA", "BigBird", "Longformer", "LongT5 local", "LongT5 transient-global")
    for name in (*peers, "encoder layer, vaswani", "encoder layer, dense SDPA"):
        assert any(row[0].startswith(name) and row[2] == "512" for row in rows), name
    assert all(float(row[3].replace(",", "")) > 0 for row in rows)
    assert (tmp_path / "times.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_sparse_ablation(run: Run, long_texts: Path, side_by_side: ModuleType):
    rows, result = run("sparse_ablation.py", "--data", long_texts)
    variants = importlib.import_module("sparse_ablation").VARIANTS
    per_variant = {"bits_per_byte", "far_bits_per_byte", "key_blocks", "ms_per_step"}
    assert result.keys() == {*per_variant, "bits_of_frequencies"}
    assert all(result[name].keys() == variants.keys() for name in per_variant)
    assert [row[0] for row in rows] == list(variants)
    assert all(math.isfinite(float(number)) for row in rows for number in row[2:])
    for first, second in itertools.combinations(result["bits_per_byte"].values(), 2):
        assert first != second
    for first, second in result["bits_per_byte"].values():  # the seeds
        assert first != second


def test_hidden_words_are_far_if_no_window_reaches_an_equal_word(side_by_side: ModuleType):
    ablation = importlib.import_module("sparse_ablation")
    far, length = ablation.FAR, len("actress")
    assert not ablation.is_far(0, length, [])
    assert not ablation.is_far(0, length, [far + length - 1, 2 * far])
    assert ablation.is_far(0, length, [far + length])
    assert not ablation.is_far(0, len("film"), [2 * far])
    window = ablation.make_config("window", 0).sparse_pattern("encoder", 0).to_dense(ablation.LENGTH)[0]
    reached = torch.linalg.matrix_power(window.float(), ablation.LAYERS) > 0
    assert not reached.triu(far).any()
    assert reached.triu(far - 1).any()


def test_long_dense_attention_is_extrapolated_and_marked_so(side_by_side: ModuleType):
    benchmark = importlib.import_module("sparse_attention")
    setting, dense = (
        benchmark.Setting(benchmark.OURS, 64, 100),
        benchmark.Setting(benchmark.DENSE, None, 100),
    )
    times = {setting: 10.0, dense: 20.0, dataclasses.replace(setting, length=300): 30.0}
    summary = benchmark.summary(benchmark.Results(times, {}).extrapolate())
    assert summary["speedup_vs_dense"] == {"64": {"100": 2.0, "300": 6.0}}
    assert summary["dense_is_extrapolated_at"] == [300]


def test_layer_flops_equal_those_counted_by_torch(side_by_side: ModuleType):
    benchmark = importlib.import_module("sparse_attention")
    layer = benchmark.EncoderLayer(benchmark.attention(None))
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(1, 64, benchmark.D_MODEL, requires_grad=True)).sum().backward()
    linear = sum(counter.get_flop_counts()["Global"].values())  # torch counts no attention on the CPU
    whole, attention = (
        benchmark.flops(benchmark.Setting(method, None, 64))
        for method in (benchmark.DENSE_LAYER, benchmark.DENSE)
    )
    assert linear + attention == whole


@pytest.mark.slow
def test_decoding_speed(run: Run, corpus: Path):
    pytest.importorskip("ctranslate2")
    pytest.importorskip("onnxruntime")
    rows, result = run("decoding_speed.py", "--data", corpus)
    assert result.keys() == {"ratio_vs_marian", "engine_vs_by_hand"}
    assert min(result.values()) > 0
    assert [row[:2] for row in rows] == [
        ["d 32, 1+1 layers", f"{search}, 1 thread"]
        for search in ("beam 4, batch 32", "greedy, batch 32", "greedy, batch 1")
    ]
    for row in rows:
        equal, _, sentences = row[3].partition(" of ")
        marian, ctranslate2, _, onnx = equal.split(", ")  # int8 may differ
        assert {marian, ctranslate2, onnx} == {sentences}
        assert all(float(number.replace(",", "")) > 0 for number in row[4:])
    assert rows[0][2] == rows[1][2]  # outputs of beam search and of greedy search end where references do


@pytest.mark.exhaustive
@pytest.mark.slow
def test_decoding_memory(run: Run, corpus: Path):
    rows, result = run("decoding_memory.py", "--data", corpus)
    ((shape, search, equal, *_, share),) = rows
    assert (shape, search) == ("tiny", "beam 8, batch 4, 12 tokens, 1 thread")
    assert equal == "4 of 4"
    assert result["memory_vs_marian"] == pytest.approx(float(share), abs=0.01)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_decoding_speed_of_a_grid(run: Run, corpus: Path):
    grid = ["--source-tokens", 5, 9, "--batch-sizes", 1, 16, "--beams", 1, 2]
    rows, _ = run("decoding_speed.py", "--data", corpus, *grid, "--engines", "ctranslate2")
    assert [row[1] for row in rows] == [
        f"{search}, batch {size}, {tokens} tokens, 1 thread"
        for tokens in (5, 9)
        for search in ("greedy", "beam 2")
        for size in (1, 16)
    ]
    assert [row[2] for row in rows] == ["5.0"] * 4 + ["9.0"] * 4


def test_training_flops_equal_those_counted_by_torch(side_by_side: ModuleType):
    flops = importlib.import_module("training_speed").linear_flops
    model = VaswaniForConditionalGeneration(side_by_side.our_config("tiny", vocab_size=50))
    source, target = torch.randint(3, 50, (2, 9)), torch.randint(3, 50, (2, 5))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=source, labels=target, smoothing=0.1).loss.backward()
    counts = counter.get_flop_counts()["Global"]
    assert counts[torch.ops.aten.mm] + counts[torch.ops.aten.addmm] == flops(model.config, 2 * 9, 2 * 5)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_distillation_losses_are_timed_in_each_variant(run: Run):
    table, record = run("distillation_speed.py")
    assert [row[:2] for row in table[::2]] == [
        ["labels", "as they come"],
        ["labels, top 16 on disk", "as they come"],
        ["labels, teacher at work", "as they come"],
    ]
    assert all(float(row[2]) >= 0 for row in table)
    assert list(record) == ["labels_at_once", "cached", "cached_at_once", "live", "live_at_once"]
    assert all(ratio > 0 for ratio in record.values())
