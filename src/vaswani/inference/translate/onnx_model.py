"""An encoder-decoder computed by ONNX Runtime, loaded from a folder of `vaswani export --to onnx`.

The search is transformers' `generate`, so all decoding options work as with PyTorch:

    model = load_onnx("runs/dates_onnx")
    Translator(model, *load_tokenizers(Path("runs/dates_onnx")))

B rows · S source length · T target length · P tokens in the cache · H heads · D head width · V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from vaswani.errors import UserError, check_positive, one_line
from vaswani.files.json_files import read_object
from vaswani.hub.run_metadata import read_config
from vaswani.interop.onnx_runtime import import_onnxruntime
from vaswani.interop.to_onnx import DECODER, DECODER_WITH_PAST, ENCODER, INSTALL
from vaswani.model.compatibility import CACHE_NAME, takes_cache
from vaswani.model.configuration_vaswani import VaswaniConfig


def load_onnx(folder: str | Path, threads: int | None = None) -> OnnxEncoderDecoder:
    """Load an encoder-decoder that was exported to ONNX, without its tokenizers.

    Args:
        folder: folder that `vaswani export --to onnx` has written.
        threads: number of threads of an operation; None means as many as PyTorch uses.

    Raises:
        UserError: ONNX Runtime is not installed, the folder holds no such model, or a file of the model is
            missing or damaged.
    """
    threads = torch.get_num_threads() if threads is None else threads
    check_positive(threads=threads)
    folder = Path(folder)
    files = [folder / name for name in (ENCODER, DECODER, DECODER_WITH_PAST)]
    missing = [path for path in files if not path.is_file()]
    if len(missing) == len(files):
        read_config(folder)  # raises if the folder holds no model, or one of CTranslate2
        raise UserError(
            f"{folder} holds no encoder-decoder in ONNX ({ENCODER}, {DECODER}, {DECODER_WITH_PAST}); export "
            "one with: vaswani export --to onnx MODEL FOLDER"
        )
    if missing:
        raise UserError(f"{missing[0]} is missing; export the model again")
    config = read_config(folder)
    if not isinstance(config, VaswaniConfig):
        raise UserError(
            f"{folder} holds a model of type {config.model_type!r}; expected an encoder-decoder of vaswani"
        )
    sessions = [_session(path, threads) for path in files]
    return OnnxEncoderDecoder(config, _generation_config(folder), sessions)


def _session(path: Path, threads: int) -> Any:
    """Return the ONNX Runtime session of a file.

    Raises:
        UserError: ONNX Runtime is not installed, or cannot read the file.
    """
    try:
        onnxruntime = import_onnxruntime()
    except ImportError as error:
        raise UserError(f"ONNX Runtime is not installed ({error}); {INSTALL}") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class
        raise UserError(f"{path} cannot be read ({one_line(error)}); export the model again") from error


def _generation_config(folder: Path) -> GenerationConfig:
    path = folder / "generation_config.json"
    try:
        return GenerationConfig.from_dict(read_object(path))
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be used: {one_line(error)}; export the model again") from error


@dataclass
class OnnxCache:
    """The keys and values of all layers.

    Args:
        states: keys and values by their names in the files, such as `0.decoder.key`: those of self-attention
            (`decoder`) are [B, H, P, D], those of cross-attention (`encoder`) [B, H, S, D].
    """

    states: dict[str, torch.Tensor]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Make row r continue row `beam_idx[r]`, another beam of the same source: int64 [B]."""
        for name, states in self.states.items():
            if ".decoder." in name:  # cross-attention is the same for all beams of a source
                self.states[name] = states.index_select(0, beam_idx)


class OnnxEncoder(nn.Module):
    """The encoder."""

    main_input_name = "input_ids"  # `generate` reads it

    def __init__(self, config: VaswaniConfig, session: Any):
        super().__init__()
        self.config = config
        self.session = session

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> BaseModelOutput:
        """Encode int64 [B, S] to [B, S, d_model]; ignore other arguments of `generate`."""
        _check_ids("input_ids", input_ids, self.config.vocab_size)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        outputs = _run(self.session, {"input_ids": input_ids, "attention_mask": mask.long()})
        return BaseModelOutput(last_hidden_state=outputs["last_hidden_state"])


class OnnxEncoderDecoder(PreTrainedModel, GenerationMixin):
    """An encoder-decoder computed by ONNX Runtime on the CPU, for `generate` and `Translator`.

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

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of states and logits: float32, whatever the dtype of the weights."""
        return torch.float32

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
        return_dict: bool = True,
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
            return_dict: ignored; `generate` sets it.

        Raises:
            ValueError: a token lies outside the vocabulary, a mask hides a token of the target, or source and
                target differ in rows.
        """
        if decoder_attention_mask is not None and not decoder_attention_mask.all():
            raise ValueError("the exported decoder takes no padding of the target; give targets without it.")
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        states = encoder_outputs[0]
        if attention_mask is None:
            attention_mask = torch.ones(states.shape[:2], dtype=torch.long)
        target = _checked_target(decoder_input_ids, states, self.target_vocab_size)
        inputs = {"encoder_attention_mask": attention_mask.long(), "input_ids": target}
        # In the first step `generate` gives a cache of transformers, which is empty.
        past = past_key_values.states if isinstance(past_key_values, OnnxCache) else {}
        if past:
            inputs |= {f"past_key_values.{name}": keys_or_values for name, keys_or_values in past.items()}
        else:
            inputs["encoder_hidden_states"] = states
        outputs = _run(self.next_step if past else self.first_step, inputs)
        logits = outputs.pop("logits")
        present = {name.removeprefix("present."): output for name, output in outputs.items()}
        cache: Any = OnnxCache({**past, **present}) if use_cache else None
        return Seq2SeqLMOutput(logits=logits, **{CACHE_NAME: cache})

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
    _check_ids("decoder_input_ids", ids, vocab_size)
    return ids


def _check_ids(name: str, ids: torch.Tensor, vocab_size: int) -> None:
    """Raise a ValueError for an id outside the vocabulary; ONNX would count negative ids from the end."""
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"{name} holds {low if low < 0 else high}, which lies outside the vocabulary of {vocab_size} "
            f"tokens (0 to {vocab_size - 1}); use the tokenizer that belongs to this model."
        )


def _run(session: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Run a session and return its outputs by name. Outputs and contiguous inputs are not copied."""
    names = [output.name for output in session.get_outputs()]
    outputs = session.run(names, {name: tensor.contiguous().numpy() for name, tensor in inputs.items()})
    return {name: torch.from_numpy(output) for name, output in zip(names, outputs, strict=True)}
