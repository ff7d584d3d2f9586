"""Requests to an unresponsive Hub time out; if the cache is used instead, a warning says so."""

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import close_session, constants, get_session, set_client_factory
from huggingface_hub.utils import _http

from loopback_hub import Commit, LoopbackHub, Repository
from toy_translation import save_toy_checkpoint
from vaswani import Translator
from vaswani.errors import RunError, UserError
from vaswani.files import hub_client
from vaswani.files.hub_client import use_patient_client
from vaswani.hub.checkpoint import local_folder
from vaswani.hub.push import push_folder
from vaswani.hub.run_metadata import read_run_metadata
from vaswani.interop import export_folder

SECONDS = 0.3  # of patience

Silence = Callable[[str], None]


@pytest.fixture
def here(hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """The Hub on loopback as that of this process, with an empty cache and little patience."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub_cache"))
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", SECONDS)
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", SECONDS)
    monkeypatch.setattr(hub_client, "UPLOAD_PATIENCE", 1)
    monkeypatch.setattr(hub_client, "SECONDS_OF_SILENCE", SECONDS / 3)
    yield hub
    set_client_factory(_http.default_client_factory)


@pytest.fixture
def silence(here: LoopbackHub) -> Iterator[Silence]:
    """Make the Hub accept requests of the given paths without answering."""
    is_over = threading.Event()

    def keep_silent(place: str) -> None:
        here.cut = lambda method, path: place in path and is_over.wait(60)

    yield keep_silent
    is_over.set()


@pytest.fixture
def published(here: LoopbackHub, tmp_path: Path) -> Path:
    """A model that the Hub has, and its folder."""
    folder = save_toy_checkpoint(tmp_path / "toy")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    here.repositories["ada/toy"] = Repository(False, {"main": [Commit("a" * 40, "first", files)]})
    return folder


@pytest.mark.parametrize("place", ["/api/models", "/tree/", "/resolve/"])
def test_an_unresponsive_hub_is_logged_and_times_out(
    place: str, silence: Silence, published: Path, here: LoopbackHub, caplog: pytest.LogCaptureFixture
) -> None:
    silence(place)
    with pytest.raises(UserError) as failed:
        local_folder("ada/toy")
    assert str(failed.value) == (
        "model 'ada/toy' is not a local folder and cannot be loaded from the Hub: "
        f"{here.url} did not answer in time (ReadTimeout): check the network and run the same command again"
    )
    waits = [message for message in caplog.messages if message.startswith(f"Waiting for {here.url}/")]
    assert waits
    assert all(place in message and message.endswith(" to answer.") for message in waits)


@pytest.mark.parametrize("loss", ["/api/models", "no server", "answers 503"])
def test_without_the_hub_the_cached_copy_is_used_with_a_warning(
    loss: str,
    silence: Silence,
    published: Path,
    here: LoopbackHub,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = local_folder("ada/toy")
    assert not caplog.records
    words = f"{here.url} did not answer within {SECONDS} seconds"
    if loss == "no server":
        with socket.create_server(("127.0.0.1", 0)) as server:
            closed = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", closed)
        words = f"the connection to {closed} failed (ConnectError)"
    elif loss == "answers 503":
        here.is_down = True
        words = f"{here.url} answered 503"
    else:
        silence(loss)
    assert local_folder("ada/toy") == folder
    assert f"{words}. Using the cached copy of ada/toy: {folder}." in caplog.messages


@pytest.mark.parametrize("cache", ["/proc/nowhere", "a file"])
def test_a_cache_that_cannot_be_written_raises_an_error_with_the_remedy(
    cache: str, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / cache / "hub"))
    with pytest.raises(
        UserError, match=r"cannot write to the cache .*/hub \(.*\): set HF_HOME to a writable folder"
    ):
        local_folder("ada/toy")


@pytest.mark.parametrize("place", ["/api/repos/create", "/preupload/", "/commit/"])
def test_a_push_to_an_unresponsive_hub_times_out(
    place: str, silence: Silence, here: LoopbackHub, tmp_path: Path
) -> None:
    folder = save_toy_checkpoint(tmp_path / "toy")
    silence(place)
    with pytest.raises(RunError) as failed:
        push_folder(folder, "ada/toy", read_run_metadata(folder), token="hf_ada")
    assert str(failed.value).startswith(f"{folder} was not published: {here.url} did not answer in time")


def test_a_card_that_cannot_be_downloaded_is_not_replaced(
    silence: Silence, here: LoopbackHub, tmp_path: Path
) -> None:
    folder = save_toy_checkpoint(tmp_path / "toy")
    files = {"README.md": b"written by hand"}
    here.repositories["ada/toy"] = Repository(False, {"main": [Commit("a" * 40, "first", files)]})
    silence("/resolve/")
    with pytest.raises(RunError, match="did not answer in time"):
        push_folder(folder, "ada/toy", read_run_metadata(folder), token="hf_ada")
    assert here.files("ada/toy") == files


@pytest.mark.parametrize(
    ("method", "given", "expected"),
    [("GET", None, 10), ("HEAD", 3, 3), ("HEAD", 60, 10), ("POST", None, 60), ("PUT", 5, 5)],
)
def test_every_wait_is_bounded(
    method: str, given: float | None, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 10)
    timeouts = dict.fromkeys(("connect", "read", "write", "pool"), given)
    request = SimpleNamespace(method=method, extensions={"timeout": timeouts, "other": 1})
    assert hub_client._set_timeouts(request) == expected
    assert request.extensions == {"timeout": dict.fromkeys(timeouts, expected), "other": 1}


def test_a_client_factory_set_by_the_caller_is_kept(here: LoopbackHub) -> None:
    kind: Any = type(get_session())
    set_client_factory(kind)
    own = get_session()
    use_patient_client()
    assert get_session() is own


def test_a_client_with_time_outs_is_made_once_and_again_after_it_is_closed(here: LoopbackHub) -> None:
    librarys = get_session()
    use_patient_client()
    patient = get_session()
    assert patient is not librarys
    for name in ("event_hooks", "follow_redirects", "timeout"):
        assert getattr(patient, name) == getattr(librarys, name)
    use_patient_client()
    assert get_session() is patient
    close_session()
    assert "send" in vars(get_session())  # replaced, as in the first
    assert "send" not in vars(librarys)


def test_an_engine_fetches_its_own_weights(here: LoopbackHub, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    exported = tmp_path / "exported"
    export_folder(str(save_toy_checkpoint(tmp_path / "toy")), exported)
    files = {path.name: path.read_bytes() for path in exported.iterdir()}
    files |= {"model.safetensors": b"of another engine", "secret.bin": b"of none"}
    here.repositories["ada/toy"] = Repository(False, {"main": [Commit("b" * 40, "first", files)]})
    translator = Translator.from_pretrained("ada/toy", engine="ctranslate2", revision="main")
    expected = Translator.from_pretrained(exported, engine="ctranslate2")
    assert translator(["one two three"]) == expected(["one two three"])
    fetched = {path.rsplit("/", 1)[-1] for _, path in here.requests if "/resolve/" in path}
    assert "model.bin" in fetched
    assert not fetched & {"model.safetensors", "secret.bin"}
