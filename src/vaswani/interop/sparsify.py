"""Sparse attention in models of transformers: BERT, RoBERTa, GPT-2, BART and Llama, with any of their heads.

`sparsify` changes a model, and what it computes, in place. The choice is saved with the configuration:
`BertConfig` becomes `SparseBertConfig`, with a model type that transformers alone does not know, and
`BertForMaskedLM` becomes `SparseBertForMaskedLM`. The Auto classes load such a checkpoint where this package
is imported, and fail where it is not.

The sparse classes are made from the library's on first use, so that importing this file imports no model.
"""

from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, TypeVar

from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from vaswani.auto_classes import MAPPINGS, models_of
from vaswani.errors import UserError
from vaswani.interop.attention_interface import IMPLEMENTATION
from vaswani.kernels.registry import hook_in_kernels
from vaswani.model.sparse_pattern import SparsePattern

FAMILIES = ("bert", "roberta", "gpt2", "bart", "llama")
_TO_OTHER = {"crossattention", "encoder_attn"}  # what the families call attention to another sequence

Model = TypeVar("Model", bound=PreTrainedModel)


def sparsify(
    model: Model,
    block_size: int = 64,
    window: int = 3,
    num_global: int = 2,
    num_random: int = 3,
    seed: int = 0,
) -> Model:
    """Make the self-attention of a library's model sparse, in place.

    Self-attention stays bidirectional or causal, and cross-attention stays dense. The weights stay, but the
    model computes another function: continue its training. A model that is sparse gets the new pattern.

    Args:
        model: of BERT, RoBERTa, GPT-2, BART or Llama, with any head.
        block_size: in tokens.
        window: blocks around the query's own, which counts; odd, unless all of the model is causal.
        num_global: blocks at the start of the sequence that all see and that, unless causal, see all.
        num_random: other blocks that each query block sees, drawn for each layer and head.
        seed: of the random blocks.

    Returns:
        The model, now of a sparse class, with a copy of its configuration.

    Raises:
        UserError: the model is of another family, or of a class that is not the library's own.
        ValueError: the numbers make no pattern; the model is unchanged.
    """
    sparse = _sparse_class_of(model)
    config: Any = deepcopy(model.config)  # other models may share the original
    config.__dict__.pop("_attn_implementation_internal", None)
    config.__class__ = sparse.config_class
    config.sparse_block_size, config.sparse_window_blocks = block_size, window
    config.sparse_global_blocks, config.sparse_random_blocks = num_global, num_random
    config.sparse_seed = seed
    _give_patterns(model, config)
    for module in model.modules():
        if isinstance(getattr(module, "config", None), PreTrainedConfig):
            module.config = config
    _register_models(config.dense_class.model_type)
    model.__class__ = sparse
    # The library records here, when a model is built, which outputs its class can return.
    _CAN_RECORD_REGISTRY[model] = model._can_record_outputs
    return model


def _sparse_class_of(model: PreTrainedModel) -> type[Any]:
    """Return the sparse class for a model, dense or sparse; raise a UserError if there is none."""
    dense: type[Any] = type(model)
    if issubclass(dense, SparseModel):
        dense = dense.__bases__[-1]
    if dense.__module__ not in map(_modeling_module, FAMILIES):
        raise UserError(
            f"sparsify takes models of transformers of the families {', '.join(FAMILIES)}; got "
            f"{type(model).__module__}.{type(model).__name__}. Sparsify a library's model before wrapping it."
        )
    sparse = sparse_class(dense)
    if type(model.config) not in (dense.config_class, sparse.config_class):
        raise UserError(
            f"{type(model).__name__} has a {type(model.config).__name__}, which would be lost in saving; "
            f"sparsify takes a {dense.config_class.__name__}."
        )
    positions = getattr(model.config, "position_embedding_type", "absolute")
    if positions != "absolute":
        raise UserError(
            f"position_embedding_type={positions!r} adds to the scores what sparse attention does not know; "
            "take a model with 'absolute' positions."
        )
    return sparse


def _modeling_module(family: str) -> str:
    return f"transformers.models.{family}.modeling_{family}"


def _give_patterns(model: nn.Module, config: Any) -> None:
    """Set the `pattern` of each attention module: None for cross-attention."""
    patterns: dict[Any, SparsePattern | None] = {}
    for name, module in model.named_modules():
        if not (hasattr(module, "is_causal") and hasattr(module, "layer_idx")):
            continue
        if _TO_OTHER.intersection(name.split(".")):
            patterns[module] = None
        else:
            # The stacks of BART may differ, so its modules have a number of heads; those of BERT do not.
            heads = getattr(module, "num_heads", config.num_attention_heads)
            causal = module.is_causal and getattr(config, "is_causal", True)
            patterns[module] = SparsePattern.from_config(config, heads, module.layer_idx, causal)
    hook_in_kernels()  # the library's models do not
    for module, pattern in patterns.items():
        module.pattern = pattern


