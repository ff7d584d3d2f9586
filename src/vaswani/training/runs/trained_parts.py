"""Select the weights of a given model that a run trains: an adapter's, or all but those of frozen parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import PreTrainedConfig, PreTrainedModel

from vaswani.errors import UserError
from vaswani.hub.adapters import add_adapter, check_peft, check_published_base, check_targets
from vaswani.hub.checkpoint import weights_folder
from vaswani.hub.weights import check_weights, holds_adapter, is_of_base_model
from vaswani.training.runs.models import Pretrained
from vaswani.training.trainer.final_average import no_mean_of_adapters


def check_trainable(
    config: Any,
    pretrained: Pretrained,
    auto_class: Any,
    shape: PreTrainedConfig | None = None,
    may_be_adapter: bool = False,
) -> None:
    """Raise `UserError` unless the weights of a given model are whole and can be trained as the run asks.

    Args:
        config: configuration of the run.
        pretrained: the model that the run starts from.
        auto_class: Auto class of the model that is trained.
        shape: configuration of the model that is trained, if it is not that of the given model.
        may_be_adapter: the given model may be an adapter; the weights are then those of its model.
    """
    folder = pretrained.folder
    check_weights(weights_folder(folder) if may_be_adapter else folder, pretrained.config)
    _check_freeze(config)
    _check_adapter(config, pretrained, auto_class, shape or pretrained.config)


def _check_adapter(config: Any, pretrained: Pretrained, auto_class: Any, shape: PreTrainedConfig) -> None:
    """Raise `UserError` for settings of an adapter that cannot work, or have no effect without one."""
    arguments, adapter, training = config.model, config.adapter, config.training
    if adapter.lora_rank is None:
        for name in ("lora_alpha", "lora_dropout", "lora_targets"):
            if value := getattr(adapter, name):
                raise UserError(f"{name}={value} has no effect without lora_rank; give lora_rank=8")
        return
    check_peft()
    if arguments.freeze:
        raise UserError("lora_rank freezes all weights but the adapter's; leave out freeze")
    if getattr(arguments, "from_scratch", False):
        raise UserError("lora_rank adapts trained weights, and from_scratch has none; leave one of them out")
    if holds_adapter(pretrained.folder):
        raise UserError(
            f"{arguments.model} is an adapter itself; first merge it: vaswani merge {arguments.model} OUTPUT"
        )
    if training.shards_model:
        raise UserError("lora_rank cannot be combined with fsdp_size or tensor_parallel_size")
    if training.average_checkpoints is not None:
        raise no_mean_of_adapters(training.average_checkpoints)
    if training.push_to_hub:
        check_published_base(str(arguments.model))
    with torch.device("meta"):
        model = auto_class.from_config(shape, trust_remote_code=False)
    _check_vocabulary(pretrained, model)
    check_targets(model, adapter.lora_targets)


def _check_vocabulary(pretrained: Pretrained, model: PreTrainedModel) -> None:
    """Raise `UserError` if the model would get an embedding for a new token: adapters do not save it."""
    rows = model.get_input_embeddings().weight.shape[0]  # type: ignore[index]
    if pretrained.new_tokens and len(pretrained.tokenizer) > rows:
        raise UserError(
            f"lora_rank needs a model with a padding token, and {pretrained.folder} has none; add one with "
            "tokenizer.add_special_tokens and model.resize_token_embeddings, save both and give that folder, "
            "or leave lora_rank out"
        )


def _check_freeze(config: Any) -> None:
    """Raise `UserError` if weights that are not trained would stay random."""
    if config.model.freeze and getattr(config.model, "from_scratch", False):
        raise UserError(
            f"freeze={' '.join(config.model.freeze)} keeps weights as they are, and from_scratch makes them "
            "random; leave one of them out"
        )


def only_trained_parts(model: PreTrainedModel, config: Any) -> PreTrainedModel:
    """Add the adapter that a run trains, or freeze the parts that it does not train; print the trained size.

    "embeddings" are those of all stacks, with the output layer if it shares their weights; "encoder" is the
    encoder of an encoder-decoder, with its embeddings, or the whole model except its head.
    """
    arguments, adapter = config.model, config.adapter
    if adapter.lora_rank is not None:
        name = str(arguments.model)
        base = str(Path(name).absolute()) if Path(name).is_dir() else name
        alpha = adapter.lora_alpha or 2 * adapter.lora_rank
        model = add_adapter(model, base, adapter.lora_rank, alpha, adapter.lora_dropout, adapter.lora_targets)
    elif "encoder" in arguments.freeze:
        _freeze_encoder(model)
    if "embeddings" in arguments.freeze:
        _freeze_embeddings(model)
    if adapter.lora_rank is not None or arguments.freeze:
        count = sum(weights.numel() for weights in model.parameters() if weights.requires_grad)
        what = f"frozen: {', '.join(arguments.freeze)}" if arguments.freeze else "adapter"
        PartialState().print(f"{what}; {count:,} parameters are trained", flush=True)
    return model


def _freeze_encoder(model: PreTrainedModel) -> None:
    if model.config.is_encoder_decoder:
        model.get_encoder().requires_grad_(False)
        return
    for name, weights in model.named_parameters():
        if is_of_base_model(name, model):
            weights.requires_grad_(False)


def _freeze_embeddings(model: Any) -> None:
    stacks = (model.get_encoder(), model.get_decoder()) if model.config.is_encoder_decoder else (model,)
    for stack in stacks:
        stack.get_input_embeddings().requires_grad_(False)
