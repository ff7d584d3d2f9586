"""Log-probabilities of given translations, from one parallel pass with the target tokens as input.

S sources · R rows, each a target of a source · L source length · T target length · V target vocabulary
"""

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from vaswani.unwritten_padding import unwritten_padding, without_padding

_LOGITS_AT_ONCE = 1 << 26  # 256 MiB in float32


@torch.inference_mode()
def token_log_probs(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    sequences: torch.Tensor,
    lengths: torch.Tensor,
    source_of_row: torch.Tensor,
) -> torch.Tensor:
    """Return log P(y_t | y_<t, X) of each target token: natural logarithms.

    Args:
        model: an encoder-decoder in evaluation mode.
        input_ids: int64 [S, L].
        attention_mask: int64 [S, L], 0 for padding of the source.
        sequences: int64 [R, 1 + T]: start token and target.
        lengths: int64 [R], the number of tokens of each target; later tokens are ignored.
        source_of_row: int64 [R], the source of each target.

    Returns:
        float32 [R, T]; 0 for ignored tokens.
    """
    states = model.get_encoder()(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    vocab_size = model.get_output_embeddings().weight.shape[0]
    padding, log_probs = unwritten_padding(model), []
    for rows in rows_at_once(len(sequences), sequences.shape[1] * vocab_size, states.device):
        sources = source_of_row[rows]
        logits = model(
            encoder_outputs=BaseModelOutput(last_hidden_state=states[sources]),
            attention_mask=attention_mask[sources],
            decoder_input_ids=sequences[rows, :-1],
            use_cache=False,
            **masking_inputs(model, sequences[rows, :-1]),
        ).logits  # [rows, T, V]
        targets = sequences[rows, 1:]
        of_tokens = log_probs_of(without_padding(logits, padding), targets)  # [rows, T]
        counts = torch.arange(targets.shape[1], device=states.device) < lengths[rows, None]
        log_probs.append(of_tokens.masked_fill(~counts, 0.0))
    return torch.cat(log_probs)


def target_log_probs(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    sequences: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """Return the log-probabilities of the tokens of targets, the same number for each source.

    Args:
        model, input_ids, attention_mask, lengths: as in `token_log_probs`.
        sequences: int64 [S·K, 1 + T]: start token and target; the K targets of a source are adjacent.

    Returns:
        float32 [S·K, T]; 0 for ignored tokens. The sum of a row is log P(Y|X).
    """
    sources = torch.arange(len(input_ids), device=sequences.device)
    source_of_row = sources.repeat_interleave(len(sequences) // len(input_ids))
    return token_log_probs(model, input_ids, attention_mask, sequences, lengths, source_of_row)


def log_probs_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the natural log-probabilities of targets [...] from logits [..., V]: float32 [...]."""
    logits = logits.float()
    return logits.gather(-1, targets[..., None])[..., 0] - logits.logsumexp(dim=-1)


def rows_at_once(count: int, logits_per_row: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Split row numbers into parts whose logits fit into memory; a row is never split."""
    return torch.arange(count, device=device).split(most_rows(logits_per_row))


def most_rows(logits_per_row: int) -> int:
    """Return how many rows have logits that fit into memory together, at least one."""
    return max(1, _LOGITS_AT_ONCE // max(1, logits_per_row))


def masking_inputs(model: PreTrainedModel, decoder_input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return arguments that a model needs to mask later target tokens, given encoder outputs and no cache.

    FSMT masks later tokens only if it gets `input_ids`. It ignores their values if it also gets encoder
    outputs and `decoder_input_ids`.
    """
    return {"input_ids": decoder_input_ids} if model.config.model_type == "fsmt" else {}
