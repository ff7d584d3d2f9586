"""Everything that a training uses late is checked early: failures are reported before the corpus is read."""

import functools
import math
import re
from pathlib import Path
from typing import Any

import pytest
import transformers
from run_records import logged
from transformers import AutoModelForSeq2SeqLM

from tiny_runs import TINY_RUN, as_flags, resolved
from vaswani import VaswaniConfig
from vaswani.cli import run as run_command
from vaswani.errors import RunError, UserError
from vaswani.training.config.training_arguments import TrainingArguments
from vaswani.training.runs import base as base_run
from vaswani.training.runs import checks
from vaswani.training.runs.checks import check_attention_kernel, dry_run
from vaswani.training.runs.translation import TrainingRun

QUIET = {"use_cpu": True, "learning_rate": 1e-3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optim_args": "fast"}, "optim=adamw_torch_fused with optim_args=fast cannot work"),
        (
            {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"cycles": 2}},
            "lr_scheduler_type=cosine with lr_scheduler_kwargs={'cycles': 2} cannot work: .*'cycles'",
        ),
        ({"lr_scheduler_type": "warmup_stable_decay"}, "lr_scheduler_type=warmup_stable_decay .*num_decay"),
        ({"fp16": True}, "fp16=true has no effect on a CPU; leave it out, or give bf16=true"),
        ({"torch_compile_backend": "fast"}, "torch_compile_backend=fast.* cannot work"),
        (
            {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"a": 1}},
            "activation_checkpointing_kwargs={'a': 1} cannot work",
        ),
        *(
            (
                {"optim": optim, "optim_args": given},
                f"{what} of optim_args={given} has no effect with optim={optim}",
            )
            for optim, given, what in (
                ("adamw_torch", "weight_decay=0.5", "weight_decay=0.5"),
                ("adafactor", "scale_parameter=True", "scale_parameter=True"),
                ("sgd", "momentum=0.9,momentun=0.9", "momentun=0.9"),
            )
        ),
        ({"use_liger_kernel": True}, "use_liger_kernel=true needs the package liger-kernel; install it"),
        (
            {"accelerator_config": {"split_batches": True}},
            "split_batches=True of accelerator_config has no effect: batches hold max_tokens_per_batch",
        ),
        ({"torch_compile_mode": "fast"}, "torch_compile_mode=fast cannot work: .*one of.*max-autotune"),
        ({"generation_config": "/no/such/file"}, "generation_config=/no/such/file cannot work"),
        ({"push_to_hub": True, "hub_model_id": "a/b/c"}, "hub_model_id='a/b/c'"),
        ({"push_to_hub": True, "output_dir": "a..b"}, "hub_model_id='a..b'"),
        ({"push_to_hub": True}, "push_to_hub needs a token; run `hf auth login`, set HF_TOKEN, or give"),
    ],
)
def test_invalid_arguments_raise_an_error_before_training(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "get_token", lambda: None)
    args = TrainingArguments(**{**QUIET, "output_dir": "run", **options})
    with pytest.raises(UserError, match=message) as refused:
        dry_run(args)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_the_rehearsal_does_not_change_valid_arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    more = {"optim": "sgd", "optim_args": "nesterov=True, momentum=0.9", "eval_strategy": "epoch"}
    args = TrainingArguments(**QUIET, output_dir="run", lr_scheduler_type="linear", **more)
    before = args.to_dict()
    dry_run(args)
    assert args.to_dict() == before
    assert not list(tmp_path.iterdir())


def test_a_kernel_that_does_not_exist_is_named():
    shape = VaswaniConfig(vocab_size=9, d_model=8, encoder_layers=1, decoder_layers=1)
    check_attention_kernel(AutoModelForSeq2SeqLM, shape, "eager")
    with pytest.raises(UserError, match="attn_implementation=fast cannot work"):
        check_attention_kernel(AutoModelForSeq2SeqLM, shape, "fast")


