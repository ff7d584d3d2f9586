"""Train an encoder whose vectors are similar for texts of one meaning, and search with it. Takes 20 seconds.

    python examples/07_semantic_search.py [MODEL]

The texts are days, written in English, French and German. MODEL is a folder; if it does not exist, a model is
trained there: a text and the ISO form of its day become more similar than texts of different days. The folder
is a sentence-transformers model as well: `SentenceTransformer("runs/example-search")`.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from sentence_transformers.util import semantic_search

from vaswani import VaswaniEncoderConfig, VaswaniEncoderModel
from vaswani.data.sources.dates import generate_dates
from vaswani.data.tokenization import train_tokenizer
from vaswani.inference.embed.embedding import Embedder

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/example-search")
days = generate_dates("de,en,fr", train_rows=8000, validation_rows=100, test_rows=600)
corpus, queries = days["test"]["source"][:], days["test"]["target"][:]  # texts, and their days in ISO form


def share_found(embedder: Embedder) -> float:
    """Return how often the text most similar to an ISO date is of its day; no such day is in training."""
    found = semantic_search(embedder.embed(queries), embedder.embed(corpus), top_k=1)
    nearest = [queries[results[0]["corpus_id"]] for results in found]
    return sum(map(str.__eq__, nearest, queries)) / len(queries)


def train() -> None:
    """Contrast each pair of a batch with all others in it (Henderson et al., 2017, arXiv:1705.00652)."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer(
        [*days["train"]["source"], *days["train"]["target"]], vocab_size=600, purpose="masked"
    )
    sizes = {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 128}
    model = VaswaniEncoderModel(VaswaniEncoderConfig(vocab_size=len(tokenizer), pooler=False, **sizes))
    print(f"untrained, {share_found(Embedder(model, tokenizer)):.0%} are found")

    def embed(texts: list[str]) -> torch.Tensor:
        """Return normalized mean vectors, as `Embedder` does, with gradients."""
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        is_token = batch["attention_mask"][..., None]
        states = model(**batch).last_hidden_state * is_token
        return F.normalize(states.sum(dim=1) / is_token.sum(dim=1), dim=1)

    optimizer = torch.optim.Adam(model.train().parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=300)
    for step in range(300):
        rows = days["train"].shuffle(seed=step)[:128]
        cosines = embed(rows["source"]) @ embed(rows["target"]).T
        F.cross_entropy(20 * cosines, torch.arange(len(cosines))).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if not (folder / "config.json").is_file():
    train()
embedder = Embedder.from_pretrained(folder, pooling="mean", normalize=True)
print(f"trained, {share_found(embedder):.0%} are found")

results = semantic_search(embedder.embed(queries[:3]), embedder.embed(corpus), top_k=3)
for query, found in zip(queries, results, strict=False):
    print(query)
    for result in found:
        print(f"  {result['score']:.3f}  {corpus[result['corpus_id']]}")
