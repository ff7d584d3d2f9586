"""Sparse attention for any model of transformers whose layers call the library's attention interface.

`sparsify` changes a model, and what it computes, in place. A trial run of the model (`attention_probe.py`)
finds out whether that is possible and how each module attends; there is no list of supported types.

The choice is saved with the configuration: `BertConfig` becomes `SparseBertConfig`, with a model type that
transformers alone does not know, and `BertForMaskedLM` becomes `SparseBertForMaskedLM`. The Auto classes load
such a checkpoint if this package is imported, and fail otherwise.

The sparse classes are derived from transformers' on first use, so that importing this file imports no model.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeVar

import transformers
from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.models.auto import modeling_auto

from vaswani.auto_classes import MAPPINGS, models_of
from vaswani.errors import UserError
from vaswani.interop.attention_interface import IMPLEMENTATION, check_pattern
from vaswani.interop.attention_probe import configs_of, find_attention
from vaswani.kernels.registry import hook_in_kernels
from vaswani.model.configuration_vaswani import AnyKernelReturnsAttentions
from vaswani.model.sparse_pattern import SparsePattern

Model = TypeVar("Model", bound=PreTrainedModel)


def sparsify(
    model: Model,
    block_size: int = 64,
    window: int = 3,
    num_global: int = 2,
    num_random: int = 3,
    seed: int = 0,
) -> Model:
    """Make the self-attention of a model of transformers sparse, in place.

    Self-attention stays bidirectional or causal, and cross-attention stays dense. The weights stay, but the
    model computes another function: continue its training. A model that is already sparse gets the new
    pattern.

    Args:
        model: a model of a class that transformers exports, whose layers call the attention interface with
            queries, keys, values and a mask of padding, causal or not. It is run on two short rows of tokens
            to check this.
        block_size: number of tokens of a block.
        window: number of blocks around and including the query's own block; odd, unless the whole model is
            causal.
        num_global: number of blocks at the start of the sequence that all blocks see and that, unless causal,
            see all blocks.
        num_random: number of other blocks that each query block sees, drawn for each layer and head.
        seed: seed of the random blocks.

    Returns:
        The model, now of a sparse class, with a copy of its configuration.

    Raises:
        UserError: sparse attention cannot replace that of the model, for example because it has position
            biases, sliding windows, capped scores or attention sinks, or does not call the interface; or the
            class of the model is not one of transformers. The message says which.
        ValueError: the numbers do not define a pattern; the model is unchanged.
    """
    dense = _dense_class_of(model)
    with _dense_configs(model):
        layers = _find_layers(model)
    sparse = sparse_class(dense)
    numbers = {
        "sparse_block_size": block_size,
        "sparse_window_blocks": window,
        "sparse_global_blocks": num_global,
        "sparse_random_blocks": num_random,
        "sparse_seed": seed,
        "sparse_layers": layers,
    }
    configs = _copied_configs(model, sparse.config_class, **numbers)
    _set_patterns(model, configs[model])
    _set_configs(configs)
    model.__class__ = sparse
    # Building a model, here an empty one, tells the library which outputs the class can return.
    PreTrainedModel.__init__(object.__new__(sparse), model.config)
    return model


def _dense_class_of(model: PreTrainedModel) -> type[Any]:
    """Return transformers' dense class of a model, which may itself be dense or sparse.

    Raises:
        UserError: another process would not find the class or the configuration, so that the model could not
            be loaded.
    """
    dense: type[Any] = type(model)
    if issubclass(dense, SparseModel):
        dense = dense.__bases__[-1]
    name = dense.__name__
    if not issubclass(dense, PreTrainedModel) or getattr(transformers, name, None) is not dense:
        raise UserError(
            f"sparsify takes models of the classes that transformers exports; got {dense.__module__}.{name}. "
            "Sparsify a library's model before wrapping it."
        )
    if type(model.config) not in (dense.config_class, *_CONFIG_CLASSES.values()):
        raise UserError(
            f"{name} has a {type(model.config).__name__}, which would be lost in saving; "
            f"sparsify takes a {dense.config_class.__name__}."
        )
    positions = getattr(model.config, "position_embedding_type", None) or "absolute"
    if "relative" in positions:
        raise UserError(
            f"position_embedding_type={positions!r} adds to the scores what sparse attention does not know; "
            "take a model with 'absolute' positions."
        )
    return dense


def _copied_configs(model: nn.Module, config_class: type[Any], **fields: Any) -> dict[nn.Module, Any]:
    """Return a copy of each configuration, of another class and with other fields, by module.

    Modules that share a configuration share the copy; other models may share the original.
    """
    copies: dict[int, Any] = {}
    for config in configs_of(model).values():
        if id(config) not in copies:
            copies[id(config)] = copied = deepcopy(config)
            copied.__dict__.pop("_attn_implementation_internal", None)
            copied.__class__ = config_class
            for name, value in fields.items():
                setattr(copied, name, value)
    return {module: copies[id(config)] for module, config in configs_of(model).items()}


def _set_configs(configs: dict[nn.Module, Any]) -> None:
    for module, config in configs.items():
        module.config = config


@contextmanager
def _dense_configs(model: nn.Module) -> Iterator[None]:
    """Give a sparse model dense configurations within the context, to run it and find how it attends."""
    configs = configs_of(model)
    sparse = next((config for config in configs.values() if isinstance(config, SparseConfig)), None)
    if sparse is not None:
        _set_configs(_copied_configs(model, sparse.dense_class, _attn_implementation_internal="eager"))
    try:
        yield
    finally:
        _set_configs(configs)


def _find_layers(model: PreTrainedModel) -> dict[str, Any]:
    """Return how each attention module of a model attends, by name, in the form of `sparse_layers`."""
    calls = find_attention(model)
    alike = defaultdict(list)
    for name, module in model.named_modules():
        alike[_without_numbers(name)].append((name, calls.get(module)))
    layers: dict[str, Any] = {}
    for pattern, modules in alike.items():
        found = [(name, asdict(call)) for name, call in modules if call is not None]
        if len(found) == len(modules) and all(call == found[0][1] for _, call in found):
            found = [(pattern, found[0][1])]
        layers.update((_name_in_base_model(model, name), call) for name, call in found)
    return layers


def _without_numbers(name: str) -> str:
    """Return the name of a module without the numbers of its layers: "layers.*.self_attn"."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def _name_in_base_model(model: Any, name: str) -> str:
    """Return a module's name within the body of a model, which is the same for all heads."""
    prefix = f"{model.base_model_prefix}."
    return name.removeprefix(prefix) if model.base_model is not model else name


