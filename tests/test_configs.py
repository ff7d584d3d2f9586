"""The configurations included in the package have names, resolve, and match their descriptions."""

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file

from vaswani import VaswaniForCausalLM, VaswaniForConditionalGeneration, VaswaniForMaskedLM
from vaswani.cli import run
from vaswani.distillation.config import DistillationConfig
from vaswani.errors import UserError
from vaswani.files.named_configs import FOLDER, command, config_names, find_config, summary, usage
from vaswani.inference.prompt.task_file import load_task
from vaswani.training.config.arguments import ModelArguments, RunConfig
from vaswani.training.config.config_file import load_config
from vaswani.training.config.finetuning_arguments import FinetuningConfig
from vaswani.training.config.options import BaseConfig
from vaswani.training.config.pretraining_arguments import PretrainingConfig
from vaswani.training.runs.denoising import GapSentencesRun
from vaswani.training.runs.pretraining import CausalLMRun, MaskedLMRun
from vaswani.training.runs.translation import model_config

CONFIG_CLASSES: dict[str, type[BaseConfig]] = {
    "train": RunConfig,
    "pretrain": PretrainingConfig,
    "finetune": FinetuningConfig,
    "distill": DistillationConfig,
}
NAMES = config_names()


@pytest.mark.parametrize("name", [name for name in NAMES if command(name) in CONFIG_CLASSES])
def test_every_configuration_resolves(name):
    config_class = CONFIG_CLASSES[command(name)]
    corpus = ["--dataset", "texts"] if command(name) in ("pretrain", "finetune") else []
    config = load_config(name, corpus, config_class)
    assert config.output_dir == Path("runs") / name.rpartition("/")[2]
    if isinstance(config, RunConfig) and isinstance(config.model, ModelArguments):
        model_config(config.model, config.data.vocab_size, config.data.vocab_size, one_vocabulary=True)


READERS: dict[str, Callable[[str], object]] = {
    **{verb: partial(load_config, overrides=[], config_class=kind) for verb, kind in CONFIG_CLASSES.items()},
    "prompt": load_task,
}


@pytest.mark.parametrize(
    ("name", "verb"), [(name, verb) for name in NAMES for verb in READERS if verb != command(name)]
)
def test_a_configuration_of_another_command_is_refused_with_its_own(name: str, verb: str):
    message = rf"^{name} is not for vaswani {verb}; use it with: (vaswani|accelerate) \w"
    with pytest.raises(UserError, match=message) as error:
        READERS[verb](name)
    assert str(error.value).endswith(usage(name))


@pytest.mark.parametrize(
    ("name", "run", "model"),
    [
        ("mlm", MaskedLMRun, VaswaniForMaskedLM),
        ("causal_lm", CausalLMRun, VaswaniForCausalLM),
        ("causal_lm_small", CausalLMRun, VaswaniForCausalLM),
    ],
)
def test_language_models_have_the_stated_size(name, run, model):
    config = load_config(name, ["--dataset", "texts", "--use_cpu", "true"], PretrainingConfig)
    run(config).check()
    with torch.device("meta"):
        parameters = model(run(config).model_config(None)).num_parameters()
    assert f"{parameters / 1e6:.1f} M parameters" in summary(name)


def test_pretrained_and_plain_summarizers_have_the_same_shape():
    pretrained = load_config("pretrain_summarization", ["--dataset", "texts"], PretrainingConfig)
    alone, tuned = load_config("long_summarization"), load_config("finetune_long_summarization")
    assert pretrained.model == alone.model
    assert pretrained.data.vocab_size == alone.data.vocab_size
    assert tuned.model.model == str(pretrained.output_dir)
    for name in ("max_source_length", "max_target_length", "truncate", "task", "source_field"):
        assert getattr(tuned.data, name) == getattr(alone.data, name)
    GapSentencesRun(pretrained).check()


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("accelerate/")])
def test_accelerate_reads_how_to_launch(name):
    path = find_config(name)
    launch = load_config_from_file(str(path))
    assert launch.num_processes % launch.num_machines == 0
    assert f"vaswani configs show {name} > {path.name}\n" in path.read_text()
    assert f"accelerate launch --config_file {path.name}" in path.read_text()
    assert not launch.use_cpu  # with it accelerate starts one process


