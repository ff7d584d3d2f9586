"""sacreBLEU's BLEU with a tokenizer for the script of the texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import regex

from vaswani.data.text.scripts import HAN, KANA, SOUTHEAST

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU


def bleu_metric(references: Sequence[str], lowercase: bool = False) -> BLEU:
    """Return sacreBLEU's BLEU with a tokenizer for the script of the references; its signature names it.

    Most languages use sacreBLEU's default, `13a`; Chinese uses `zh`. Japanese and other languages that put no
    spaces between words use `char`, which makes each character a token.

    Args:
        references: the texts to compare with.
        lowercase: ignore case.
    """
    from sacrebleu.metrics.bleu import BLEU

    text = "".join(references)
    letters = sum(map(str.isalpha, text))
    han, others = (len(regex.findall(f"[{script}]", text)) for script in (HAN, KANA + SOUTHEAST))
    tokenize = None if 2 * (han + others) <= letters else "char" if 10 * others > han else "zh"
    return BLEU(lowercase=lowercase, tokenize=tokenize)
