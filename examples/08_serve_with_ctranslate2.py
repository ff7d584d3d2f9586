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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from vaswani import Translator
from vaswani.interop import export_folder

model = sys.argv[1] if len(sys.argv) > 1 else "runs/example"
port = int(sys.argv[2]) if len(sys.argv) > 2 else 0

# The same as `vaswani export MODEL FOLDER`; quantization="int8" makes the files a quarter as large.
with tempfile.TemporaryDirectory() as folder:
    export_folder(model, Path(folder, "exported"), "ctranslate2")
    translator = Translator.from_pretrained(Path(folder, "exported"), engine="ctranslate2", num_beams=4)


class Handler(BaseHTTPRequestHandler):
    """Answers a JSON list of sentences with the list of their translations."""

    def do_POST(self) -> None:
        """Translate; several threads may share a translator."""
        try:
            sentences = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not all(isinstance(sentence, str) for sentence in sentences):
                raise TypeError("expected a list of texts")
            status, answer = 200, [each.text for each in translator.translate(sentences, with_scores=False)]
        except (TypeError, ValueError) as error:
            status, answer = 400, [f"not translated: {error}"]
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
