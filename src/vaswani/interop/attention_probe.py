"""Find out how a model of transformers calls the library's attention interface, by small forward passes.

The passes use an attention function that records each call, and notes everything that sparse attention cannot
honour. What this function cannot see is found by comparing results: in each layer, the model's own eager
function must compute softmax(scaling · QKᵀ + mask) V of random inputs, and the whole model must compute the
same as with eager attention.

B batch · H heads · T queries · S keys · D head width
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv

from vaswani.errors import UserError
from vaswani.interop.attention_interface import BOTH_WAYS, CAUSAL, refused_arguments, sparse_mask
from vaswani.model.attention import eager_attention_forward

PROBE = "vaswani_probe"
_ROWS, _LENGTH, _SOURCE_LENGTH, _PADDING = 2, 7, 10, 2
_NO_CALL = "no layer calls the library's attention interface for its own sequence"
_UNKNOWN = torch.int16  # the dtype of a mask that sparse attention cannot make
_SPREAD = 2.0  # standard deviation of random queries and keys


@dataclass(frozen=True)
class AttentionCall:
    """How a module calls the interface.

    Args:
        heads: H.
        causal: whether attention to its own sequence is causal; None for attention to another sequence.
    """

    heads: int
    causal: bool | None


@dataclass
class _Record:
    calls: dict[nn.Module, set[AttentionCall]] = field(default_factory=dict)
    reasons: dict[str, None] = field(default_factory=dict)  # why the model cannot be sparse, in order

    def has_own(self, stack: nn.Module | None = None) -> bool:
        """Return whether any layer, of a stack or of the whole model, has attended to its own sequence."""
        modules = self.calls if stack is None else [each for each in stack.modules() if each in self.calls]
        return any(call.causal is not None for module in modules for call in self.calls[module])

    def refuse(self, reason: str) -> None:
        self.reasons[reason] = None


_record: ContextVar[_Record] = ContextVar("record")


def find_attention(model: PreTrainedModel) -> dict[nn.Module, AttentionCall]:
    """Return the modules of a model that call the attention interface, and how.

    The model is run in evaluation mode on two short rows with padding. On the meta device, results are not
    compared with eager attention.

    Raises:
        UserError: sparse attention cannot replace the attention of this model; the message says why.
    """
    name = type(model).__name__
    config_classes = {type(config) for config in configs_of(model).values()}
    if len(config_classes) > 1:
        kinds = ", ".join(sorted({each.__name__ for each in config_classes}))
        raise UserError(f"sparsify takes one model at a time; {name} is made of several, with {kinds}.")
    record = _Record()
    token = _record.set(record)
    try:
        _run(model, record)
    finally:
        _record.reset(token)
    for module, calls in record.calls.items():
        if len(calls) > 1 and not record.reasons:
            record.refuse(f"{type(module).__name__} attends in several ways")
    if record.reasons:
        raise UserError(f"sparse attention cannot replace that of {name}: {'; '.join(record.reasons)}.")
    return {module: next(iter(calls)) for module, calls in record.calls.items()}


def _run(model: PreTrainedModel, record: _Record) -> None:
    """Run the model on all inputs that its layers may need, and compare with eager attention."""
    try:
        runs = _runs(model)
    except (AttributeError, TypeError) as error:  # a configuration without the usual fields
        record.refuse(f"a trial run cannot be made ({type(error).__name__}: {_first_line(error)})")
        return
    if not runs:
        record.refuse(
            f"its input is {next(iter(inspect.signature(model.forward).parameters))}, not input_ids"
        )
    for number, (forward, inputs) in enumerate(runs):
        try:
            with _attention(model, PROBE):
                actual = forward(**inputs)[0]
            if not record.reasons and not record.has_own():
                record.refuse(_NO_CALL)
            for name, stack in _stacks(model).items():
                if not record.reasons and not record.has_own(stack):
                    record.refuse(f"the attention of its {name} is its own: {_NO_CALL} there")
            if record.reasons:
                return
            if actual.is_meta:  # neither masks nor results can be read
                continue
            with _attention(model, "eager"):
                expected = forward(**inputs)[0]
        except Exception as error:  # the code of a model may raise anything
            if number and "encoder_hidden_states" in inputs:
                return  # the model has no layers for them
            if not record.reasons:
                no_call = "" if record.has_own() else f"{_NO_CALL}, and "
                record.refuse(f"{no_call}a trial run failed ({type(error).__name__}: {_first_line(error)})")
            return
        if not _is_close(actual, expected, inputs):
            record.refuse("a trial run differs from one with eager attention")


def _stacks(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Return the encoder and the decoder of a model that has both, by name."""
    if not model.config.is_encoder_decoder:
        return {}
    return {"encoder": model.get_encoder(), "decoder": model.get_decoder()}


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def _runs(model: PreTrainedModel) -> list[tuple[Callable, dict[str, Any]]]:
    """Return functions to call, each with its arguments; none for a model that does not take tokens.

    The body is called, because heads may need special tokens. A second run has the states of an encoder.
    """
    forward: Callable = model.base_model.forward
    if "input_ids" not in inspect.signature(forward).parameters:
        forward = model.forward
    known = inspect.signature(forward).parameters
    if "input_ids" not in known:
        return []
    config: Any = model.config.get_text_config()
    vocab_size = getattr(config, "vocab_size", _ROWS)  # models of characters have none
    inputs: dict[str, Any] = _tokens(
        model, vocab_size, _SOURCE_LENGTH if "decoder_input_ids" in known else _LENGTH
    )
    if "decoder_input_ids" in known:
        for name, given in _tokens(model, vocab_size, _LENGTH).items():
            if f"decoder_{name}" in known:
                inputs[f"decoder_{name}"] = given
    if "use_cache" in known:
        inputs["use_cache"] = False
    runs = [(forward, inputs)]
    if "encoder_hidden_states" in known and "decoder_input_ids" not in known:
        width = getattr(config, "cross_attention_hidden_size", None) or config.hidden_size
        states = _random((_ROWS, _SOURCE_LENGTH, width)).to(model.device, model.dtype)
        source = {"encoder_hidden_states": states}
        if "encoder_attention_mask" in known:
            source["encoder_attention_mask"] = _padding_mask(model, _SOURCE_LENGTH)
        runs.append((forward, {**inputs, **source}))
    return runs


