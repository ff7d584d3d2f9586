"""Options of a run that takes a second."""

TINY_MODEL = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
TINY_RUN = {
    **TINY_MODEL,
    "vocab_size": 300,
    "learning_rate": 3e-3,
    "warmup_steps": 4,
    "max_steps": 6,
    "max_tokens_per_batch": 1200,
    "logging_steps": 1,
    "save_steps": 3,
    "use_cpu": True,
    "disable_tqdm": True,
}


def as_flags(options: dict) -> list[str]:
    """`{"d_model": 16}` -> `["--d_model", "16"]`."""
    flags = []
    for name, value in options.items():
        flags += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return flags
