"""`vaswani plot attention` as a user runs it: the pictures of the functions, and errors in one line."""

from pathlib import Path
from typing import Any

import pytest

import library_translators
import toy_labels
from toy_translation import save_toy_checkpoint
from vaswani.cli import run
from vaswani.insight.attention import load_attention_model, read_attention
from vaswani.insight.attention_plots import draw_arcs, draw_heatmap, draw_sheet

SOURCE = "onetwo three"  # the first word is of several tokens


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_toy_checkpoint(folder / "translator")
    toy_labels.save_toy_encoder(folder / "encoder")
    toy_labels.save_toy_decoder(folder / "decoder")
    return folder


def plotted(models: Path, output: Path, *options: str, model: str = "translator") -> bytes:
    given = ["--model", models / model, "--source", SOURCE, "--device", "cpu", "--output", output]
    assert run(["plot", "attention", *map(str, given), *options]) == 0
    return output.read_bytes()


@pytest.mark.slow
def test_each_option_changes_the_picture(models: Path, tmp_path: Path) -> None:
    loaded = load_attention_model(models / "translator", device="cpu")
    maps = read_attention(*loaded, SOURCE, "2 1 0")
    of_encoder, _, cross = maps
    own = read_attention(*loaded, SOURCE)[2]
    pictures: dict[tuple[str, ...], Any] = {
        (): draw_heatmap(own),
        ("--target", "2 1 0"): draw_heatmap(cross),
        ("--target", "2 1 0", "--kind", "encoder"): draw_heatmap(of_encoder),
        ("--target", "2 1 0", "--words"): draw_heatmap(cross.words()),
        ("--target", "2 1 0", "--layer", "0", "--head", "1"): draw_heatmap(cross, 0, 1),
        ("--target", "2 1 0", "--style", "arcs", "--head", "0"): draw_arcs(cross, head=0),
        ("--target", "2 1 0", "--style", "arcs", "--token", "1"): draw_arcs(cross, token="1"),
        ("--target", "2 1 0", "--style", "sheet"): draw_sheet(cross),
        ("--target", "2 1 0", "--style", "sheet", "--dark"): draw_sheet(cross, dark=True),
    }
    found = {options: plotted(models, tmp_path / "a.png", *options) for options in pictures}
    assert found == {options: figure.to_bytes("png") for options, figure in pictures.items()}
    assert len(set(found.values())) == len(found)


def test_the_languages_of_a_multilingual_model(models: Path, tmp_path: Path) -> None:
    folder = library_translators.save_translator("nllb", models / "nllb")
    languages = {"source_language": "deu_Latn", "target_language": "eng_Latn", "source_prefix": "two "}
    opened = load_attention_model(folder, languages, device="cpu")
    expected = draw_heatmap(read_attention(*opened, SOURCE, "un chien")[2]).to_bytes("png")
    flags = [text for name, value in languages.items() for text in (f"--{name}", value)]
    given = ("--target", "un chien")
    assert plotted(models, tmp_path / "a.png", *given, *flags, model="nllb") == expected
    assert plotted(models, tmp_path / "b.png", *given, model="nllb") != expected


@pytest.mark.parametrize("suffix", ["svg", "pdf"])
def test_pictures_can_be_svg_and_pdf(models: Path, tmp_path: Path, suffix: str) -> None:
    picture = plotted(models, tmp_path / f"a.{suffix}", "--style", "sheet")
    assert picture.startswith({"svg": b"<?xml", "pdf": b"%PDF"}[suffix])


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_models_of_one_stack_have_one_kind_of_attention(
    models: Path, tmp_path: Path, capfd, kind: str
) -> None:
    plotted(models, tmp_path / "a.png", model=kind)
    assert f"a.png: {kind} attention of " in capfd.readouterr().out
    given = ["--model", str(models / kind), "--source", "one two", "--kind", "cross"]
    assert run(["plot", "attention", *given]) == 2
    assert f"kind=cross: the model has attention of kind {kind} only" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--kind self", "kind=self is unknown; expected encoder, decoder, cross"),
        ("--style 3d", "style=3d is unknown; expected heatmap, arcs, sheet"),
        ("--style sheet --head 0", "a sheet shows all layers and heads; leave out --layer and --head"),
        ("--style sheet --layer 0", "a sheet shows all layers and heads; leave out --layer and --head"),
        ("--token one", "token=one is for --style arcs; leave it out"),
        ("--output a.bmp", "cannot draw a.bmp: its suffix is .bmp; use one of .pdf, .png, .svg"),
        ("--layer 9", "layer=9: the cross attention has 1; expected 0 to 0, or -1 to -1"),
        ("--style arcs --token nine", "token='nine' is none of the queries; expected one of "),
        ("--output nowhere/a.png", "cannot write nowhere/a.png: No such file or directory"),
    ],
)
def test_invalid_options_give_a_one_line_error(
    models: Path, tmp_path: Path, monkeypatch, capfd, options: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--model", str(models / "translator"), "--source", "one two", *options.split()]
    assert run(["plot", "attention", *given]) == 2
    errors = capfd.readouterr().err
    assert errors.startswith(f"vaswani: {message}")
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
