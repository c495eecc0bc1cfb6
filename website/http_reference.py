"""Reference of the HTTP routes, made from the OpenAPI document that is kept: routes, bodies, answers, problems."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Node = dict[str, Any]


def reference(described: Node) -> str:
    """Return the page of an OpenAPI document, in Markdown."""
    lines = ["# Routes and bodies", "", _HEAD]
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            lines += ["", f"## {method.upper()} {path}", "", *_route(route, described)]
    lines += ["", "## Bodies", "", "A field without a default has to be given."]
    for name, schema in sorted(described["components"]["schemas"].items()):
        lines += ["", f"### {name}", "", *_body(schema)]
    lines += ["", "## Problems", "", "| type | status | what is wrong |", "| --- | --- | --- |"]
    for example in described["components"]["examples"].values():
        value = example["value"]
        if str(value.get("type", "")).startswith("/problems/"):
            lines.append(f"| `{value['type'].rpartition('/')[2]}` | {value['status']} | {_cell(value['detail'])} |")
    return "\n".join(lines) + "\n"


_HEAD = """Every route of a service with what it takes and what it answers. The page is made from the OpenAPI document,
which a service gives at `/openapi.json`. [The service over HTTP](../http.md) explains how they are used together."""


def _route(route: Node, described: Node) -> Iterator[str]:
    yield route.get("description", "")
    if parameters := route.get("parameters"):
        yield from ("", "| parameter | in | type | meaning |", "| --- | --- | --- | --- |")
        for parameter in parameters:
            needed = "" if parameter.get("required") else ", optional"
            kind, meaning = _type(parameter.get("schema", {})), _cell(parameter.get("description", ""))
            yield f"| `{parameter['name']}` | {parameter['in']}{needed} | {kind} | {meaning} |"
    for media, content in route.get("requestBody", {}).get("content", {}).items():
        yield from ("", f"Body: {_type(content.get('schema', {}))} as `{media}`.")
    yield from ("", "| status | answer | headers |", "| --- | --- | --- |")
    problems: dict[str, None] = {}
    for status, answer in route["responses"].items():
        refused = answer.get("content", {}).get("application/problem+json")
        if refused:
            problems |= dict.fromkeys(f"`{name}`" for name in refused.get("examples", {}))
            continue
        headers = ", ".join(f"`{name}`" for name in answer.get("headers", {}))
        media = ", ".join(f"`{name}`" for name in answer.get("content", {}))
        yield f"| {status} | {_cell(answer.get('description', ''))}{' (' + media + ')' if media else ''} | {headers} |"
    yield from ("", f"[Problems](#problems): {', '.join(problems)}.")


def _body(schema: Node) -> Iterator[str]:
    yield _paragraphs(schema.get("description", ""))
    fields = schema.get("properties", {})
    if not fields:
        yield from ("", f"Type: {_type(schema)}.")
        return
    yield from ("", "| field | type | default | meaning |", "| --- | --- | --- | --- |")
    for name, field in fields.items():
        default = (
            f"`{field['default']}`" if "default" in field else ("" if name in schema.get("required", ()) else "none")
        )
        yield f"| `{name}` | {_type(field)} | {default} | {_cell(field.get('description', ''))} |"


def _type(schema: Node) -> str:
    """Name a type in a cell: links for bodies, limits in words."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_type(part) for part in schema[several]))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {_type(schema['items'])}" if "items" in schema else "array"
    words = {"minimum": ">=", "maximum": "<=", "exclusiveMinimum": ">", "exclusiveMaximum": "<"}
    limits = ", ".join(f"{words[key]} {schema[key]}" for key in words if key in schema)
    return f"{schema.get('type', 'any')}{' ' + limits if limits else ''}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _paragraphs(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())
