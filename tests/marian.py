"""A MarianMT model of the library, and the model of ours with the same weights."""

from typing import Any

from transformers import MarianConfig, MarianMTModel

from vaswani import VaswaniConfig, VaswaniForConditionalGeneration

SHAPE = {
    "vocab_size": 61,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "activation_function": "silu",
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "scale_embedding": True,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def marian_like(
    shared: bool = True, init_std: float = 0.3, **fields: Any
) -> tuple[MarianMTModel, VaswaniForConditionalGeneration]:
    fields = {**SHAPE, "share_encoder_decoder_embeddings": shared, "tie_word_embeddings": shared, **fields}
    theirs = MarianMTModel(
        MarianConfig(**fields, init_std=init_std, max_position_embeddings=64, forced_eos_token_id=None)
    ).eval()
    ours = VaswaniForConditionalGeneration(VaswaniConfig(**fields, sinusoidal_layout="concatenated")).eval()
    ours.load_state_dict(
        {
            name: weight
            for name, weight in theirs.state_dict().items()
            if not name.endswith(("model.shared.weight", "embed_positions.weight", "final_logits_bias"))
        }
    )
    return theirs, ours
