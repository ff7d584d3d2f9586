"""Export a model to CTranslate2 and serve translations over HTTP. Takes seconds.

    pip install "vaswani[ctranslate2]"
    python examples/01_train_and_translate.py runs/example
    python examples/08_serve_with_ctranslate2.py [MODEL [PORT]]

With a port, the server keeps running: curl -d '["March 3, 2020"]' http://127.0.0.1:PORT
"""

import json
import sys
import tempfile
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from vaswani import Translator
from vaswani.errors import RunError
from vaswani.interop import export_folder

model = sys.argv[1] if len(sys.argv) > 1 else "runs/example"
port = int(sys.argv[2]) if len(sys.argv) > 2 else 0

# The same as `vaswani export MODEL FOLDER`; quantization="int8" makes the files a quarter as large.
with tempfile.TemporaryDirectory() as folder:
    export_folder(model, Path(folder, "exported"), "ctranslate2")
    translator = Translator.from_pretrained(Path(folder, "exported"), engine="ctranslate2", num_beams=4)


LARGEST_BODY = 1 << 20  # bytes


def answer_to(body: bytes) -> tuple[HTTPStatus, list[str]]:
    """Translate a JSON list of sentences; several threads may share a translator."""
    try:
        sentences = json.loads(body)
        if not isinstance(sentences, list):
            return HTTPStatus.BAD_REQUEST, ["expected a list of texts"]
        found = list(translator.translate(sentences, with_scores=False))
    except (ValueError, RecursionError) as error:  # no JSON; a UserError of the translator
        return HTTPStatus.BAD_REQUEST, [f"not translated: {error}"]
    except RunError as error:  # such as a batch that does not fit into memory
        return HTTPStatus.INTERNAL_SERVER_ERROR, [f"not translated: {error}"]
    if problems := [f"{each.source[:20]!r}: {each.problem}" for each in found if each.problem]:
        return HTTPStatus.BAD_REQUEST, problems
    return HTTPStatus.OK, [each.text for each in found]


class Handler(BaseHTTPRequestHandler):
    """Answers a JSON list of sentences with the list of their translations."""

    def do_POST(self) -> None:
        """Read the body, of a length that the header states, and answer."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            status, answer = HTTPStatus.LENGTH_REQUIRED, ["expected a header Content-Length"]
        elif int(length) > LARGEST_BODY:
            status, answer = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, [f"more than {LARGEST_BODY} bytes"]
        else:
            status, answer = answer_to(self.rfile.read(int(length)))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer, ensure_ascii=False).encode())

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


server = ThreadingHTTPServer(("127.0.0.1", port), Handler)  # only this machine reaches it
url = f"http://127.0.0.1:{server.server_port}"
if port:
    print(f"serving {model} at {url}; end with Ctrl-C")
    server.serve_forever()
threading.Thread(target=server.serve_forever, daemon=True).start()


def ask(sentence: str) -> str:
    """Send one sentence to the server."""
    body = json.dumps([sentence]).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data=body)) as answer:
        return json.load(answer)[0]


lines = ["27. Januar 1999", "samedi 1 mai 2027", "Tuesday, March 3, 2020", "3 de marzo de 2020"]
with ThreadPoolExecutor(4) as clients:
    answers = list(clients.map(ask, lines))
server.shutdown()
for line, answer in zip(lines, answers, strict=True):
    print(f"{line}  ->  {answer}")
expected = Translator.from_pretrained(model, num_beams=4)(lines)
print("the same as with PyTorch" if answers == expected else f"PyTorch translates differently: {expected}")
