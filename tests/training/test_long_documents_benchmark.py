"""The benchmark of long documents: only far text decides, rows are resumable, bad options are refused."""

import argparse
import importlib
import json
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from forking import ForkingPython
from jsonl import write_jsonl
from vaswani.data.tokenization import train_tokenizer
from vaswani.errors import UserError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SPLITS = ("train", "validation", "test")
ARTICLE_WORDS = ["cell", "gene", "protein", "the", "of", "expression", "binding", "was"]
REVIEW_WORDS = {"pos": ["Great", "Lovely", "Superb"], "neg": ["Awful", "Boring", "Dreadful"]}
LENGTH, REVIEW_TOKENS, ROWS = 256, 40, 24
OPPOSITE = {"pos": "neg", "neg": "pos"}


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("long_documents")


def words(of: list[str], count: int, draws: random.Random) -> str:
    return " ".join(draws.choices(of, k=count))


def write_reviews(folder: Path, opposite: bool = False) -> Path:
    """Reviews of different lengths; or with the words, and the lengths, of the opposite label."""
    folder.mkdir()
    draws = random.Random(1 if opposite else 0)
    for split in SPLITS:
        labels = ["pos", "neg"] * 20
        write_jsonl(
            folder / f"{split}.jsonl",
            [
                {
                    "text": words(
                        REVIEW_WORDS[OPPOSITE[label] if opposite else label], draws.randint(3, 60), draws
                    ),
                    "label": label,
                }
                for label in labels
            ],
        )
    return folder


@pytest.fixture
def args(tmp_path: Path) -> argparse.Namespace:
    """Options of a toy task, whose reviews and articles have no word in common."""
    draws = random.Random(0)
    articles = tmp_path / "articles"
    articles.mkdir()
    for split in SPLITS:
        texts = [{"text": words(ARTICLE_WORDS, 900, draws)} for _ in range(5)]
        write_jsonl(articles / f"{split}.jsonl", texts)
    reviews = write_reviews(tmp_path / "reviews")
    return argparse.Namespace(
        articles=str(articles), reviews=str(reviews), layers=2, review_tokens=REVIEW_TOKENS
    )


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    texts = [" ".join([*ARTICLE_WORDS, *REVIEW_WORDS["pos"], *REVIEW_WORDS["neg"]])] * 4
    return train_tokenizer(texts, 330, purpose="masked")


def test_a_document_holds_the_end_of_a_review_beyond_the_window(benchmark, args, tokenizer):
    found = list(benchmark.documents(args, "train", LENGTH, tokenizer, ROWS))
    assert [row["label"] for row in found].count("pos") == ROWS // 2 == len(found) // 2
    places = set()
    for row in found:
        text = row["text"].split()
        of_review = [i for i, word in enumerate(text) if word in REVIEW_WORDS[row["label"]]]
        assert of_review == list(range(of_review[0], of_review[-1] + 1))
        assert not set(text) & set(REVIEW_WORDS[OPPOSITE[row["label"]]])
        before = " ".join(text[: of_review[0]])
        place = len(tokenizer(before)["input_ids"]) - 1  # without the end token
        assert place >= benchmark.far(args.layers)
        hidden = " " + " ".join(text[i] for i in of_review)
        assert len(tokenizer(hidden, add_special_tokens=False)["input_ids"]) <= REVIEW_TOKENS
        longest_word = 10  # in tokens
        assert LENGTH - longest_word <= len(tokenizer(row["text"])["input_ids"]) <= LENGTH
        places.add(place)
    assert max(places) - min(places) > (LENGTH - REVIEW_TOKENS - benchmark.far(args.layers)) / 2