@pytest.mark.parametrize(
    ("name", "millions"),
    [("base", 65), ("big", 213), ("multi30k", 1.77), ("multi30k_tiny", 2.61), ("dates", 1.05)],
)
def test_models_have_the_stated_size(name, millions):
    """Table 3 of Vaswani et al. (65 and 213 million) counts to within 3 %."""
    config = load_config(name)
    with torch.device("meta"):
        model = VaswaniForConditionalGeneration(
            model_config(config.model, config.data.vocab_size, config.data.vocab_size, one_vocabulary=True)
        )
    assert model.num_parameters() / 1e6 == pytest.approx(millions, rel=0.03)


def test_base_and_big_train_with_the_papers_settings():
    for name, steps, dropout in [("base", 100_000, 0.1), ("big", 300_000, 0.3)]:
        config = load_config(name)
        args = config.training
        assert (args.max_steps, config.model.dropout, args.warmup_steps) == (steps, dropout, 4000)
        assert (args.adam_beta1, args.adam_beta2, args.adam_epsilon) == (0.9, 0.98, 1e-9)
        assert args.max_tokens_per_batch * args.gradient_accumulation_steps == 50_000
        assert (args.learning_rate, args.label_smoothing_factor) == (None, 0.1)  # None: equation 3


def test_multi30k_equals_the_small_student_without_a_teacher():
    alone = load_config("multi30k")
    taught = load_config("distill_multi30k_small", [], DistillationConfig)
    assert alone.model == taught.model
    for name in ("max_steps", "learning_rate", "warmup_steps", "max_tokens_per_batch", "lr_scheduler_type"):
        assert getattr(alone.training, name) == getattr(taught.training, name)


def test_the_list_has_a_line_for_each_configuration(capsys):
    assert run(["configs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines if line.startswith("  ")}
    assert listed == {name: summary(name) for name in NAMES}
    assert sorted(listed) == sorted(
        str(path.relative_to(FOLDER)).removesuffix(".yaml") for path in FOLDER.rglob("*.*")
    )
    titles = [line for line in lines if not line.startswith("  ")]
    assert titles[0] == "vaswani train --config NAME"
    assert len(titles) == 7


@pytest.mark.parametrize("name", NAMES)
def test_every_configuration_begins_with_a_description_and_a_command(name):
    first, second, *_ = find_config(name).read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(r"# [A-Z].{10,110}\.", first)
    assert re.fullmatch(rf"# vaswani (\w+ .*--(config|task|device)|configs show) {name}( .*)?", second)


def test_show_prints_a_configuration_as_it_is(capsys):
    assert run(["configs", "show", "systems/gpt2"]) == 0
    assert capsys.readouterr().out == (FOLDER / "systems" / "gpt2.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("given", ["dates", "dates.yaml", "configs/dates.yaml"])
def test_a_name_is_found_from_any_folder_and_a_file_comes_first(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_config(given) == FOLDER / "dates.yaml"
    (tmp_path / "dates").mkdir()  # such as a data set
    assert find_config(given) == FOLDER / "dates.yaml"
    (tmp_path / "configs").mkdir()
    (tmp_path / given).rmdir() if given == "dates" else None
    (tmp_path / given).write_text("d_model: 32\n")
    assert find_config(given) == Path(given)


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("date", "'dates'"),
        ("configs/data.yaml", "'dates'"),
        ("gpt2", "'systems/gpt2'"),
        ("qqq", "configs lists"),
    ],
)
def test_a_name_that_does_not_exist_is_an_error_with_the_nearest(given, nearest, capsys):
    with pytest.raises(UserError, match=f"configuration file {given} does not exist; .*{nearest}"):
        find_config(given)
    assert run(["configs", "show", given]) == 2
    assert nearest in capsys.readouterr().err


LIST_WITHOUT_TORCH = """
import sys
from vaswani.cli.command_line import run
run(["configs"])
sys.exit("torch" in sys.modules)
"""


def test_names_resolve_without_torch(tmp_path):
    command = [sys.executable, "-c", LIST_WITHOUT_TORCH]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "  dates " in done.stdout