def test_every_run_is_rehearsed_before_its_corpus_is_read(tiny_run, capsys, monkeypatch):
    monkeypatch.setattr(base_run, "load_corpus", lambda *_: pytest.fail("the corpus is read"))
    assert run_command(["train", *as_flags({**tiny_run, "optim_args": "fast"})]) == 2
    assert "optim_args=fast" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"position_embedding": "learned", "max_position_embeddings": 128},
            "max_source_length=256 is longer than max_position_embeddings=128; lower the one or raise",
        ),
        (
            {"position_embedding": "learned", "max_position_embeddings": 300, "max_target_length": 301},
            "max_target_length=301 is longer than max_position_embeddings=300",
        ),
        ({"vocab_size": 258}, "vocab_size=258 is too small: it must hold 256 bytes and 3 special tokens"),
        (
            {"streaming": True, "max_tokens_per_batch": 511},
            "max_tokens_per_batch=511 is too small for a row of max_source_length=256 and max_target_",
        ),
        ({"attn_implementation": "fast"}, "attn_implementation=fast cannot work"),
        ({"language": ["Deutsch"]}, "language='Deutsch' is not a language code"),
        ({"license": "Apache 2.0"}, "license='Apache 2.0' is not an identifier of the Hub"),
        ({"generation_max_length": 1}, "generation_max_length=1 must be at least 2"),
    ],
)
def test_limits_that_do_not_fit_are_refused(tiny_run, options, message, monkeypatch):
    monkeypatch.setattr(base_run, "load_corpus", lambda *_: pytest.fail("the corpus is read"))
    with pytest.raises(UserError, match=re.escape(message)):
        TrainingRun(resolved({**tiny_run, **options})).run()


@pytest.mark.parametrize(
    "make", [lambda path: path.write_bytes(b"caf\xe9"), Path.mkdir], ids=["bytes", "folder"]
)
def test_an_unreadable_model_card_raises_an_error_before_training(tiny_run, make, monkeypatch):
    monkeypatch.setattr(base_run, "load_corpus", lambda *_: pytest.fail("the corpus is read"))
    folder = Path(tiny_run["output_dir"])
    folder.mkdir()
    make(folder / "README.md")
    with pytest.raises(UserError, match=r"README\.md (is not UTF-8|cannot be read) .*move it away"):
        TrainingRun(resolved(tiny_run)).run()


def test_a_training_without_an_update_raises_an_error(tiny_run, monkeypatch):
    monkeypatch.setattr(transformers.Trainer, "train", lambda *_, **__: None)
    with pytest.raises(RunError, match="the training made no update"):
        TrainingRun(resolved(tiny_run)).run()
    assert not list(Path(tiny_run["output_dir"]).glob("*.safetensors"))


# Options that 0 turns off, and what they are set to otherwise.
SET: dict[str, Any] = {
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.3),
    **dict.fromkeys(("word_dropout", "bpe_dropout"), 0.3),
    "max_grad_norm": 0.1,
    "weight_decay": 0.5,
    "neftune_noise_alpha": 5.0,
    "label_smoothing_factor": 0.3,
    "adam_beta1": 0.9,
    "adam_beta2": 0.98,
    "warmup_steps": 4,
}


@pytest.fixture(scope="module")
def losses(dates, tmp_path_factory):
    """The losses of a short run with all of them set but one."""

    def run(zero: str | None) -> list[float]:
        folder = tmp_path_factory.mktemp("run")
        options = {**TINY_RUN, "train_file": dates["train_file"], **SET, "output_dir": folder, "max_steps": 3}
        options |= {"save_strategy": "no", **({} if zero is None else {zero: 0})}
        TrainingRun(resolved(options)).run()
        return logged(folder, "loss")

    return functools.cache(run)


@pytest.mark.exhaustive(after=4)
@pytest.mark.slow
@pytest.mark.parametrize("name", SET)
def test_zero_turns_an_option_off(losses, name):
    assert losses(name) != losses(None)
    assert all(map(math.isfinite, losses(name)))
