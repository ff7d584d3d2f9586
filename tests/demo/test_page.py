"""The page with its server: several users at once, one or two models, and embedding in another page."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import gradio as gr
import httpx
import pytest
from gradio_client import Client

from toy_labels import save_toy_answerer, save_toy_classifier
from toy_translation import toy_model, toy_sources, toy_tokenizer
from vaswani import Classifier, QuestionAnswerer, Translator
from vaswani.demo import build_demo, open_model
from vaswani.demo.models import shown_names
from vaswani.demo.server import launch_options
from vaswani.errors import UserError

CLIENTS = 6
TEXTS = 8  # of each client

EXTRA = {"server_name": "127.0.0.1", "prevent_thread_lock": True, "quiet": True}


@pytest.fixture(scope="module")
def translators() -> dict[str, Translator]:
    shapes: dict[str, dict[str, Any]] = {"teacher": {}, "student": {"encoder_ffn_dim": 32}}
    return {
        name: Translator(toy_model(**fields), toy_tokenizer(), num_beams=3) for name, fields in shapes.items()
    }


@pytest.fixture(scope="module")
def address(translators: dict[str, Translator]) -> Iterator[str]:
    page = build_demo(translators, ["one two", "three"])
    _, address, _ = page.launch(**launch_options(), **EXTRA)
    yield address
    page.close(verbose=False)


def ask(client: Client, text: str, name: str) -> tuple[str, str]:
    return client.predict(text, api_name=f"/{name}")


@pytest.mark.slow
def test_each_of_several_users_gets_the_answer_to_its_own_text(
    address: str, translators: dict[str, Translator]
) -> None:
    texts = toy_sources(CLIENTS * TEXTS, seed=3)
    names = [list(translators)[number % 2] for number in range(len(texts))]

    def use(first: int) -> list[tuple[str, str]]:
        """Ask for the texts of a user, one after another, whose first is this one."""
        client = Client(address, verbose=False)
        return [ask(client, texts[number], names[number]) for number in range(first, first + TEXTS)]

    with ThreadPoolExecutor(CLIENTS) as threads:
        found = list(chain.from_iterable(threads.map(use, range(0, len(texts), TEXTS))))
    for text, name, (answer, html) in zip(texts, names, found, strict=True):
        (expected,) = translators[name].translate([text], n_best=3)
        assert answer == expected.text
        assert all(f"{each.score:.3f}" in html for each in expected.hypotheses)


def test_models_differ_in_what_they_answer(address: str, translators: dict[str, Translator]) -> None:
    client = Client(address, verbose=False)
    html = {name: ask(client, "one two three four", name)[1] for name in translators}
    assert html["teacher"] != html["student"]


def test_the_page_names_its_models_and_loads_nothing_external(
    address: str, translators: dict[str, Translator]
) -> None:
    page = httpx.get(address).text
    config = httpx.get(f"{address}config").json()
    told = json.dumps(config)
    for name, translator in translators.items():
        assert name in told
        assert f"{translator.model.num_parameters():,} parameters" in told
    assert "one two" in told
    assert not config["analytics_enabled"]
    assert config["footer_links"] == []
    assert "fonts.googleapis" not in page + told
    assert httpx.get(f"{address}theme.css").text.count("https://") == 0


def test_models_of_different_kinds_raise_an_error(tmp_path: Path) -> None:
    classifier = Classifier.from_pretrained(save_toy_classifier(tmp_path, "classification"), device="cpu")
    translator = Translator(toy_model(), toy_tokenizer())
    with pytest.raises(UserError, match=r"of one kind; got a \(Translator\), b \(Classifier\)"):
        build_demo({"a": translator, "b": classifier})
    with pytest.raises(UserError, match="needs a model"):
        build_demo({})


def test_a_page_can_be_embedded_in_another(translators: dict[str, Translator]) -> None:
    pages = [build_demo({name: translator}) for name, translator in translators.items()]
    with gr.Blocks(analytics_enabled=False) as outer:
        for page in pages:
            page.render()
    sent = [block.elem_id for block in outer.blocks.values() if isinstance(block, gr.Button)]
    assert len(set(sent)) == 2


def test_endpoints_have_names_that_clients_can_write(translators: dict[str, Translator]) -> None:
    page = build_demo({f"{name}/my dates": translator for name, translator in translators.items()})
    _, address, _ = page.launch(**launch_options(), **EXTRA)
    try:
        found = [ask(Client(address, verbose=False), "one", f"{name}_my_dates")[0] for name in translators]
    finally:
        page.close(verbose=False)
    assert found == [translator(["one"])[0] for translator in translators.values()]


def test_a_page_answers_a_question_on_a_text(tmp_path: Path) -> None:
    answerer = QuestionAnswerer.from_pretrained(save_toy_answerer(tmp_path), device="cpu")
    page = build_demo({"answers": answerer}, [("where", "bob saw rome")])
    _, address, _ = page.launch(**launch_options(), **EXTRA)
    try:
        found, html = Client(address, verbose=False).predict("who", "ann saw oslo", api_name="/answers")
        told = json.dumps(httpx.get(f"{address}config").json())
    finally:
        page.close(verbose=False)
    (expected,) = answerer.answer([("who", "ann saw oslo")])
    assert found == expected.text
    assert f"<mark>{found}</mark>" in html
    assert all(word in told for word in ("Question", "Text that may answer it", "bob saw rome", '"Answer"'))


def test_a_page_for_pairs_has_two_texts(tmp_path: Path) -> None:
    saved = save_toy_classifier(tmp_path, "classification")
    (saved / "training_config.yaml").write_text("text_pair_field: hypothesis\n")
    classifier = open_model(saved, device="cpu")
    assert isinstance(classifier, Classifier)
    page = build_demo({"pairs": classifier}, [("ann saw rome", "bob saw oslo")])
    told = str(page.get_config_file())
    assert all(word in told for word in ("First text", "Second text", "bob saw oslo"))
    (shown,) = [function.fn for function in page.fns.values() if function.api_name == "pairs"]
    assert shown is not None
    (expected,) = classifier([("ann saw", "bob")])
    assert shown("ann saw", "bob")[0] == expected.label


def shown_by(page: gr.Blocks, panel: str, *values: object) -> str:
    """The HTML of a panel, by the name of its function."""
    (show,) = [function.fn for function in page.fns.values() if function.name == panel]
    assert show is not None
    return str(show(*values))


def test_panels_take_null_as_an_empty_text(translators: dict[str, Translator]) -> None:
    page = build_demo({"teacher": translators["teacher"]})
    assert shown_by(page, "show_attention", None, None) == shown_by(page, "show_attention", " ", "") == ""
    assert "<iframe" in shown_by(page, "show_attention", "one two", None)


def test_shown_names_are_the_shortest_distinct_ones() -> None:
    assert shown_names(["runs/dates"]) == ["dates"]
    assert shown_names(["runs/a/", "runs/b"]) == ["a", "b"]
    assert shown_names(["old/dates", "new/dates"]) == ["old/dates", "new/dates"]
    with pytest.raises(UserError, match="runs/dates is given twice"):
        shown_names(["runs/dates", "runs/dates"])
