"""Toy questions on texts, as in SQuAD, that a tiny encoder learns in seconds: who was there, and where.

The encoders are those of `toy_labels`.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonl import write_jsonl
from toy_labels import CITIES, FILLERS, KINDS

ASKED = {"who": KINDS["names"], "where": CITIES}


def toy_questions(
    count: int, seed: int, unanswerable: float = 0.0, words: int = 9
) -> Iterator[dict[str, Any]]:
    """Rows with `id`, `context`, `question` and `answers`; an answer is one word, or two names.

    Args:
        count: rows.
        seed: of the rows.
        unanswerable: share of the questions that have no answer, as their text lacks such a word.
        words: most fillers of a text.
    """
    generator = random.Random(seed)
    for number in range(count):
        asked = generator.choice(list(ASKED))
        fillers = generator.choices(FILLERS, k=generator.randint(3, words))
        texts = {kind: " ".join(generator.sample(of, 1 + (kind == "who"))) for kind, of in ASKED.items()}
        if generator.random() < unanswerable:
            del texts[asked]
        for text in texts.values():
            fillers.insert(generator.randrange(len(fillers)), text)
        context = " ".join(fillers)
        answers = [texts[asked]] if asked in texts else []
        starts = [f" {context} ".index(f" {text} ") for text in answers]
        yield {
            "id": f"{seed}-{number}",
            "context": context,
            "question": asked,
            "answers": {"text": answers, "answer_start": starts},
        }


def nested(rows: list[dict[str, Any]], version: str = "v2.0") -> dict[str, Any]:
    """The same rows as SQuAD's own JSON."""
    paragraphs = [
        {
            "context": row["context"],
            "qas": [
                {
                    "id": row["id"],
                    "question": row["question"],
                    "answers": [
                        {"text": text, "answer_start": start}
                        for text, start in zip(*row["answers"].values(), strict=True)
                    ],
                    **({"is_impossible": not row["answers"]["text"]} if version == "v2.0" else {}),
                }
            ],
        }
        for row in rows
    ]
    return {"version": version, "data": [{"title": "toys", "paragraphs": paragraphs}]}


def write_toy_questions(folder: Path, unanswerable: float = 0.0, **options: Any) -> Path:
    """A folder of splits: JSON Lines, and SQuAD's own JSON for the validation."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (split, count) in enumerate({"train": 300, "validation": 40, "test": 40}.items()):
        rows = list(toy_questions(count, seed, unanswerable, **options))
        if split == "validation":
            (folder / f"{split}.json").write_text(json.dumps(nested(rows)), encoding="utf-8")
        else:
            write_jsonl(folder / f"{split}.jsonl", rows)
    return folder