def _tokens(model: PreTrainedModel, vocab_size: int, length: int) -> dict[str, torch.Tensor]:
    numbers = torch.arange(_ROWS * length, device=model.device).view(_ROWS, length)
    return {"input_ids": (numbers * 7 + 3) % vocab_size, "attention_mask": _padding_mask(model, length)}


def _random(shape: Sequence[int], seed: int = 0) -> torch.Tensor:
    """Return random numbers large enough to reveal a cap on scores, independent of torch's random state."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return _SPREAD * torch.randn(*shape, generator=generator, device="cpu")


def _padding_mask(model: PreTrainedModel, length: int) -> torch.Tensor:
    mask = torch.ones(_ROWS, length, dtype=torch.long, device=model.device)
    mask[-1, -_PADDING:] = 0
    return mask


def configs_of(model: nn.Module) -> dict[nn.Module, Any]:
    """Return the configuration of each module that has one."""
    configs = ((module, getattr(module, "config", None)) for module in model.modules())
    return {module: config for module, config in configs if isinstance(config, PreTrainedConfig)}


@contextmanager
def _attention(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Use another attention implementation within the context, in evaluation mode and without gradients."""
    configs = [(config, config._attn_implementation) for config in configs_of(model).values()]
    training = [module for module in model.modules() if module.training]
    for config, _ in configs:
        config._attn_implementation = implementation
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for config, before in configs:
            config._attn_implementation = before
        for module in training:
            module.training = True


def _is_close(actual: torch.Tensor, expected: torch.Tensor, inputs: dict[str, Any]) -> bool:
    """Return whether two results [B, T, K] agree outside padding."""
    if not expected.isfinite().all():  # the weights are not loaded yet
        return True
    mask = inputs.get("decoder_attention_mask", inputs["attention_mask"])
    if actual.shape[:2] == mask.shape:
        shown = mask.bool().to(actual.device)
        actual, expected = actual[shown], expected[shown]
    # In half precision, a mixture may choose other experts.
    tolerance = 1e-4 if actual.dtype in (torch.float32, torch.float64) else 0.1
    difference = (actual.double() - expected.double()).norm()
    return bool(difference <= tolerance * expected.double().norm() + 1e-6)


