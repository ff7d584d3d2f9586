"""Models of one stack that run in ONNX Runtime: classifiers, taggers, encoders, causal language models.

B rows · T length · P tokens in the cache · H heads · D head width · V vocabulary
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import ModelOutput

from vaswani.inference.onnx.base import OnnxPreTrainedModel
from vaswani.inference.onnx.cache import OnnxCache, past_inputs, past_states, present_states
from vaswani.inference.onnx.sessions import check_ids, run_session
from vaswani.model.compatibility import CACHE_NAME, takes_cache
from vaswani.model.configuration_vaswani import VaswaniFamilyConfig


class OnnxModel(OnnxPreTrainedModel):
    """A model of one stack that runs in ONNX Runtime on the CPU.

    Args:
        config: configuration of the exported model.
        session: session of its file.

    Attributes:
        inputs: names of the inputs of the file.
        outputs: names of its outputs, such as `logits` or `last_hidden_state`.
    """

    config: VaswaniFamilyConfig

    def __init__(self, config: VaswaniFamilyConfig, session: Any):
        super().__init__(config)
        self.session = session
        self.inputs = [each.name for each in session.get_inputs()]
        self.outputs = [each.name for each in session.get_outputs()]
        self.eval()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> ModelOutput:
        """Return the outputs of the file by name, such as `logits`: float32.

        Args:
            input_ids: int64 [B, T].
            attention_mask: int64 [B, T], 0 for padding.
            token_type_ids: int64 [B, T]; None means zeros. Ignored by a model without token types.

        Raises:
            ValueError: a token lies outside the vocabulary.
        """
        inputs = self._checked_inputs(input_ids, attention_mask)
        if "token_type_ids" in self.inputs:
            types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            _check_types(types, self.config.token_type_vocab_size)
            inputs["token_type_ids"] = types
        return ModelOutput(run_session(self.session, inputs))

    def _checked_inputs(self, input_ids: torch.Tensor, mask: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Return tokens and their mask, all ones by default, as inputs of the file."""
        check_ids("input_ids", input_ids, self.config.vocab_size)
        mask = torch.ones_like(input_ids) if mask is None else mask
        return {"input_ids": input_ids, "attention_mask": mask.long()}

    def get_input_embeddings(self) -> nn.Module:
        """Return embeddings with a row for each token, without data (on the meta device)."""
        return nn.Embedding(self.config.vocab_size, self.config.hidden_size, device="meta")


class OnnxCausalModel(OnnxModel, GenerationMixin):
    """A causal language model that runs in ONNX Runtime on the CPU, for `generate` and `TextGenerator`.

    Args:
        config: configuration of the exported model.
        generation_config: generation configuration of the exported model.
        session: session of its file.
    """

    def __init__(self, config: VaswaniFamilyConfig, generation_config: GenerationConfig, session: Any):
        super().__init__(config, session)
        self.generation_config = generation_config

    @takes_cache
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = False,
        return_dict: bool = True,
    ) -> CausalLMOutputWithPast:
        """Return the logits, float32 [B, T, V].

        Args:
            input_ids: int64 [B, T].
            attention_mask: int64 [B, P + T], 0 for padding.
            position_ids: int64 [B, T]. None counts all tokens, or those that the mask shows, as the model
                does.
            past_key_values: the `OnnxCache` of an earlier call, for the previous tokens.
            use_cache: whether to return `past_key_values`.
            return_dict: ignored; `generate` sets it.

        Raises:
            ValueError: a token lies outside the vocabulary, or the file counts other positions.
        """
        past = past_states(past_key_values) or self._empty_cache(len(input_ids))
        before = next(iter(past.values())).shape[2]
        if attention_mask is None:
            attention_mask = torch.ones(len(input_ids), before + input_ids.shape[1], dtype=torch.long)
        inputs = self._checked_inputs(input_ids, attention_mask)
        if "position_ids" in self.inputs:
            columns = torch.arange(before, before + input_ids.shape[1]).expand_as(input_ids)
            inputs["position_ids"] = columns if position_ids is None else position_ids
        elif position_ids is not None and self.config.position_embedding != "none":
            _check_positions(position_ids, inputs["attention_mask"])
        outputs = run_session(self.session, inputs | past_inputs(past))
        cache: Any = OnnxCache(present_states(outputs)) if use_cache else None
        return CausalLMOutputWithPast(logits=outputs["logits"], **{CACHE_NAME: cache})

    def get_output_embeddings(self) -> nn.Module:
        """Return embeddings with a row for each token, without data (on the meta device)."""
        return self.get_input_embeddings()

    def _empty_cache(self, rows: int) -> dict[str, torch.Tensor]:
        """Return empty keys and values for each layer: [B, H, 0, D]."""
        heads = self.config.num_attention_heads
        empty = torch.zeros(rows, heads, 0, self.config.hidden_size // heads)
        past = "past_key_values."
        return {name.removeprefix(past): empty for name in self.inputs if name.startswith(past)}


def _check_types(token_type_ids: torch.Tensor, count: int) -> None:
    """Raise a ValueError for a token type that the model does not have."""
    low, high = (int(bound) for bound in token_type_ids.aminmax())
    if low < 0 or high >= count:
        raise ValueError(
            f"token_type_ids holds {low if low < 0 else high}, and the model has the types 0 to {count - 1}."
        )


def _check_positions(position_ids: torch.Tensor, mask: torch.Tensor) -> None:
    """Raise a ValueError unless positions [B, T] are those that the file counts from the mask [B, P + T]."""
    length = position_ids.shape[-1]
    counted, shown = (mask.cumsum(-1) - 1)[:, -length:], mask[:, -length:].bool()
    if not torch.equal(position_ids.expand_as(counted)[shown], counted[shown]):
        raise ValueError(
            "the exported model counts the tokens that the attention mask shows, and position_ids have other "
            "positions; leave them out."
        )
