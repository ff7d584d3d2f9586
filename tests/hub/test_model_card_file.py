"""`model_card.md` is up to date with the code and the run in docs/dates_run (`make model-card`)."""

import json
from pathlib import Path

import yaml

from vaswani.cli import run
from vaswani.training.config.config_file import load_config

ROOT = Path(__file__).parents[2]
RUN = ROOT / "docs" / "dates_run"


def test_the_card_of_the_dates_model_is_current(capsys) -> None:
    assert run(["card", "--model", str(RUN), "--repo", "vaswani/dates"]) == 0
    assert capsys.readouterr().out == (ROOT / "model_card.md").read_text(encoding="utf-8")


def test_the_card_describes_the_quickstart_configuration() -> None:
    asked = load_config("dates").to_dict()
    trained = yaml.safe_load((RUN / "training_config.yaml").read_text(encoding="utf-8"))
    assert {**trained, "output_dir": None} == {**asked, "output_dir": None}
    assert json.loads((RUN / "evaluation.json").read_text(encoding="utf-8"))["rows"] == 5000
