"""Convert pages of a Git host to pages of the site: their links, and the code that they show."""

import ast
import os
import re
import textwrap
from pathlib import Path

LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"^ *```.*?^ *```$", flags=re.DOTALL | re.MULTILINE)
SHOWN_CODE = re.compile(r"^Code: \[`([\w.]+)`\]\(([^)#]+\.py)\)$", flags=re.MULTILINE)
PICTURES = (".png", ".svg", ".webp", ".html")


def staged_name(path: Path, root: Path) -> str:
    """Return the name that a file of the repository has as a page of the site, such as `training.md`."""
    name = path.relative_to(root).as_posix()
    if name == "README.md":
        return "index.md"
    name = name.removeprefix("docs/")
    if path.is_dir():
        return f"{name}/index.md"
    return name if path.suffix in (".md", *PICTURES) else f"{name}.md"


def with_staged_links(text: str, path: Path, root: Path) -> tuple[str, list[Path]]:
    """Return the text of a page with the links of the site, and the files that it links to."""
    here = os.path.dirname(staged_name(path, root))
    linked: list[Path] = []

    def replace(match: re.Match[str]) -> str:
        name, anchor = match[1], match[2] or ""
        if name.startswith(("http://", "https://", "mailto:")):
            return match[0]
        target = (path.parent / name).resolve()
        if target == root / "docs":
            target = root / "README.md"
        if target.suffix not in PICTURES:
            linked.append(target)
        return os.path.relpath(staged_name(target, root), here or ".") + anchor

    parts, at = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(replace, text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, LINK.sub(replace, text[at:])]), linked


def with_code(text: str, path: Path) -> str:
    """Return a page with the source of each function or class that a line `Code: [...](...)` names.

    Raises:
        LookupError: a file has no such function or class.
    """

    def add_source(match: re.Match[str]) -> str:
        return f"{match[0]}\n\n```python\n{source_of(path.parent / match[2], match[1])}```"

    return SHOWN_CODE.sub(add_source, text)


def source_of(file: Path, name: str) -> str:
    """Return the source of a function or class of a file, without its docstring.

    Args:
        file: a Python file.
        name: its qualified name in the file, such as `MultiHeadAttention.forward`.

    Raises:
        LookupError: the file has no such function or class.
    """
    text = file.read_text(encoding="utf-8")
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        inner = [
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.FunctionDef | ast.ClassDef) and child.name == part
        ]
        if not inner:
            raise LookupError(f"{file} has no {name}; correct the line `Code:` of the page")
        node = inner[0]
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    lines = text.splitlines()
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
    kept = lines[first : node.end_lineno]
    begins_with_text = isinstance(node.body[0], ast.Expr) and ast.get_docstring(node) is not None
    if begins_with_text and len(node.body) > 1:
        text_of = node.body[0]
        assert text_of.end_lineno is not None
        kept = lines[first : text_of.lineno - 1] + lines[text_of.end_lineno : node.end_lineno]
    return textwrap.dedent("\n".join(kept)) + "\n"
