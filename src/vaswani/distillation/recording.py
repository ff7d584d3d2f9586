"""Record a model's states by hooks: the output of each stack, and the projections of its last layer.

Models do not return queries, keys and values, and `output_hidden_states` would keep those of all layers.
Modules are found by their names in transformers.

B batch · T tokens · D width
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from vaswani.errors import UserError
from vaswani.hub.checkpoint import serves

PROJECTIONS = ("query", "key", "value")
_PROJECTION_NAMES = (
    *(("q_proj", "k_proj", "v_proj"), ("q", "k", "v"), ("query", "key", "value")),
    ("q_lin", "k_lin", "v_lin"),  # DistilBERT
)


class Recorder:
    """Keeps the last `states`, `query`, `key` and `value`, each [B, T, D], of each stack of a model.

    Args:
        model: a model of transformers with one or two stacks.
        projections: whether to record queries, keys and values too.

    Raises:
        UserError: the model has no self-attention with projections of a known name.
    """

    def __init__(self, model: PreTrainedModel, projections: bool):
        self.recorded: dict[str, dict[str, torch.Tensor]] = {}
        # Each module with the name of its stack and the kind of its output.
        self._places: list[tuple[nn.Module, str, str]] = []
        for name, stack in stacks(model).items():
            self._places.append((stack, name, "states"))
            if projections:
                modules = zip(last_self_attention(stack), PROJECTIONS, strict=True)
                self._places += [(module, name, role) for module, role in modules]

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record while the context is open. A permanent hook could not be pickled and would slow searches."""
        with ExitStack() as hooks:
            for module, stack, kind in self._places:
                hooks.enter_context(module.register_forward_hook(self._keep(stack, kind)))
            yield
        self.recorded = {}

    def take(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the recorded tensors by stack and kind, and drop them."""
        recorded, self.recorded = self.recorded, {}
        return recorded

    def _keep(self, stack: str, kind: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            states = output if isinstance(output, torch.Tensor) else output[0]
            self.recorded.setdefault(stack, {})[kind] = states

        return keep


def stacks(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The stacks of a model, by name: one of "encoder" and "decoder", or both."""
    if model.config.is_encoder_decoder:
        return {"encoder": model.get_encoder(), "decoder": model.get_decoder()}
    modules = model.base_model.modules()
    inner = next(one for one in modules if any(isinstance(child, nn.ModuleList) for child in one.children()))
    return {"decoder" if serves(AutoModelForCausalLM, model.config) else "encoder": inner}


def last_self_attention(stack: nn.Module) -> list[nn.Module]:
    """The projections to queries, keys and values of the last layer's first attention: its self-attention."""
    layers = next((part for part in stack.children() if isinstance(part, nn.ModuleList)), nn.ModuleList())
    for module in layers[-1].modules() if len(layers) else ():
        for names in _PROJECTION_NAMES:
            if all(isinstance(getattr(module, name, None), nn.Linear) for name in names):
                return [getattr(module, name) for name in names]
    raise UserError(
        f"{type(stack).__name__} has no self-attention with projections to queries, keys and values that are "
        "known here; set relation_weight to 0"
    )
