"""The site of the documentation: complete, without warnings, and made from the code as it is."""

import ast
import dataclasses
import html
import re
from pathlib import Path

import pytest
import typer
import yaml
from transformers import PreTrainedConfig

import build_site
import vaswani
from builder.links import source_of, staged_name, with_code, with_staged_links
from builder.tables import limits, shown_default, table, type_name
from vaswani.bounds import Bounds
from vaswani.cli.commands import app
from vaswani.cli.option_pages import PAGES
from vaswani.model.configuration_vaswani import VaswaniConfig, VaswaniDecoderConfig, VaswaniEncoderConfig
from vaswani.training.config.options import is_inherited, sections

ROOT = Path(__file__).parents[1]
NAV = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    return build_site.written_pages()


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return build_site.made_pages()


@pytest.mark.script
@pytest.mark.slow
def test_the_site_builds_without_a_warning(site: Path) -> None:
    lines = [line for line in (site / "printed.txt").read_text().splitlines() if line.strip()]
    assert sorted(re.sub(r"[\d.]+", "N", line) for line in lines) == [
        "Build finished in Ns",
        "Build started",
        "No issues found",
    ]


@pytest.mark.script
@pytest.mark.slow
def test_the_site_loads_nothing_external(site: Path) -> None:
    loaded = r"""<(?:script|img|iframe|link)[^>]*(?:src|href)=["']?(https?://[^"'> ]+)"""
    for path in site.rglob("*.html"):
        assert not re.findall(loaded, path.read_text()), path


@pytest.mark.script
@pytest.mark.slow
def test_lists_code_fences_and_tables_are_rendered(site: Path) -> None:
    """On the site, what a list's item holds is indented by four spaces."""
    for path in site.glob("*.html"):
        article = path.read_text().partition("<article")[2].partition("</article")[0]
        text = re.sub(r"<(pre|code).*?</\1>", "", article, flags=re.DOTALL)
        assert not re.findall(r"^(?:- |\d\. |\| |```).*", text, flags=re.MULTILINE), path.name


def in_nav(nav: list) -> set[str]:
    names = set()
    for entry in nav:
        for value in entry.values():
            names |= in_nav(value) if isinstance(value, list) else {value}
    return names


def test_every_page_is_in_the_navigation(written: dict[str, str], made: dict[str, str]) -> None:
    named = in_nav(build_site.whole_nav(NAV, {**written, **made}))
    documents = {staged_name(path, ROOT) for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}
    assert documents <= named
    assert set(made) <= named
    assert named <= {*written, *made}


def test_every_command_has_a_page_with_all_its_options(made: dict[str, str]) -> None:
    for name, command in typer.main.get_command(app).commands.items():
        page = made[f"commands/{name}.md"]
        assert f"({name}.md)" in made["commands/index.md"]
        if name not in {config_class.command for config_class in PAGES.values()}:
            for option in command.params:
                assert (
                    f"`{option.opts[0]}`" in page
                    or f"`{option.name.upper()}" in page
                    or option.metavar in page
                )
                assert html.unescape(option.help.split()[0]) in page


def test_every_field_of_a_training_is_in_the_page_of_its_command(made: dict[str, str]) -> None:
    for config_class in PAGES.values():
        page = made[f"commands/{config_class.command}.md"]
        for section in sections(config_class).values():
            for field in dataclasses.fields(section):
                if field.metadata.get("help") and not is_inherited(field.name, section):
                    assert f"| `--{field.name}` |" in page


@pytest.mark.parametrize("config_class", [VaswaniConfig, VaswaniEncoderConfig, VaswaniDecoderConfig])
def test_every_field_of_a_model_has_a_description(config_class: type, made: dict[str, str]) -> None:
    part = made["configuration.md"].split(f"## {config_class.__name__}\n")[1].split("\n## ")[0]
    library = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    own = {field.name for field in dataclasses.fields(config_class)} - library
    missing = {name for name in own if f"| `{name}` |" not in part}
    assert missing <= {"is_encoder_decoder"}, missing


