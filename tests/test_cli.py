"""The command line: statuses, one-line errors, help."""

import errno
import sys
from pathlib import Path

import pytest
from typer import Exit

import in_process
import vaswani
import vaswani.training.runs.translation
from vaswani.cli import run
from vaswani.cli.commands import app
from vaswani.errors import RunError, UserError
from vaswani.insight.figures import save_figure
from vaswani.insight.sparse_patterns import density, draw_sparse_pattern
from vaswani.model.sparse_pattern import SparsePattern


def outcome(arguments: list[str], capsys) -> tuple[int, str, str]:
    return in_process.outcome(capsys, *arguments)


@pytest.fixture
def command():
    """Register a command `fail` that raises a given error, beside the real commands."""
    before = list(app.registered_commands)

    def register(error: BaseException):
        @app.command()
        def fail() -> None:
            raise error

    yield register
    app.registered_commands[:] = before


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (UserError("d_model=7 is odd"), 2, "vaswani: d_model=7 is odd\n"),
        (RunError("no space left"), 1, "vaswani: no space left\n"),
        (KeyboardInterrupt(), 1, "vaswani: interrupted\n"),
        (
            ZeroDivisionError("division\nby zero"),
            1,
            "vaswani: ZeroDivisionError: division by zero (--debug prints the traceback)\n",
        ),
        (Exit(5), 5, ""),
    ],
)
def test_failures_print_one_line_and_set_the_exit_status(command, capsys, error, status, message):
    command(error)
    assert outcome(["fail"], capsys) == (status, "", message)


def test_version_needs_no_command(capsys):
    assert outcome(["--version"], capsys) == (0, f"vaswani {vaswani.__version__}\n", "")


@pytest.mark.parametrize("arguments", [["fail", "--debug"], ["--debug", "fail"]])
def test_debug_shows_the_traceback_first(command, capsys, arguments):
    command(UserError("d_model=7 is odd"))
    status, _, errors = outcome(arguments, capsys)
    assert status == 2
    assert errors.startswith("Traceback (most recent call last)")
    assert errors.endswith("vaswani: d_model=7 is odd\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "vaswani: No such command 'trian'."),
        (["train"], "vaswani: nothing to train: give --config NAME or FILE"),
        (["train", "--config", "nowhere.yaml"], "vaswani: configuration file nowhere.yaml does not exist"),
        (
            ["train", "--learing_rate", "1"],
            "vaswani: unknown flag '--learing_rate'; did you mean '--learning_rate'?",
        ),
        (["train", "--d_model", "64"], "vaswani: no corpus was given; set dataset, or train_file"),
        (["train", "--dataset", "dates", "--d_model", "7"], "vaswani: d_model=7 must be divisible by"),
    ],
)
def test_usage_errors_have_status_2_and_one_line(capsys, arguments, message):
    status, output, errors = outcome(arguments, capsys)
    assert (status, output) == (2, "")
    assert errors.startswith(message)
    assert errors.count("\n") == 1


def test_help_of_train_lists_the_fields_of_the_file(capsys):
    status, output, _ = outcome(["train", "--help"], capsys)
    assert status == 0
    assert "--d_model" in output
    assert "Every training argument of transformers" in output


