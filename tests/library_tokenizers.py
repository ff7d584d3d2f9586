"""Folders with the files of the library's translation tokenizers, made of two small languages.

Sources and targets have no word in common: a text that is encoded as one of the other side falls to pieces.
"""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

SOURCES = [
    f"the {size} {animal} sees {number} dogs"
    for size in ("big", "small")
    for animal in ("cat", "cow", "hen")
    for number in ("two", "three", "nine")
]
TARGETS = [
    f"{size} {animal} hört {number} Vögel"
    for size in ("große", "kleine")
    for animal in ("Katze", "Kuh", "Henne")
    for number in ("zwei", "drei", "neun")
]


def _spm(texts: list[str], path: Path, kind: str, vocab_size: int) -> list[str]:
    """Write a sentencepiece model; returns its pieces without the special ones."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        model_type=kind,
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        character_coverage=1.0,
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [pieces.id_to_piece(number) for number in range(3, len(pieces))]


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def _numbered(*names: str) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def marian(folder: Path, separate_vocabs: bool = False) -> None:
    """OPUS-MT's: a sentencepiece model of each side, and one vocabulary or two."""
    source = _spm(SOURCES, folder / "source.spm", "unigram", 60)
    target = _spm(TARGETS, folder / "target.spm", "unigram", 60)
    specials = ("</s>", "<unk>")
    if separate_vocabs:
        _write(folder / "vocab.json", _numbered(*specials, "<pad>", *source))
        _write(folder / "target_vocab.json", _numbered(*specials, "<pad>", *target))
    else:
        _write(folder / "vocab.json", _numbered(*specials, *source, *target, "<pad>"))
    languages = {"source_lang": "en", "target_lang": "de", "separate_vocabs": separate_vocabs}
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "MarianTokenizer", **languages})


def fsmt(folder: Path) -> None:
    """fairseq's of WMT19: common merges, and a vocabulary of each side."""
    bpe = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    bpe.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    bpe.train_from_iterator(
        SOURCES + TARGETS, trainers.BpeTrainer(vocab_size=150, end_of_word_suffix="</w>", show_progress=False)
    )
    merges = json.loads(bpe.to_str())["model"]["merges"]
    (folder / "merges.txt").write_text("".join(f"{' '.join(pair)} 1\n" for pair in merges))
    specials = ("<s>", "<pad>", "</s>", "<unk>")
    for name, texts in (("src", SOURCES), ("tgt", TARGETS)):
        used = {token for encoding in bpe.encode_batch(texts) for token in encoding.tokens}
        _write(folder / f"vocab-{name}.json", _numbered(*specials, *sorted(used)))
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "FSMTTokenizer", "langs": ["en", "de"]})


def _multilingual(kind: str, model: str, *languages: str, **settings: object) -> Callable[[Path], None]:
    """One sentencepiece model of both sides, whose texts are marked with their language."""

    def make(folder: Path) -> None:
        pieces = _spm(SOURCES + TARGETS, folder / "sentencepiece.bpe.model", model, 90)
        _write(folder / "vocab.json", _numbered("<s>", "<pad>", "</s>", "<unk>", *pieces))
        sides = dict(zip(("src_lang", "tgt_lang"), languages, strict=True))
        _write(folder / "tokenizer_config.json", {"tokenizer_class": kind, **sides, **settings})

    return make


KINDS: dict[str, Callable[[Path], None]] = {
    "marian": marian,
    "marian of two vocabularies": lambda folder: marian(folder, separate_vocabs=True),
    "fsmt": fsmt,
    "m2m100": _multilingual(
        *("M2M100Tokenizer", "unigram", "en", "de"),
        additional_special_tokens=[f"__{code}__" for code in FAIRSEQ_LANGUAGE_CODES["m2m100"]],
    ),
    "nllb": _multilingual(
        "NllbTokenizer", "bpe", "eng_Latn", "deu_Latn", extra_special_tokens=["eng_Latn", "deu_Latn"]
    ),
    "mbart": _multilingual("MBartTokenizer", "unigram", "en_XX", "de_DE"),
    "mbart50": _multilingual("MBart50Tokenizer", "unigram", "en_XX", "de_DE"),
}


@pytest.fixture(scope="session")
def library_tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each kind."""
    folders = {}
    for name, make in KINDS.items():
        folders[name] = tmp_path_factory.mktemp(name.replace(" ", "-"))
        make(folders[name])
    return folders