def test_every_public_name_is_documented(made: dict[str, str]) -> None:
    text = "".join(page for name, page in made.items() if name.startswith("api/"))
    documented = set(re.findall(r"^::: vaswani\.(\w+)$", text, flags=re.MULTILINE))
    documented |= set(re.findall(r"^## (\w+)$", made["configuration.md"], flags=re.MULTILINE))
    assert set(vaswani.__all__) == documented & set(vaswani.__all__)


@pytest.mark.script
@pytest.mark.slow
def test_docstring_sections_are_rendered(site: Path) -> None:
    page = (site / "api" / "using_models.html").read_text()
    assert 'id="vaswani.Translator.from_pretrained"' in page
    assert "Parameters:" in page
    assert "Raises:" in page
    assert "Args:" not in page
    assert "Returns:" in (site / "api" / "conversion.html").read_text()


# ------------------------------------------------------------------------------------------ links and code


def test_links_lead_to_the_pages_of_the_site(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    fence = "\n```\n[e](f.md)\n```\n"
    text = f"[a](training.md#data) [b](../examples/01.py) [c](https://x.org) [d](../README.md){fence}"
    staged, linked = with_staged_links(text, tmp_path / "docs" / "page.md", tmp_path)
    assert staged == (f"[a](training.md#data) [b](examples/01.py.md) [c](https://x.org) [d](index.md){fence}")
    assert [path.relative_to(tmp_path).as_posix() for path in linked] == [
        "docs/training.md", "examples/01.py", "README.md",
    ]  # fmt: skip


def test_code_is_shown_as_it_is_now(tmp_path: Path) -> None:
    file = tmp_path / "layer.py"
    file.write_text(
        'class Layer:\n    @cached\n    def run(self, x):\n        """Double."""\n        return 2 * x\n'
    )
    assert source_of(file, "Layer.run") == "@cached\ndef run(self, x):\n    return 2 * x\n"
    text = with_code("Code: [`Layer.run`](layer.py)\n\nMore.\n", tmp_path / "page.md")
    assert "```python\n@cached\ndef run(self, x):\n    return 2 * x\n```" in text
    with pytest.raises(LookupError, match=r"layer.py has no Layer.walk; correct the line `Code:`"):
        source_of(file, "Layer.walk")


def test_tables_show_types_limits_and_defaults() -> None:
    assert type_name(int | None) == "int"
    assert type_name(list[str]) == "list of text"
    assert type_name(float | int) == "float"
    assert limits(Bounds(at_least=0, below=1)) == " ≥ 0, < 1"
    assert limits(Bounds(at_least=1, also=(-1,))) == " ≥ 1, or -1"
    assert limits(Bounds()) == ""
    assert [shown_default(value) for value in (True, 0.1, ["a", "b"], None)] == [
        "`true`",
        "`0.1`",
        "`a b`",
        "",
    ]
    assert table(["a", "b"], [["1|2", "3\n4"]]) == "| a | b |\n| --- | --- |\n| 1\\|2 | 3 4 |\n"


# ------------------------------------------------------------------------------------- pages about the code


def messages(folder: Path) -> list[str]:
    """All texts of the code, with `…` where values are put in."""
    texts = []
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts


def test_every_message_of_the_troubleshooting_page_occurs_in_the_code() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^### `(.*)`$", page, flags=re.MULTILINE)
    assert len(quoted) >= 20
    known = "\n".join(messages(ROOT / "src" / "vaswani"))
    missing = [
        message
        for message in quoted
        if not re.search(".*".join(map(re.escape, message.strip("…").split("…"))), known)
    ]
    assert not missing


def test_the_page_on_the_paper_shows_code_in_each_section_with_an_equation(written: dict[str, str]) -> None:
    sections_of = re.split(
        r"^## ", (ROOT / "docs" / "paper.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    with_equation = [section for section in sections_of if re.search(r"^> ", section, flags=re.MULTILINE)]
    assert len(with_equation) >= 7
    assert all("Code: [`" in section for section in with_equation)
    assert written["paper.md"].count("```python") == sum(section.count("Code: [`") for section in sections_of)
