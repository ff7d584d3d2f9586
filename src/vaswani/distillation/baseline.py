"""The baseline of a distillation: the same student trained without a teacher, in a subfolder of the run."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers.utils import SAFE_WEIGHTS_NAME

from vaswani.files.run_files import SETTINGS_FILE
from vaswani.files.run_settings import read_settings
from vaswani.training.runs.base import BaseRun, owned_output

BASELINE = "baseline"
# What a resumed distillation may change of its student's weights: how long it trains, and which are kept.
_DECISIVE = (
    *("max_steps", "num_train_epochs", "early_stopping_patience"),
    *("average_checkpoints", "save_strategy", "save_steps", "save_total_limit"),
    *("eval_strategy", "eval_steps", "eval_delay"),
)


def training_of_baseline(training: Any) -> Any:
    """Return a run's training arguments for its baseline, which has its own folder and is not pushed."""
    other = copy.copy(training)
    other.output_dir = str(Path(training.output_dir or ".") / BASELINE)
    other.push_to_hub = False
    return other


def train_unless_done(run: BaseRun) -> None:
    """Train or resume a baseline unless it is finished and was trained and saved as the student was."""
    folder = run.config.output_dir
    if (folder / SAFE_WEIGHTS_NAME).is_file():  # training has finished
        before, now = read_settings(folder), run.config.to_dict()
        if all(before.get(name) == now.get(name) for name in _DECISIVE):
            return
    PartialState().print(f"training the same student without distillation in {folder}", flush=True)
    has_begun = (folder / SETTINGS_FILE).is_file()
    run.config.training.resume_from_checkpoint = "true" if has_begun else None
    with owned_output(run.config):
        run.train_and_evaluate()
