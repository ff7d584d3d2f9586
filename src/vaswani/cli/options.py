"""Options that several commands take."""

from typing import Annotated

import typer

ModelName = Annotated[
    str, typer.Option("--model", help="Folder of a trained model, or an encoder-decoder's name on the Hub.")
]
Split = Annotated[str, typer.Option(help="Split of a data set: train, validation or test.")]
DatasetConfig = Annotated[
    str | None,
    typer.Option("--dataset_config", help="Its configuration; of the dates, their locales: de,fr or all."),
]
SourceField = Annotated[str, typer.Option("--source_field", help="A dot reaches into columns.")]
TargetField = Annotated[str, typer.Option("--target_field", help="Likewise.")]
NumBeams = Annotated[int, typer.Option("--num_beams", help="Hypotheses kept in the search.")]
LengthPenalty = Annotated[float, typer.Option("--length_penalty", help="GNMT's α: ((5 + length) / 6)^α.")]
MaxSourceLength = Annotated[
    int | None,
    typer.Option("--max_source_length", help="Cut sources off after so many tokens. Default: not at all."),
]
MaxLength = Annotated[
    int, typer.Option("--max_length", help="Most tokens of a translation; the source's + 50 if that is less.")
]
MaxTokensPerBatch = Annotated[
    int,
    typer.Option("--max_tokens_per_batch", help="Tokens of a batch: of sources and what they may become."),
]
Device = Annotated[str | None, typer.Option("--device", help="Default: a CUDA device if there is one.")]
Revision = Annotated[
    str | None, typer.Option("--revision", help="Branch, tag or commit of a model on the Hub.")
]
DType = Annotated[
    str | None, typer.Option("--dtype", help="float32, bfloat16 or float16. Default: as saved.")
]
