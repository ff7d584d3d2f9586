"""Translate a file line by line, and print hypotheses with their scores. Takes seconds.

python examples/01_train_and_translate.py runs/example
python examples/03_translate_files.py [MODEL]
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from vaswani import Translator

model = sys.argv[1] if len(sys.argv) > 1 else "runs/example"
lines = ["27. Januar 1999", "", "samedi 1 mai 2027", "Tuesday, March 3, 2020", "3 de marzo de 2020"]

# In Python, `translate` takes any iterable of sentences, even one larger than memory, and keeps their order.
translator = Translator.from_pretrained(model, num_beams=4, length_penalty=0.6)
for translation in translator.translate(lines, n_best=3):
    print(translation.source or "(an empty line stays empty)")
    for hypothesis in translation.hypotheses:
        print(f"  {hypothesis.score:8.3f}  {hypothesis.log_prob:8.3f}  {hypothesis.text}")

# On the command line, each line of input gives one line of output; --n_best writes JSON with scores.
with tempfile.TemporaryDirectory() as folder:
    source, plain, ranked = (Path(folder, name) for name in ("dates.txt", "iso.txt", "iso.jsonl"))
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "vaswani", "translate", "--model", model, "--input", str(source)]
    subprocess.run([*command, "--output", str(plain)], check=True)
    subprocess.run([*command, "--output", str(ranked), "--n_best", "2"], check=True)
    for line, record in zip(plain.read_text(encoding="utf-8").splitlines(), ranked.open(), strict=True):
        print(repr(line), [hypothesis["score"] for hypothesis in json.loads(record)["hypotheses"]])
