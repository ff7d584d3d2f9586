"""The page holds the weights of the maps, and its texts are escaped."""

import base64
import html
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from attention_maps import ENGLISH, GERMAN, attention_map, maps_of_pair
from vaswani.errors import UserError
from vaswani.insight.attention_page import attention_page, page


class Elements(HTMLParser):
    """The start tags, and the text of the elements `title` and `script`."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] in ("title", "script"):
            self.texts.append(data)


def data_of(text: str) -> list[dict]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])["maps"]


def weights_of(packed: dict) -> np.ndarray:
    steps = np.frombuffer(zlib.decompress(base64.b64decode(packed["weights"])), dtype="<u2")
    return steps.reshape(packed["shape"]) / page.STEPS


def test_the_page_holds_the_weights() -> None:
    maps = maps_of_pair(ENGLISH, GERMAN)
    held = data_of(attention_page(maps).html)
    assert [each["kind"] for each in held] == ["encoder", "decoder", "cross"]
    for each, of_map in zip(held, maps, strict=True):
        for packed, expected in ((each["tokens"], of_map), (each["words"], of_map.words())):
            packed = packed or each["tokens"]  # no words where all tokens are words
            assert (tuple(packed["queries"]), tuple(packed["keys"])) == (expected.queries, expected.keys)
            np.testing.assert_allclose(weights_of(packed), expected.weights, atol=0.51 / page.STEPS)


def test_words_are_left_out_if_each_token_is_a_word() -> None:
    (held,) = data_of(attention_page([attention_map("encoder", tuple("ab"), tuple("ab")).words()]).html)
    assert held["words"] is None


def test_markup_in_tokens_is_escaped() -> None:
    hostile = (
        "</script><script>x()</script>",
        "<!--",
        "<b>",
        "&amp;",
        "{{style}}",
        "\u2028",
        "\ud800",
        "'\"\\",
    )
    made = attention_page([attention_map("encoder", hostile, hostile)], title="<img src=x> & {{data}}").html
    assert tuple(data_of(made)[0]["tokens"]["queries"]) == hostile
    elements = Elements(made)
    assert "<img src=x> & {{data}}" in elements.texts
    names = [name for name, _ in elements.tags]
    assert names.count("script") == 2
    assert not {"img", "b"} & set(names)
    made.encode()


def test_the_page_loads_nothing_external() -> None:
    made = attention_page(maps_of_pair(ENGLISH, GERMAN)).html
    attributes = [
        value for _, given in Elements(made).tags for name, value in given.items() if name in ("src", "href")
    ]
    assert not attributes
    assert re.findall(r"https?://[^\"]*", made) == ["http://www.w3.org/2000/svg"]  # a name
    assert "default-src 'none'" in made


def test_a_notebook_gets_a_frame_with_the_page() -> None:
    made = attention_page(maps_of_pair(ENGLISH, GERMAN), title='"Two" & <more>')
    ((tag, attributes),) = Elements(made._repr_html_()).tags
    assert tag == "iframe"
    assert attributes["srcdoc"] == made.html
    assert attributes["title"] == made.title
    assert html.unescape(made._repr_html_()).count("<script") == 2


def test_a_page_is_saved(tmp_path: Path) -> None:
    made = attention_page(maps_of_pair(ENGLISH, GERMAN))
    made.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == made.html + "\n"
    with pytest.raises(UserError, match=r"cannot write .*create the folder .*none first"):
        made.save(tmp_path / "none" / "page.html")


def test_missing_non_finite_or_too_many_weights_raise_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no attention to show"):
        attention_page([])
    broken = attention_map("cross", GERMAN, ENGLISH)
    broken = replace(broken, weights=torch.full_like(broken.weights, float("nan")))
    with pytest.raises(UserError, match="the weights of cross attention are not finite"):
        attention_page([broken])
    maps = maps_of_pair(ENGLISH, GERMAN)
    count = sum(each.weights.numel() for each in maps)
    monkeypatch.setattr(page, "MAX_WEIGHTS", count)
    attention_page(maps)
    monkeypatch.setattr(page, "MAX_WEIGHTS", count - 1)
    with pytest.raises(
        UserError, match=f"at most {count - 1:,} weights, and these texts give {count:,}; give"
    ):
        attention_page(maps)
