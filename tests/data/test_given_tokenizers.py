"""Given tokenizers: SentencePiece models, and library tokenizers prepared for pairs of texts."""

import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from transformers import AutoTokenizer

from given_tokenizers import TEXTS, bert, gpt2, write_sentencepiece
from vaswani.data.given_tokenizers import prepare_for_pairs, special_tokens
from vaswani.data.sentencepiece_models import sentencepiece_tokenizer
from vaswani.data.text_codec import TextCodec
from vaswani.errors import UserError

AWKWARD = [
    *(
        "",
        "  ",
        " the  big\tcat ",
        "ｆｕｌｌ ﬁne",
        "中文 😀😀",
        "½ ™ é",
        "▁the ▁ cat",
        "<sep>cat",
        "a\u00a0b\u200bc\n",
    ),
]
MODELS: list[dict[str, Any]] = [
    {"model_type": "unigram"},
    {"model_type": "bpe"},
    {"model_type": "unigram", "byte_fallback": True, "vocab_size": 320},
    {"model_type": "bpe", "byte_fallback": True, "vocab_size": 320},
    {"model_type": "unigram", "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    {"model_type": "bpe", "add_dummy_prefix": False, "pad_id": 3},
    {"model_type": "unigram", "user_defined_symbols": ["<sep>"], "split_by_whitespace": False},
]


@pytest.mark.parametrize("options", MODELS, ids=lambda options: " ".join(map(str, options.values())))
def test_a_sentencepiece_model_gives_its_own_tokens(options: dict[str, Any], tmp_path: Path) -> None:
    file = write_sentencepiece(tmp_path / "spm.model", **options)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(file))
    sentencepiece_tokenizer(file).save_pretrained(tmp_path)
    file.rename(tmp_path / "away")
    ours = AutoTokenizer.from_pretrained(tmp_path)
    assert len(ours) == theirs.vocab_size()
    texts = [*TEXTS, *AWKWARD]
    ids = ours(texts, add_special_tokens=False).input_ids
    assert ids == theirs.encode(texts)
    assert ours.batch_decode(ids[: len(TEXTS)]) == TEXTS
    assert (ours.unk_token_id, ours.bos_token_id, ours.eos_token_id) == (0, 1, 2)
    assert ours.pad_token_id == options.get("pad_id")


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"])
def test_half_width_katakana_with_sound_marks(rule: str, tmp_path: Path) -> None:
    texts = [f"{chr(code)}{mark}ｽ" for code in range(0xFF61, 0xFFA0) for mark in ("ﾞ", "ﾟ", "")]
    options = {"normalization_rule_name": rule, "byte_fallback": True, "vocab_size": 320}
    file = write_sentencepiece(tmp_path / "spm.model", **options)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(file))
    assert sentencepiece_tokenizer(file)(texts, add_special_tokens=False).input_ids == theirs.encode(texts)


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"])
def test_decomposed_letters_are_composed(rule: str, tmp_path: Path) -> None:
    texts = ["나는 학교에 갑니다", "오늘 날씨가 좋습니다", "Tôi đi học ở trường", "Điều này rất tốt", "Ça va"]
    options = {"normalization_rule_name": rule, "vocab_size": 120}
    file = write_sentencepiece(tmp_path / "spm.model", texts * 9, **options)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(file))
    apart = [unicodedata.normalize("NFD", text) for text in texts]
    ours = sentencepiece_tokenizer(file)(apart, add_special_tokens=False).input_ids
    assert ours == theirs.encode(apart) == theirs.encode(texts)


def test_the_text_of_a_control_symbol_is_text(tmp_path: Path) -> None:
    ours = sentencepiece_tokenizer(
        write_sentencepiece(tmp_path / "spm.model", byte_fallback=True, vocab_size=320)
    )
    (ids,) = TextCodec(ours).token_ids(["</s> <s> cat"], add_special_tokens=False)
    assert not {ours.eos_token_id, ours.bos_token_id} & set(ids)
    assert ours.decode(ids) == "</s> <s> cat"


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_the_name_of_a_byte_is_text(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"byte_fallback": True, "vocab_size": 340, "user_defined_symbols": ["<sep>"]}
    ours = sentencepiece_tokenizer(write_sentencepiece(tmp_path / "spm.model", model_type=kind, **options))
    texts = ["the byte <0x41> cat", "cat<sep><0x41>", "<0x41>", "A ж"]
    ids = TextCodec(ours).token_ids(texts, add_special_tokens=False)
    assert ours.convert_tokens_to_ids("<0x41>") not in [*ids[0], *ids[1], *ids[2]]
    assert [ours.decode(row) for row in ids] == texts


@pytest.mark.parametrize("fault", ["truncated", "text", "empty", "words"])
def test_an_invalid_sentencepiece_model_raises_an_error(fault: str, tmp_path: Path) -> None:
    file = write_sentencepiece(tmp_path / "spm.model", model_type="word" if fault == "words" else "unigram")
    contents = {"truncated": file.read_bytes()[:-20], "text": b"the big cat", "empty": b""}
    file.write_bytes(contents.get(fault, file.read_bytes()))
    with pytest.raises(UserError, match=r"spm\.model"):
        sentencepiece_tokenizer(file)


# --------------------------------------------------------------------------- tokenizers for pairs of texts


def of_sentencepiece(folder: Path) -> Any:
    return sentencepiece_tokenizer(write_sentencepiece(folder / "spm.model"))


@pytest.mark.parametrize(
    "make",
    [bert, gpt2, lambda folder: gpt2(folder, begins=True), of_sentencepiece],
    ids=["bert", "gpt2", "llama", "spm"],
)
def test_prepared_tokenizers_end_and_pad_texts_even_after_reloading(make: Any, tmp_path: Path) -> None:
    given = make(tmp_path)
    before = given(TEXTS[0]).input_ids
    ready = prepare_for_pairs(given, "mine")
    shutil.rmtree(tmp_path)
    ready.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ids = loaded(TEXTS[0]).input_ids
    end = special_tokens(loaded, loaded)["eos_token_id"]
    assert ids == (before if before[-1] == end else [*before, end])
    assert TextCodec(loaded, "target").ends_sequences()
    assert loaded.pad_token_id not in {
        None,
        end,
        *(token for row in loaded(TEXTS).input_ids for token in row),
    }
    assert loaded.padding_side == "right"
    assert given(TEXTS[0]).input_ids == before


def test_targets_begin_with_the_first_token_or_else_with_padding(tmp_path: Path) -> None:
    tokenizer = prepare_for_pairs(bert(tmp_path), "bert")
    assert special_tokens(tokenizer, tokenizer) == {
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "decoder_start_token_id": 2,
    }
    tokenizer = prepare_for_pairs(of_sentencepiece(tmp_path), "spm")
    tokenizer.bos_token = None
    assert special_tokens(tokenizer, tokenizer)["decoder_start_token_id"] == tokenizer.pad_token_id


def test_tokenizers_that_pad_differently_are_refused(tmp_path: Path) -> None:
    pair = prepare_for_pairs(bert(tmp_path), "bert"), prepare_for_pairs(of_sentencepiece(tmp_path), "spm")
    with pytest.raises(UserError, match="pads with the token 0"):
        special_tokens(*pair)


def test_a_tokenizer_without_an_end_is_refused(tmp_path: Path) -> None:
    tokenizer = gpt2(tmp_path)
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="mine has no token that ends a text"):
        prepare_for_pairs(tokenizer, "mine")
