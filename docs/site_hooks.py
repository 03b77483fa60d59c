"""What MkDocs cannot take from docs/ as it stands: pages made from code and data, and links that lead out of the folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from perfmodel.cli import build_app
from perfmodel.report.scoreboard import BEGIN, markdown, replaced

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {"kernels.md": "kernels/README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Pages of the site that stand where a reader of the code looks for them."""
LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
FETCHED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that are made, or that stand elsewhere."""
    from mkdocs.structure.files import File

    texts = {"commands.md": command_reference(typer.main.get_command(build_app()))}
    texts |= {page: site_links((ROOT / path).read_text(encoding="utf-8"), Path(path).parent) for page, path in ELSEWHERE.items()}
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(text: str, *, page: Any, config: Any, files: Files) -> str:
    """Put the scoreboard where its markers stand; mend links that lead out of docs/."""
    if page.file.generated_by:
        return text
    if BEGIN in text:
        board = json.loads((ROOT / "validation" / "scoreboard.json").read_text(encoding="utf-8"))
        text = replaced(text, markdown(board), page.file.src_uri)
    return site_links(text, Path("docs"))


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Raise PluginError where a page would fetch anything: the site works without the network."""
    from mkdocs.exceptions import PluginError

    if fetched := FETCHED.findall(output):
        raise PluginError(f"{page.file.src_uri} would fetch {', '.join(fetched)}")
    return output


def site_links(text: str, folder: Path) -> str:
    """`text` of a page in `folder` of the project, its links made those of the site; what is not on the site keeps its words alone."""
    pages = {path: page for page, path in ELSEWHERE.items()} | {"README.md": "index.md"}

    def link(found: re.Match[str]) -> str:
        target = (ROOT / folder / found[2]).resolve().relative_to(ROOT)
        if target.parts[0] == "docs":
            return f"[{found[1]}]({target.relative_to('docs').as_posix()}{found[3] or ''})"
        page = pages.get(target.as_posix())
        return f"[{found[1]}]({page}{found[3] or ''})" if page else found[1]

    return "".join(part if at % 2 else LINK.sub(link, part) for at, part in enumerate(FENCED.split(text)))


def command_reference(command: Any) -> str:
    """The page of the command line: each command's help and options as the program knows them."""
    head = "# Command line\n\nAs `perfmodel COMMAND --help` says it. `python -m perfmodel` is the same command.\n"
    ends = "Exit codes: 0, 2 for bad input, 3 for missing hardware or a missing extra, 130 when interrupted.\n"
    context = command.context_class(command, info_name="perfmodel")
    return "\n".join([head, ends, *_sections(context, 2)])


def _sections(context: Any, level: int) -> list[str]:
    """A section for each command in a group, and for those within it."""
    parts = []
    for name in context.command.list_commands(context):
        command = context.command.get_command(context, name)
        inner = type(context)(command, info_name=name, parent=context)
        parts += [f"{'#' * level} {inner.command_path}\n", f"{command.help or ''}\n"]
        if hasattr(command, "list_commands"):
            parts += _sections(inner, level + 1)
        else:
            parts.append(_parameters(command, inner))
    return parts


def _parameters(command: Any, context: Any) -> str:
    """A table of arguments and options."""
    rows = [row for one in command.get_params(context) if (row := _row(one))]
    return "\n".join(["| | | default |", "| --- | --- | --- |", *rows, ""])


def _row(parameter: Any) -> str | None:
    if getattr(parameter, "hidden", False) or parameter.name == "help":
        return None
    name = parameter.metavar or parameter.name.upper()
    if parameter.param_type_name == "option":
        name = ", ".join(parameter.opts) + ("" if parameter.is_flag else f" {parameter.metavar or _kind(parameter)}")
    default = parameter.default
    shown = (
        "must be given"
        if parameter.required
        else ""
        if default is None or default is False or default == () or callable(default)
        else f"`{default}`"
    )
    return f"| `{_cell(name)}` | {_cell(parameter.help or '')} | {shown} |"


def _kind(parameter: Any) -> str:
    """INT, FLOAT, ...: typer has a descriptor since it is no longer built on click."""
    described = getattr(parameter, "type_descriptor", None)
    return (described.annotation.__name__ if described else parameter.type.name).upper()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