def test_help_lists_the_commands(capsys):
    status, output, _ = outcome(["--help"], capsys)
    assert status == 0
    assert {"train", "evaluate", "translate", "plot"} <= set(output.split())


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 1, "no space left on the disk of runs/x"),
        (RuntimeError("CUDA out of memory"), 1, "out of memory: set activation_checkpointing=true"),
        (KeyboardInterrupt(), 1, "interrupted; no checkpoint to resume from had been saved"),
    ],
)
def test_a_failed_training_reports_what_was_saved(monkeypatch, capsys, error, status, message):
    def fail(config):
        raise error

    monkeypatch.setattr(vaswani.training.runs.translation, "train", fail)
    assert outcome(["train", "--dataset", "dates", "--output_dir", "runs/x"], capsys)[0] == status
    run(["train", "--dataset", "dates", "--output_dir", "runs/x"])
    errors = capsys.readouterr().err
    assert errors.startswith(f"vaswani: {message}")
    assert errors.rstrip().endswith("no checkpoint to resume from had been saved")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), "no space left on the disk of /x/y: free"),
        (RuntimeError("No space left on device (os error 28)"), "no space left on the disk: free some"),
        (MemoryError(), "out of memory: "),
        (KeyError("a bug"), "KeyError: 'a bug' (--debug prints the traceback)"),
    ],
)
def test_operating_system_errors_give_a_clear_message(monkeypatch, capsys, error, message):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("vaswani.insight.figures.save_figure", fail)
    status, _, errors = outcome(["plot", "sparse-pattern"], capsys)
    assert status == 1
    assert errors.startswith(f"vaswani: {message}")


def plotted(path: Path, *options: str) -> bytes:
    assert run(["plot", "sparse-pattern", "--output", str(path), *options]) == 0
    return path.read_bytes()


def test_plot_draws_the_defaults_of_the_pattern(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    share = 100 * density(SparsePattern(num_heads=2), 64)
    said = f"saved sparse_pattern.png: density {share:.1f} % of the block pairs\n"
    assert outcome(["plot", "sparse-pattern"], capsys) == (0, said, "")
    save_figure(draw_sparse_pattern(SparsePattern(num_heads=2), 64), Path("expected.png"))
    assert Path("sparse_pattern.png").read_bytes() == Path("expected.png").read_bytes()


@pytest.mark.slow
def test_each_option_of_plot_changes_the_picture(tmp_path):
    pictures = {
        options: plotted(tmp_path / "pattern.png", *f"--length {options}".split())
        for options in (
            "1024",
            "1088",
            "1024 --block_size 128",
            "1024 --window 5",
            "1024 --global 1",
            "1024 --random 2",
            "1024 --seed 1",
            "1024 --layer 1",
            "1024 --heads 1",
            "1024 --causal",
            "1024 --dark",
        )
    }
    assert len(set(pictures.values())) == len(pictures)
    expected = SparsePattern(
        1,
        block_size=32,
        window_blocks=4,
        global_blocks=1,
        random_blocks=2,
        seed=5,
        layer=6,
        causal=True,
    )
    save_figure(draw_sparse_pattern(expected, 10), tmp_path / "expected.png")
    options = "--heads 1 --block_size 32 --window 4 --global 1 --random 2 --seed 5 --layer 6 --causal"
    drawn = plotted(tmp_path / "pattern.png", "--length", "319", *options.split())
    assert drawn == (tmp_path / "expected.png").read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--window 2", "window_blocks=2 must be odd, with as many blocks on either side; try 3"),
        ("--window wide", "Invalid value for '--window'"),
        ("--length 0", "length=0 must be at least 1"),
        ("--length 1000000000", "length=1000000000 makes 15625000 blocks of 64"),
        ("--heads 99", "a plot shows at most 32 heads, not 99"),
        ("--output nowhere/pattern.png", "cannot write nowhere/pattern.png: No such file or directory"),
        ("--output pattern.bmp", "cannot draw pattern.bmp: its suffix is .bmp; use one of .pdf, .png, .svg"),
        ("--widow 3", "No such option: --widow"),
    ],
)
def test_invalid_plot_options_give_a_one_line_error(tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    status, output, errors = outcome(["plot", "sparse-pattern", *options.split()], capsys)
    assert (status, output) == (2, "")
    assert errors.startswith(f"vaswani: {message}")
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_plot_without_matplotlib_names_the_remedy(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = "vaswani: drawing needs matplotlib: pip install 'vaswani[plots]'\n"
    assert outcome(["plot", "sparse-pattern"], capsys) == (2, "", message)
