"""`vaswani convert`, `vaswani export`, `vaswani combine`, `vaswani merge` and `vaswani average`."""

from pathlib import Path
from typing import Annotated

import typer

from vaswani.bounds import MAX_POSITIONS
from vaswani.cli.app import app
from vaswani.cli.options import OutputFolder, check_models, model_option, number, seed_of
from vaswani.cli.screen import begin_work, print_line
from vaswani.errors import UserError

SourceModel = Annotated[
    str, typer.Argument(metavar="SOURCE", help="Folder or Hub name of a model.", callback=check_models)
]


@app.command()
def convert(
    source: SourceModel,
    output: Annotated[Path, OutputFolder],
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="FORMAT", help="Format to convert a vaswani model to: marian, bert, gpt2 ..."
        ),
    ] = None,
    architecture: Annotated[
        str | None,
        typer.Option(
            "--architecture",
            metavar="CLASS",
            help="Class to load SOURCE with, such as BertForPreTraining. Default: as its config.json says.",
        ),
    ] = None,
) -> None:
    """Convert a checkpoint to or from vaswani.

    Supports MarianMT (OPUS-MT), FSMT, BERT, DistilBERT, BigBird, OpenAI
    GPT and GPT-2, with their tokenizers. Before it saves anything, it
    checks that both models compute the same outputs.

    Every encoder-decoder with post-norm layers, full attention and
    sinusoidal positions converts to MarianMT, which loads without vaswani.
    """
    from vaswani.interop.folders import convert_folder

    begin_work()
    made = convert_folder(source, output, to, architecture)
    tokenizer = "with its tokenizer" if made.has_tokenizer else "without a tokenizer: the source has none"
    print_line(
        f"saved {output}: {made.before} → {made.after}, {made.num_parameters:,} parameters, {tokenizer}; "
        f"outputs differ by at most {made.difference:.1g}"
    )


@app.command()
def export(
    source: SourceModel,
    output: Annotated[Path, OutputFolder],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="FORMAT", help="Format of the exported model: ctranslate2, marian or onnx."
        ),
    ] = "ctranslate2",
    quantization: Annotated[
        str | None,
        typer.Option(
            "--quantization",
            metavar="TYPE",
            help="Type of the weights: int8 (ctranslate2, onnx), int8_float32, int8_float16, int8_bfloat16, "
            "int16, float16 or bfloat16 (ctranslate2). Default: float32.",
        ),
    ] = None,
    max_positions: Annotated[
        int | None,
        number(
            "--max_positions",
            help="Maximum number of tokens of a text, for models with sinusoidal positions or none, with "
            "ctranslate2. Default: 2048.",
            at_least=1,
            at_most=MAX_POSITIONS,
        ),
    ] = None,
) -> None:
    """Export a vaswani model for inference without vaswani.

    CTranslate2 runs encoder-decoders, causal language models, and
    pretrained encoders without their heads. ONNX takes every model with its
    head, such as classifiers, for ONNX Runtime and other engines. marian
    is the same as `vaswani convert --to marian`. The tokenizers are saved
    beside the model.
    """
    from vaswani.interop.folders import export_folder

    begin_work()
    made = export_folder(source, output, to, quantization=quantization, max_positions=max_positions)
    engine = {"ctranslate2": "for CTranslate2", "marian": "as a MarianMT", "onnx": "for ONNX Runtime"}[to]
    weights = "" if to == "marian" else f"{quantization or 'float32'}, "
    head = f", without the head of {made.without_head_of}" if made.without_head_of else ""
    print_line(
        f"saved {output}: {made.name} {engine}, {weights}{made.num_parameters:,} parameters, "
        f"{made.size / 2**20:.1f} MiB{head}"
    )
    if made.modules:
        print_line(
            f"not part of the export: {', '.join(made.modules)}; apply them to its token states, as "
            "modules.json says"
        )


