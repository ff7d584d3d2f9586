"""Log-probabilities of given translations, by one parallel pass with the target tokens as input.

S sources · K targets of each · L source length · T target length · V target vocabulary
"""

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

_LOGITS_AT_ONCE = 1 << 26  # 256 MiB in float32


@torch.inference_mode()
def sequence_log_probs(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    sequences: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """Return log P(Y|X) of each target: the sum of the natural log-probabilities of its tokens.

    Args:
        model: an encoder-decoder in evaluation mode.
        input_ids: int64 [S, L].
        attention_mask: int64 [S, L], 0 for padding of the source.
        sequences: int64 [S·K, 1 + T]: start token and target; the K targets of a source are adjacent.
        lengths: int64 [S·K], the tokens of each target; later tokens do not count.

    Returns:
        float32 [S·K].
    """
    rows_per_source = len(sequences) // len(input_ids)
    states = model.get_encoder()(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    source_of_row = torch.arange(len(input_ids), device=states.device).repeat_interleave(rows_per_source)
    vocab_size = model.get_output_embeddings().weight.shape[0]
    rows_at_once = max(1, _LOGITS_AT_ONCE // (sequences.shape[1] * vocab_size))
    log_probs = []
    for rows in torch.arange(len(sequences), device=states.device).split(rows_at_once):
        sources = source_of_row[rows]
        logits = model(
            encoder_outputs=BaseModelOutput(last_hidden_state=states[sources]),
            attention_mask=attention_mask[sources],
            decoder_input_ids=sequences[rows, :-1],
            use_cache=False,
        ).logits.float()  # [rows, T, V]
        targets = sequences[rows, 1:]
        token_log_probs = logits.gather(2, targets[..., None])[..., 0] - logits.logsumexp(dim=2)  # [rows, T]
        counts = torch.arange(targets.shape[1], device=states.device) < lengths[rows, None]
        log_probs.append(token_log_probs.masked_fill(~counts, 0.0).sum(dim=1))
    return torch.cat(log_probs)
