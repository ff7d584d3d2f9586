"""A multilingual model needs a target language, or raises an error."""

import json
from pathlib import Path

import pytest

from library_translators import save_translator
from vaswani import Translator
from vaswani.errors import UserError


@pytest.mark.parametrize("kind", ["nllb", "m2m100", "mbart50", "mbart"])
def test_a_language_has_to_be_chosen(kind: str, tmp_path: Path) -> None:
    folder = save_translator(kind, tmp_path / "model")
    path = folder / "tokenizer_config.json"
    known = json.loads(path.read_text())
    language = known["tgt_lang"]
    path.write_text(json.dumps({**known, "tgt_lang": None}))
    with pytest.raises(UserError, match=rf"none is chosen; give target_language \(.*'{language}'"):
        Translator.from_pretrained(folder, max_length=6)
    sentences = ["the big cat"]
    expected = list(
        Translator.from_pretrained(folder, max_length=6, target_language=language).translate(sentences)
    )
    chosen = Translator.from_pretrained(folder, max_length=6, target_language=language).start_options
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **chosen}))
    assert list(Translator.from_pretrained(folder, max_length=6).translate(sentences)) == expected


def test_special_tokens_that_contradict_each_other_are_named(tmp_path: Path) -> None:
    folder = save_translator("mbart", tmp_path / "model")
    path = folder / "generation_config.json"
    generation = json.loads(path.read_text())
    known = json.loads((folder / "config.json").read_text())["decoder_start_token_id"]
    path.write_text(json.dumps({**generation, "decoder_start_token_id": known + 1}))
    told = f"decoder_start_token_id={known + 1}, and config.json has decoder_start_token_id={known}"
    with pytest.raises(UserError, match=told):
        Translator.from_pretrained(folder)