def _set_patterns(model: nn.Module, config: Any) -> None:
    """Set the `pattern` of each attention module: None for cross-attention."""
    patterns: dict[nn.Module, SparsePattern | None] = {}
    numbers: Counter[str] = Counter()  # number of previous layers with the same general name
    for name, module in model.named_modules():
        name = _name_in_base_model(model, name)
        general = _without_numbers(name)
        call = config.sparse_layers.get(name, config.sparse_layers.get(general))
        if call is None:
            continue
        layer = getattr(module, "layer_idx", None)
        layer = numbers[general] if layer is None else layer
        numbers[general] += 1
        patterns[module] = (
            None
            if call["causal"] is None
            else SparsePattern.from_config(config, call["heads"], layer, call["causal"])
        )
    hook_in_kernels()  # transformers' models do not call it
    for module, pattern in patterns.items():
        module.pattern = pattern  # type: ignore[assignment]  # a plain attribute


@dataclass(kw_only=True, repr=False, eq=False)
class SparseConfig(AnyKernelReturnsAttentions):
    """The fields that a sparse configuration adds to the dense one.

    `sparse_layers` describes the attention modules by name (with * for layer numbers): their number of
    `heads`, and whether they are `causal`, which is null for attention to another sequence. If it is None, it
    is determined when a model is built.
    """

    dense_class: ClassVar[type[PreTrainedConfig]]

    sparse_block_size: int = 64
    sparse_window_blocks: int = 3
    sparse_global_blocks: int = 2
    sparse_random_blocks: int = 3
    sparse_seed: int = 0
    sparse_layers: dict | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        # A checkpoint's configuration is built before its model is looked up.
        _register_models(type(self))
        super().__post_init__(**kwargs)  # type: ignore[misc]  # of the dense configuration

    @property
    def _attn_implementation_internal(self) -> str:
        """The field behind transformers' `attn_implementation`; its value is fixed."""
        return IMPLEMENTATION

    @_attn_implementation_internal.setter
    def _attn_implementation_internal(self, value: str | None) -> None:
        if value not in (None, IMPLEMENTATION):
            raise UserError(
                f"attn_implementation={value!r} would make a sparse model dense; leave it out, or load the "
                "dense checkpoint that the sparse model was made from."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration with the name of its attention.

        transformers does not save that name, and its dense classes only warn about another model type. With
        the name, they fail to load a sparse checkpoint.
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
        if config.sparse_layers is None:
            with _dense_configs(self):  # type: ignore[arg-type]
                config.sparse_layers = _find_layers(self)  # type: ignore[arg-type]
        _set_patterns(self, config)  # type: ignore[arg-type]

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save the model; raise a UserError if its configuration has another pattern than its modules use."""
        for module in self.modules():  # type: ignore[attr-defined]
            if isinstance(pattern := getattr(module, "pattern", None), SparsePattern):
                check_pattern(self.config, pattern)  # type: ignore[attr-defined]
        super().save_pretrained(*args, **kwargs)  # type: ignore[misc]


def sparse_config_class(dense: type[Any]) -> type[Any]:
    """Return the sparse class of a dense configuration class; each call returns the same class."""
    if dense not in _CONFIG_CLASSES:
        members = {
            "model_type": f"{IMPLEMENTATION}_{dense.model_type}",
            "dense_class": dense,
            "__module__": __name__,
            "__doc__": f"`{dense.__name__}` with a sparse pattern for self-attention.",
        }
        made: type[Any] = strict(type(f"Sparse{dense.__name__}", (SparseConfig, dense), members))
        config_class = _CONFIG_CLASSES.setdefault(dense, made)  # another thread may have been first
        _convert_weights_alike(dense.model_type, config_class.model_type)
        AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    return _CONFIG_CLASSES[dense]


def sparse_class(dense: type[Any]) -> type[Any]:
    """Return the sparse class of a dense model class; each call returns the same class."""
    if dense not in _MODEL_CLASSES:
        config_class = sparse_config_class(dense.config_class)
        members = {
            "config_class": config_class,
            "__module__": __name__,
            "__doc__": f"`{dense.__name__}` with sparse self-attention.",
            # transformers reads the source file of a class to find out whether it has experts.
            "_can_set_experts_implementation": dense._can_set_experts_implementation,
        }
        made = type(f"Sparse{dense.__name__}", (SparseModel, dense), members)
        _convert_weights_alike(dense.__name__, made.__name__)
        _MODEL_CLASSES.setdefault(dense, made)
        _register_models(config_class)
    return _MODEL_CLASSES[dense]


def _convert_weights_alike(dense: str, sparse: str) -> None:
    """Make transformers convert the weights of a sparse type or class like those of the dense one.

    For some types, the weights of checkpoints differ from those of models: they have old names, or each
    expert is stored separately. A loaded model is saved with the weights of its checkpoint, which are
    converted again when it is loaded.
    """
    mapping = get_checkpoint_conversion_mapping(dense)
    if mapping is not None:
        register_checkpoint_conversion_mapping(sparse, mapping, overwrite=True)


def _register_models(config_class: type[Any]) -> None:
    """Register the sparse classes of a configuration with each Auto class that has its dense classes."""
    if config_class in _REGISTERED:
        return
    _REGISTERED.add(config_class)
    for name in MAPPINGS:
        auto = getattr(modeling_auto, name)
        if config_class.dense_class in (mapping := models_of(auto)):
            dense = mapping[config_class.dense_class]
            # There may be several classes, from which the configuration chooses, or a class of another
            # configuration.
            if isinstance(dense, type) and dense.config_class is config_class.dense_class:  # type: ignore[attr-defined]
                auto.register(config_class, sparse_class(dense), exist_ok=True)
    # transformers' Trainer shifts the labels of these classes for label smoothing.
    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if config_class.dense_class.model_type in causal:
        causal[config_class.model_type] = f"Sparse{causal[config_class.dense_class.model_type]}"


_CONFIG_CLASSES: dict[type, type[Any]] = {}
_MODEL_CLASSES: dict[type, type[Any]] = {}
_REGISTERED: set[type] = set()


def __getattr__(name: str) -> Any:
    """Return a sparse class by name, for pickle and for imports."""
    if name.startswith("Sparse"):
        dense = getattr(transformers, name.removeprefix("Sparse"), None)
        if isinstance(dense, type) and issubclass(dense, PreTrainedConfig):
            return sparse_config_class(dense)
        if isinstance(dense, type) and issubclass(dense, PreTrainedModel):
            return sparse_class(dense)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
