"""`vaswani convert` and `vaswani combine`."""

from pathlib import Path
from typing import Annotated

import typer

from vaswani.cli.app import app
from vaswani.cli.options import seed_of
from vaswani.cli.screen import hide_library_progress, say


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Folder, or name on the Hub.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Its folder; empty, or a new one.")],
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="FORMAT", help="Of a model of ours: marian, bert, gpt2 ... that it becomes."
        ),
    ] = None,
    architecture: Annotated[
        str | None,
        typer.Option(
            "--architecture",
            metavar="CLASS",
            help="Read it as this class, such as BertForPreTraining. Default: what its config.json names.",
        ),
    ] = None,
) -> None:
    """Make a model of ours of one of another kind, or one of theirs of ours.

    Takes MarianMT (OPUS-MT), FSMT, BERT, DistilBERT, BigBird, OpenAI GPT
    and GPT-2, with their tokenizers. Both compute the same, which is
    checked before anything is written.
    """
    from vaswani.interop.folders import convert_folder

    hide_library_progress()
    made = convert_folder(source, output, to, architecture)
    tokenizer = "with its tokenizer" if made.has_tokenizer else "without a tokenizer, for there was none"
    say(
        f"saved {output}: {made.before} → {made.after}, {made.num_parameters:,} parameters, {tokenizer}; "
        f"outputs differ by at most {made.difference:.1g}"
    )


@app.command()
def combine(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The model's folder; empty, or a new one.")],
    encoder: Annotated[
        str | None, typer.Option("--encoder", help="Folder of a vaswani_encoder model, or its name.")
    ] = None,
    decoder: Annotated[
        str | None, typer.Option("--decoder", help="Likewise of a vaswani_decoder model.")
    ] = None,
    seed: Annotated[int, seed_of("the weights that are new")] = 0,
) -> None:
    """Make an encoder-decoder of halves that were trained apart, to be trained on.

    Attention between them is new, and so is a half that is not given. The
    source keeps the encoder's tokenizer, the target the decoder's.
    """
    from transformers import set_seed

    from vaswani.interop.folders import combine_folders

    hide_library_progress()
    set_seed(seed)
    model = combine_folders(encoder, decoder, output)
    say(f"saved {output}: {model.num_parameters():,} parameters")
