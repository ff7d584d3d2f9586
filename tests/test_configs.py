"""The configurations that come with the project resolve, and describe what they say they do."""

from pathlib import Path

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file

from vaswani import VaswaniForCausalLM, VaswaniForConditionalGeneration, VaswaniForMaskedLM
from vaswani.distillation.arguments import DistillationConfig
from vaswani.training.config.config_file import load_config
from vaswani.training.config.finetuning_arguments import FinetuningConfig
from vaswani.training.config.pretraining_arguments import PretrainingConfig
from vaswani.training.config.run_config import BaseConfig, RunConfig
from vaswani.training.runs.pretraining import CausalLMRun, MaskedLMRun
from vaswani.training.runs.translation import model_config

CONFIGS = Path(__file__).parent.parent / "configs"


def kind_of(path: Path) -> type[BaseConfig]:
    """The command that a configuration says it is of by its name."""
    kinds = {"distill": DistillationConfig, "finetune": FinetuningConfig, "mlm": PretrainingConfig}
    kinds["causal"] = PretrainingConfig
    return kinds.get(path.stem.partition("_")[0], RunConfig)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_resolves(path):
    kind = kind_of(path)
    corpus = ["--dataset", "texts"] if kind in (PretrainingConfig, FinetuningConfig) else []
    config = load_config(path, corpus, kind)
    assert config.output_dir == Path("runs") / path.stem
    if isinstance(config, RunConfig):
        model_config(config.model, config.data.vocab_size, config.data.vocab_size, one_vocabulary=True)


@pytest.mark.parametrize(
    ("name", "run", "model"),
    [("mlm", MaskedLMRun, VaswaniForMaskedLM), ("causal_lm", CausalLMRun, VaswaniForCausalLM)],
)
def test_language_models_have_the_size_that_is_said(name, run, model):
    path = CONFIGS / f"{name}.yaml"
    config = load_config(path, ["--dataset", "texts", "--use_cpu", "true"], PretrainingConfig)
    run(config).check()
    with torch.device("meta"):
        parameters = model(run(config).model_config(config.data.vocab_size)).num_parameters()
    assert f"{parameters / 1e6:.1f} M parameters" in path.read_text()


@pytest.mark.parametrize("path", sorted((CONFIGS / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_reads_how_to_launch(path):
    launch = load_config_from_file(str(path))
    assert launch.num_processes % launch.num_machines == 0
    assert f"--config_file configs/accelerate/{path.name}" in path.read_text()
    assert not launch.use_cpu  # with it accelerate starts one process


@pytest.mark.parametrize(
    ("name", "millions"), [("base", 65), ("big", 213), ("multi30k", 1.77), ("dates", 1.05)]
)
def test_models_have_the_size_that_is_said(name, millions):
    """Table 3 of Vaswani et al. (65 and 213 million) counts to within 3 %."""
    config = load_config(CONFIGS / f"{name}.yaml")
    with torch.device("meta"):
        model = VaswaniForConditionalGeneration(
            model_config(config.model, config.data.vocab_size, config.data.vocab_size, one_vocabulary=True)
        )
    assert model.num_parameters() / 1e6 == pytest.approx(millions, rel=0.03)


def test_base_and_big_train_with_the_papers_settings():
    for name, steps, dropout in [("base", 100_000, 0.1), ("big", 300_000, 0.3)]:
        config = load_config(CONFIGS / f"{name}.yaml")
        args = config.training
        assert (args.max_steps, config.model.dropout, args.warmup_steps) == (steps, dropout, 4000)
        assert (args.adam_beta1, args.adam_beta2, args.adam_epsilon) == (0.9, 0.98, 1e-9)
        assert args.max_tokens_per_batch * args.gradient_accumulation_steps == 50_000
        assert (args.learning_rate, args.label_smoothing_factor) == (None, 0.1)  # None: equation 3


def test_multi30k_is_the_small_student_without_its_teacher():
    alone = load_config(CONFIGS / "multi30k.yaml")
    taught = load_config(CONFIGS / "distill_multi30k_small.yaml", [], DistillationConfig)
    assert alone.model == taught.model
    for name in ("max_steps", "learning_rate", "warmup_steps", "max_tokens_per_batch", "lr_scheduler_type"):
        assert getattr(alone.training, name) == getattr(taught.training, name)
