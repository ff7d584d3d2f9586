"""Parameters of the systems that `vaswani configs` lists, counted without allocating them, and as published.

    python benchmarks/parameter_counts.py [--json]

The table also has the count of transformers' own model of that shape, if there is one. Only the base models
are counted, without the heads of pre-training, as in the papers; weights that layers share count once.
"""

import argparse
import json
from collections.abc import Callable
from typing import NamedTuple

from transformers import (
    AutoModel,
    BertConfig,
    BigBirdConfig,
    DistilBertConfig,
    GPT2Config,
    OpenAIGPTConfig,
    PreTrainedConfig,
)

import side_by_side
from vaswani.hub.run_metadata import count_parameters
from vaswani.training.config.config_file import load_config
from vaswani.training.config.pretraining_arguments import MaskedLMConfig, PretrainingConfig
from vaswani.training.runs.pretraining import CausalLMRun, MaskedLMRun
from vaswani.training.runs.translation import model_config


class System(NamedTuple):
    """A system with the number of parameters that its paper gives, in millions."""

    title: str
    published: float
    source: str
    library: Callable[[], PreTrainedConfig] | None = None


def _gpt2(width: int, layers: int, heads: int) -> Callable[[], PreTrainedConfig]:
    return lambda: GPT2Config(n_embd=width, n_layer=layers, n_head=heads)


_BERT_LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}

SYSTEMS = {
    "base": System("Transformer, base", 65, "Vaswani et al. (2017), table 3"),
    "big": System("Transformer, big", 213, "Vaswani et al. (2017), table 3"),
    "systems/bert_base": System("BERT-base", 110, "Devlin et al. (2019), section 3", BertConfig),
    "systems/bert_large": System(
        "BERT-large", 340, "Devlin et al. (2019), section 3", lambda: BertConfig(**_BERT_LARGE)
    ),
    "systems/distilbert": System("DistilBERT", 66, "Sanh et al. (2019), table 3", DistilBertConfig),
    "systems/bigbird": System("BigBird-base", 128, "google/bigbird-roberta-base as released", BigBirdConfig),
    "systems/gpt": System("GPT", 117, "Radford et al. (2019), table 2", OpenAIGPTConfig),
    "systems/gpt2": System("GPT-2 small", 124, "as released (paper: 117)", _gpt2(768, 12, 12)),
    "systems/gpt2_medium": System("GPT-2 medium", 355, "as released (paper: 345)", _gpt2(1024, 24, 16)),
    "systems/gpt2_large": System("GPT-2 large", 774, "as released (paper: 762)", _gpt2(1280, 36, 20)),
    "systems/gpt2_xl": System("GPT-2 XL", 1558, "as released (paper: 1,542)", _gpt2(1600, 48, 25)),
    "systems/gpt3_small": System("GPT-3 Small", 125, "Brown et al. (2020), table 2.1"),
    "systems/gpt3_medium": System("GPT-3 Medium", 350, "Brown et al. (2020), table 2.1"),
    "systems/gpt3_large": System("GPT-3 Large", 760, "Brown et al. (2020), table 2.1"),
    "systems/gpt3_xl": System("GPT-3 XL", 1_300, "Brown et al. (2020), table 2.1"),
    "systems/gpt3_2.7b": System("GPT-3 2.7B", 2_700, "Brown et al. (2020), table 2.1"),
    "systems/gpt3_6.7b": System("GPT-3 6.7B", 6_700, "Brown et al. (2020), table 2.1"),
    "systems/gpt3_13b": System("GPT-3 13B", 13_000, "Brown et al. (2020), table 2.1"),
    "systems/gpt3_175b": System("GPT-3 175B", 175_000, "Brown et al. (2020), table 2.1"),
}


def config_of(name: str) -> PreTrainedConfig:
    """The model's configuration in the run's configuration of that name."""
    if not name.startswith("systems/"):
        run = load_config(name)
        return model_config(run.model, run.data.vocab_size, run.data.vocab_size, one_vocabulary=True)
    pretraining = load_config(name, [], PretrainingConfig)
    kind = MaskedLMRun if isinstance(pretraining, MaskedLMConfig) else CausalLMRun
    return kind(pretraining).model_config(None)


def count(config: PreTrainedConfig) -> int:
    """Parameters of the base model."""
    return count_parameters(config, AutoModel)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
    args = parser.parse_args()
    rows, counts = [], {}
    for name, system in SYSTEMS.items():
        counts[name] = count(config_of(name))
        library = f"{count(system.library()):,}" if system.library else "–"
        published = f"{system.published:,.0f} M"
        difference = f"{counts[name] / 1e6 / system.published - 1:+.1%}"
        rows.append([system.title, name, f"{counts[name]:,}", library, published, difference, system.source])
    columns = [
        "system",
        "configuration",
        "parameters",
        "transformers' own",
        "published",
        "difference",
        "where",
    ]
    side_by_side.print_table(columns, rows)
    if args.json:
        print(json.dumps(counts))


if __name__ == "__main__":
    main()
