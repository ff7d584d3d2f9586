"""Read the files of runs for comparison."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Of the model that was saved in a folder."""
    return load_file(folder / "model.safetensors")


def logged(folder: Path, what: str) -> list[float]:
    """What a run logged under a name, update by update."""
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [entry[what] for entry in history if what in entry]


def assert_same_weights(first: Path, second: Path) -> None:
    """The models in both folders are equal bit by bit."""
    expected, found = weights(first), weights(second)
    assert expected.keys() == found.keys()
    for name, weight in expected.items():
        assert torch.equal(found[name], weight), name
