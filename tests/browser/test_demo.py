"""The demo in a browser: what its users type, click and read."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from chromium import WatchedPages
from playwright.sync_api import Page, expect

from toy_labels import save_toy_answerer, save_toy_classifier, save_toy_decoder, save_toy_encoder
from toy_translation import toy_model, toy_tokenizer
from vaswani import Translator
from vaswani.demo import build_demo, open_model
from vaswani.demo.server import launch_options

EXTRA = {"server_name": "127.0.0.1", "prevent_thread_lock": True, "quiet": True}
SPARSE = {"encoder_attention": "sparse", "sparse_block_size": 4, "sparse_window_blocks": 1}
LOOKS = [("desktop", "light"), ("desktop", "dark"), ("phone", "light"), ("phone", "dark")]


def translator(**fields: Any) -> Translator:
    return Translator(
        toy_model(**fields), toy_tokenizer(), num_beams=3, max_source_length=40, too_long="skip"
    )


@pytest.fixture(scope="module")
def models() -> dict[str, Translator]:
    return {"teacher": translator(), "student": translator(**SPARSE)}


@pytest.fixture(scope="module")
def addresses(
    models: dict[str, Translator], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Addresses of pages with one model, with two, and with other kinds of models."""
    folder = tmp_path_factory.mktemp("models")
    of_kinds = {
        "masked": open_model(save_toy_encoder(folder / "masked"), device="cpu"),
        "causal": open_model(save_toy_decoder(folder / "causal"), device="cpu"),
        "answers": open_model(save_toy_answerer(folder / "answers"), device="cpu"),
        "labels": open_model(save_toy_classifier(folder / "labels", "classification"), device="cpu"),
    }
    served = {
        "one": build_demo({"teacher": models["teacher"]}, ["four five", "six"]),
        "two": build_demo(models),
        **{
            name: build_demo({name: model}, [("where", "bob saw rome")] if name == "answers" else [])
            for name, model in of_kinds.items()
        },
    }
    yield {name: page.launch(**launch_options(), **EXTRA)[1] for name, page in served.items()}
    for page in served.values():
        page.close(verbose=False)


