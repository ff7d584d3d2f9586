"""`vaswani card` and `vaswani push`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaswani.cli.app import app
from vaswani.cli.screen import begin_work, print_line

if TYPE_CHECKING:
    from vaswani.hub.run_metadata import RunMetadata


ModelFolder = Annotated[Path, typer.Option("--model", help="Folder of a trained model.")]
Languages = Annotated[list[str] | None, typer.Option("--language", help="Language code; repeatable.")]
License = Annotated[
    str | None, typer.Option("--license", help="Licence of the model, as the Hub writes it: apache-2.0 ...")
]
DataName = Annotated[str | None, typer.Option("--data_name", help="Name of the training data.")]
DataUrl = Annotated[str | None, typer.Option("--data_url", help="Source of the training data.")]
DataLicense = Annotated[str | None, typer.Option("--data_license", help="Licence of the training data.")]


@app.command()
def card(
    model: ModelFolder,
    repo: Annotated[
        str | None, typer.Option("--repo", metavar="NAME", help="Name of the model on the Hub.")
    ] = None,
    language: Languages = None,
    license_name: License = None,
    data_name: DataName = None,
    data_url: DataUrl = None,
    data_license: DataLicense = None,
) -> None:
    """Print the model card, made from the files in the model's folder.

    The options after --repo add facts to the card or replace them. They
    are also fields of a training's configuration.
    """
    from vaswani.hub.card import check_repo_name, model_card

    if repo is not None:
        check_repo_name(repo)
    metadata = _metadata(model, language, license_name, data_name, data_url, data_license)
    name = repo or model.absolute().name
    print_line(str(model_card(metadata, name)).rstrip("\n"))


@app.command()
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
    language: Languages = None,
    license_name: License = None,
    data_name: DataName = None,
    data_url: DataUrl = None,
    data_license: DataLicense = None,
) -> None:
    """Push a model to the Hub with its code, tokenizers and card.

    The options after --revision are for the card (see vaswani card). The
    token comes from `hf auth login` or HF_TOKEN.
    """
    from vaswani.hub.push import check_folder, push_folder

    begin_work()
    check_folder(model)
    metadata = _metadata(model, language, license_name, data_name, data_url, data_license)
    print_line(f"published {push_folder(model, repo, metadata, private=private or None, revision=revision)}")


def _metadata(
    model: Path,
    language: list[str] | None,
    license_name: str | None,
    data_name: str | None,
    data_url: str | None,
    data_license: str | None,
) -> "RunMetadata":
    """Return the metadata in a model's folder, updated by the options."""
    from vaswani.hub.card import check_stated
    from vaswani.hub.run_metadata import read_run_metadata
    from vaswani.hub.weights import check_not_onnx

    check_stated(language or [], license_name)
    check_not_onnx(model)  # transformers' classes, which a card shows, do not load it
    return read_run_metadata(model).with_settings(
        language=language,
        license=license_name,
        data_name=data_name,
        data_url=data_url,
        data_license=data_license,
    )
