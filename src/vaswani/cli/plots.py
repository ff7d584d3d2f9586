"""`vaswani plot`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from vaswani.cli.app import Application, app
from vaswani.cli.options import model_option, number, numbers_in, seed_of
from vaswani.cli.screen import begin_work, print_line
from vaswani.errors import UserError

plot = Application(help="Plot how a model works.", no_args_is_help=True)
app.add_typer(plot, name="plot")

DEFAULT_WIDTH = 128  # features of sinusoids

Picture = Annotated[Path, typer.Option("--output", metavar="FILE", help="A .png, .svg or .pdf file.")]
Dark = Annotated[bool, typer.Option("--dark", help="Draw on a dark background.")]
BlockSize = Annotated[int, number("--block_size", help="Tokens in a block of sparse attention.", at_least=1)]
Window = Annotated[
    int,
    number(
        "--window", help="Blocks in the window of sparse attention, including the query's own.", at_least=1
    ),
]
GlobalBlocks = Annotated[
    int,
    number("--global", help="Global blocks of sparse attention, at the start of the sequence.", at_least=0),
]
RandomBlocks = Annotated[
    int, number("--random", help="Random blocks of sparse attention for each query block.", at_least=0)
]
RandomSeed = Annotated[int, seed_of("the random blocks")]


@contextmanager
def _as_user_error() -> Iterator[None]:
    """Turn the `ValueError` of a pattern that refuses a value into a `UserError`."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from error


def _whole_numbers(name: str, text: str) -> list[int]:
    message = f"{name}={text} must be whole numbers with commas between them, such as 8,5"
    return numbers_in(text, int, message)


@plot.command("sparse-pattern")
def plot_sparse_pattern(
    output: Picture = Path("sparse_pattern.png"),
    dark: Dark = False,
    length: Annotated[int, number("--length", help="Tokens in the sequence.", at_least=1)] = 4096,
    block_size: BlockSize = 64,
    window: Window = 3,
    global_blocks: GlobalBlocks = 2,
    random_blocks: RandomBlocks = 3,
    seed: RandomSeed = 0,
    layer: Annotated[
        int, number("--layer", help="Layer to plot; random blocks differ between layers.", at_least=0)
    ] = 0,
    heads: Annotated[
        int, number("--heads", help="Heads to plot, one panel each; their random blocks differ.", at_least=1)
    ] = 2,
    causal: Annotated[
        bool, typer.Option("--causal", help="Plot a decoder's pattern: no block sees later ones.")
    ] = False,
) -> None:
    """Plot which blocks of a sequence attend to which, and why."""
    from vaswani.insight.figures import check_picture, save_figure
    from vaswani.insight.sparse_patterns import density, draw_sparse_pattern
    from vaswani.model.sparse_pattern import SparsePattern

    check_picture(output)
    with _as_user_error():
        pattern = SparsePattern(
            num_heads=heads,
            block_size=block_size,
            window_blocks=window,
            global_blocks=global_blocks,
            random_blocks=random_blocks,
            seed=seed,
            layer=layer,
            causal=causal,
        )
        num_blocks = pattern.num_blocks(length)
    save_figure(draw_sparse_pattern(pattern, num_blocks, dark=dark), output)
    print_line(f"saved {output}: density {100 * density(pattern, num_blocks):.1f} % of the block pairs")


@plot.command("positions")
def plot_positions(
    output: Picture = Path("positions.png"),
    dark: Dark = False,
    length: Annotated[
        int | None, number("--length", help="Positions to plot. Default: 128.", at_least=1, at_most=4096)
    ] = None,
    width: Annotated[
        int | None, number("--width", help="Features of sinusoids. Default: 128.", at_least=1, at_most=4096)
    ] = None,
    layout: Annotated[
        list[str] | None,
        typer.Option(
            "--layout",
            metavar="interleaved|concatenated|tensor2tensor",
            help="Order of the features of sinusoids; several are plotted together. Default: interleaved.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        model_option(
            "--model", help="Folder or Hub name of a vaswani model, whose positions are plotted instead."
        ),
    ] = None,
) -> None:
    """Plot position encodings, and the dot products of positions."""
    from vaswani.insight.figures import check_picture, save_figure

    check_picture(output)
    if model is not None and (width, layout) != (None, None):
        given = "width" if width is not None else "layout"
        raise UserError(f"--{given} has no effect with --model, which has its own; leave one of them out")
    from vaswani.hub.checkpoint import load_checkpoint
    from vaswani.insight.positions import DEFAULT_LENGTH, draw_positions, positions_of, sinusoids

    begin_work()
    if model is not None:
        encodings = positions_of(load_checkpoint(model, "cpu", auto_class=None)[0], length)
    else:
        size = (length or DEFAULT_LENGTH, width or DEFAULT_WIDTH)
        encodings = {name: sinusoids(*size, name) for name in layout or ["interleaved"]}
    save_figure(draw_positions(encodings, dark=dark), output)
    print_line(f"saved {output}")


