"""Names of the files that a run writes into its folder, beside the model, and its checkpoints."""

import re
from pathlib import Path

SETTINGS_FILE = "training_config.yaml"
HISTORY = "resumed"  # key in this file: the settings that changed when the run was resumed
CORPUS_FILE = "corpus.json"
EVALUATION_FILE = "evaluation.json"
LOG_FILE = "trainer_state.json"  # `transformers.trainer.TRAINER_STATE_NAME`, which is slow to import
AVERAGED_FILE = "averaged.json"  # the checkpoints whose weights were averaged
COMBINED_FILE = "combined.json"  # the halves of an encoder-decoder that is not trained yet
MANIFEST = "manifest.json"  # of a checkpoint; written last
PASSES = "passes"  # key in this file: the number of batches of each finished pass over a stream

# The report of a distillation or a comparison, as a text, as data and as a picture.
REPORT_TEXT, REPORT_DATA, REPORT_PLOT = "report.md", "report.json", "quality_speed.png"

# Files of an adapter, with PEFT's names.
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ADAPTED_SAMPLE = "adapted_sample.json"  # a sample of the weights of its model


_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder has the name of a checkpoint."""
    return _CHECKPOINT.fullmatch(folder.resolve().name) is not None


def checkpoints(output_dir: Path) -> list[Path]:
    """Return the checkpoint folders of a run, complete or not, latest first."""
    numbered = {
        int(match[1]): path
        for path in (output_dir.iterdir() if output_dir.is_dir() else ())
        if (match := _CHECKPOINT.fullmatch(path.name)) and path.is_dir()
    }
    return [numbered[step] for step in sorted(numbered, reverse=True)]