def test_the_beginning_of_a_document_does_not_depend_on_review_or_label(benchmark, args, tokenizer, tmp_path):
    others = argparse.Namespace(**vars(args))
    others.reviews = str(write_reviews(tmp_path / "others", opposite=True))
    pairs = zip(
        benchmark.documents(args, "train", LENGTH, tokenizer, ROWS),
        benchmark.documents(others, "train", LENGTH, tokenizer, ROWS),
        strict=True,
    )
    near = benchmark.far(args.layers)
    for one, other in pairs:
        one_ids, other_ids = (tokenizer(row["text"])["input_ids"] for row in (one, other))
        assert one_ids[:near] == other_ids[:near]
        assert one_ids != other_ids


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("pattern", ["dense", "window", "window + global", "window + global + random"])
def test_only_a_window_cannot_see_the_review(benchmark, pattern, layers):
    torch.manual_seed(0)
    shape = benchmark.shape_of(benchmark.Row(pattern, LENGTH, 0), layers, 50)
    model = AutoModelForSequenceClassification.from_config(shape).eval()
    one = torch.randint(3, 50, (1, LENGTH))
    other = one.clone()
    near = benchmark.far(layers)
    other[:, near:] = torch.randint(3, 50, (1, LENGTH - near))
    with torch.no_grad():
        logits = [model(ids, attention_mask=torch.ones_like(ids)).logits for ids in (one, other)]
    assert torch.equal(*logits) == (pattern == "window")
    other[:, near - 1] = 49 - one[:, near - 1]  # the last token that a window reaches
    if pattern == "window":
        with torch.no_grad():
            nearer = model(other, attention_mask=torch.ones_like(other)).logits
        assert not torch.equal(nearer, logits[0])


def test_all_lengths_hide_the_same_reviews(benchmark, args, tokenizer):
    reviews = [
        [
            [word for word in row["text"].split() if word not in ARTICLE_WORDS]
            for row in benchmark.documents(args, "train", length, tokenizer, ROWS)
        ]
        for length in (LENGTH, 2 * LENGTH)
    ]
    assert reviews[0] == reviews[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 100_000}, "no text of train has 100,000 tokens; give shorter --lengths"),
        ({"rows": 42}, "20 reviews of a label; 42 documents need 21"),
    ],
)
def test_too_few_texts_raise_an_error(benchmark, args, tokenizer, options, message):
    asked = {"length": LENGTH, "rows": ROWS, **options}
    with pytest.raises(UserError, match=message):
        list(benchmark.documents(args, "train", tokenizer=tokenizer, **asked))


def test_lengths_without_room_are_refused(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["", "--articles", "a", "--reviews", "r", "--lengths", "512", "200"])
    with pytest.raises(SystemExit):
        benchmark.parse_arguments()
    assert "a review of 128 tokens, 96 or more from the first, does not fit; give 256 or more" in (
        capsys.readouterr().err
    )


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.script
@pytest.mark.process
def test_the_benchmark_can_be_resumed(benchmark, args, forking_python: ForkingPython, tmp_path):
    command = [BENCHMARKS / "long_documents.py", "--quick", "--json", "--seeds", 1, "--lengths", 256]
    command += ["--articles", args.articles, "--reviews", args.reviews, "--output", tmp_path / "out"]
    command += ["--picture", tmp_path / "long.png"]
    for unfinished in ("data/tokenizer", "data/256", "shapes/256/dense-0"):  # of a process that was killed
        (tmp_path / "out" / unfinished).mkdir(parents=True)
    first = forking_python.run([*command, "--patterns", "dense"], tmp_path)
    assert first.returncode == 0, first.stderr
    done = forking_python.run([*command, "--patterns", "dense", "window"], tmp_path)
    assert done.returncode == 0, done.stderr

    lines = done.stdout.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert [row[:2] for row in cells[2:]] == [["256", "dense"], ["256", "window"]]
    found, before = json.loads(lines[-1]), json.loads(first.stdout.splitlines()[-1])
    assert found["dense"] == before["dense"]  # its time too: it is not trained again
    assert found["dense"]["256"]["difference"] is None
    assert found["window"]["256"]["difference"][0] == pytest.approx(
        found["window"]["256"]["accuracies"][0] - found["dense"]["256"]["accuracies"][0]
    )
    assert found["window"]["256"]["mebibytes"] > 0
    assert (tmp_path / "long.png").read_bytes().startswith(b"\x89PNG")
    other = forking_python.run([*command, "--layers", 1], tmp_path)
    assert other.returncode == 1
    message = f"{tmp_path / 'out'} holds trainings with layers=2, not 1; give another --output"
    assert other.stderr.splitlines()[-1] == f"long_documents.py: {message}"
    assert "Traceback" not in other.stderr