@plot.command("masks")
def plot_masks(
    output: Picture = Path("masks.png"),
    dark: Dark = False,
    source_lengths: Annotated[
        str,
        typer.Option("--source_lengths", metavar="N,N,...", help="Tokens of each source in the batch."),
    ] = "8,5",
    target_lengths: Annotated[
        str,
        typer.Option("--target_lengths", metavar="N,N,...", help="Tokens of each target in the batch."),
    ] = "6,4",
    block_size: BlockSize = 1,
    window: Window = 3,
    global_blocks: GlobalBlocks = 1,
    random_blocks: RandomBlocks = 1,
    seed: RandomSeed = 0,
) -> None:
    """Plot which tokens attend to which: padding, causal, cross-attention and sparse masks of a batch."""
    from vaswani.insight.figures import check_picture, save_figure

    check_picture(output)
    sources = _whole_numbers("source_lengths", source_lengths)
    targets = _whole_numbers("target_lengths", target_lengths)
    from vaswani.insight.masks import attention_masks, draw_masks
    from vaswani.model.sparse_pattern import SparsePattern

    with _as_user_error():
        pattern = SparsePattern(
            num_heads=1,
            block_size=block_size,
            window_blocks=window,
            global_blocks=global_blocks,
            random_blocks=random_blocks,
            seed=seed,
        )
    save_figure(draw_masks(attention_masks(sources, targets, pattern), dark=dark), output)
    print_line(f"saved {output}")


@plot.command("schedule")
def plot_schedule(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Schedules: inverse_sqrt (the paper's), linear, cosine ..."),
    ] = None,
    output: Picture = Path("schedule.png"),
    dark: Dark = False,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", help="The schedule of a configuration, a name or a file; may be given several times."
        ),
    ] = None,
    warmup_steps: Annotated[
        str | None,
        typer.Option(
            "--warmup_steps",
            metavar="N,N,...",
            help="Warm-up updates; each schedule is plotted with each. Default: 4000.",
        ),
    ] = None,
    max_steps: Annotated[
        int | None,
        number(
            "--max_steps",
            help="Number of updates. Default: 100000, or as in the configuration.",
            at_least=1,
            at_most=10**9,
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        number(
            "--learning_rate",
            help="Peak learning rate. Default: (d_model * warmup_steps)^-0.5 (equation 3 of the paper).",
            above=0,
            at_most=1e9,
        ),
    ] = None,
    d_model: Annotated[
        int | None,
        number("--d_model", help="d_model of equation 3. Default: 512.", at_least=1, at_most=2**27),
    ] = None,
) -> None:
    """Plot learning rates against updates, as a training sets them."""
    from vaswani.insight.figures import check_picture, save_figure

    check_picture(output)
    if learning_rate is not None and d_model is not None:
        raise UserError(f"--d_model={d_model} has no effect with --learning_rate; leave one of them out")
    if config and not names:
        of_names = {"warmup_steps": warmup_steps, "learning_rate": learning_rate, "d_model": d_model}
        for option, value in of_names.items():
            if value is not None:
                raise UserError(
                    f"--{option}={value} has no effect: the configuration has its own; leave it out, or name "
                    "a schedule beside --config"
                )
    warmups = _whole_numbers("warmup_steps", warmup_steps or "4000")
    from vaswani.cli.training import load_any_config
    from vaswani.files.named_configs import find_config
    from vaswani.insight.schedules import draw_schedules, drawn_updates
    from vaswani.training.config.schedule import PlannedSchedule, paper_peak_learning_rate

    plans: dict[str, PlannedSchedule] = {}
    for name in names or ([] if config else ["inverse_sqrt"]):
        for warmup in warmups:
            peak = learning_rate or paper_peak_learning_rate(d_model or 512, warmup)
            plan = PlannedSchedule(name, peak, warmup, max_steps or 100_000)
            plans[f"{name}, {warmup:,} updates of warm-up"] = plan
    for each in config or []:
        plans[str(each)] = PlannedSchedule.from_config(load_any_config(find_config(each)), max_steps)
    rates = {}
    for label, plan in plans.items():
        updates = drawn_updates(plan.max_steps)
        rates[label] = updates, plan.learning_rates(updates)
    save_figure(draw_schedules(rates, dark=dark), output)
    print_line(f"saved {output}")


@plot.command("curves")
def plot_curves(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of training runs, finished or not.")
    ],
    output: Picture = Path("curves.png"),
    dark: Dark = False,
    against: Annotated[
        str,
        typer.Option("--against", metavar="updates|tokens", help="What the horizontal axis shows."),
    ] = "updates",
) -> None:
    """Plot the curves of training runs over each other: losses, scores, speed."""
    from vaswani.insight.curves import draw_curves, read_histories
    from vaswani.insight.figures import check_picture, save_figure

    check_picture(output)
    save_figure(draw_curves(read_histories(runs), against, dark=dark), output)
    print_line(f"saved {output}")


@plot.command("quality")
def plot_quality(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULT...",
            help="Folders of evaluated trainings; reports of vaswani distill and compare, or their folders.",
        ),
    ],
    output: Picture = Path("quality.png"),
    dark: Dark = False,
    metric: Annotated[
        str | None,
        typer.Option("--metric", help="Metric, such as bleu. Default: the first that all models have."),
    ] = None,
) -> None:
    """Plot the quality of models against their speed and against their size."""
    from vaswani.insight.figures import check_picture, save_figure
    from vaswani.insight.quality import draw_quality
    from vaswani.insight.saved_results import read_measured

    check_picture(output)
    models = [model for result in results for model in read_measured(result)]
    save_figure(draw_quality(models, metric, dark=dark), output)
    print_line(f"saved {output}")


@plot.command("retention")
def plot_retention(
    report: Annotated[
        Path, typer.Argument(metavar="REPORT", help="Report of vaswani distill or compare, or its folder.")
    ],
    output: Picture = Path("retention.png"),
    dark: Dark = False,
) -> None:
    """Plot the share of its teacher's, or the first model's, scores that a model retains."""
    from vaswani.insight.figures import check_picture, save_figure
    from vaswani.insight.quality import draw_retention
    from vaswani.insight.saved_results import read_measured

    check_picture(output)
    save_figure(draw_retention(read_measured(report), dark=dark), output)
    print_line(f"saved {output}")
