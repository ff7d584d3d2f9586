"""Toy documents: sentences of a small grammar, which a tiny language model learns something of."""

import random
from pathlib import Path

from jsonl import write_jsonl

ANIMALS = ["dog", "cat", "horse", "elephant", "hedgehog", "nightingale"]
DEEDS = ["sleeps", "runs home", "eats an apple", "looks out of the window", "sings"]


def toy_documents(count: int, seed: int = 0, sentences: int = 6) -> list[str]:
    """Each about an animal of its own, a sentence a line."""
    generator = random.Random(seed)
    documents = []
    for _ in range(count):
        animal, length = generator.choice(ANIMALS), generator.randint(1, 2 * sentences - 1)
        documents.append("\n".join(f"The {animal} {generator.choice(DEEDS)}." for _ in range(length)))
    return documents


def write_texts(folder: Path, **counts: int) -> dict[str, str]:
    """`{"train_file": path, ...}` of so many documents for each split."""
    files = {}
    for seed, (split, count) in enumerate(counts.items()):
        path = folder / f"{split}.jsonl"
        rows = ({"text": text, "number": i} for i, text in enumerate(toy_documents(count, seed)))
        write_jsonl(path, rows)
        files[f"{split}_file"] = str(path)
    return files
