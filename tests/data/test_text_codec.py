"""What a `TextCodec` makes of texts is what the tokenizer itself makes of them, whoever else calls it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from toy_translation import WORDS
from vaswani.data.text_codec import TextCodec
from vaswani.data.tokenization import byte_tokenizer, load_tokenizers, train_tokenizer
from vaswani.errors import UserError

TEXTS = [" ".join(WORDS), "one", "two one", ""]


def own_tokenizers() -> dict[str, PreTrainedTokenizerBase]:
    trained: dict[str, PreTrainedTokenizerBase] = {
        purpose: train_tokenizer([TEXTS], 290, purpose=purpose)  # type: ignore[arg-type]
        for purpose in ("translation", "masked", "causal")
    }
    return {**trained, "bytes": byte_tokenizer(purpose="causal")}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["translation", "masked", "causal", "bytes"])
def test_a_frame_cuts_tokens_as_the_tokenizer_itself_does(name: str, side: str) -> None:
    tokenizer = own_tokenizers()[name]
    tokenizer.truncation_side = side
    codec = TextCodec(tokenizer)
    whole, frame = codec.token_ids(TEXTS), codec.frame()
    assert len(frame) == tokenizer.num_special_tokens_to_add()
    for most in range(len(frame), 14):
        expected = tokenizer(TEXTS, truncation=True, max_length=most)["input_ids"]
        assert [frame.cut(row, most) for row in whole] == expected
    assert codec.token_ids(TEXTS) == whole  # the tokenizer's own truncation does not last


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_limit_that_leaves_only_special_tokens_is_refused(most: int) -> None:
    frame = TextCodec(own_tokenizers()["masked"]).frame()
    with pytest.raises(UserError, match=f"max_length={most} leaves nothing .* 2 special .* give 3 or more"):
        frame.check_room(max_length=most)
    frame.check_room(max_length=3, max_source_length=None)


# The tokenizers library is written in Rust, whose panics no `except Exception` catches.


def panicking(**parts: Any) -> Tokenizer:
    """A tokenizer whose files were edited: parts of it refer to what is not there."""
    content = json.loads(Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>")).to_str())
    return Tokenizer.from_str(json.dumps({**content, **parts}))


def test_a_tokenizer_that_panics_when_it_encodes_is_named() -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[S]", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    }
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=panicking(post_processor=template))
    tokenizer.name_or_path = "runs/edited"
    with pytest.raises(UserError, match=r"^the tokenizer runs/edited fails \(no entry found"):
        TextCodec(tokenizer).token_ids(["a"])


def test_a_tokenizer_that_panics_when_it_decodes_is_named() -> None:
    backend = panicking()
    backend.decoder = decoders.Strip("a", 0, 5)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.name_or_path = "runs/edited"
    with pytest.raises(UserError, match=r"^the tokenizer runs/edited fails"):
        TextCodec(tokenizer).decode([[0, 1]])


def test_a_tokenizer_that_panics_when_it_is_loaded_is_named(tmp_path: Path) -> None:
    PreTrainedTokenizerFast(tokenizer_object=panicking(), unk_token="<unk>").save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"the tokenizer in {tmp_path} fails"):
        load_tokenizers(tmp_path)
