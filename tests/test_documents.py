"""README and docs/ are correct: every command and every Python block runs, every link resolves."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import BertConfig, BertForMaskedLM, MarianConfig, MarianMTModel

import vaswani
from document_server import CLIENT, PARALLEL
from jsonl import write_jsonl
from library_tokenizers import marian
from loopback_hub import loopback_hub
from toy_questions import nested, toy_questions
from toy_texts import toy_documents
from vaswani.data.sources.dates import generate_dates

if sys.version_info >= (3, 11):
    import tomllib

ROOT = Path(__file__).parents[1]
# In the order in which a reader needs them: a page may use the models of those before it.
PAGES = [
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            *("quickstart", "concepts", "configurations", "training", "own_data"),
            *("low_resource", "opus_mt"),
            *("sparse_attention", "translation", "decoding", "pretraining", "long_documents"),
            *("finetuning", "generating", "scoring", "prompting", "embedding"),
            *("distillation", "conversion", "deploying"),
            *("demo", "attention", "pictures"),
            *("hub", "scaling", "arithmetic"),
            *("systems", "results", "paper", "troubleshooting"),
            "releasing",
            *(f"results/{page.stem}" for page in sorted((ROOT / "docs" / "results").glob("*.md"))),
        )
    ),
]
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
MARKDOWN = [
    *(path for folder in (".", "examples/notebooks") for path in sorted((ROOT / folder).glob("*.md"))),
    *sorted((ROOT / "docs").rglob("*.md")),
]
TARGETS = ("test", "test-all", "check", "dist", "docs", "notebooks")  # of make, that a test cannot run


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """The code blocks of a page in their order, each with its language; indented ones without the indent."""
    found = re.findall(r"^( *)```(\w+)\n(.*?)^ *```$", TEXTS[page], flags=re.DOTALL | re.MULTILINE)
    return [
        (language, re.sub(f"^{indent}", "", code, flags=re.MULTILINE))
        for indent, language, code in found
        if language in languages
    ]


def test_every_page_is_tested() -> None:
    written = (path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    assert sorted(PAGES[1:]) == sorted(written)


def test_every_code_block_names_its_language() -> None:
    for page, text in TEXTS.items():
        fences = re.findall(r"^ *```(\w*)$", text, flags=re.MULTILINE)
        assert set(fences[::2]) <= {"bash", "python"}, page
        assert set(fences[1::2]) <= {""}, page


def test_the_readme_is_short() -> None:
    assert len(TEXTS["README.md"].splitlines()) <= 120


def test_the_readme_links_to_every_page() -> None:
    linked = set(re.findall(r"\]\((docs/\w+\.md)\)", TEXTS["README.md"]))
    linked |= {f"docs/{name}" for name in re.findall(r"\]\((results/\w+\.md)", TEXTS["docs/results.md"])}
    assert set(PAGES[1:]) - linked == {"docs/releasing.md"}


def test_the_map_of_the_code_names_every_folder() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = {
        path.parent.name for path in (ROOT / "src" / "vaswani").glob("*/*") if path.suffix in (".py", ".yaml")
    }
    assert folders == set(re.findall(r"`src/vaswani/(\w+)/`", text))


def anchors(text: str) -> set[str]:
    """Of the headings of a page, as forges make them."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name) if name else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is in Python from 3.11 on")
def test_every_extra_that_is_named_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {name for text in TEXTS.values() for name in re.findall(r"'vaswani\[(\w+)\]'", text)}
    assert named
    assert named <= extras.keys()


def test_the_changelog_lists_the_version() -> None:
    headings = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert vaswani.__version__ in headings


def test_the_citation_has_what_its_format_requires() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_the_workflow_runs_what_continuous_integration_runs() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


# What the commands find in their folder.


def write_rows(folder: Path, rows: Mapping[str, list[dict[str, Any]]]) -> None:
    folder.mkdir(parents=True)
    for split, rows_of_split in rows.items():
        write_jsonl(folder / f"{split}.jsonl", rows_of_split)


def write_corpora(folder: Path) -> None:
    """Few rows in the formats of the corpora that the documents name; one of them has the columns of all."""
    pairs = generate_dates("de,en", train_rows=40, validation_rows=4, test_rows=4)
    parallel = {
        split: [
            {**row, "en": row["source"], "de": row["target"], "fr": row["target"]}
            | {"translation": {"en": row["source"], "de": row["target"]}}
            for row in ({"source": row["source"], "target": row["target"]} for row in pairs[split])
        ]
        for split in pairs
    }
    texts = {
        split: [
            {"text": text, "label": random.Random(text).choice(["neg", "pos"]), "summary": text.split(".")[0]}
            for text in toy_documents(count, seed)
        ]
        for seed, (split, count) in enumerate({"train": 40, "validation": 6, "test": 6}.items())
    }
    for name in (PARALLEL, "multi30k"):
        write_rows(folder / name, parallel)
    for name in ("reviews", "articles"):
        write_rows(folder / name, texts)
    shutil.copy(folder / PARALLEL / "test.jsonl", folder / "test.jsonl")
    for name, split, field in (
        *(("train.en", "train", "en"), ("train.de", "train", "de")),
        *(("valid.en", "validation", "en"), ("valid.de", "validation", "de")),
        *(("in.txt", "test", "en"), ("texts.txt", "test", "en"), ("prompts.txt", "test", "en")),
    ):
        (folder / name).write_text("".join(row[field] + "\n" for row in parallel[split]))
    (folder / "report.json").write_text(json.dumps(a_report()))
    (folder / "article.txt").write_text("\n".join(toy_documents(3, 9)))
    for name in ("squad.json", "squad-dev.json"):
        (folder / name).write_text(json.dumps(nested(list(toy_questions(6, seed=0, unanswerable=0.3)))))
    write_jsonl(folder / "questions.jsonl", toy_questions(3, seed=1))
    for name in ("train.conll", "dev.conll"):
        (folder / name).write_text("Ann B-PER\nsaw O\nRome B-LOC\n\nBob B-PER\nran O\n\n" * 4)


