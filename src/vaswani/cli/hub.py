"""`vaswani card` and `vaswani push`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaswani.cli.app import app
from vaswani.cli.screen import hide_library_progress, say

if TYPE_CHECKING:
    from vaswani.hub.run_metadata import RunMetadata


ModelFolder = Annotated[Path, typer.Option("--model", help="Folder of a trained model.")]
Languages = Annotated[list[str] | None, typer.Option("--language", help="Code of a language; repeatable.")]
License = Annotated[
    str | None, typer.Option("--license", help="Of the model, as the Hub calls it: apache-2.0, mit ...")
]
DataName = Annotated[str | None, typer.Option("--data_name", help="How the data are called.")]
DataUrl = Annotated[str | None, typer.Option("--data_url", help="Where they come from.")]
DataLicense = Annotated[str | None, typer.Option("--data_license", help="Under which licence.")]


@app.command()
def card(
    model: ModelFolder,
    repo: Annotated[
        str | None, typer.Option("--repo", metavar="NAME", help="That it will have on the Hub.")
    ] = None,
    language: Languages = None,
    license_name: License = None,
    data_name: DataName = None,
    data_url: DataUrl = None,
    data_license: DataLicense = None,
) -> None:
    """Print the card of a model, from what its folder tells of the run.

    The options after --repo add to that, or replace it. A training takes
    them too, as fields of its configuration.
    """
    from vaswani.hub.card import model_card

    facts = _facts(model, language, license_name, data_name, data_url, data_license)
    name = repo or model.absolute().name
    say(str(model_card(facts, name)).rstrip("\n"))


@app.command()
def push(
    model: ModelFolder,
    repo: Annotated[str, typer.Option("--repo", metavar="NAME", help="owner/name, or a name of your own.")],
    private: Annotated[bool, typer.Option("--private", help="If the repository is made.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, made if need be. Default: main.")] = None,
    language: Languages = None,
    license_name: License = None,
    data_name: DataName = None,
    data_url: DataUrl = None,
    data_license: DataLicense = None,
) -> None:
    """Push a model to the Hub with its code, tokenizers and card.

    The options after --revision are for the card (see vaswani card). The
    token is that of `hf auth login` or HF_TOKEN.
    """
    from vaswani.hub.push import check_folder, push_folder

    hide_library_progress()
    check_folder(model)
    facts = _facts(model, language, license_name, data_name, data_url, data_license)
    say(f"published {push_folder(model, repo, facts, private=private or None, revision=revision)}")


def _facts(
    model: Path,
    language: list[str] | None,
    license_name: str | None,
    data_name: str | None,
    data_url: str | None,
    data_license: str | None,
) -> "RunMetadata":
    """What a model's folder tells, and what was stated besides or instead."""
    from vaswani.hub.card import check_stated
    from vaswani.hub.run_metadata import read_run_metadata

    check_stated(language or [], license_name)
    return read_run_metadata(model).with_settings(
        language=language,
        license=license_name,
        data_name=data_name,
        data_url=data_url,
        data_license=data_license,
    )
