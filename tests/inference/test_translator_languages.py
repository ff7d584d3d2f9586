"""A model of several languages is told which to write, or refuses."""

import json
from pathlib import Path

import pytest

from library_translators import save_translator
from vaswani import Translator
from vaswani.errors import UserError


@pytest.mark.parametrize("kind", ["nllb", "m2m100", "mbart50"])
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
    generation = folder / "generation_config.json"
    chosen = Translator.from_pretrained(folder, max_length=6, target_language=language).start_options
    generation.write_text(json.dumps({**json.loads(generation.read_text()), **chosen}))
    assert list(Translator.from_pretrained(folder, max_length=6).translate(sentences)) == expected