@dataclass(kw_only=True, repr=False, eq=False)
class SparseConfig:
    """The fields that a sparse configuration adds to the dense one."""

    dense_class: ClassVar[type[PreTrainedConfig]]

    sparse_block_size: int = 64
    sparse_window_blocks: int = 3
    sparse_global_blocks: int = 2
    sparse_random_blocks: int = 3
    sparse_seed: int = 0

    def __post_init__(self, **kwargs: Any) -> None:
        # A checkpoint's configuration is built before its model is looked up.
        _register_models(self.dense_class.model_type)
        super().__post_init__(**kwargs)  # type: ignore[misc]  # of the dense configuration

    @property
    def _attn_implementation_internal(self) -> str:
        """The library's `attn_implementation`, which is fixed."""
        return IMPLEMENTATION

    @_attn_implementation_internal.setter
    def _attn_implementation_internal(self, value: str | None) -> None:
        if value not in (None, IMPLEMENTATION):
            raise UserError(
                f"attn_implementation={value!r} would make a sparse model dense; leave it out, or load the "
                "dense checkpoint that the sparse model was made from."
            )

    @property
    def output_attentions(self) -> bool | None:
        """Whether to return attention weights; the library's property allows only eager attention."""
        return self._output_attentions

    @output_attentions.setter
    def output_attentions(self, value: bool | None) -> None:
        self._output_attentions = value

    def validate_output_attentions(self) -> None:
        """Accept any value: sparse attention can return weights."""

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration with the name of its attention.

        The library does not save that name, and its dense classes only warn of another model type. With the
        name they fail on a sparse checkpoint.
        """
        return {**super().to_dict(), "attn_implementation": IMPLEMENTATION}  # type: ignore[misc]


class SparseModel:
    """Adds patterns to the attention modules of a dense class."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any):
        if not isinstance(config, SparseConfig):
            raise UserError(
                f"{type(self).__name__} takes a {type(self).config_class.__name__}; got "  # type: ignore[attr-defined]
                f"{type(config).__name__}. Make a dense model and call vaswani.sparsify(model)."
            )
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        _give_patterns(self, config)  # type: ignore[arg-type]


def _make_config_class(family: str) -> type[Any]:
    dense = CONFIG_MAPPING[family]
    members = {
        "model_type": f"{IMPLEMENTATION}_{family}",
        "dense_class": dense,
        "__module__": __name__,
        "__doc__": f"`{dense.__name__}` with a sparse pattern for self-attention.",
    }
    return strict(type(f"Sparse{dense.__name__}", (SparseConfig, dense), members))


def sparse_class(dense: type[Any]) -> type[Any]:
    """Return the sparse class of a library's model class, always the same one."""
    if dense not in _MODEL_CLASSES:
        members = {
            "config_class": _CONFIG_CLASSES[dense.config_class.model_type],
            "__module__": __name__,
            "__doc__": f"`{dense.__name__}` with sparse self-attention.",
        }
        _MODEL_CLASSES[dense] = type(f"Sparse{dense.__name__}", (SparseModel, dense), members)
    return _MODEL_CLASSES[dense]


@cache
def _register_models(family: str) -> None:
    """Register a family's sparse classes with each Auto class that has its dense ones."""
    config_class = _CONFIG_CLASSES[family]
    for name in MAPPINGS:
        auto = getattr(modeling_auto, name)
        if config_class.dense_class in (mapping := models_of(auto)):
            auto.register(config_class, sparse_class(mapping[config_class.dense_class]))
    # The library's Trainer shifts the labels of these classes when it smooths them.
    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    causal[config_class.model_type] = f"Sparse{causal[family]}"


_CONFIG_CLASSES = {family: _make_config_class(family) for family in FAMILIES}
_MODEL_CLASSES: dict[type, type] = {}
for _config_class in _CONFIG_CLASSES.values():
    AutoConfig.register(_config_class.model_type, _config_class)


def __getattr__(name: str) -> Any:
    """Return a sparse class by name, for pickle and for imports."""
    for family, config_class in _CONFIG_CLASSES.items():
        if name == config_class.__name__:
            return config_class
        if name.startswith(config_class.__name__.removesuffix("Config")):
            dense = getattr(import_module(_modeling_module(family)), name.removeprefix("Sparse"), None)
            if isinstance(dense, type) and issubclass(dense, PreTrainedModel):
                return sparse_class(dense)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