def _probe_mask(**arguments: Any) -> torch.Tensor:
    """Return the mask of sparse attention, or note why there is none."""
    try:
        return sparse_mask(**arguments)
    except UserError as error:
        _record.get().refuse(str(error).partition(". ")[0])  # without the remedy for a single call
        shape = (arguments["batch_size"], 1, 1, arguments["kv_length"])
        return torch.zeros(shape, dtype=_UNKNOWN, device=arguments.get("device", "cpu"))


def _probe_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **arguments: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Record a call, and compute dense attention.

    Args:
        module: the attention module.
        query: [B, H, T, D].
        key, value: [B, H or fewer, S, D].
        attention_mask: from `_probe_mask`, or the model's own mask for attention to another sequence.
        scaling: 1 / sqrt(D) by default.
        dropout: not used, because nothing is trained.

    Returns:
        [B, T, H, D] and no weights.
    """
    record, name = _record.get(), type(module).__name__
    for refused in refused_arguments(arguments):
        given = arguments[refused]
        record.refuse(f"{name} passes {refused}{'' if isinstance(given, torch.Tensor) else f'={given}'}")
    causal, visible = _read_probe_mask(record, name, query, key, attention_mask)
    if causal is not None and arguments.get("is_causal") not in (None, causal):
        record.refuse(f"{name} passes is_causal={arguments['is_causal']} and a mask with causal={causal}")
    heads = query.shape[1] * _processes_of(module)
    record.calls.setdefault(module, set()).add(AttentionCall(heads, causal))
    if record.reasons:
        visible = None  # the result does not matter any more
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if not record.reasons and not _is_plain(module, query, key, value, scaling, causal, arguments):
        record.refuse(f"the eager attention of {name} is more than softmax(scaling · QKᵀ + mask) V")
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    output, _ = eager_attention_forward(module, query.to(key.dtype), key, value, visible, scaling)
    return output.contiguous(), None


def _processes_of(module: nn.Module) -> int:
    """Return how many processes share the heads of a module, under tensor parallelism."""
    meshes = (getattr(parameter, "device_mesh", None) for parameter in module.parameters())
    mesh: Any = next((each for each in meshes if each is not None), None)
    return mesh["tp"].size() if mesh is not None and "tp" in (mesh.mesh_dim_names or ()) else 1


def _read_probe_mask(
    record: _Record, name: str, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None
) -> tuple[bool | None, torch.Tensor | None]:
    """Return whether a call is causal (None: to another sequence), and the dense mask [B, 1, T or 1, S]."""
    queries, keys = query.shape[2], key.shape[2]
    if mask is None:
        if queries == keys:
            record.refuse(f"no mask reaches {name}")
        return None, None
    if mask.dtype in (BOTH_WAYS, CAUSAL) and mask.shape[1:] == (1, 1, keys):
        shown = mask.bool()
        if queries != keys:
            return None, shown
        if mask.dtype == CAUSAL:
            return True, shown & torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()
        return False, shown
    if mask.dtype == _UNKNOWN:
        return None, None  # noted when it was made
    if queries == keys or mask.dtype in (BOTH_WAYS, CAUSAL):
        record.refuse(f"{name} gets {mask.dtype} {list(mask.shape)} as mask, made by the model itself")
    return None, mask


def _is_plain(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    causal: bool | None,
    arguments: dict[str, Any],
) -> bool:
    """Return whether a module's eager function computes the same as sparse attention with a full pattern.

    The function is that of the module's file. It gets random inputs of the same shapes, in float32. Without
    such a function, return True.
    """
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        return True
    device = torch.device("cpu") if query.is_meta else query.device
    states = [_random(each.shape, seed).to(device) for seed, each in enumerate((query, key, value))]
    mask = torch.zeros(1, 1, query.shape[2], key.shape[2], device=device)
    if causal:
        mask.fill_(torch.finfo(torch.float32).min).triu_(1)
    theirs = eager(module, *states, mask, scaling=scaling, dropout=0.0, **arguments)[0]
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(states[1], groups), repeat_kv(states[2], groups)
    ours = eager_attention_forward(module, states[0], key, value, mask, scaling)[0]
    return torch.allclose(theirs.to(ours), ours, rtol=1e-3, atol=1e-3)


AttentionInterface.register(PROBE, _probe_attention)
AttentionMaskInterface.register(PROBE, _probe_mask)
