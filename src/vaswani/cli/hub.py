"""`vaswani card` and `vaswani push`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaswani.cli.app import app
from vaswani.cli.options import takes_options_of
from vaswani.cli.screen import begin_work, print_line

if TYPE_CHECKING:
    from vaswani.hub.run_metadata import RunMetadata


ModelFolder = Annotated[Path, typer.Option("--model", help="Folder of a trained model.")]


def _card_options(
    language: Annotated[
        list[str] | None, typer.Option("--language", help="Language code; repeatable.")
    ] = None,
    license: Annotated[
        str | None,
        typer.Option("--license", help="Licence of the model, as the Hub writes it: apache-2.0 ..."),
    ] = None,
    data_name: Annotated[str | None, typer.Option("--data_name", help="Name of the training data.")] = None,
    data_url: Annotated[str | None, typer.Option("--data_url", help="Source of the training data.")] = None,
    data_license: Annotated[
        str | None, typer.Option("--data_license", help="Licence of the training data.")
    ] = None,
) -> None:
    """Declare the settings of a training that a card states; see `RunMetadata.with_settings`."""


@app.command()
@takes_options_of(_card_options)
def card(
    model: ModelFolder,
    repo: Annotated[
        str | None, typer.Option("--repo", metavar="NAME", help="Name of the model on the Hub.")
    ] = None,
    **stated: Any,
) -> None:
    """Print the model card, made from the files in the model's folder.

    The options after --repo add facts to the card or replace them. They
    are also fields of a training's configuration.
    """
    from vaswani.hub.card import check_repo_name, model_card

    if repo is not None:
        check_repo_name(repo)
    metadata = _metadata(model, stated)
    name = repo or model.absolute().name
    print_line(str(model_card(metadata, name)).rstrip("\n"))


@app.command()
@takes_options_of(_card_options)
def push(
    model: ModelFolder,
    repo: Annotated[
        str, typer.Option("--repo", metavar="NAME", help="owner/name, or a name in your own account.")
    ],
    private: Annotated[
        bool, typer.Option("--private", help="If the repository is new, make it private.")
    ] = False,
    revision: Annotated[
        str | None, typer.Option(help="Branch to push to; it is created if needed. Default: main.")
    ] = None,
    **stated: Any,
) -> None:
    """Push a model to the Hub with its code, tokenizers and card.

    The options after --revision are for the card (see vaswani card). The
    token comes from `hf auth login` or HF_TOKEN.
    """
    from vaswani.hub.push import check_folder, push_folder

    begin_work()
    check_folder(model)
    metadata = _metadata(model, stated)
    print_line(f"published {push_folder(model, repo, metadata, private=private or None, revision=revision)}")


def _metadata(model: Path, stated: dict[str, Any]) -> "RunMetadata":
    """Return the metadata in a model's folder, updated by the options of `_card_options`."""
    from vaswani.hub.card import check_stated
    from vaswani.hub.run_metadata import read_run_metadata
    from vaswani.hub.weights import check_not_onnx

    check_stated(stated["language"] or [], stated["license"])
    check_not_onnx(model)  # transformers' classes, which a card shows, do not load it
    return read_run_metadata(model).with_settings(**stated)
