"""The attention page in a browser: the weights that it shows equal the tensors, by mouse, keys and touch."""

import time
from itertools import product
from pathlib import Path

import pytest
import torch
from chromium import WatchedPages
from playwright.sync_api import Locator, Page, expect

from attention_maps import ARABIC, CHINESE, ENGLISH, GERMAN, attention_map, maps_of_pair
from vaswani.insight.attention_page import attention_page

HALF_STEP = 0.51 / 65_535


@pytest.fixture
def maps() -> dict:
    return {each.kind: each for each in maps_of_pair(ENGLISH, GERMAN)}


@pytest.fixture
def show(pages: WatchedPages, tmp_path: Path):
    """Open a page of maps, and wait until it is drawn."""

    def show(maps, title: str = "Attention", **how: str) -> Page:
        path = tmp_path / "attention.html"
        attention_page(list(maps), title=title).save(path)
        page = pages.open(path, **how)
        page.locator("#heads button").first.wait_for()
        return page

    return show


def token(page: Page, side: str, index: int) -> Locator:
    return page.locator(f"#{side} li").nth(index)


def shown_weights(page: Page, side: str) -> torch.Tensor:
    """The weights by which the tokens of a side are shaded."""
    shades = page.eval_on_selector_all(
        f"#{side} li", "all => all.map(each => parseFloat(each.style.getPropertyValue('--weight')))"
    )
    return (torch.tensor(shades, dtype=torch.float64) / 100).square()


def assert_shown(page: Page, side: str, expected: torch.Tensor) -> None:
    torch.testing.assert_close(shown_weights(page, side), expected.double(), atol=HALF_STEP, rtol=1e-5)


def sentence(page: Page) -> str:
    return page.get_by_role("status").inner_text().replace("\u00a0", " ")


def focused(page: Page) -> str:
    return page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.textContent")


def test_a_token_under_the_mouse_shows_its_weights(show, maps) -> None:
    page = show(maps.values())
    for (kind, of_kind), head in product(maps.items(), (None, 2)):
        page.get_by_label(kind.capitalize()).check()
        page.get_by_role("combobox", name="Layer").select_option("1")
        page.get_by_role("combobox", name="Head").select_option("mean" if head is None else str(head))
        token(page, "queries", 6).hover()
        weights = of_kind.weights[1].mean(dim=0) if head is None else of_kind.weights[1, head]
        assert_shown(page, "keys", weights[6])
        strongest = weights[6].argmax()
        percent = f"{100 * weights[6, strongest]:.1f} %"
        assert sentence(page).startswith(
            f"“{of_kind.queries[6]}” attends most to “{of_kind.keys[strongest]}” ({percent})"
        )
        token(page, "keys", 2).hover()
        assert_shown(page, "queries", weights[:, 2])
        assert f"“{of_kind.keys[2]}” is attended to most by" in sentence(page)


