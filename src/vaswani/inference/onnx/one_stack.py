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
from vaswani.inference.onnx.cache import PAST, OnnxCache, given_cache
from vaswani.inference.onnx.inputs import (
    check_ignored,
    check_length,
    checked_ids,
    checked_mask,
    checked_positions,
    counted,
)
from vaswani.inference.onnx.sessions import run_session
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
        **kwargs: Any,
    ) -> ModelOutput:
        """Return the outputs of the file by name, such as `logits`: float32.

        Args:
            input_ids: integers [B, T]; for multiple choice [B, choices, T].
            attention_mask: 0 for padding, in the shape of `input_ids`. None: there is no padding; for a
                decoder that classifies texts, padding is found by `pad_token_id`.
            token_type_ids: integers in the shape of `input_ids`; None means zeros.
            kwargs: what `generate` and pipelines give every model, which is ignored.

        Raises:
            ValueError: an argument has another shape, dtype or value than the model takes.
        """
        config: Any = self.config
        ids = checked_ids("input_ids", input_ids, config.vocab_size)
        if attention_mask is None and self._pools_last:
            attention_mask = _shown(ids, config.pad_token_id)
        mask = checked_mask(attention_mask, ids)
        check_length(config, counted(config, mask))
        inputs = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in self.inputs:
            types = torch.zeros_like(ids) if token_type_ids is None else token_type_ids
            inputs["token_type_ids"] = checked_ids("token_type_ids", types, config.token_type_vocab_size)
        else:
            kwargs["token_type_ids"] = token_type_ids
        check_ignored(kwargs)
        return ModelOutput(run_session(self.session, inputs))

    @property
    def _pools_last(self) -> bool:
        """Whether a text is classified by its last token that is not padding."""
        return "VaswaniDecoderForSequenceClassification" in (self.config.architectures or ())

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
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return the logits, float32 [B, T, V].

        Args:
            input_ids: integers [B, T].
            attention_mask: [B, P + T], 0 for padding.
            position_ids: integers [B, T] or [1, T]. None counts all tokens, or those that the mask shows, as
                the model does.
            past_key_values: the `OnnxCache` of an earlier call, for the previous tokens.
            use_cache: whether to return `past_key_values`.
            kwargs: what `generate` and pipelines give every model, which is ignored.

        Raises:
            ValueError: an argument has another shape, dtype or value than the model takes, or the file counts
                other positions.
        """
        check_ignored(kwargs)
        ids = checked_ids("input_ids", input_ids, self.config.vocab_size)
        past = given_cache(past_key_values)
        before = past.get_seq_length()
        mask = checked_mask(attention_mask, ids, before)
        check_length(self.config, counted(self.config, mask))
        inputs = {"input_ids": ids, "attention_mask": mask}
        if "position_ids" in self.inputs:
            columns = torch.arange(before, before + ids.shape[1]).expand_as(ids)
            inputs["position_ids"] = columns if position_ids is None else checked_positions(position_ids, ids)
        elif position_ids is not None and self.config.position_embedding != "none":
            _check_positions(position_ids, mask)
        outputs = run_session(self.session, inputs | (past.inputs() or self._nothing(len(ids))))
        cache: Any = OnnxCache.from_outputs(outputs) if use_cache else None
        return CausalLMOutputWithPast(logits=outputs["logits"], **{CACHE_NAME: cache})

    def get_output_embeddings(self) -> nn.Module:
        """Return embeddings with a row for each token, without data (on the meta device)."""
        return self.get_input_embeddings()

    def _nothing(self, rows: int) -> dict[str, torch.Tensor]:
        """Return the inputs for an empty cache: [B, H, 0, Dk or Dv] for the keys and values of each layer."""
        heads = self.config.num_attention_heads
        widths = dict(zip(("key", "value"), self.config.head_widths(heads), strict=True))
        return {
            name: torch.zeros(rows, heads, 0, widths[name.rpartition(".")[2]])
            for name in self.inputs
            if name.startswith(PAST)
        }


def _shown(ids: torch.Tensor, pad_token_id: int | None) -> torch.Tensor:
    """Return the padding mask of ids [B, T] by the padding token; raise a ValueError if there is none."""
    if pad_token_id is None and len(ids) > 1:
        raise ValueError(
            "nothing tells which tokens are padding: give an attention_mask, or set config.pad_token_id."
        )
    return torch.ones_like(ids) if pad_token_id is None else (ids != pad_token_id).long()


def _check_positions(position_ids: torch.Tensor, mask: torch.Tensor) -> None:
    """Raise a ValueError unless positions [B, T] are those that the file counts from the mask [B, P + T]."""
    length = position_ids.shape[-1]
    expected, shown = (mask.cumsum(-1) - 1)[:, -length:], mask[:, -length:].bool()
    if not torch.equal(position_ids.expand_as(expected)[shown], expected[shown]):
        raise ValueError(
            "the exported model counts the tokens that the attention mask shows, and position_ids have other "
            "positions; leave them out."
        )
