"""An encoder's checkpoint is a sentence-transformers model as it is, with the vectors of our mean pooling."""

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, PreTrainedModel

from toy_translation import WORDS, toy_sources
from vaswani import VaswaniEncoderConfig, VaswaniEncoderModel, VaswaniForMaskedLM
from vaswani.data.tokenization import train_tokenizer
from vaswani.inference.embed.embedding import Embedder
from vaswani.interop.folders import convert_folder

sentence_transformers = pytest.importorskip(
    "sentence_transformers", reason="needs sentence-transformers, which `pip install -e .[dev]` installs"
)

TEXTS = [*toy_sources(6, seed=-1), *toy_sources(2, seed=-2, longest=30), "", "one", " two ", "日本 🙂"]
OURS = {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24}
THEIRS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def encoders() -> dict[str, PreTrainedModel]:
    torch.manual_seed(0)
    spread = {"vocab_size": 295, "initializer_range": 0.5}  # so that texts differ widely
    return {
        "masked_lm": VaswaniForMaskedLM(VaswaniEncoderConfig(**OURS, **spread)),
        "pre_norm": VaswaniEncoderModel(
            VaswaniEncoderConfig(**OURS, **spread, norm_order="pre", position_embedding="sinusoidal")
        ),
        "library": BertModel(BertConfig(**THEIRS, **spread)),
    }


@pytest.mark.parametrize("kind", ["masked_lm", "pre_norm", "library"])
def test_sentence_transformers_gives_the_vectors_of_the_embedder(kind: str, tmp_path: Path) -> None:
    encoders()[kind].save_pretrained(tmp_path)
    train_tokenizer([" ".join(WORDS)] * 2, 300, purpose="masked").save_pretrained(tmp_path)
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    expected = torch.from_numpy(theirs.encode(TEXTS))
    embedder = Embedder.from_pretrained(tmp_path, device="cpu")
    vectors = embedder.embed(TEXTS)
    torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-5)
    tokens = theirs.encode(TEXTS[:2], output_value="token_embeddings")
    for own, other in zip(embedder.embed_tokens(TEXTS[:2]), tokens, strict=True):
        torch.testing.assert_close(own.vectors, other.cpu(), rtol=0, atol=1e-5)


def test_a_converted_model_keeps_its_pooling_and_normalization(tmp_path: Path) -> None:
    tokenizer = train_tokenizer([" ".join(WORDS)] * 2, 300, purpose="masked")
    model = BertModel(BertConfig(**THEIRS, vocab_size=len(tokenizer), initializer_range=0.5))
    model.save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    from sentence_transformers.sentence_transformer import modules  # slow to import

    parts = [modules.Transformer(str(tmp_path / "bert")), modules.Pooling(16, "cls"), modules.Normalize()]
    given = sentence_transformers.SentenceTransformer(modules=parts, device="cpu")
    given.save(str(tmp_path / "given"))
    expected = torch.from_numpy(given.encode(TEXTS))
    convert_folder(str(tmp_path / "given"), tmp_path / "ours")
    convert_folder(str(tmp_path / "ours"), tmp_path / "back", to="bert")
    for name in ("ours", "back"):
        embedder = Embedder.from_pretrained(tmp_path / name, device="cpu")
        assert embedder.pooling == "cls"
        torch.testing.assert_close(embedder.embed(TEXTS), expected, rtol=0, atol=1e-5)
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    torch.testing.assert_close(torch.from_numpy(theirs.encode(TEXTS)), expected, rtol=0, atol=1e-5)
