"""Resuming refuses tampered checkpoints and runs none of their code."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tiny_runs import as_flags
from vaswani.errors import UserError
from vaswani.files.atomic_files import sha256_of
from vaswani.training.config.config_file import load_config
from vaswani.training.runs.failures import describe_failure
from vaswani.training.runs.translation import train


@pytest.fixture
def run(tiny_run: dict[str, Any]) -> dict[str, Any]:
    """The options of a run with a checkpoint."""
    options = {**tiny_run, "max_steps": 2, "save_steps": 1}
    train(load_config(None, as_flags(options)))
    return {**options, "max_steps": 3, "resume_from_checkpoint": "true"}


def tamper(options: dict[str, Any], name: str, content: bytes) -> None:
    """Change a file of the last checkpoint, and its hash, as an attacker would."""
    checkpoint = Path(options["output_dir"]) / "checkpoint-2"
    (checkpoint / name).write_bytes(content)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"][name] = sha256_of(checkpoint / name)
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def test_code_in_a_checkpoint_configuration_is_not_run(
    run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, trace = Path(run["output_dir"]) / "checkpoint-2", Path(run["output_dir"]) / "trace"
    (checkpoint / "evil.py").write_text(f"open({str(trace)!r}, 'w').close()\nclass Evil: pass\n")
    config = json.loads((checkpoint / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil"}}
    tamper(run, "config.json", json.dumps(config).encode())
    monkeypatch.setattr("builtins.input", lambda *args: "y")  # to the question of the library
    with pytest.raises(UserError, match="checkpoints' own code is not run"):
        train(load_config(None, as_flags(run)))
    assert not trace.exists()


class Evil:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_pickled_state_with_code_is_refused_with_a_remedy(
    run: dict[str, Any], name: str, tmp_path: Path
) -> None:
    """The suggested remedy is another checkpoint."""
    tamper(run, name, pickle.dumps(Evil(tmp_path / "trace"), protocol=2))
    with pytest.raises(pickle.UnpicklingError) as failed:
        train(load_config(None, as_flags(run)))
    words = describe_failure(failed.value, Path(run["output_dir"]))
    assert name in words
    assert words.endswith("is not loaded; resume from another checkpoint, --resume_from_checkpoint DIR")
    assert not (tmp_path / "trace").exists()
