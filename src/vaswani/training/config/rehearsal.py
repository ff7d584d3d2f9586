"""What a training uses late, tried before its corpus is read: with a tiny model, and nothing kept."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers import PreTrainedConfig, Seq2SeqTrainingArguments

from vaswani.errors import UserError, one_line
from vaswani.model.configuration_vaswani import VaswaniEncoderConfig
from vaswani.training.config.arguments import BaseTrainingArguments

STEPS = 100
TINY = VaswaniEncoderConfig(
    vocab_size=4, d_model=2, encoder_layers=1, encoder_attention_heads=1, encoder_ffn_dim=1
)


def rehearse(args: BaseTrainingArguments) -> None:
    """Make a trainer, an optimizer and a schedule from the arguments, and throw them away.

    Raises:
        UserError: what would have failed once the corpus had been read, or at the end.
    """
    _check_hub(args)
    _check_compile_mode(args)
    with tempfile.TemporaryDirectory() as folder:
        tried = copy.copy(args)
        tried.output_dir, tried.push_to_hub = folder, False
        rows: Any = [0]
        compiled = f" (torch_compile_backend={args.torch_compile_backend})" if args.torch_compile else ""
        with _told_of(f"the training arguments{compiled}"):
            model = transformers.AutoModel.from_config(TINY)
            trainer = transformers.Trainer(model, tried, train_dataset=rows, eval_dataset=rows)
        with _told_of(f"optim={_value(args.optim)} with optim_args={args.optim_args}"):
            trainer.create_optimizer()
        given = f"lr_scheduler_type={_value(args.lr_scheduler_type)}"
        with _told_of(f"{given} with lr_scheduler_kwargs={args.lr_scheduler_kwargs}"):
            trainer.create_scheduler(STEPS, trainer.optimizer)
    if isinstance(args, Seq2SeqTrainingArguments) and args.generation_config is not None:
        with _told_of(f"generation_config={args.generation_config}"):
            transformers.Seq2SeqTrainer.load_generation_config(args.generation_config)  # type: ignore[arg-type]


def check_kernel(auto_class: Any, shape: PreTrainedConfig, kernel: str | None) -> None:
    """Raise `UserError` unless a model of this shape can have this attention kernel."""
    if kernel is not None:
        with torch.device("meta"), _told_of(f"attn_implementation={kernel}"):
            auto_class.from_config(copy.deepcopy(shape), attn_implementation=kernel, trust_remote_code=False)


@contextmanager
def _told_of(what: str) -> Iterator[None]:
    """Whatever fails is due to what was given."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what} cannot work: {one_line(error) or type(error).__name__}") from error


def _value(choice: Any) -> Any:
    return getattr(choice, "value", choice)


def _check_compile_mode(args: BaseTrainingArguments) -> None:
    """Raise `UserError` for a mode that PyTorch's own compiler does not have."""
    if args.torch_compile_mode is None or args.torch_compile_backend != "inductor":
        return
    from torch._inductor import list_mode_options  # slow to import

    if args.torch_compile_mode not in (known := list_mode_options()):
        raise UserError(
            f"torch_compile_mode={args.torch_compile_mode} is unknown; choose one of {', '.join(known)}"
        )


def _check_hub(args: BaseTrainingArguments) -> None:
    """Raise `UserError` where a model could not be pushed, as far as that is known without the Hub."""
    if not args.push_to_hub:
        return
    name = args.hub_model_id or Path(args.output_dir or ".").absolute().name
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(f"push_to_hub cannot work: hub_model_id={name!r}: {one_line(error)}") from error
    if (args.hub_token or get_token()) is None:
        raise UserError("push_to_hub needs a token; run `hf auth login`, set HF_TOKEN, or give hub_token")
