"""Builds the documentation as a site of static files that needs no network.

    python docs/build_site.py [--output site] [--staging build/docs]

The pages of `docs/` stay readable on a Git host. Here they are copied into a staging folder, with the pages
that are made from the code, and Zensical makes the site of them. `mkdocs.yml` says where each page stands;
`commands/` and `api/` in it are made from the code.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from builder.api import api_pages
from builder.commands import command_pages
from builder.fields import configuration_page
from builder.links import PICTURES, staged_name, with_code, with_staged_links

ROOT = Path(__file__).resolve().parents[1]


def build(output: Path, staging: Path) -> None:
    """Write the site into `output`, which is replaced.

    Raises:
        subprocess.CalledProcessError: the site has a link that leads nowhere, or a mistake in its settings.
    """
    shutil.rmtree(staging, ignore_errors=True)
    pages = staging / "pages"
    texts = {**written_pages(), **made_pages()}
    for name, text in texts.items():
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        (pages / name).write_text(text, encoding="utf-8")
    for path in (path for path in (ROOT / "docs").rglob("*") if path.suffix in PICTURES):
        copy = pages / path.relative_to(ROOT / "docs")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    for name in ("site.css", "focus.js", "iframe-worker.js"):
        shutil.copy(ROOT / "docs" / "builder" / name, pages)
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    settings |= {"docs_dir": "pages", "nav": whole_nav(settings["nav"], texts)}
    for plugin in (plugin for plugin in settings["plugins"] if "mkdocstrings" in plugin):
        plugin["mkdocstrings"]["handlers"]["python"]["paths"] = [str(ROOT / "src")]
    (staging / "mkdocs.yml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "mkdocs.yml"]
    subprocess.run(command, cwd=staging, check=True)
    shutil.rmtree(output, ignore_errors=True)
    shutil.move(staging / "site", output)


def written_pages() -> dict[str, str]:
    """The pages that people write, and the files that they link to, by their names in the site."""
    waiting = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pages: dict[str, str] = {}
    while waiting:
        path = waiting.pop(0)
        name = staged_name(path, ROOT)
        if name in pages:
            continue
        if path.suffix == ".md":
            text = with_code(path.read_text(encoding="utf-8"), path)
            pages[name], linked = with_staged_links(text, path, ROOT)
            waiting += linked
        elif path.is_dir():
            files = sorted(child for child in path.iterdir() if child.suffix in (".py", ".yaml"))
            lines = [f"- [{child.name}]({staged_name(child, path)})" for child in files]
            pages[name] = "\n".join([f"# {path.relative_to(ROOT)}/", "", *lines, ""])
            waiting += files
        else:
            language = {".py": "python", ".yaml": "yaml", ".json": "json", ".cff": "yaml"}.get(
                path.suffix, ""
            )
            code = path.read_text(encoding="utf-8")
            pages[name] = f"# {path.relative_to(ROOT)}\n\n````{language}\n{code}````\n"
    return pages


def made_pages() -> dict[str, str]:
    """The pages that are made from the code, by their names in the site."""
    return {**command_pages(), "configuration.md": configuration_page(), **api_pages()}


def whole_nav(nav: Iterable[Mapping[str, Any]], texts: Mapping[str, str]) -> list[dict[str, Any]]:
    """The navigation with a list of its pages in the place of each folder."""
    whole: list[dict[str, Any]] = []
    for (title, value), *_ in (entry.items() for entry in nav):
        if isinstance(value, list):
            whole.append({title: whole_nav(value, texts)})
        elif value.endswith("/"):
            names = sorted(name for name in texts if name.startswith(value))
            whole.append({title: [{title_of(texts[name]): name} for name in names]})
        else:
            whole.append({title: value})
    return whole


def title_of(page: str) -> str:
    """The heading of a page."""
    return page.partition("\n")[0].removeprefix("# ").replace("`", "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the documentation as a site of static files.")
    parser.add_argument("--output", type=Path, default=ROOT / "site")
    parser.add_argument("--staging", type=Path, default=ROOT / "build" / "docs")
    given = parser.parse_args()
    build(given.output.resolve(), given.staging.resolve())
