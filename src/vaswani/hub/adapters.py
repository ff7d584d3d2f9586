"""Low-rank adapters (LoRA; Hu et al., 2021, arXiv:2106.09685) by PEFT: add, describe, load and merge.

The folder of an adapter holds its weights, the name of the model that it belongs to and a sample of that
model's weights, the tokenizers and the configuration of the whole model. Plain PEFT can load it too.
"""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D

from vaswani.errors import UserError, listing, one_line
from vaswani.files.atomic_files import write_whole
from vaswani.files.json_files import read_object
from vaswani.files.run_files import ADAPTED_SAMPLE, ADAPTER_CONFIG, ADAPTER_WEIGHTS
from vaswani.hub.hashes import check_hashes
from vaswani.hub.run_metadata import auto_class_of
from vaswani.hub.stored_tensors import StoredTensor, stored_tensors
from vaswani.hub.weights import POOLER, check_finite_tensors, is_of_base_model, silenced_load_report


def check_peft() -> None:
    """Raise a UserError if PEFT, which makes and reads adapters, is not installed."""
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise UserError("an adapter needs a package: pip install 'vaswani[lora]'") from error


# ----------------------------------------------------------------------------------------------------- adding


# PEFT's name of a task, by the Auto class of its models. Question answering is left out because PEFT's class
# for it drops `token_type_ids`.
_TASKS = {
    AutoModelForSeq2SeqLM: "SEQ_2_SEQ_LM",
    AutoModelForCausalLM: "CAUSAL_LM",
    AutoModelForSequenceClassification: "SEQ_CLS",
    AutoModelForTokenClassification: "TOKEN_CLS",
}


def add_adapter(
    model: PreTrainedModel, base: str, rank: int, alpha: float, dropout: float, targets: Sequence[str]
) -> Any:
    """Freeze a model, and add a trainable product of two matrices to each of its linear layers.

    A head, such as a classifier and its pooler, is trained in full and saved with the adapter.

    Args:
        model: the model to adapt, in place.
        base: folder or Hub name of the model, for the adapter's configuration.
        rank: inner size of the products.
        alpha: the products are multiplied by `alpha / rank`.
        dropout: dropout on the input of the products.
        targets: last part of the names of the linear layers, such as `q_proj`; empty for all except the
            output layer or the head.

    Returns:
        The model as a `peft.PeftModel`.

    Raises:
        UserError: PEFT is not installed, or the model has no such layer.
    """
    check_peft()
    import peft

    check_targets(model, targets)
    sample = _weight_sample(model)
    model.config.architectures = [type(model).__name__]  # as it would be saved without an adapter
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]  # a factor, whatever its hint says
        lora_dropout=dropout,
        target_modules=list(targets) or _linear_layers(model),
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),  # GPT-2 has these
        modules_to_save=_heads(model) or None,
        task_type=_TASKS.get(auto_class_of(model.config)),
        base_model_name_or_path=base,
    )
    adapted: Any = peft.get_peft_model(model, config)
    adapted.active_peft_config.base_model_name_or_path = base  # PEFT has set a cache folder
    adapted.create_or_update_model_card = lambda folder: None  # a run writes its own card
    adapted.adapted_sample = sample
    return adapted


def _heads(model: PreTrainedModel) -> list[str]:
    """Return the modules whose weights are not pretrained: the heads of a task, and a pooler."""
    if model.get_output_embeddings() is not None:
        return []
    names = [name for name, _ in model.named_parameters() if not is_of_base_model(name, model)]
    return sorted({POOLER if f".{POOLER}." in name else name.partition(".")[0] for name in names})


def _linear_layers(model: PreTrainedModel) -> list[str]:
    """Return the names of all linear layers except the output layer and those in heads."""
    output = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and module is not output
        and is_of_base_model(f"{name}.weight", model)
    ]


def check_targets(model: PreTrainedModel, targets: Sequence[str]) -> None:
    """Raise a UserError for a target that is not a linear layer, or is the output layer or in a head."""
    linear = {name.rpartition(".")[2] for name in _linear_layers(model)}
    for target in targets:
        if target not in linear:
            raise UserError(
                f"lora_targets={target} is no linear layer that can be adapted; this model has "
                f"{listing(sorted(linear))}"
            )


# -------------------------------------------------------------------------------------------- the right model

_SAMPLED = 4  # numbers from each weight
_ROUNDING = 2**-8  # of bfloat16: the model may be loaded in another dtype than in the adapter's training


def _weight_sample(model: PreTrainedModel) -> dict[str, list[float]]:
    """Return a few numbers from each weight outside of heads; they distinguish models of the same shape."""
    sample = {}
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and is_of_base_model(name, model):
            places = torch.linspace(0, weight.numel() - 1, _SAMPLED).long()
            sample[name] = weight.detach().flatten()[places.to(weight.device)].float().tolist()
    return sample


def write_sample(adapted: Any, folder: Path) -> None:
    """Write the sample of the adapted model's weights, taken by `add_adapter`, into the adapter's folder.

    A model that the caller adapted with PEFT has no sample, and none is written.
    """
    if (sample := getattr(adapted, "adapted_sample", None)) is not None:
        write_whole(folder / ADAPTED_SAMPLE, (json.dumps(sample) + "\n").encode())


