"""`vaswani demo` as a user runs it: only on this machine, until a signal, with one-line errors."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import vaswani.demo
from forking import ForkingPython
from toy_labels import save_toy_classifier, toy_config
from toy_translation import save_toy_checkpoint, toy_model, toy_tokenizer
from vaswani import Translator, VaswaniEncoderModel
from vaswani.cli import run
from vaswani.demo import build_demo
from vaswani.demo.server import LARGEST_REQUEST, serve

# Of a process: the connections that it tries, which are written to standard error.
WATCHED = """
import socket, sys
connect, connect_ex = socket.socket.connect, socket.socket.connect_ex
def told(self, address, call):
    if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1"):
        print("left the machine for", address, file=sys.stderr, flush=True)
    return call(self, address)
socket.socket.connect = lambda self, address: told(self, address, connect)
socket.socket.connect_ex = lambda self, address: told(self, address, connect_ex)
lookup = socket.getaddrinfo
def looked_up(host, *rest, **options):
    if host not in ("127.0.0.1", "localhost", "::1", None):
        print("looked up", host, file=sys.stderr, flush=True)
    return lookup(host, *rest, **options)
socket.getaddrinfo = looked_up
from vaswani.cli import main
sys.argv = ["vaswani", *sys.argv[1:]]
main()
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_toy_checkpoint(folder / "translator")
    save_toy_classifier(folder / "classifier", "classification")
    VaswaniEncoderModel(toy_config()).save_pretrained(folder / "encoder")
    return folder


@contextmanager
def serving(models: Path, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process of a demo, and its address."""
    command = [sys.executable, "-c", WATCHED, "demo", "--model", str(models / "translator"), "--port", "0"]
    pipe = subprocess.PIPE
    environment = {**os.environ, **variables}
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def pieces(size: int) -> Iterator[bytes]:
    """A body that does not state its size."""
    for _ in range(0, size, 2**16):
        yield b"0" * 2**16


@pytest.mark.slow
@pytest.mark.process
def test_a_signal_stops_the_server_which_sends_nothing_out(models: Path) -> None:
    # A proxy that answers nothing: what belongs to this machine does not go there.
    proxies = {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    online = {"HF_HUB_OFFLINE": "0", "GRADIO_ANALYTICS_ENABLED": "True", "GRADIO_SHARE": "True"}
    online |= {"GRADIO_SERVER_NAME": "0.0.0.0"}
    with serving(models, **proxies, **online) as (process, address):
        assert httpx.get(address, trust_env=False).status_code == 200
        # A web page elsewhere whose name leads here reads nothing, and nothing large is stored.
        elsewhere = httpx.get(address, headers={"Host": "evil.example"}, trust_env=False)
        assert elsewhere.status_code == 400
        upload = {"files": ("a.bin", b"0" * 100_000)}
        stored = httpx.post(f"{address}gradio_api/upload", files=upload, trust_env=False)
        assert stored.status_code >= 400
        for body in (b"0" * (LARGEST_REQUEST + 1), pieces(LARGEST_REQUEST + 1)):
            sent = httpx.post(f"{address}gradio_api/queue/join", content=body, trust_env=False)
            assert sent.status_code == 413
        host, port = address.removeprefix("http://").rstrip("/").split(":")
        assert host == "127.0.0.1"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "vaswani: stopped\n"
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind((host, int(port)))


@pytest.mark.slow
def test_ctrl_c_stops_the_server_but_not_its_process() -> None:
    before = signal.getsignal(signal.SIGINT)
    found = []

    def opened(address: str) -> None:
        found.append(httpx.get(address).status_code)
        signal.raise_signal(signal.SIGINT)

    serve(build_demo({"toy": Translator(toy_model(), toy_tokenizer())}), 0, opened)
    assert found == [200]
    assert signal.getsignal(signal.SIGINT) is before


def refused(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The error of a demo that does not start."""
    status = run(["demo", *map(str, arguments)])
    captured = capfd.readouterr()
    assert (status, captured.out) == (2, "")
    assert captured.err.count("\n") == 1
    return captured.err


def test_a_port_that_is_taken(models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        told = refused(capfd, "--model", models / "translator", "--port", port)
    assert f"port {port} of 127.0.0.1 cannot be used: Address already in use; give another with " in told


def test_without_gradio_the_error_names_the_remedy(
    models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vaswani.demo, "find_spec", lambda name: None)
    told = refused(capfd, "--model", models / "translator")
    assert told == "vaswani: the demo needs Gradio: pip install 'vaswani[demo]'\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "{}/classifier", "--num_beams", "2"], "num_beams is for encoder-decoders"),
        (["--model", "{}/translator", "--model", "{}/translator"], "is given twice"),
        (["--model", "{}/translator", "--model", "{}/classifier"], "of one kind"),
        (["--model", "{}/encoder"], "holds VaswaniEncoderModel, which the demo does not show; expected an"),
        (["--model", "{}/translator", "--engine", "tpu"], "engine='tpu' is unknown"),
        (["--model", "{}/translator", "--engine", "ctranslate2"], "model.bin"),
        (["--model", "{}/translator", "--target_language", "de"], "target_language"),
    ],
)
def test_invalid_models_and_options_give_an_error(
    models: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert told in refused(capfd, "--port", "0", *(each.format(models) for each in arguments))


def test_importing_the_package_imports_no_gradio(forking_python: ForkingPython, tmp_path: Path) -> None:
    code = "import sys, vaswani, vaswani.cli.commands, vaswani.demo; assert 'gradio' not in sys.modules"
    assert forking_python.run(["-c", code], tmp_path).returncode == 0