@app.command()
def combine(
    output: Annotated[Path, OutputFolder],
    encoder: Annotated[
        str | None, model_option("--encoder", help="Folder or Hub name of a vaswani_encoder model.")
    ] = None,
    decoder: Annotated[
        str | None, model_option("--decoder", help="Folder or Hub name of a vaswani_decoder model.")
    ] = None,
    seed: Annotated[int, seed_of("the new weights")] = 0,
) -> None:
    """Combine a pretrained encoder and decoder into an encoder-decoder.

    The weights of the cross-attention are new, and so are those of a half
    that is not given: train the result. The source keeps the encoder's
    tokenizer, the target the decoder's.
    """
    from transformers import set_seed

    from vaswani.hub.run_metadata import new_parts
    from vaswani.interop.folders import combine_folders

    begin_work()
    set_seed(seed)
    model = combine_folders(encoder, decoder, output)
    new = ", ".join(new_parts({"encoder": encoder, "decoder": decoder}))
    print_line(
        f"saved {output}: {model.num_parameters():,} parameters; new and untrained: {new} "
        f"(train it with vaswani train --model {output})"
    )


@app.command()
def merge(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Folder or Hub name of an adapter.", callback=check_models)
    ],
    output: Annotated[Path, OutputFolder],
) -> None:
    """Merge an adapter (LoRA) into its model, and save the whole model.

    `--lora_rank 8` of `vaswani train --model MODEL` and `vaswani finetune`
    trains an adapter.
    """
    from vaswani.interop.folders import merge_folder

    begin_work()
    model = merge_folder(source, output)
    print_line(f"saved {output}: {model.num_parameters():,} parameters")


@app.command()
def average(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Folder of a run, with --last or --best; or the checkpoints themselves.",
            callback=check_models,
        ),
    ],
    output: Annotated[Path, OutputFolder],
    last: Annotated[
        int | None, number("--last", help="Average the newest N checkpoints of the run.", at_least=1)
    ] = None,
    best: Annotated[
        int | None,
        number("--best", help="Average the best N checkpoints of the run, by --metric.", at_least=1),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Metric of the evaluations in training that --best ranks by: bleu, chrf, loss ... Default: "
            "the run's metric_for_best_model.",
        ),
    ] = None,
) -> None:
    """Average the weights of checkpoints, and save the model.

    The checkpoints must have the same configuration and tokenizer. To
    average at the end of a training, set average_checkpoints.
    """
    if last is not None and best is not None:
        raise UserError(f"--last={last} and --best={best} exclude each other; give one of them")
    if (last or best) is not None and len(sources) > 1:
        raise UserError(
            f"--last and --best take the folder of one run, got {len(sources)}: {' '.join(sources)}; give "
            "one, or name checkpoints without these options"
        )
    if metric is not None and best is None:
        raise UserError(f"--metric={metric} ranks the checkpoints for --best; give --best N, or leave it out")
    from vaswani.interop.averaging import average as average_checkpoints

    begin_work()
    chosen = _checkpoints_to_average(sources, last, best, metric)
    parameters = average_checkpoints(chosen, output)
    print_line(f"saved {output}: {parameters:,} parameters, the mean of {' '.join(map(str, chosen))}")


def _checkpoints_to_average(
    sources: list[str], last: int | None, best: int | None, metric: str | None
) -> list[str] | list[Path]:
    """Return the checkpoints to average."""
    from vaswani.files.run_files import checkpoints
    from vaswani.training.trainer.checkpoint_choice import best_checkpoints, last_checkpoints

    if last is not None:
        return last_checkpoints(Path(sources[0]), last)
    if best is not None:
        return best_checkpoints(Path(sources[0]), best, metric)
    if len(sources) == 1 and checkpoints(Path(sources[0])):
        raise UserError(
            f"{sources[0]} is the folder of a run; give --last N or --best N, or name several checkpoints"
        )
    return sources