def _check_sample(model: PreTrainedModel, folder: Path) -> None:
    """Raise a ValueError if a model is not the one that the adapter was trained with.

    An adapter without a sample, as plain PEFT saves it, is not checked.
    """
    path = folder / ADAPTED_SAMPLE
    if not path.exists():
        return
    found, expected = _weight_sample(model), read_object(path)
    for name in found.keys() & expected.keys():
        pairs = zip(found[name], expected[name], strict=True)
        if not all(math.isclose(*pair, rel_tol=_ROUNDING, abs_tol=1e-6) for pair in pairs):
            raise ValueError(f"it was trained with other weights than these ({name} differs)")


# ---------------------------------------------------------------------------------------------------- loading


def adapted_model(folder: Path) -> str:
    """Return the folder or the Hub name of the model that an adapter belongs to.

    Raises:
        UserError: the adapter's configuration is damaged or names no model.
    """
    name = read_object(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise UserError(
            f"{folder / ADAPTER_CONFIG} does not say which model it adapts; add base_model_name_or_path"
        )
    return name


def check_published_base(name: str) -> None:
    """Raise a UserError if an adapter belongs to a model in a local folder: nobody else could use it."""
    if Path(name).is_dir():
        raise UserError(
            f"nobody else can use an adapter of {name}, which is a local folder; push that model first and "
            "train with its name on the Hub, or push a whole model, which vaswani merge makes"
        )


def whole_weights(folder: Path) -> set[str]:
    """Return the names of the model's weights that an adapter holds in full, such as those of a head."""
    return {name.removeprefix("base_model.model.") for name in _stored(folder) if ".lora_" not in name}


def _stored(folder: Path) -> dict[str, StoredTensor]:
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise UserError(f"{folder} has no {ADAPTER_WEIGHTS}; pickled adapters are not loaded")
    return stored_tensors(folder / ADAPTER_WEIGHTS)


def with_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Load an adapter and merge it into the weights of its model, in place.

    Args:
        model: the model that the adapter belongs to.
        folder: the folder of the adapter.

    Raises:
        UserError: PEFT is not installed; the adapter is missing, damaged, not finite, pickled or belongs to
            another model; or it is of a kind that cannot be merged.
    """
    check_peft()
    import peft

    stored = _stored(folder)
    check_hashes(folder)
    try:
        _check_sample(model, folder)
        with silenced_load_report():
            adapted = peft.PeftModel.from_pretrained(model, str(folder))
        expected = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
        if missing := sorted(expected.keys() - stored.keys()):
            raise ValueError(f"it lacks {missing[0]}")
        if unexpected := sorted(stored.keys() - peft.get_peft_model_state_dict(adapted).keys()):
            raise ValueError(f"it holds {unexpected[0]}, which the model has no place for")
        check_finite_tensors(folder / ADAPTER_WEIGHTS, stored)
        _check_not_tied(adapted, folder)
        return _merged(adapted)
    except UserError:
        raise
    except Exception as error:  # PEFT has no error classes of its own
        raise UserError(
            f"the adapter in {folder} does not fit {adapted_model(folder)}: {one_line(error)}; use the model "
            "that it was trained with"
        ) from error


def _merged(adapted: Any) -> PreTrainedModel:
    """Merge an adapter into its model, and keep the configuration's ties if the weights are still shared.

    PEFT compares the output layer with the embedding of the encoder, even if the decoder has its own. It sets
    `tie_word_embeddings` to False if they differ.
    """
    ties = adapted.get_base_model().config.tie_word_embeddings
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Input and output embeddings are no longer tied")
        model = adapted.merge_and_unload()
    tensors = model.state_dict()
    pairs = model.all_tied_weights_keys.items()
    if all(tensors[target].data_ptr() == tensors[source].data_ptr() for target, source in pairs):
        model.config.tie_word_embeddings = ties
    return model.requires_grad_(True)  # PEFT has frozen it


def _check_not_tied(adapted: Any, folder: Path) -> None:
    """Raise a UserError if the adapter changes one of several layers that share their weights.

    Merging would change all of them. Adapters of single tokens keep such layers together themselves.
    """
    from peft.tuners.trainable_tokens import TrainableTokensLayer
    from peft.tuners.tuners_utils import BaseTunerLayer

    weights = chain.from_iterable(module.parameters(recurse=False) for module in adapted.modules())
    owners = Counter(map(id, weights))
    for name, module in adapted.named_modules():
        if not isinstance(module, BaseTunerLayer) or isinstance(module, TrainableTokensLayer):
            continue
        if any(owners[id(weight)] > 1 for weight in module.get_base_layer().parameters(recurse=False)):
            layer = name.removeprefix("base_model.model.")
            raise UserError(
                f"the adapter in {folder} changes {layer}, which shares its weights with other layers, and "
                "cannot be merged; use it with peft.PeftModel, or train one for other layers"
            )
