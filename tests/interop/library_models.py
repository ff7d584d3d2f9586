"""Models of transformers and PyTorch with random weights, and what to feed them."""

from typing import Any

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    BigBirdConfig,
    BigBirdForMaskedLM,
    BigBirdForMultipleChoice,
    BigBirdForPreTraining,
    BigBirdForSequenceClassification,
    BigBirdForTokenClassification,
    BigBirdModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForMultipleChoice,
    DistilBertForQuestionAnswering,
    DistilBertForSequenceClassification,
    DistilBertForTokenClassification,
    DistilBertModel,
    FSMTConfig,
    FSMTForConditionalGeneration,
    GPT2Config,
    GPT2ForQuestionAnswering,
    GPT2ForSequenceClassification,
    GPT2ForTokenClassification,
    GPT2LMHeadModel,
    GPT2Model,
    MarianConfig,
    MarianModel,
    MarianMTModel,
    OpenAIGPTConfig,
    OpenAIGPTForSequenceClassification,
    OpenAIGPTLMHeadModel,
    OpenAIGPTModel,
    PreTrainedModel,
)

VOCAB, PAD = 67, 1
TOKENS = {"pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2}

# Odd numbers of heads, feed-forward layers narrower than the model, one layer and several.
BERT_SHAPES: list[dict[str, Any]] = [
    {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 40},
    {"hidden_size": 35, "num_hidden_layers": 1, "num_attention_heads": 7, "intermediate_size": 16},
]
DISTILBERT_SHAPES: list[dict[str, Any]] = [
    {"dim": 24, "n_layers": 3, "n_heads": 3, "hidden_dim": 40},
    {"dim": 35, "n_layers": 1, "n_heads": 7, "hidden_dim": 16},
]
GPT_SHAPES: list[dict[str, Any]] = [
    {"n_embd": 24, "n_layer": 3, "n_head": 3},
    {"n_embd": 35, "n_layer": 1, "n_head": 7},
]
TRANSLATOR_SHAPE: dict[str, Any] = {
    "d_model": 24,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 16,
    "decoder_start_token_id": 2,
    **TOKENS,
}


def randomize(model: nn.Module, scale: float = 0.08) -> Any:
    """Give every weight, those of norms and biases too, a value that its place can be told by."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point() and "embed_positions" not in name:
                noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
                norm = name.endswith("weight") and tensor.ndim == 1
                tensor.copy_(scale * noise + (1.0 if norm else 0.0))
    if isinstance(model, PreTrainedModel):
        model.tie_weights()
    if hasattr(model, "cls") and hasattr(model.cls, "predictions"):
        model.cls.predictions.bias = model.cls.predictions.decoder.bias  # one, though the weights be untied
    return model.eval()


def _bert_like(models: tuple[type, ...], config: type, shapes: list[dict[str, Any]], **fields: Any) -> list:
    common = {"vocab_size": VOCAB, "max_position_embeddings": 320, **TOKENS, **fields}
    return [(model, config, {**common, **shape}) for model in models for shape in shapes]


ENCODERS = [
    *_bert_like(
        (
            *(BertModel, BertForPreTraining, BertForMaskedLM, BertForSequenceClassification),
            *(BertForTokenClassification, BertForQuestionAnswering, BertForMultipleChoice),
            BertForNextSentencePrediction,
        ),
        BertConfig,
        BERT_SHAPES,
    ),
    *_bert_like((BertForMaskedLM,), BertConfig, BERT_SHAPES[:1], tie_word_embeddings=False),
    *_bert_like((BertForMaskedLM,), BertConfig, BERT_SHAPES[:1], hidden_act="relu", type_vocab_size=3),
    *_bert_like(
        (BertForSequenceClassification,), BertConfig, BERT_SHAPES[:1], num_labels=1, layer_norm_eps=1e-3
    ),
    *_bert_like(
        (
            *(DistilBertModel, DistilBertForMaskedLM, DistilBertForSequenceClassification),
            *(DistilBertForTokenClassification, DistilBertForQuestionAnswering, DistilBertForMultipleChoice),
        ),
        DistilBertConfig,
        DISTILBERT_SHAPES,
    ),
    *_bert_like(
        (
            *(BigBirdModel, BigBirdForPreTraining, BigBirdForMaskedLM, BigBirdForSequenceClassification),
            *(BigBirdForTokenClassification, BigBirdForMultipleChoice),
        ),
        BigBirdConfig,
        BERT_SHAPES,
        attention_type="original_full",
    ),
    *_bert_like(
        (BigBirdForMaskedLM,),
        BigBirdConfig,
        BERT_SHAPES[:1],
        attention_type="original_full",
        use_bias=False,
        rescale_embeddings=True,
    ),
]
DECODERS = [
    *_bert_like(
        (
            *(GPT2Model, GPT2LMHeadModel, GPT2ForSequenceClassification, GPT2ForTokenClassification),
            GPT2ForQuestionAnswering,
        ),
        GPT2Config,
        GPT_SHAPES,
    ),
    *_bert_like((OpenAIGPTForSequenceClassification,), OpenAIGPTConfig, GPT_SHAPES[:1]),
    *_bert_like((GPT2LMHeadModel,), GPT2Config, GPT_SHAPES[:1], n_inner=20, tie_word_embeddings=False),
    *_bert_like((OpenAIGPTModel, OpenAIGPTLMHeadModel), OpenAIGPTConfig, GPT_SHAPES),
    *_bert_like((OpenAIGPTLMHeadModel,), OpenAIGPTConfig, GPT_SHAPES[:1], afn="relu"),
]
for _, _, _fields in DECODERS:
    _fields["n_positions"] = _fields.pop("max_position_embeddings")
TRANSLATORS = [
    (MarianMTModel, MarianConfig, {**TRANSLATOR_SHAPE, "vocab_size": VOCAB, **fields})
    for fields in (
        {},
        {"scale_embedding": True, "activation_function": "swish"},
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 71},
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 71, "tie_word_embeddings": False},
    )
]
TRANSLATORS += [(MarianModel, MarianConfig, {**TRANSLATOR_SHAPE, "vocab_size": VOCAB})]
TRANSLATORS += [
    (FSMTForConditionalGeneration, FSMTConfig, {**TRANSLATOR_SHAPE, **fields})
    for fields in (
        {"src_vocab_size": VOCAB, "tgt_vocab_size": 71},
        {"src_vocab_size": VOCAB, "tgt_vocab_size": VOCAB, "tie_word_embeddings": True},
    )
]
ALL = [*ENCODERS, *DECODERS, *TRANSLATORS]


def name_of(case: tuple[type, type, dict[str, Any]]) -> str:
    model, _, fields = case
    width = next(fields[name] for name in ("hidden_size", "dim", "n_embd", "d_model") if name in fields)
    return f"{model.__name__}-{width}"


def build(
    case: tuple[type, type, dict[str, Any]], dtype: torch.dtype = torch.float32, scale: float = 0.08
) -> PreTrainedModel:
    """The model of a case, with random weights and without dropout."""
    model, config, fields = case
    return randomize(model(config(**fields)), scale).to(dtype)


def padded_batch(side: str, length: int = 11) -> dict[str, torch.Tensor]:
    """Rows of different lengths, padded on the left or the right: ids and mask, [3, length]."""
    generator = torch.Generator().manual_seed(1)
    input_ids = torch.randint(3, VOCAB, (3, length), generator=generator)
    mask = torch.ones_like(input_ids)
    for row, missing in enumerate((0, length // 3, length // 2)):
        if missing:
            mask[row, slice(0, missing) if side == "left" else slice(-missing, None)] = 0
    return {"input_ids": input_ids.masked_fill(mask == 0, PAD), "attention_mask": mask}
