"""Changing values inside YAML text: only their characters change, so that comments, order, quoting and spacing stay as they are.

ruamel.yaml's round-trip parser says where each value stands. Dumping its tree instead would lose comments inside flow mappings and
re-space what the writer had aligned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node

PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
NOT_PLAIN = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def put(text: str, keys: list[str], value: object) -> str:
    """`text` with `value` (a number, a string, a list or a mapping of them) at the nested `keys`, added where it was absent.

    A mapping that is there is changed part by part, so that what it holds besides stays.
    """
    root = YAML(typ="rt", pure=True).compose(text)
    if isinstance(value, Mapping) and isinstance(_find(root, keys), MappingNode):
        for key, part in value.items():
            text = put(text, [*keys, key], part)
        return text
    return _put(text, root, keys, value)


def _find(node: Node | None, keys: list[str]) -> Node | None:
    for key in keys:
        below = node.value if isinstance(node, MappingNode) else []
        node = next((value for name, value in below if name.value == key), None)
    return node


def _put(text: str, node: Node, keys: list[str], value: object, colon_after: int = 0) -> str:
    """Descend to the value, or to where it is missing. `colon_after` is the end of the key that `node` belongs to."""
    if not keys or not isinstance(node, MappingNode):  # not a mapping: `links:` with nothing below
        return _replace(text, node, _nested(keys, value), colon_after)
    head, *rest = keys
    for key, below in node.value:
        if key.value == head:
            return _put(text, below, rest, value, key.end_mark.index)
    return _insert(text, node, keys, value)


def _replace(text: str, node: Node, value: object, colon_after: int) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    if start == end:  # an empty value is marked at the next token: go back to behind its colon
        start = end = text.index(":", colon_after) + 1
        return f"{text[:start]} {render(value)}{text[end:]}"
    end -= len(text[start:end]) - len(text[start:end].rstrip())  # a block scalar's mark lies behind its line break
    return text[:start] + render(value) + text[end:]


def _insert(text: str, node: MappingNode, keys: list[str], value: object) -> str:
    if node.flow_style:
        at = node.end_mark.index - 1
        return text[:at] + (", " if node.value else "") + f"{keys[0]}: {render(_nested(keys[1:], value))}" + text[at:]
    newline = "\r\n" if "\r\n" in text else "\n"
    at = text.find("\n", _last_character(node))
    at = len(text) if at < 0 else at + 1
    indent = " " * node.value[0][0].start_mark.column
    before = "" if text[:at].endswith("\n") else newline
    return text[:at] + before + f"{indent}{keys[0]}: {render(_nested(keys[1:], value))}" + newline + text[at:]


def _last_character(node: Node, key: Node | None = None) -> int:
    """Index of the last character of `node`'s own text. A block's end mark lies behind the comments that follow it."""
    if isinstance(node, MappingNode) and not node.flow_style:
        return _last_character(node.value[-1][1], node.value[-1][0])
    if node.start_mark.index == node.end_mark.index and key is not None:
        return int(key.end_mark.index)
    return int(node.end_mark.index) - 1


def _nested(keys: list[str], value: object) -> object:
    for key in reversed(keys):
        value = {key: value}
    return value


def render(value: object) -> str:
    """`value` as YAML on one line, in flow style."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {render(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(render(part) for part in value) + "]"
    if isinstance(value, str):
        plain = PLAIN.fullmatch(value) and value.lower() not in NOT_PLAIN
        return value if plain else '"' + "".join(map(_character, value)) + '"'
    return repr(value)


def _character(c: str) -> str:
    """A character of a double-quoted string."""
    if c in '"\\':
        return "\\" + c
    return c if c.isprintable() else f"\\U{ord(c):08x}"