def write(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Text", exact=True).fill(text)


def answers(page: Page) -> Any:
    return page.get_by_role("textbox", name="Translation")


@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize(("viewport", "colors"), LOOKS)
def test_a_text_is_translated_while_it_is_typed(
    pages: WatchedPages, addresses: dict[str, str], models: dict[str, Translator], viewport: str, colors: str
) -> None:
    page = pages.open(addresses["one"], viewport=viewport, colors=colors)
    page.get_by_role("textbox", name="Text", exact=True).press_sequentially("one two three")
    (expected,) = models["teacher"].translate(["one two three"], n_best=3)
    expect(answers(page)).to_have_value(expected.text)
    rows = page.get_by_role("table", name="Hypotheses").get_by_role("row").all_inner_texts()
    assert [row.split("\t") for row in rows[1:]] == [
        [each.text, f"{each.score:.3f}", f"{each.log_prob:.3f}"] for each in expected.hypotheses
    ]
    assert page.get_by_role("heading", name="Text: 4 tokens").is_visible()
    assert re.search(r"^\d+ ms$", page.inner_text("body"), flags=re.MULTILINE)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    pages.check_accessibility(page)


def test_an_example_is_translated(pages: WatchedPages, addresses: dict[str, str]) -> None:
    page = pages.open(addresses["one"])
    page.get_by_role("button", name="four five").click()
    expect(page.get_by_role("textbox", name="Text", exact=True)).to_have_value("four five")
    expect(answers(page)).not_to_have_value("")


def test_errors_are_shown_on_the_page(
    pages: WatchedPages, addresses: dict[str, str], models: dict[str, Translator], monkeypatch: Any
) -> None:
    page = pages.open(addresses["one"])
    write(page, "one " * 40)
    expect(page.get_by_role("alert")).to_have_text(
        "the text has 41 tokens, and the model reads at most 40; shorten it"
    )
    expect(answers(page)).to_have_value("")
    pages.check_accessibility(page)
    monkeypatch.setattr(models["teacher"].engine, "search", lambda *_, **__: 1 / 0)
    write(page, "one")
    expect(page.get_by_role("alert")).to_have_text("ZeroDivisionError: division by zero")
    monkeypatch.undo()
    page.get_by_role("button", name="Translate").click()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(answers(page)).not_to_have_value("")


@pytest.mark.parametrize(("viewport", "colors"), [LOOKS[0], LOOKS[3]])
def test_two_models_are_shown_side_by_side(
    pages: WatchedPages, addresses: dict[str, str], models: dict[str, Translator], viewport: str, colors: str
) -> None:
    page = pages.open(addresses["two"], viewport=viewport, colors=colors)
    write(page, "one two three four")
    for place, (name, model) in enumerate(models.items()):
        expect(answers(page).nth(place)).to_have_value(model(["one two three four"])[0])
        assert page.get_by_role("heading", name=name, exact=True).is_visible()
    first, second = (answers(page).nth(place).bounding_box() for place in range(2))
    assert first is not None
    assert second is not None
    assert (first["y"] == second["y"]) == (viewport == "desktop")
    pages.check_accessibility(page)


def test_attention_is_updated_when_the_text_changes(pages: WatchedPages, addresses: dict[str, str]) -> None:
    page = pages.open(addresses["one"])
    write(page, "one two three")
    expect(answers(page)).not_to_have_value("")
    page.get_by_role("button", name="Attention").click()
    frame = page.frame_locator("iframe")
    expect(frame.get_by_text("three").first).to_be_visible()
    write(page, "seven eight")
    expect(frame.get_by_text("seven").first).to_be_visible()
    pages.check_accessibility(page)
    page.get_by_role("button", name="Attention").click()
    expect(page.locator("iframe")).not_to_be_visible()


def test_the_sparse_pattern_is_drawn_for_models_that_have_one(
    pages: WatchedPages, addresses: dict[str, str]
) -> None:
    page = pages.open(addresses["two"], colors="dark")
    write(page, "one two three four five")
    expect(page.get_by_role("button", name="Attention")).to_have_count(2)
    page.get_by_role("button", name="Sparse pattern").click()
    picture = page.get_by_role("img", name="Sparse pattern of 2 heads over 16 blocks")
    expect(picture).to_have_count(1)  # of the two themes one
    assert "6 tokens fill 2 of the blocks of 4 tokens" in page.inner_text("body")
    pages.check_accessibility(page)


def test_masked_words_are_filled_in(pages: WatchedPages, addresses: dict[str, str]) -> None:
    page = pages.open(addresses["masked"], viewport="phone")
    box = page.get_by_role("textbox", name="Text with <mask> for each word to fill in")
    box.fill("ann saw")
    expect(page.get_by_role("alert")).to_contain_text("the text has no <mask>")
    box.fill("ann <mask> the film")
    expect(page.get_by_role("table", name="Mask 1").get_by_role("row")).to_have_count(6)
    pages.check_accessibility(page)


def test_texts_are_completed(pages: WatchedPages, addresses: dict[str, str]) -> None:
    page = pages.open(addresses["causal"])
    page.get_by_role("textbox", name="Beginning").fill("ann saw")
    answer = page.get_by_role("textbox", name="Completion")
    expect(answer).not_to_have_value("")
    pages.check_accessibility(page)
    before = answer.input_value()
    page.get_by_role("spinbutton").first.fill("2")
    expect(answer).not_to_have_value(before)
    assert len(answer.input_value()) < len(before)
    page.get_by_role("spinbutton").first.fill("100")
    expect(page.get_by_role("alert")).to_contain_text("with 100 new ones the model reads at most 0")


@pytest.mark.parametrize(("viewport", "colors"), [LOOKS[0], LOOKS[3]])
def test_questions_are_answered_in_their_text(
    pages: WatchedPages, addresses: dict[str, str], viewport: str, colors: str
) -> None:
    page = pages.open(addresses["answers"], viewport=viewport, colors=colors)
    page.get_by_role("textbox", name="Question").fill("who")
    expect(page.get_by_text("Give a text that may answer the question.")).to_be_visible()
    page.get_by_role("textbox", name="Text that may answer it").fill("the film ann saw in oslo")
    answer = page.get_by_role("textbox", name="Answer", exact=True)
    expect(answer).not_to_have_value("")
    expect(page.locator("mark")).to_have_text(answer.input_value())
    pages.check_accessibility(page)
    page.get_by_role("button", name="Attention").click()
    expect(page.frame_locator("iframe").get_by_text("oslo").first).to_be_visible()
    page.get_by_text("bob saw rome").click()
    expect(page.get_by_role("textbox", name="Question")).to_have_value("where")
    expect(page.locator(".text")).to_have_text("bob saw rome")


def test_texts_are_classified(pages: WatchedPages, addresses: dict[str, str]) -> None:
    page = pages.open(addresses["labels"], viewport="phone", colors="dark")
    write(page, "ann saw rome")
    expect(page.get_by_role("textbox", name="Label")).to_have_value(re.compile("bad|good|so so"))
    expect(page.get_by_role("table", name="Labels").get_by_role("row")).to_have_count(4)
    pages.check_accessibility(page)
