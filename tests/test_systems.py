"""The configurations in `systems/` have the published number of parameters, and that of transformers."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from parameter_counts import SYSTEMS, config_of, count  # noqa: E402
from vaswani.files import named_configs  # noqa: E402
from vaswani.training.config.config_file import load_config  # noqa: E402
from vaswani.training.config.pretraining_arguments import PretrainingConfig  # noqa: E402

# Published numbers are rounded, and some count other embeddings; the original base model is furthest off.
WITHIN = 0.031


@pytest.mark.parametrize("name", SYSTEMS)
def test_parameter_counts_equal_the_published_ones(name: str) -> None:
    assert count(config_of(name)) / 1e6 == pytest.approx(SYSTEMS[name].published, rel=WITHIN)


@pytest.mark.parametrize("name", [name for name, system in SYSTEMS.items() if system.library])
def test_parameter_counts_equal_those_of_transformers(name: str) -> None:
    of_token_types = 2 * 768 if name == "systems/bigbird" else 0  # ours has none
    assert count(config_of(name)) == count(SYSTEMS[name].library()) - of_token_types


@pytest.mark.parametrize(
    "path", sorted((named_configs.FOLDER / "systems").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_system_is_listed_and_resolves(path: Path) -> None:
    assert f"systems/{path.stem}" in SYSTEMS
    assert load_config(path, [], PretrainingConfig).output_dir == Path("runs") / path.stem
