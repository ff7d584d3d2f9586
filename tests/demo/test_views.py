"""The views of each kind of model, without a page: they show the results of the model's class."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerFast

from exported_toys import ExportedToys, exported_toys, saved_toys
from given_tokenizers import gpt2
from toy_labels import save_toy_answerer, save_toy_classifier, save_toy_decoder, save_toy_encoder, toy_config
from toy_translation import SHAPE, save_toy_checkpoint, toy_model, toy_sources, toy_tokenizer
from vaswani import QuestionAnswerer, Translator, VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.data.text_codec import TextCodec
from vaswani.demo.answering import MAX_SPANS, NO_ANSWER, AnswerView
from vaswani.demo.classification import ClassificationView, PairView
from vaswani.demo.language_model import SAMPLES, TOP_K, CompletionView, MaskView
from vaswani.demo.models import (
    Classifier,
    MaskedWord,
    MaskFiller,
    PairClassifier,
    Prompter,
    Summarizer,
    open_model,
)
from vaswani.demo.translation import SummaryView, TranslationView
from vaswani.demo.view import MAX_CHARACTERS, View
from vaswani.errors import RunError, UserError
from vaswani.interop import export_folder

__all__ = ["exported_toys", "saved_toys"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def rows(html: str) -> list[list[str]]:
    """The cells of the tables, row by row."""
    found = re.findall(r"<tr>(.*?)</tr>", html)
    return [
        [unescape(cell) for cell in re.findall(r"<td.*?>(.*?)</td>", row)] for row in found if "<td" in row
    ]


def tokens(html: str) -> list[list[str]]:
    """The lists of tokens."""
    lists = re.findall(r'<ul class="tokens">(.*?)</ul>', html)
    return [[unescape(token) for token in re.findall(r"<li.*?>(.*?)</li>", each)] for each in lists]


def problem(html: str) -> str:
    (found,) = re.findall(r'role="alert">(.*?)</p>', html)
    return unescape(found)


def translation_view(**options) -> TranslationView:
    return TranslationView("toy", Translator(toy_model(), toy_tokenizer(), **options))


def test_hypotheses_are_those_of_the_translator() -> None:
    view = translation_view(num_beams=3)
    for source in toy_sources(5, seed=1):
        text, html = view.show(source)
        (expected,) = view.translator.translate([source], n_best=3)
        assert text == expected.text
        told = [[each.text, f"{each.score:.3f}", f"{each.log_prob:.3f}"] for each in expected.hypotheses]
        assert rows(html) == told
        of_source, of_target = tokens(html)
        assert "".join(of_source) == "".join(source.split()) + "</s>"
        assert "".join(of_target) == "".join(text.split()) + "</s>"
        assert re.search(r"<p>\d+ ms</p>", html)


def test_the_number_of_hypotheses_is_that_of_beams() -> None:
    assert [len(rows(translation_view(num_beams=beams).show("one two")[1])) for beams in (1, 2, 4)] == [
        1,
        2,
        4,
    ]


def test_lines_of_a_text_are_joined() -> None:
    view = translation_view()
    assert view.show("one\ntwo\n")[0] == view.show("one two")[0]
    text = "one\ntwo\n\nthree"
    summaries = SummaryView("toy", view.translator)
    assert [summaries.show(text)[0]] == view.translator([text]) != [view.show(text)[0]]


@pytest.mark.parametrize("space", ["  ", "\t", "\N{NO-BREAK SPACE}", "\N{IDEOGRAPHIC SPACE}"])
def test_spaces_in_a_text_are_read_as_by_translate(space: str) -> None:
    view = translation_view()
    source = f"one{space}two{space}three{space}four"
    (expected,) = view.translator.translate([source], n_best=4)
    text, html = view.show(f" {source} ")
    assert text == expected.text
    assert [score for _, score, _ in rows(html)] == [f"{each.score:.3f}" for each in expected.hypotheses]
    assert tokens(html)[0] != tokens(view.show("one two three four")[1])[0]
    assert len(view.attention(f" {source} ", text)[0].keys) == len(tokens(html)[0])


def test_a_longer_text_than_the_model_reads_is_refused_with_the_limit() -> None:
    view = translation_view(max_source_length=6)
    assert view.show("one two three four five")[0]
    text, html = view.show("one two three four five six")
    assert text == ""
    assert problem(html) == "the text has 7 tokens, and the model reads at most 6; shorten it"
    assert "50,000" in problem(view.show("a" * (MAX_CHARACTERS + 1))[1])


def test_learned_positions_are_a_limit_too() -> None:
    fields = {"position_embedding": "learned", "max_position_embeddings": 8}
    config = VaswaniConfig(**{**SHAPE, **fields, "vocab_size": len(toy_tokenizer())})
    model = VaswaniForConditionalGeneration(config)
    view = TranslationView("toy", Translator(model, toy_tokenizer()))
    assert "at most 8" in problem(view.show("one " * 9)[1])


def test_an_empty_text_shows_nothing() -> None:
    assert translation_view().show(" \n") == translation_view().show(None) == ("", "")


def test_markup_in_a_text_is_escaped() -> None:
    codec = TextCodec(toy_tokenizer())
    assert "<b>" in codec.decode(codec.token_ids(["<b>"]))[0]
    html = translation_view().show("<b>")[1]
    assert "<b>" not in html
    assert "&lt;" in html


def test_a_failure_is_shown_as_one_line(monkeypatch, caplog) -> None:
    view = translation_view()
    failures = {RunError("no memory left"): "no memory left", KeyError("gone"): "KeyError: 'gone'"}
    for failure, expected in failures.items():

        def fail(*_: object, failure: Exception = failure, **__: object) -> None:
            raise failure

        monkeypatch.setattr(Translator, "translate", fail)
        text, html = view.show("one")
        assert (text, problem(html)) == ("", expected)
    assert [record.exc_info[0] for record in caplog.records] == [
        KeyError
    ]  # what nobody expects, with its place


def test_the_line_about_a_model() -> None:
    view = translation_view()
    size = sum(each.numel() for each in {*view.model.parameters()})
    assert view.describe() == f"{size:,} parameters · VaswaniForConditionalGeneration · float32 · cpu"


@pytest.mark.parametrize("task", ["classification", "multi_label", "regression", "tagging"])
def test_labels_are_those_of_the_classifier(folder: Path, task: str) -> None:
    classifier = open_model(save_toy_classifier(folder / task, task), device="cpu")
    assert isinstance(classifier, Classifier)
    view = ClassificationView(task, classifier)
    text, html = view.show("ann saw the film")
    (expected,) = classifier(["ann saw the film"])
    if task == "tagging":
        assert text == " ".join(expected.label)
        told = zip(expected.words, expected.label, map("{:.3f}".format, expected.probability), strict=True)
        assert rows(html) == [list(row) for row in told]
    elif task == "regression":
        assert text == f"{expected.label:.3f}"
        assert rows(html) == []
    else:
        label = expected.label if task == "classification" else ", ".join(expected.label)
        assert text == label
        assert rows(html) == [[name, f"{share:.3f}"] for name, share in expected.probabilities.items()]
    assert "at most 40" in problem(view.show("film " * 50)[1])
    nothing = "</s> <pad>" if task == "tagging" else "</s>"
    assert problem(view.show(nothing)[1]).startswith("the tokenizer finds no words")


@pytest.mark.parametrize("library", [False, True])
def test_a_classifier_of_pairs_reads_two_texts(folder: Path, library: bool) -> None:
    saved = save_toy_classifier(folder / f"pairs {library}", "classification", library=library)
    assert type(open_model(saved, device="cpu")) is Classifier
    (saved / "training_config.yaml").write_text("task: classification\ntext_pair_field: hypothesis\n")
    classifier = open_model(saved, device="cpu")
    assert isinstance(classifier, PairClassifier)
    view = PairView("pairs", classifier)
    text, html = view.show("ann saw rome", "the film <b>")
    (expected,) = classifier([("ann saw rome", "the film <b>")])
    assert text == expected.label
    assert rows(html) == [[name, f"{share:.3f}"] for name, share in expected.probabilities.items()]
    assert rows(html) != rows(ClassificationView("single", classifier).show("ann saw rome")[1])
    assert "<b>" not in html
    assert len(tokens(html)) == 2
    assert "Give a second text" in view.show("ann saw rome", None)[1]
    assert "more than the 40 tokens" in problem(view.show("film " * 30, "film " * 30)[1])
    assert "50,000" in problem(view.show("ann", "a" * (MAX_CHARACTERS + 1))[1])
    (weights,) = view.attention("ann saw", text, "rome oslo")
    assert {"ann", "oslo"} <= {token.strip("Ġ▁ ") for token in weights.keys}


def test_completions_are_those_of_the_model(folder: Path) -> None:
    prompter = open_model(save_toy_decoder(folder / "causal", eos_token_id=None), device="cpu")
    assert isinstance(prompter, Prompter)
    view = CompletionView("causal", prompter)
    prompt = prompter.language_model.encode_prompt("ann saw")
    text, html = view.show("ann saw", 5, 0.8)
    (greedy,) = prompter.language_model.write([prompt], 5)
    assert text == greedy
    ways, texts, scores = zip(*rows(html), strict=True)
    assert ways == ("most probable words", *["drawn"] * SAMPLES)
    assert len({*texts}) == SAMPLES + 1
    log_probs = torch.tensor([float(score) for score in scores])
    assert log_probs.argmax() == 0
    assert len(view.show("ann saw", 9, 0.8)[0]) > len(text)
    assert rows(view.show("ann saw", 5, 2.0)[1])[1:] != rows(html)[1:]
    assert view.show("ann saw", 38, 0.8)[0]
    told = "the text has 3 tokens, and with 39 new ones the model reads at most 2"
    assert problem(view.show("ann saw", 39, 0.8)[1]).startswith(told)
    stop = text.split()[0]
    prompter.language_model.model.generation_config.stop_strings = [stop]
    prompter = Prompter(prompter.language_model.model, prompter.language_model.tokenizer)
    stopped = CompletionView("causal", prompter).show("ann saw", 5, 0.8)[0]
    assert [stopped] == prompter.language_model.write([prompt], 5) == [text.partition(stop)[0]]


def test_masked_words_are_those_of_the_model(folder: Path) -> None:
    filler = open_model(save_toy_encoder(folder / "masked"), device="cpu")
    assert isinstance(filler, MaskFiller)
    view = MaskView("masked", filler)
    mask = filler.tokenizer.mask_token
    inputs = filler.tokenizer(f"ann {mask} the {mask}", return_tensors="pt")
    with torch.no_grad():
        logits = filler.model(**inputs).logits[inputs.input_ids == filler.tokenizer.mask_token_id]
    best = logits.softmax(-1).topk(TOP_K)
    text, html = view.show(f"ann {mask} the {mask}")
    filled = inputs.input_ids.masked_scatter(
        inputs.input_ids == filler.tokenizer.mask_token_id, best.indices[:, 0]
    )
    assert text == filler.tokenizer.decode(filled[0], skip_special_tokens=True).strip()
    texts = [[filler.tokenizer.decode([token]) for token in row] for row in best.indices]
    words = [[text[1:] if text.startswith(" ") else f"…{text}" for text in row] for row in texts]
    shares = [[f"{share:.3f}" for share in row] for row in best.values.tolist()]
    expected = [
        [word, share] for pair in zip(words, shares, strict=True) for word, share in zip(*pair, strict=True)
    ]
    assert rows(html) == expected
    assert problem(view.show("ann saw")[1]).startswith(f"the text has no {mask}")
    assert "at most 40" in problem(view.show(f"{mask} film" * 40)[1])
    assert mask in view.text_label


def test_a_predicted_mask_is_not_filled_in_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = MaskView("masked", open_model(save_toy_encoder(folder / "predicts masks"), device="cpu"))
    monkeypatch.setattr(
        MaskFiller,
        "__call__",
        lambda *_: [[MaskedWord("<mask>", 0.9, False)], [MaskedWord("oslo", 0.9, False)]],
    )
    assert view.show("<mask> saw <mask>")[0] == "<mask> saw oslo"


def wordpiece() -> Any:
    tokens = ["<pad>", "<unk>", "<mask>", "in", "os", "##lo"]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def byte_level() -> Any:
    tokenizer = gpt2(Path())
    mask = AddedToken("<mask>", lstrip=True, special=True)
    tokenizer.add_special_tokens({"mask_token": mask, "pad_token": "<pad>"})
    return tokenizer


@pytest.mark.parametrize("make", [wordpiece, byte_level])
def test_a_predicted_part_of_a_word_follows_it_directly(make: Callable[[], Any]) -> None:
    tokenizer = make()
    model = AutoModelForMaskedLM.from_config(toy_config(vocab_size=len(tokenizer)))
    view = MaskView("masked", MaskFiller(model, tokenizer))
    word, *parts = tokenizer.encode("oslo", add_special_tokens=False)
    for token, text in [(word, "in" + " " * (make is wordpiece)), (parts[-1], "in")]:
        model.lm_head.bias.data = 100.0 * torch.nn.functional.one_hot(torch.tensor(token), len(tokenizer))
        piece = tokenizer.convert_ids_to_tokens([token])[0].removeprefix("##")
        filled, html = view.show("in <mask>")
        assert filled == text + piece
        assert rows(html)[0][0] == ("" if text.endswith(" ") else "…") + piece
        assert view.show("<mask> in")[0] == f"{piece} in"


CONTEXT = "the film ann bob saw <b> in oslo"


def answers(folder: Path, decoder: bool = False, **options: float) -> AnswerView:
    saved = save_toy_answerer(folder / f"answers {decoder}", decoder=decoder)
    answerer = open_model(saved, device="cpu")
    assert isinstance(answerer, QuestionAnswerer)
    answerer.null_score_diff_threshold = options.get("threshold")
    return AnswerView("answers", answerer)


@pytest.mark.parametrize("decoder", [False, True])
def test_answers_are_those_of_the_model_and_marked_in_their_text(folder: Path, decoder: bool) -> None:
    view = answers(folder, decoder)
    text, html = view.show(" rome ", CONTEXT)
    (expected,) = view.answerer.answer([("rome", CONTEXT)])
    assert text == expected.text
    told = [[each.text, f"{each.start} to {each.end}", f"{each.score:.3f}"] for each in expected.spans]
    assert rows(html) == told[:MAX_SPANS]
    (whole,) = re.findall(r'<p class="text" dir="auto">(.*?)</p>', html)
    before, found, after = re.fullmatch("(.*)<mark>(.*)</mark>(.*)", whole).groups()
    assert (unescape(found), len(unescape(before))) == (expected.text, expected.spans[0].start)
    assert unescape(before + found + after) == CONTEXT
    assert "<b>" not in html
    maps = view.attention(" rome ", text, CONTEXT)
    assert {"rome", "oslo"} <= {token.strip("Ġ▁ ") for token in maps[0].keys}


def test_no_answer_is_shown_with_its_score_and_marks_nothing(folder: Path) -> None:
    view = answers(folder, threshold=-1000.0)
    text, html = view.show("who", CONTEXT)
    (expected,) = view.answerer.answer([("who", CONTEXT)])
    assert (text, expected.text) == (NO_ANSWER, "")
    assert rows(html)[-1] == [NO_ANSWER, "", f"{expected.null_score:.3f}"]
    assert "<mark>" not in html


def test_a_question_needs_a_text(folder: Path) -> None:
    view = answers(folder)
    assert view.show("", CONTEXT) == ("", "")
    text, html = view.show("who", " ")
    assert text == ""
    assert "Give a text that may answer the question." in html
    assert view.show("who", None) == (text, html)
    with pytest.raises(UserError, match="the second text is empty"):
        view.attention("who", "", None)
    assert "50,000" in problem(view.show("who", "a" * (MAX_CHARACTERS + 1))[1])
    assert view.show("who", "ann saw oslo " * 60)[0]  # in windows


def test_a_longer_question_than_the_model_reads_is_refused_with_the_limit(folder: Path) -> None:
    view = answers(folder)
    question = "who saw the film in rome and oslo with ann"
    text, html = view.show(question, CONTEXT)
    assert text == ""
    assert "the question is longer than the 8 tokens that the model reads" in problem(html)
    view.answerer.lengths = replace(view.answerer.lengths, max_question_length=30, max_length=40)
    assert view.show(question, CONTEXT)[0]


def test_the_recorded_task_selects_the_summary_view(folder: Path) -> None:
    saved = save_toy_checkpoint(folder / "summarizer")
    (saved / "training_config.yaml").write_text("task: summarization\n")
    model = open_model(saved, device="cpu", translator_options={"num_beams": 2})
    assert isinstance(model, Summarizer)
    view = SummaryView("toy", model)
    text, html = view.show("one two three one two three")
    by_hand = Translator.from_pretrained(
        saved, device="cpu", num_beams=2, no_repeat_ngram_size=3, max_length=512
    )
    assert text == by_hand(["one two three one two three"])[0]
    assert "<h3>Summary: " in html
    (saved / "training_config.yaml").write_text("task: translation\n")
    assert not isinstance(open_model(saved, device="cpu"), Summarizer)


def test_threads_that_share_a_mask_filler_get_the_results_of_one_thread(folder: Path) -> None:
    filler = open_model(save_toy_encoder(folder / "shared"), device="cpu")
    assert isinstance(filler, MaskFiller)
    texts = [f"{'the film ' * number}<mask>" for number in range(16)]
    alone = [filler(text, 3) for text in texts]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda text: filler(text, 3), texts)) == alone


def test_an_exported_model_has_no_attention_and_the_same_translations(folder: Path) -> None:
    pytest.importorskip("ctranslate2")
    trained = save_toy_checkpoint(folder / "trained")
    export_folder(trained, folder / "exported")
    exported = open_model(folder / "exported", engine="ctranslate2", translator_options={"num_beams": 2})
    assert type(exported) is Translator
    view = TranslationView("exported", exported)
    assert (view.model, view.describe()) == (None, "")
    text, html = view.show("one two three")
    assert text == Translator.from_pretrained(trained, device="cpu")(["one two three"])[0]
    assert len(rows(html)) == 2


SHOWN_IN_ONNX = {
    "classification": (Classifier, ClassificationView),
    "answerer": (QuestionAnswerer, AnswerView),
    "language_model": (Prompter, CompletionView),
    "translator": (Translator, TranslationView),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHOWN_IN_ONNX)
def test_models_in_onnx_are_shown_without_attention(kind: str, exported_toys: ExportedToys) -> None:
    pytest.importorskip("onnxruntime")
    of_class, of_view = SHOWN_IN_ONNX[kind]
    trained, exported = exported_toys(kind)
    views = [
        of_view("model", open_model(trained, device="cpu")),
        of_view("model", open_model(exported, engine="onnx")),
    ]
    assert isinstance(open_model(exported, engine="onnx"), of_class)
    assert (views[1].model, views[1].describe()) == (None, "")
    values = {"answerer": ("who saw rome?",), "language_model": (8, 1.0)}.get(kind, ())
    texts = [view.show("ann saw rome and the film was great", *values)[0] for view in views]
    assert texts[0] == texts[1] != ""


def test_every_view_has_its_own_verb() -> None:
    views: list[type[View]] = [TranslationView, SummaryView, ClassificationView]
    views += [CompletionView, MaskView, AnswerView]
    assert len({view.verb for view in views}) == len(views)


def test_a_translator_checkpoint_opens_as_a_translator(folder: Path) -> None:
    assert isinstance(open_model(save_toy_checkpoint(folder / "translator"), device="cpu"), Translator)


@pytest.mark.parametrize("to", ["marian", "ctranslate2", "onnx"])
def test_an_exported_model_still_summarizes(folder: Path, to: str) -> None:
    trained = save_toy_checkpoint(folder / f"summarizer for {to}")
    (trained / "training_config.yaml").write_text("task: summarization\n")
    export_folder(str(trained), folder / to, to)
    exported = open_model(folder / to, engine="torch" if to == "marian" else to)
    assert isinstance(exported, Summarizer)
    assert SummaryView("exported", exported).show("one two three one two three")[0]
