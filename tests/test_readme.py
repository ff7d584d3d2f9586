"""The README's Python runs as it stands there, where the models are that it names."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import BertConfig, BertForMaskedLM

from toy_translation import save_toy_checkpoint

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
IMPORTS = "import vaswani\nfrom transformers import AutoModelForMaskedLM\n"  # of the snippet that has none


def test_all_snippets_are_known() -> None:
    first_lines = [snippet.splitlines()[0] for snippet in SNIPPETS]
    assert [line.partition("  #")[0] for line in first_lines] == [
        "import vaswani",
        'model = AutoModelForMaskedLM.from_pretrained("my-bert")',
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer",
    ]


@pytest.mark.parametrize("number", range(3))
def test_a_snippet_runs(number: int, tmp_path: Path) -> None:
    """The models are toys in the place of those that it names; "you/dates" is a folder here."""
    for name in ("runs/dates", "you/dates"):
        save_toy_checkpoint(tmp_path / name)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForMaskedLM(BertConfig(vocab_size=20, **small)).save_pretrained(tmp_path / "my-bert")
    code = (IMPORTS if number == 1 else "") + SNIPPETS[number]
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert bool(result.stdout) is ("print(" in code)
