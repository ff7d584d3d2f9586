"""Causal models of several families with random weights, and a tokenizer of 320 tokens for all of them."""

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BartConfig,
    BartForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from vaswani import VaswaniDecoderConfig, VaswaniForCausalLM

TEXT = "the cat sat on the mat: is that right? yes, no, maybe; it is a very good cat. 1 2 3 4\n\n5"
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
WIDE = 0.5  # so that a random model is sure of some tokens, and greedy choices are no ties


def gpt2_like(with_bos: bool = False) -> PreTrainedTokenizerBase:
    """Byte-level BPE; without special tokens of its own, padding among them, or with `<s>` in front."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<pad>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    if with_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    names = {"bos_token": "<s>", "eos_token": "</s>"} if with_bos else {}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def ours(**fields: Any) -> PreTrainedModel:
    shape = {"d_model": 24, "decoder_layers": 2, "decoder_attention_heads": 3, "decoder_ffn_dim": 48}
    limits = {"max_position_embeddings": 64, "initializer_range": WIDE}
    return VaswaniForCausalLM(
        VaswaniDecoderConfig(**{"vocab_size": 320, **shape, **limits, **SPECIAL, **fields})
    )


def sparse() -> PreTrainedModel:
    """Its blocks are counted from the first column, so that padding on the left would shift them."""
    blocks = {"sparse_block_size": 4, "sparse_window_blocks": 1, "sparse_global_blocks": 1}
    return ours(decoder_attention="sparse", **blocks, sparse_random_blocks=1)


def gpt2(**fields: Any) -> PreTrainedModel:
    shape = {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 64, "initializer_range": WIDE}
    return GPT2LMHeadModel(GPT2Config(**{"vocab_size": 320, **shape, **SPECIAL, **fields}))


def llama() -> PreTrainedModel:
    shape = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 48}
    limits = {"max_position_embeddings": 64, "initializer_range": WIDE}
    return LlamaForCausalLM(LlamaConfig(vocab_size=320, **shape, **limits, **SPECIAL))


def gpt_neox() -> PreTrainedModel:
    """Its configuration has `is_decoder=False`, and 0 ends its texts."""
    shape = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 48}
    return GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=320, **shape, max_position_embeddings=64, eos_token_id=0, initializer_range=WIDE
        )
    )


def bloom() -> PreTrainedModel:
    return BloomForCausalLM(
        BloomConfig(vocab_size=320, hidden_size=24, n_layer=1, n_head=3, initializer_range=WIDE, **SPECIAL)
    )


def openai_gpt() -> PreTrainedModel:
    return OpenAIGPTLMHeadModel(
        OpenAIGPTConfig(vocab_size=320, n_embd=24, n_layer=1, n_head=3, n_positions=64)
    )


def bart() -> PreTrainedModel:
    """A decoder that computes the logits of all places."""
    shape = {"d_model": 24, "decoder_layers": 1, "decoder_attention_heads": 3, "decoder_ffn_dim": 48}
    return BartForCausalLM(
        BartConfig(vocab_size=320, **shape, max_position_embeddings=64, init_std=WIDE, **SPECIAL)
    )


ALL_MODELS = [gpt2, llama, ours, sparse, gpt_neox, bloom, openai_gpt, bart]
