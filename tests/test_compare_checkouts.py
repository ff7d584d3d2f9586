"""The comparison of two checkouts finds all differences and no others."""

import importlib
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("compare_checkouts")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"loss": 2.0, "text": "a"}, {"loss": 2.0, "text": "a"}, 0),
        ({"loss": 2.0}, {"loss": 2.5}, 0.2),
        ({"loss": math.nan}, {"loss": math.nan}, 0),
        ({"loss": math.nan}, {"loss": 2.0}, math.inf),
        ({"loss": 2.0}, {}, math.inf),
        ({"text": "a"}, {"text": "b"}, math.inf),
        ({"done": True}, {"done": False}, math.inf),
        ([1, [2, 3]], [1, [2, 4]], 0.25),
        ([1, 2], [1], math.inf),
        ({"train_runtime": 1, "tokens_per_second": 5}, {"train_runtime": 2, "tokens_per_second": 6}, None),
    ],
)
def test_values_differ_by_their_relative_difference(script, before, after, expected):
    assert max(script.json_differences(before, after), default=None) == expected


def test_files_are_compared_by_their_contents(script, tmp_path):
    for side, last in (("before", 1.0), ("after", 1.5)):
        folder = tmp_path / side
        folder.mkdir()
        save_file({"weight": torch.tensor([2.0, last])}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"d_model": 8, "auto_map": side}))
        (folder / "tokenizer.json").write_text("{}")
        (folder / "modeling.py").write_text(side)
    sides = tmp_path / "before", tmp_path / "after"
    assert script.difference(*sides) == (4, 0.25)
    assert script.difference(sides[0], sides[0]) == (4, 0)
    (sides[1] / "tokenizer.json").write_text("{ }")
    assert script.difference(*sides) == (4, math.inf)
    (sides[0] / "more.txt").write_text("more")
    assert script.difference(sides[0], sides[0])[0] == 5
    assert script.difference(sides[0] / "more.txt", sides[1] / "more.txt") == (0, math.inf)


@pytest.mark.exhaustive
@pytest.mark.script
@pytest.mark.slow
def test_a_changed_checkout_differs_in_the_changed_part(tmp_path):
    changed = tmp_path / "src"
    shutil.copytree(SOURCE, changed)
    path = changed / "vaswani" / "interop" / "bert.py"
    line = '    "hidden_dropout_prob": "dropout",\n'
    assert line in path.read_text()
    path.write_text(path.read_text().replace(line, ""))
    command = [sys.executable, str(ROOT / "benchmarks" / "compare_checkouts.py"), "--quick", "--json"]
    command += ["--parts", "conversion", "--before", str(SOURCE), "--after", str(changed)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["compared"] == 14
    assert set(found["different"]) == {
        f"`convert` {way} {name}" for way in ("from", "to") for name in ("bert", "big_bird")
    }