def test_the_table_lists_the_strongest_links(show, maps) -> None:
    page = show(maps.values())
    row = maps["cross"].weights[-1].mean(dim=0)[len(GERMAN) // 2]  # what the page shows first
    rows = page.locator("#links tr:not(.rest)").all()
    expected = row.sort(descending=True)
    for line, weight, index in zip(rows, *expected, strict=False):
        text, position, percent = line.locator("td").all_inner_texts()
        assert (text, position) == (ENGLISH[index], str(int(index) + 1))
        assert float(percent.removesuffix("\u00a0%")) == pytest.approx(100 * weight.item(), abs=0.052)
    assert len(rows) == min(8, (expected.values >= 0.0005).sum())


def test_links_are_drawn_from_token_to_token(show, maps) -> None:
    page = show(maps.values())
    row = maps["cross"].weights[-1].mean(dim=0)[4]
    assert page.locator(".curves path").count() == (row >= 0.04).sum()
    start, end = page.locator(".curves path").first.evaluate(
        """path => [0, path.getTotalLength()].map(at => {
             const {x, y} = path.getPointAtLength(at).matrixTransform(path.getScreenCTM());
             return [x, y];
           })"""
    )
    query, key = token(page, "queries", 4).bounding_box(), token(page, "keys", row.argmax()).bounding_box()
    assert start == pytest.approx([query["x"] + query["width"] / 2, query["y"] + query["height"]], abs=1)
    assert end == pytest.approx([key["x"] + key["width"] / 2, key["y"]], abs=1)


def test_a_chosen_token_stays_when_the_mouse_leaves(show, maps) -> None:
    page = show(maps.values())
    token(page, "queries", 1).click()
    token(page, "queries", 5).hover()
    assert sentence(page).startswith("“im”")
    page.get_by_role("heading", name="All heads").hover()
    assert sentence(page).startswith("“Zwei”")
    assert page.locator("#queries").get_by_role("option", selected=True).all_inner_texts() == ["Zwei"]


def test_pictures_of_heads_show_and_choose_them(show, maps) -> None:
    page = show(maps.values())
    page.get_by_role("radio", name="Layer 0, head 1").click()
    assert page.get_by_role("combobox", name="Layer").input_value() == "0"
    assert page.get_by_role("combobox", name="Head").input_value() == "1"
    weights = maps["cross"].weights[0, 1]
    assert_shown(page, "keys", weights[len(GERMAN) // 2])
    expect(page.get_by_role("radio", name="Layer 0, head 1").locator("canvas")).to_have_attribute(
        "height", "9"
    )
    alpha = (
        page.get_by_role("radio", name="Layer 0, head 1")
        .locator("canvas")
        .evaluate(
            """canvas => {
                 const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
                 return [...data].filter((_, i) => i % 4 === 3);
               }"""
        )
    )
    expected = 255 * weights.flatten().sqrt()
    torch.testing.assert_close(torch.tensor(alpha).float(), expected, atol=1.0, rtol=0)


def test_tokens_and_heads_by_keyboard(show, maps) -> None:
    page = show(maps.values())
    page.get_by_role("combobox", name="Head").focus()
    page.keyboard.press("Tab")  # whole words
    page.keyboard.press("Tab")
    assert focused(page) == GERMAN[4]
    for key, text in (
        ("ArrowRight", "im"),
        ("ArrowLeft", "sind"),
        ("Home", "<s>"),
        ("End", "."),
        ("ArrowRight", "."),
    ):
        page.keyboard.press(key)
        assert focused(page) == text
        assert sentence(page).startswith(f"“{text}”")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Tab")
    assert sentence(page).startswith("“Two” is attended to most by")
    page.keyboard.press("Tab")
    assert focused(page) == "Layer 2, mean of all heads"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    assert focused(page) == "Layer 1, head 0"
    assert_shown(page, "queries", maps["cross"].weights[1, 0, :, 0])


def test_arrows_go_between_lines(show) -> None:
    words = tuple(f"word{number}" for number in range(60))
    page = show([attention_map("encoder", words, words)])
    first = token(page, "queries", 2)
    first.click()
    page.keyboard.press("ArrowDown")
    below = page.locator("#queries li:focus").bounding_box()
    above = first.bounding_box()
    assert below["y"] > above["y"]
    assert abs(below["x"] - above["x"]) < above["width"]
    page.keyboard.press("ArrowUp")
    assert focused(page) == "word2"


def test_whole_words_replace_tokens(show, maps) -> None:
    page = show(maps.values())
    page.get_by_label("Whole words").check()
    joined = maps["cross"].words()
    assert tuple(page.locator("#queries li").all_inner_texts()) == joined.queries
    token(page, "queries", 6).hover()
    assert sentence(page).startswith("“Freien”")
    assert_shown(page, "keys", joined.weights[-1].mean(dim=0)[6])
    page.get_by_label("Encoder").check()
    assert page.locator("#keys").get_by_text("outside").count() == 1


@pytest.mark.parametrize("colors", ["light", "dark"])
@pytest.mark.parametrize("viewport", ["desktop", "phone"])
def test_the_page_is_accessible(show, pages: WatchedPages, maps, viewport: str, colors: str) -> None:
    page = show(maps.values(), viewport=viewport, colors=colors)
    pages.check_accessibility(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_touch_chooses_a_token(show, maps) -> None:
    page = show(maps.values(), viewport="phone")
    token(page, "queries", 6).tap()
    assert sentence(page).startswith("“Fre”")
    assert_shown(page, "keys", maps["cross"].weights[-1].mean(dim=0)[6])


def test_texts_from_right_to_left(show) -> None:
    page = show(maps_of_pair(CHINESE, ARABIC))
    assert page.locator("#queries").get_attribute("dir") == "rtl"
    assert page.locator("#keys").get_attribute("dir") == "ltr"
    first, second = (token(page, "queries", index).bounding_box() for index in (0, 1))
    assert second["x"] < first["x"]
    slash, letter = token(page, "queries", len(ARABIC) - 1).evaluate(
        """token => [1, 2].map(at => {
             const range = document.createRange();
             range.setStart(token.firstChild, at);
             range.setEnd(token.firstChild, at + 1);
             return range.getBoundingClientRect().x;
           })"""
    )
    assert slash < letter  # of </s>
    token(page, "queries", 1).click()
    page.keyboard.press("ArrowLeft")
    assert focused(page) == ARABIC[2]
    page.keyboard.press("ArrowRight")
    assert focused(page) == ARABIC[1]


@pytest.mark.parametrize(
    ("texts", "direction"),
    [
        (("[CLS]", "لا", "شكرا", "[SEP]"), "rtl"),
        (("arb_Arab", "كلب", "</s>"), "rtl"),
        (("__he__", "כלב", "</s>"), "rtl"),
        (("Слово", "سلام", "значит", "мир"), "ltr"),
        (("和平", "是", "سل"), "ltr"),
        (("[CLS]", "1", "[SEP]"), "ltr"),
    ],
)
def test_the_direction_is_that_of_most_letters_outside_special_tokens(show, texts, direction: str) -> None:
    page = show([attention_map("decoder", texts, texts)])
    assert page.locator("#queries").get_attribute("dir") == direction


def test_long_texts(show) -> None:
    source, target = (tuple(f"{word}{number}" for number in range(220)) for word in ("wort", "word"))
    cross = attention_map("cross", target, source, layers=4, heads=8)
    page = show([cross], viewport="phone")
    token(page, "queries", 200).tap()
    assert_shown(page, "keys", cross.weights[-1].mean(dim=0)[200])
    strongest = token(page, "keys", cross.weights[-1].mean(dim=0)[200].argmax())
    box, frame = strongest.bounding_box(), page.locator("#keys").bounding_box()
    assert frame["y"] <= box["y"]  # its list has scrolled to it
    assert box["y"] + box["height"] <= frame["y"] + frame["height"]
    said = page.get_by_role("status").bounding_box()
    assert said["y"] + said["height"] <= 740
    last = page.get_by_role("radio", name="Layer 3, head 7").locator("canvas")
    expect(last).to_have_attribute("width", "56")


def test_markup_in_tokens_is_shown_as_text(show) -> None:
    hostile = ("</script><script>x()</script>", "<img src=x onerror=x()>", "&amp;", "\n", "a b")
    page = show([attention_map("decoder", hostile, hostile)], title="</title><script>x()</script>")
    assert page.title() == "</title><script>x()</script>"
    assert page.locator("#queries li").all_inner_texts() == [*hostile[:3], "␣", "a b"]
    assert page.locator("img").count() == 0


def test_a_notebook_shows_the_page_in_a_frame(pages: WatchedPages, tmp_path: Path, maps) -> None:
    host = tmp_path / "notebook.html"
    shown = attention_page(maps.values())._repr_html_()
    host.write_text(f"<!doctype html><title>A notebook</title><p>A cell</p>{shown}", encoding="utf-8")
    page = pages.open(host)
    frame = page.frame_locator("iframe")
    frame.locator("#queries li").nth(6).hover()
    assert "“Fre” attends most to" in frame.get_by_role("status").inner_text()
    assert page.evaluate("getComputedStyle(document.body).margin") == "8px"  # the browser's own


def test_head_pictures_follow_the_color_scheme(show, maps) -> None:
    page = show(maps.values())
    picture = page.get_by_role("radio", name="Layer 2, head 2").locator("canvas")
    expect(picture).to_have_attribute("height", "9")
    light = picture.evaluate("canvas => canvas.toDataURL()")
    page.emulate_media(color_scheme="dark")
    deadline = time.monotonic() + 10
    while picture.evaluate("canvas => canvas.toDataURL()") == light:
        assert time.monotonic() < deadline