def a_report() -> dict[str, Any]:
    """A report whose student retains half of the teacher's score; those of the toys retain nothing."""
    half, whole = ({"value": value, "low": value, "high": value} for value in (0.5, 1.0))
    models = [
        {"name": role, "role": role, "parameters": 9, "scores": {"chrf": score}, "retention": score}
        for role, score in {"teacher": whole, "student": half}.items()
    ]
    return {"metric": "chrf", "models": models}


def write_library_models(folder: Path) -> None:
    """Toys in the place of models that documents name."""
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForMaskedLM(BertConfig(vocab_size=20, **small)).save_pretrained(folder / "my-bert")
    opus = folder / "Helsinki-NLP" / "opus-mt-en-de"
    opus.mkdir(parents=True)
    marian(opus)
    vocabulary = json.loads((opus / "vocab.json").read_text())
    sides = {f"{side}_{name}": 16 for side in ("encoder", "decoder") for name in ("ffn_dim",)}
    sides |= {
        f"{side}_{name}": 1 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")
    }
    pad = vocabulary["<pad>"]
    config = MarianConfig(
        vocab_size=len(vocabulary), d_model=16, pad_token_id=pad, decoder_start_token_id=pad, **sides
    )
    config.eos_token_id = 0
    MarianMTModel(config).save_pretrained(opus)


def write_tools(folder: Path, address: str) -> None:
    """The commands that documents use, and no others, as the only ones on the PATH."""
    folder.mkdir()
    for name in ("vaswani", "python"):
        write_script(folder / name, CLIENT.format(python=sys.executable, address=address))
    write_script(folder / "pip", '#!/bin/sh\n[ "$*" = "install vaswani" ]\n')
    make = shutil.which("make")
    assert make
    write_script(
        folder / "make",
        f"""#!/bin/sh
case " {" ".join(TARGETS)} " in *" $1 "*) exec {make} -C {ROOT} -n "$1" > /dev/null;; esac
exec {make} -f {ROOT}/Makefile -o .venv/installed BIN={folder} "$@"
""",
    )
    # The file of --config_file has to be there, and what comes behind --no_python runs, in one process.
    write_script(
        folder / "accelerate",
        """#!/bin/bash
[ "$1 $2" = "launch --config_file" ] && [ -s "$3" ] || exit 2
while [ "$1" != --no_python ]; do shift; done
shift; "$@"
""",
    )


def write_script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


class Folder:
    """A folder with corpora, models and commands, in which the documents are read from beginning to end."""

    def __init__(self, path: Path, environment: dict[str, str]):
        self.path = path
        self.environment = environment

    def run(self, *command: str | Path) -> str:
        """Run a command; returns what it prints on both streams if its exit status is 0."""
        done = subprocess.run(
            command, cwd=self.path, env=self.environment, timeout=200, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:]
        return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    path, tools = tmp_path_factory.mktemp("documents"), tmp_path_factory.mktemp("tools") / "bin"
    address = str(tools.parent / "socket")
    write_corpora(path)
    write_library_models(path)
    write_tools(tools, address)
    with loopback_hub(you="hf_you") as hub:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        variables = {"OMP_NUM_THREADS": "1", "VASWANI_COMPILE": "0", "HF_DATASETS_OFFLINE": "1"}
        environment = kept | variables | hub.environment(str(tools.parent / "cache"), token="hf_you")
        command = [sys.executable, str(Path(__file__).parent / "document_server.py"), address]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            yield Folder(path, {**environment, "PATH": str(tools)})
            server.terminate()


@pytest.mark.script
@pytest.mark.slow
def test_every_command_and_every_block_of_python_runs(folder: Folder, subtests: pytest.Subtests) -> None:
    """In the order of the pages; one that the tools or the tables of document_server.py do not know fails."""
    count = 0
    for page in PAGES:
        for language, code in blocks(page, "bash", "python"):
            for text in commands(code) if language == "bash" else [code]:
                count += 1
                with subtests.test(page=page, code=text):
                    run(folder, language, text)
    assert count > 50


def commands(code: str) -> list[str]:
    """The commands of a block: its lines, joined where one goes on."""
    return [line for line in code.replace("\\\n", " ").splitlines() if line.strip()]


def run(folder: Folder, language: str, text: str) -> None:
    if language == "bash":
        folder.run("/bin/bash", "-c", text.replace("RANK", "0").replace("HOST", "127.0.0.1"))
    elif "# no vaswani" in text:
        code = f"{text}\nimport sys\nassert 'vaswani' not in sys.modules"
        assert folder.run(sys.executable, "-c", code)
    else:
        printed = folder.run(Path(folder.environment["PATH"]) / "python", text)
        assert bool(printed) or "print(" not in text
