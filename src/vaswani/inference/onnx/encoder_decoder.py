"""An encoder-decoder that runs in ONNX Runtime.

The search is transformers' `generate`, so all decoding options work as with PyTorch.

B rows · S source length · T target length · P tokens in the cache · H heads · D head width · V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from vaswani.inference.onnx.base import OnnxPreTrainedModel
from vaswani.inference.onnx.cache import OnnxCache, given_cache
from vaswani.inference.onnx.inputs import check_ignored, check_length, checked_ids, checked_mask, counted
from vaswani.inference.onnx.sessions import run_session
from vaswani.model.compatibility import CACHE_NAME, takes_cache
from vaswani.model.configuration_vaswani import VaswaniConfig


class OnnxEncoder(nn.Module):
    """The encoder.

    Attributes:
        outputs: names of what it returns.
    """

    main_input_name = "input_ids"  # `generate` reads it
    outputs = ("last_hidden_state",)

    def __init__(self, config: VaswaniConfig, session: Any):
        super().__init__()
        self.config = config
        self.session = session

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> BaseModelOutput:
        """Encode int64 [B, S] to [B, S, d_model]; ignore other arguments of `generate`."""
        ids = checked_ids("input_ids", input_ids, self.config.vocab_size)
        mask = checked_mask(attention_mask, ids)
        check_length(self.config, counted(self.config, mask))
        outputs = run_session(self.session, {"input_ids": ids, "attention_mask": mask})
        return BaseModelOutput(last_hidden_state=outputs["last_hidden_state"])


class OnnxEncoderDecoder(OnnxPreTrainedModel, GenerationMixin):
    """An encoder-decoder that runs in ONNX Runtime on the CPU, for `generate` and `Translator`.

    Args:
        config: configuration of the exported model.
        generation_config: generation configuration of the exported model.
        sessions: sessions of the encoder, of the decoder, and of the decoder that takes a cache.
    """

    config: VaswaniConfig

    def __init__(self, config: VaswaniConfig, generation_config: GenerationConfig, sessions: Sequence[Any]):
        super().__init__(config)
        self.generation_config = generation_config
        self.target_vocab_size = config.decoder_vocab_size or config.vocab_size
        self.encoder = OnnxEncoder(config, sessions[0])
        self.first_step, self.next_step = sessions[1:]
        self.eval()

    @takes_cache
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = False,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Return the logits, float32 [B, T, V].

        Args:
            input_ids: int64 [B, S], unless `encoder_outputs` is given.
            attention_mask: int64 [B, S], 0 for padding of the source.
            decoder_input_ids: int64 [B, T].
            decoder_attention_mask: int64 [B, P + T], all 1; the exported decoder does not mask target tokens.
            encoder_outputs: output of `get_encoder()`: [B, S, d_model].
            past_key_values: the `OnnxCache` of an earlier call, for the previous tokens.
            use_cache: whether to return `past_key_values`.
            kwargs: what `generate` gives every model, which is ignored.

        Raises:
            ValueError: an argument has another shape, dtype or value than the model takes, a mask hides a
                token of the target, or source and target differ in rows.
        """
        check_ignored(kwargs)
        if decoder_attention_mask is not None and not decoder_attention_mask.all():
            raise ValueError("the exported decoder takes no padding of the target; give targets without it.")
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        states = encoder_outputs[0]
        mask = checked_mask(attention_mask, states[:, :, 0])
        target = _checked_target(decoder_input_ids, states, self.target_vocab_size)
        inputs = {"encoder_attention_mask": mask, "input_ids": target}
        past = given_cache(past_key_values)
        check_length(self.config, past.get_seq_length() + target.shape[1])
        inputs |= past.inputs() or {"encoder_hidden_states": states}
        outputs = run_session(self.next_step if past.states else self.first_step, inputs)
        cache: Any = OnnxCache(past.states | OnnxCache.from_outputs(outputs).states) if use_cache else None
        return Seq2SeqLMOutput(logits=outputs["logits"], **{CACHE_NAME: cache})

    def get_encoder(self, modality: str | None = None) -> OnnxEncoder:
        """Return the encoder."""
        return self.encoder

    def get_input_embeddings(self) -> nn.Module:
        """Return embeddings with a row for each source token, without data (on the meta device)."""
        return nn.Embedding(self.config.vocab_size, self.config.d_model, device="meta")

    def get_output_embeddings(self) -> nn.Module:
        """Return embeddings with a row for each target token, without data (on the meta device)."""
        return nn.Embedding(self.target_vocab_size, self.config.d_model, device="meta")


def _checked_target(ids: torch.Tensor | None, states: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return target tokens [B, T]; raise a ValueError unless they fit the sources [B, S, d_model]."""
    if ids is None:
        raise ValueError("decoder_input_ids are missing: give the target's tokens.")
    if len(ids) != len(states):
        raise ValueError(
            f"decoder_input_ids have {len(ids)} rows and the encoder's output {len(states)}; repeat the "
            "output's rows (repeat_interleave)."
        )
    return checked_ids("decoder_input_ids", ids, vocab_size)
