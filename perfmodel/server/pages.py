"""Pages without a script or a style from elsewhere: the reference of the API, and a plain first page."""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
h2{margin-top:2.5rem;border-top:1px solid #ddd;padding-top:1rem}code,pre,textarea{font:13px/1.45 ui-monospace,monospace}
pre,textarea{background:#f6f6f4;border:1px solid #ddd;padding:.6rem;overflow:auto;width:100%;box-sizing:border-box;max-height:24rem}
table{border-collapse:collapse;font-size:14px}td{border-top:1px solid #eee;padding:.2rem .8rem .2rem 0;vertical-align:top}
button{padding:.3rem 1rem}nav a{margin-right:1rem}"""
SCRIPT = """for (const form of document.querySelectorAll("form")) form.onsubmit = async event => {
  event.preventDefault();
  const out = form.querySelector("pre"), text = form.querySelector("textarea");
  out.hidden = false; out.textContent = "...";
  try {
    const path = form.dataset.path.replace(/{(.*?)}/g, (_, name) => encodeURIComponent(form.elements[name].value));
    const reply = await fetch(path, text ? {method: "POST", body: text.value, headers: {"content-type": "application/json"}} : {});
    out.textContent = reply.status + "\\n" + JSON.stringify(await reply.json(), null, 1);
  } catch (error) { out.textContent = String(error); }
};"""


def index_page(version: str) -> str:
    """The first page where the graphical one is not installed."""
    body = f"""<h1>perfmodel {escape(version)}</h1>
<p>The HTTP API is at work: <a href="docs">its reference</a>, <a href="openapi.json">openapi.json</a>.</p>
<p>The graphical page needs its packages: <code>pip install 'perfmodel[server]'</code>.</p>"""
    return _page("perfmodel", body)


def docs_page(openapi: dict[str, Any]) -> str:
    """Every endpoint with its fields, an example to send, and its statuses."""
    parts = [f"<h1>{escape(openapi['info']['title'])} {escape(openapi['info']['version'])}: HTTP API</h1>"]
    parts += [f"<p>{_prose(p)}</p>" for p in openapi["info"].get("description", "").split("\n\n")]
    links = "".join(f'<a href="#{path}">{path}</a> ' for path in openapi["paths"])
    parts.append(f'<nav aria-label="Endpoints">{links}<a href="openapi.json">openapi.json</a></nav>')
    for path, methods in openapi["paths"].items():
        parts += [_endpoint(path, method, facts, openapi) for method, facts in methods.items()]
    return _page("perfmodel: HTTP API", "\n".join(parts) + f"<script>{SCRIPT}</script>")


def _endpoint(path: str, method: str, facts: dict[str, Any], openapi: dict[str, Any]) -> str:
    lines = [f'<h2 id="{path}"><code>{method.upper()} {escape(path)}</code></h2><p><b>{escape(facts["summary"])}</b></p>']
    lines += [f"<p>{_prose(text)}</p>" for text in facts.get("description", "").split("\n\n") if text]
    content = facts.get("requestBody", {}).get("content", {}).get("application/json")
    asked = "".join(
        f'<label>{p["name"]} <input name="{p["name"]}" value="{_example_id(path)}"></label> ' for p in facts.get("parameters", [])
    )
    if content:
        lines.append(_fields(content["schema"], openapi))
        first = next(iter(content["examples"].values()))["value"]
        label = 'aria-label="Body of the request, JSON" spellcheck="false"'
        asked = f'<textarea rows="8" {label}>{escape(json.dumps(first, indent=1))}</textarea>'
    send = f'<button aria-label="Send to {path}">Send</button><pre hidden role="status" tabindex="0"></pre>'
    lines.append(f'<form data-path="{path}">{asked}{send}</form>')
    statuses = "; ".join(f"{status} {_prose(answer['description'])}" for status, answer in facts["responses"].items())
    return "\n".join(lines) + f"<p><small>{statuses}</small></p>"


def _example_id(path: str) -> str:
    return "b200" if "gpus" in path else "gpt-oss-20b"


def _fields(schema: dict[str, Any], openapi: dict[str, Any]) -> str:
    """A table of the fields; of several forms of a request, one after the other."""
    if "$ref" in schema:
        schema = openapi["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "properties" not in schema:
        return "<p>or</p>".join(_fields(form, openapi) for form in schema.get("anyOf", []))
    needed = schema.get("required", [])
    rows = [
        f"<tr><td><code>{escape(name)}</code></td><td>{'required' if name in needed else _default(field)}</td>"
        f"<td>{_prose(field.get('description', ''))}</td></tr>"
        for name, field in schema["properties"].items()
    ]
    return f"<table>{''.join(rows)}</table>"


def _default(field: dict[str, Any]) -> str:
    return "" if field.get("default") in (None, []) else f"<code>{escape(json.dumps(field['default']))}</code>"


def _prose(text: str) -> str:
    """Text with `code` in it."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _page(title: str, body: str) -> str:
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head = f"<head>{meta}<title>{title}</title><style>{STYLE}</style></head>"
    return f'<!doctype html><html lang="en">{head}<body>{body}</body></html>'
