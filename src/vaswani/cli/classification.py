"""`vaswani predict`."""

from typing import Annotated, Any

import typer

from vaswani.cli.app import app
from vaswani.cli.options import (
    BufferSize,
    InputName,
    OutputName,
    PaddedTokensPerBatch,
    model_option,
    number,
    table_field,
    takes_loading_options,
)
from vaswani.cli.screen import begin_work, progress_of_texts, warn


@app.command()
@takes_loading_options
def predict(
    model: Annotated[
        str, model_option("--model", help="Folder or Hub name of a classifier, regressor or tagger.")
    ],
    input_name: InputName = "-",
    output_name: OutputName = "-",
    text_field: Annotated[
        str | None, table_field("text_field", "text, or the words", "as in training, or text")
    ] = None,
    text_pair_field: Annotated[
        str | None,
        typer.Option(
            "--text_pair_field",
            help="Table field of a second text, for a model of pairs of texts. Default: as in training.",
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        number("--top_k", help="Also write the probabilities of the K most probable labels.", at_least=1),
    ] = None,
    max_length: Annotated[
        int | None,
        number(
            "--max_length",
            help="Longer texts are cut after so many tokens, and counted. Default: as in training; or else, "
            "and for taggers, the model's maximum, or 4096 if it has none.",
            at_least=1,
        ),
    ] = None,
    max_tokens_per_batch: PaddedTokensPerBatch = 8192,
    buffer_size: BufferSize = None,
    **loading: Any,
) -> None:
    """Predict the label of each line or table row, or the tags of its words, as JSON Lines.

    Each text gets its prediction with the probability; each row of a table
    comes back with these fields.
    """
    from vaswani.files.line_files import LineWriter, check_not_input
    from vaswani.hub.checkpoint import local_folder
    from vaswani.hub.run_metadata import read_settings
    from vaswani.inference.batches import BUFFERED_TEXTS
    from vaswani.inference.classify.classification import Classifier, task_of_checkpoint
    from vaswani.inference.classify.files import ADDED, predict_texts
    from vaswani.inference.inputs import open_texts

    check_not_input(output_name, input_name)
    folder = local_folder(model, loading["revision"], weights=False)
    is_tagger = task_of_checkpoint(folder) == "tagging"
    trained = read_settings(folder)
    if text_pair_field is None:  # a model of pairs reads no single texts
        text_pair_field = trained.get("text_pair_field")
    default = trained.get("text_field") or "text"
    where: dict[str, Any] = {"option": "text_field", "default": default, "pair_field": text_pair_field}
    with open_texts(input_name, text_field, added=ADDED, words=is_tagger, **where) as texts:
        begin_work()
        with LineWriter(output_name) as writer:
            classifier = Classifier.from_pretrained(
                model,
                max_length=max_length,
                max_tokens_per_batch=max_tokens_per_batch,
                **loading,
            )
            with progress_of_texts(texts, output_name) as bar:
                report = predict_texts(
                    classifier,
                    texts,
                    writer.write,
                    top_k=top_k,
                    buffer_size=buffer_size or (1 if texts.typed else BUFFERED_TEXTS),
                    progress=bar.update,
                )
    warn(f"predicted {report}")
