"""Checks, before the corpus is read, for problems that would fail late in a training."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import get_token
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, Seq2SeqTrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig
from transformers.utils import is_liger_kernel_available

from vaswani.errors import UserError, one_line
from vaswani.hub.card import check_repo_name
from vaswani.model.configuration_vaswani import VaswaniEncoderConfig
from vaswani.training.config.options import BaseConfig
from vaswani.training.config.training_arguments import BaseTrainingArguments

STEPS = 100
LIBRARY_OPTIONS = ("every_n_layers", "offload")  # checkpointing options of transformers, not torch
TINY = VaswaniEncoderConfig(
    vocab_size=4, d_model=2, encoder_layers=1, encoder_attention_heads=1, encoder_ffn_dim=1
)


def check_stream(config: BaseConfig) -> None:
    """Raise `UserError` when streaming without `max_steps`, or with several workers."""
    if not getattr(config.data, "streaming", False):
        return
    if config.training.max_steps <= 0:
        raise UserError("streaming=true needs max_steps: the length of a stream is not known")
    if (workers := config.training.dataloader_num_workers) > 1:
        raise UserError(
            f"streaming=true reads the corpus in one process, not in dataloader_num_workers={workers}; set "
            "that to 0 or 1"
        )


def check_metric(name: str | None, known: Sequence[str]) -> None:
    """Raise `UserError` unless an evaluation computes this `metric_for_best_model`."""
    if name is not None and name.removeprefix("eval_") not in known:
        raise UserError(
            f"metric_for_best_model={name.removeprefix('eval_')} is not computed; "
            f"choose one of {', '.join(known)}"
        )


def check_attention_kernel(auto_class: Any, shape: PreTrainedConfig, kernel: str | None) -> None:
    """Raise `UserError` unless a model of this shape supports this attention kernel."""
    if kernel is not None:
        with torch.device("meta"), _user_errors_about(f"attn_implementation={kernel}"):
            auto_class.from_config(copy.deepcopy(shape), attn_implementation=kernel, trust_remote_code=False)


def dry_run(args: BaseTrainingArguments) -> None:
    """Build a trainer, optimizer and schedule for a tiny model, and discard them.

    Raises:
        UserError: an option does not work; the message names it.
    """
    _check_hub(args)
    _check_compile_mode(args)
    _check_accelerator(args)
    if args.use_liger_kernel and not is_liger_kernel_available():
        raise UserError("use_liger_kernel=true needs the package liger-kernel; install it, or leave it out")
    if args.fp16 and args.device.type == "cpu":
        raise UserError("fp16=true has no effect on a CPU; leave it out, or give bf16=true with use_cpu=true")
    with tempfile.TemporaryDirectory() as folder:
        tried = copy.copy(args)
        tried.output_dir, tried.push_to_hub = folder, False
        rows: Any = [0]
        compiled = f" (torch_compile_backend={args.torch_compile_backend})" if args.torch_compile else ""
        with _user_errors_about(f"the training arguments{compiled}"):
            model = transformers.AutoModel.from_config(TINY)
            trainer = transformers.Trainer(model, tried, train_dataset=rows, eval_dataset=rows)
        with _user_errors_about(f"optim={_value(args.optim)} with optim_args={args.optim_args}"):
            _check_optim_args(trainer, tried)
        given = f"lr_scheduler_type={_value(args.lr_scheduler_type)}"
        with _user_errors_about(f"{given} with lr_scheduler_kwargs={args.lr_scheduler_kwargs}"):
            trainer.create_scheduler(STEPS, trainer.optimizer)
    if args.gradient_checkpointing:  # equal to activation_checkpointing in all versions of transformers
        options: Any = args.gradient_checkpointing_kwargs or {}
        with _user_errors_about(f"activation_checkpointing_kwargs={options}"):
            of_torch = {name: value for name, value in options.items() if name not in LIBRARY_OPTIONS}
            checkpoint(torch.sin, torch.ones(1), **{"use_reentrant": False, **of_torch})
    if isinstance(args, Seq2SeqTrainingArguments) and args.generation_config is not None:
        with _user_errors_about(f"generation_config={args.generation_config}"):
            transformers.Seq2SeqTrainer.load_generation_config(args.generation_config)  # type: ignore[arg-type]


def _check_optim_args(trainer: transformers.Trainer, args: BaseTrainingArguments) -> None:
    """Make the optimizer; raise `UserError` for one of `optim_args` that changes nothing."""
    given, made = args.optim_args, _make_optimizer(trainer)
    if not given:
        return
    pairs = given.split(",")
    for pair in pairs:
        args.optim_args = ",".join(other for other in pairs if other != pair) or None
        try:
            without = _make_optimizer(trainer)
        except Exception:  # other options need this one
            continue
        if without == made:
            raise UserError(
                f"{pair.strip()} of optim_args={given} has no effect with optim={_value(args.optim)}: it is "
                "the default, or no option of this optimizer that transformers passes on; leave it out"
            )
    args.optim_args = given
    _make_optimizer(trainer)


def _make_optimizer(trainer: transformers.Trainer) -> str:
    """Give a trainer a new optimizer; return its options."""
    trainer.optimizer = None
    optimizer: Any = trainer.create_optimizer()
    return str(optimizer.defaults)


def _check_accelerator(args: BaseTrainingArguments) -> None:
    """Raise `UserError` for batch options of `accelerator_config`: this project makes the batches itself."""
    defaults: Any = AcceleratorConfig()
    for name in ("split_batches", "dispatch_batches", "even_batches"):
        if (value := getattr(args.accelerator_config, name)) != getattr(defaults, name):
            raise UserError(
                f"{name}={value} of accelerator_config has no effect: batches hold max_tokens_per_batch "
                "tokens, and processes take turns at them; leave it out"
            )


@contextmanager
def _user_errors_about(options: str) -> Iterator[None]:
    """Raise any failure as a `UserError` about these options."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{options} cannot work: {one_line(error) or type(error).__name__}") from error


def _value(choice: Any) -> Any:
    return getattr(choice, "value", choice)


def _check_compile_mode(args: BaseTrainingArguments) -> None:
    """Raise `UserError` for a mode that PyTorch's own compiler does not have."""
    if args.torch_compile_mode is None or args.torch_compile_backend != "inductor":
        return
    try:
        torch.compile(torch.nn.Identity(), mode=args.torch_compile_mode)  # compiles nothing before a call
    except RuntimeError as error:
        raise UserError(
            f"torch_compile_mode={args.torch_compile_mode} cannot work: {one_line(error)}"
        ) from error


def _check_hub(args: BaseTrainingArguments) -> None:
    """Raise `UserError` if a push would fail, as far as is known without contacting the Hub."""
    if not args.push_to_hub:
        return
    name = args.hub_model_id or Path(args.output_dir or ".").absolute().name
    check_repo_name(name, "push_to_hub cannot work: hub_model_id")
    if (args.hub_token or get_token()) is None:
        raise UserError("push_to_hub needs a token; run `hf auth login`, set HF_TOKEN, or give hub_token")
