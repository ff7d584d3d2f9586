"""Log-probabilities of given translations, from one parallel pass with the target tokens as input.

S sources · R rows, each a target of a source · L source length · T target length · V target vocabulary
"""

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from vaswani.kernels.cross_entropy_native import log_probs_of
from vaswani.kernels.projected_loss import TokenLoss, takes_token_loss
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
    counts = torch.arange(sequences.shape[1] - 1, device=sequences.device) < lengths[:, None]  # [R, T]
    if getattr(model, "scores_tokens_apart", False):  # averaging all logits would take most of the time
        given = input_ids, attention_mask, sequences, lengths, source_of_row
        ensemble: Any = model
        of_members = [token_log_probs(member, *given) for member in ensemble.members]
        return ensemble.mean_of_probabilities(of_members).masked_fill(~counts, 0.0)
    states = model.get_encoder()(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    vocab_size = model.get_output_embeddings().weight.shape[0]
    found = torch.zeros(counts.shape, device=states.device)
    for rows in rows_at_once(len(sequences), sequences.shape[1] * vocab_size, states.device):
        sources, kept = source_of_row[rows], counts[rows]
        inputs = {
            "encoder_outputs": BaseModelOutput(last_hidden_state=states[sources]),
            "attention_mask": attention_mask[sources],
            "decoder_input_ids": sequences[rows, :-1],
        }
        of_kept = _of_kept(model, inputs, kept, sequences[rows, 1:][kept])
        found[rows] = found[rows].masked_scatter(kept, of_kept)
    return found


def _of_kept(
    model: PreTrainedModel, inputs: dict[str, Any], kept: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Return the log-probabilities of the N kept tokens, float32 [N].

    Args:
        model: the encoder-decoder.
        inputs: its inputs for some rows.
        kept: bool [rows, T].
        targets: the kept tokens, int64 [N].
    """
    found = torch.empty(len(targets), device=targets.device)
    padding = unwritten_padding(model)

    def keep(logits: torch.Tensor, place: slice) -> torch.Tensor:
        found[place] = log_probs_of(without_padding(logits, padding), targets[place])
        return found[place].sum()

    loss = TokenLoss(kept, keep)
    inputs = {**inputs, "use_cache": False, **masking_inputs(model, inputs["decoder_input_ids"])}
    if takes_token_loss(model):  # our models hold few logits at a time
        model(**inputs, token_loss=loss)
    else:
        loss.from_logits(model(**inputs).logits)
    return found


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
