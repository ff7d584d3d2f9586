"""Low-rank adapters (LoRA; Hu et al., 2021, arXiv:2106.09685) by PEFT: add, describe, load and merge.

The folder of an adapter holds its weights, the name of the model that it belongs to, the tokenizers and the
configuration of the whole model. Plain PEFT loads it as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from vaswani.errors import UserError, listing, one_line
from vaswani.files.json_files import read_object
from vaswani.files.run_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from vaswani.hub.hashes import check_hashes
from vaswani.hub.weights import check_finite, stored_tensors, without_remarks


def check_peft() -> None:
    """Raise a UserError without the package that makes and reads adapters."""
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise UserError("an adapter needs a package: pip install 'vaswani[lora]'") from error


# ----------------------------------------------------------------------------------------------------- adding


def add_adapter(
    model: PreTrainedModel, base: str, rank: int, alpha: float, dropout: float, targets: Sequence[str]
) -> Any:
    """Freeze a model, and add a trainable product of two matrices to each of its linear layers.

    Args:
        model: to adapt, in place.
        base: its folder or its name on the Hub, for the adapter's configuration.
        rank: inner size of the products.
        alpha: the products are multiplied by `alpha / rank`.
        dropout: on the input of the products.
        targets: last names of the linear layers, such as `q_proj`; empty for all but the output layer.

    Returns:
        The model as a `peft.PeftModel`.

    Raises:
        UserError: PEFT is not installed, or the model has no such layer.
    """
    check_peft()
    import peft

    check_targets(model, targets)
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]  # a factor, whatever its hint says
        lora_dropout=dropout,
        target_modules=list(targets) or "all-linear",
        task_type=peft.TaskType.SEQ_2_SEQ_LM,
        base_model_name_or_path=base,
    )
    adapted: Any = peft.get_peft_model(model, config)
    adapted.create_or_update_model_card = lambda folder: None  # a run writes its own card
    return adapted


def check_targets(model: PreTrainedModel, targets: Sequence[str]) -> None:
    """Raise a UserError for a target that is no linear layer of the model, or its output layer."""
    output = model.get_output_embeddings()
    linear = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not output
    }
    for target in targets:
        if target not in linear:
            raise UserError(
                f"lora_targets={target} is no linear layer that can be adapted; this model has "
                f"{listing(sorted(linear))}"
            )


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
    """Raise a UserError for an adapter that is of no use to others: of a model that is a folder here."""
    if Path(name).is_dir():
        raise UserError(
            f"an adapter of {name}, a folder of this machine, is of no use to others; push that model first "
            "and train with its name on the Hub, or push a whole model, which vaswani merge makes"
        )


def with_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Load an adapter and merge it into the weights of its model, in place.

    Args:
        model: that the adapter belongs to.
        folder: of the adapter.

    Raises:
        UserError: PEFT is not installed; the adapter is missing, damaged, not finite, pickled or belongs to
            another model; or it is of a kind that cannot be merged.
    """
    check_peft()
    import peft

    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise UserError(f"{folder} has no {ADAPTER_WEIGHTS}; pickled adapters are not loaded")
    stored = stored_tensors(folder / ADAPTER_WEIGHTS)
    check_hashes(folder)
    try:
        with without_remarks():
            adapted = peft.PeftModel.from_pretrained(model, str(folder))
        expected = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
        if missing := sorted(expected.keys() - stored.keys()):
            raise ValueError(f"it lacks {missing[0]}")
        if unplaced := sorted(stored.keys() - peft.get_peft_model_state_dict(adapted).keys()):
            raise ValueError(f"it holds {unplaced[0]}, which the model has no place for")
        check_finite(_tensors(folder / ADAPTER_WEIGHTS), folder)
        return adapted.merge_and_unload().requires_grad_(True)  # PEFT has frozen it
    except UserError:
        raise
    except Exception as error:  # of PEFT, which has no errors of its own
        raise UserError(
            f"the adapter in {folder} does not fit {adapted_model(folder)}: {one_line(error)}; use the model "
            "that it was trained with"
        ) from error


def _tensors(file: Path) -> Iterator[tuple[str, Any]]:
    with safe_open(file, framework="pt") as weights:
        yield from ((name, weights.get_tensor(name)) for name in weights.keys())  # noqa: SIM118  # no mapping
