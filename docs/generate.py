"""Writes the parts of pages that the code already says: settings, commands, keys, errors, rooms, checks of the audit.

``python docs/generate.py`` fills each block between ``<!-- generated: NAME -->`` and ``<!-- end of NAME -->``. The
result is checked in, so the pages are whole on GitHub and in an editor; a test compares it with the code.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from benchmarks.chaos.report import markdown as chaos_table  # noqa: E402
from bridge.audit.checks import Check  # noqa: E402
from bridge.cli.main import cli  # noqa: E402
from bridge.http.application import describe  # noqa: E402
from bridge.http.problems import EVERYWHERE, MEANINGS  # noqa: E402
from bridge.routing import errors, keys  # noqa: E402
from bridge.settings import app as settings_module  # noqa: E402 (the checkout's, wherever this is run from)
from bridge.settings.config_keys import PREFIX  # noqa: E402
from bridge.settings.schedule import Scheduled  # noqa: E402

BLOCK = re.compile(r"<!-- generated: (?P<name>[^>]+?) -->\n.*?<!-- end of (?P=name) -->\n", re.DOTALL)


# -- Markdown ---------------------------------------------------------------------------------------------------------


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; a bar in a cell is escaped."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def prose(docstring: str | None) -> str:
    """A docstring as one paragraph of Markdown."""
    return " ".join(inspect.cleandoc(docstring or "").split()).replace("``", "`")


# -- Settings ---------------------------------------------------------------------------------------------------------


def models() -> list[type[BaseModel]]:
    """The settings models of the app, in their order; the values that are models themselves are not among them."""
    own = [
        thing
        for thing in vars(settings_module).values()
        if inspect.isclass(thing) and issubclass(thing, BaseModel) and thing.__name__.endswith("Settings")
    ]
    return [one for one in own if not any(one is not other and issubclass(other, one) for other in own)]


def value_models() -> dict[str, type[BaseModel]]:
    """Setting -> the model of its value, such as that of `bridge_backoff`."""
    found: dict[str, type[BaseModel]] = {}
    for model in models():
        for name, field in model.model_fields.items():
            kind = field.annotation
            if inspect.isclass(kind) and issubclass(kind, BaseModel) and not kind.__name__.endswith("Settings"):
                found[name] = kind
    return found


def shown(value: object) -> str:
    """A default as it is written in Python."""
    if isinstance(value, BaseModel):
        return "see below"
    if hasattr(value, "value"):
        value = value.value
    return f"`{value!r}`"


#: Types that an app writes in another form.
_KIND_WORDS = {"NoneType": "None", "Filter": "dict", "Mapping": "dict", "tuple": "list"}


def kind_of(field: FieldInfo) -> str:
    """A field's type in words."""
    annotation = field.annotation
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return "dict"
    members = getattr(annotation, "__members__", None)
    if members is not None:
        return ", ".join(f"`{member.value!r}`" for member in members.values())
    choices = get_args(annotation)
    if choices and all(isinstance(one, str) for one in choices):
        return ", ".join(f"`{one!r}`" for one in choices)
    kinds: tuple[Any, ...] = choices if isinstance(annotation, UnionType) else (annotation,)
    return " or ".join(_KIND_WORDS.get(name := (get_origin(kind) or kind).__name__, name) for kind in kinds)


def bounds(field: FieldInfo) -> str:
    """The numbers that a field allows."""
    least = next((one.ge for one in field.metadata if hasattr(one, "ge")), None)
    most = next((one.le for one in field.metadata if hasattr(one, "le")), None)
    return "" if least is None and most is None else f"{least:,} to {most:,}"


def field_rows(model: type[BaseModel], prefix: str) -> Iterator[list[str]]:
    """A row for each field: name, type, default, meaning."""
    for name, field in model.model_fields.items():
        default = "" if field.default is PydanticUndefined else shown(field.default)
        kind = ", ".join(part for part in (kind_of(field), bounds(field)) if part)
        yield [f"`{prefix}{name}`", kind, default, prose(field.description)]


def settings() -> str:
    """All settings, then the keys of those that are dicts."""
    nested = [one.__name__ for one in models()]
    rows = [
        row
        for model in models()
        for row in field_rows(model, PREFIX)
        # A model within a model: its own rows are in the table.
        if getattr(model.model_fields[row[0].strip("`").removeprefix(PREFIX)].annotation, "__name__", "") not in nested
    ]
    parts = [table(["setting", "type", "default", "meaning"], rows)]
    for name, model in value_models().items():
        parts.append(f"### {PREFIX}{name}\n\n{prose(model.__doc__)}\n")
        parts.append(table(["key", "type", "default", "meaning"], list(field_rows(model, ""))))
    return "\n".join(parts)


def schedule_entry() -> str:
    """The keys of an entry of `bridge_schedule`."""
    return table(
        ["key", "meaning"], [[f"`{name}`", prose(f.description)] for name, f in Scheduled.model_fields.items()]
    )


# -- Commands ---------------------------------------------------------------------------------------------------------


def walk(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command that does something, with its full name."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from walk(child, click.Context(child, info_name=name, parent=context))
    else:
        yield context.command_path, command, context


def commands() -> dict[str, tuple[click.Command, click.Context]]:
    """Full name -> command."""
    context = click.Context(cli, info_name="bridge")
    return {name: (command, context) for name, command, context in walk(cli, context)}


def command_block(name: str) -> str:
    """One command: its usage, its help, its options."""
    command, context = commands()[name]
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts = [f"```text\n{usage}\n```\n", prose((command.help or "").replace("\b", "")) + "\n"]
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option) and "--help" not in parameter.opts:
            rows.append([f"`{record[0]}`", " ".join(record[1].split())])
    if rows:
        parts.append(table(["option", "meaning"], rows))
    return "\n".join(parts)


# -- Keys and errors --------------------------------------------------------------------------------------------------


#: Methods of `LaneKeys` that make no key.
NOT_KEYS = ("owner_of", "parked_consumer", "delayed_consumer")


def key_names() -> list[tuple[str, str]]:
    """Each key of a lane, as a name with its variable parts in brackets, and its docstring."""
    lane = keys.LaneKeys("STREAM", "GROUP")
    found = []
    for name, member in vars(keys.LaneKeys).items():
        if hasattr(member, "attrname"):
            found.append((str(getattr(lane, name)), member.__doc__))
        elif inspect.isfunction(member) and not name.startswith("_") and name not in NOT_KEYS:
            arguments = [f"<{one}>" for one in list(inspect.signature(member).parameters)[1:]]
            found.append((getattr(lane, name)(*arguments), member.__doc__))
    return [(key, _key_prose(text)) for key, text in found if text]


def _key_prose(docstring: str | None) -> str:
    """What a key is. Parameters of its function are named as in the key."""
    return prose(docstring).replace("`stream`", "`STREAM`").replace("`group`", "`GROUP`")


def lane_keys() -> str:
    """The keys of one lane."""
    return table(["key", "what it is"], [[f"`{key}`", text] for key, text in key_names()])


def master_keys() -> str:
    """The keys with which the masters of a stream share its lanes, and push its schedule."""
    made = [(of("STREAM"), of) for of in (keys.masters, keys.masters_stand, keys.schedule_key)]
    return table(["key", "what it is"], [[f"`{key}`", _key_prose(of.__doc__)] for key, of in made])


def version_keys() -> str:
    """The keys that say which streams are versions of each other."""
    made = [(of("STREAM"), of) for of in (keys.follows_key, keys.newer_key, keys.retired_key)]
    return table(["key", "what it is"], [[f"`{key}`", _key_prose(function.__doc__)] for key, function in made])


def push_keys() -> str:
    """The keys beside a stream: its layout, what pushes keep, and the incarnations of HTTP consumers."""
    made = [
        (keys.layout_key("STREAM"), keys.layout_key),
        (keys.layout_copy_key("STREAM"), keys.layout_copy_key),
        (keys.push_guard(keys.push_prefix("STREAM"), "RUN"), keys.push_guard),
        (keys.push_once("STREAM", "KEY"), keys.push_once),
        (keys.push_prefix("STREAM") + ":tickets:<0 or 1>", keys.push_tickets),
        (keys.push_waiting("STREAM"), keys.push_waiting),
        (keys.http_consumer("STREAM", "<incarnation>"), keys.http_consumer),
    ]
    return table(["key", "what it is"], [[f"`{key}`", _key_prose(function.__doc__)] for key, function in made])


def error_tree() -> str:
    """All errors, with what they are kinds of."""
    own = [one for one in vars(errors).values() if inspect.isclass(one) and one.__module__ == errors.__name__]
    rows = []
    for one in own:
        base = one.__mro__[1].__name__
        rows.append([f"`{one.__name__}`", f"`{base}`", str(getattr(one, "exit_code", "")), prose(one.__doc__)])
    return table(["error", "is a", "exit code", "meaning"], rows)


# -- The HTTP interface -----------------------------------------------------------------------------------------------


def http_interface() -> str:
    """Every route: what it does, its parameters, its bodies and its answers."""
    document = describe().openapi()
    parts: list[str] = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts += _operation(document, f"{method.upper()} {path}", operation)
    return "\n".join(parts)


def http_errors() -> str:
    """The statuses of errors, and what each means."""
    return table(
        ["status", "means", "of"],
        [[str(status), said, "any route" if status in EVERYWHERE else "some"] for status, said in MEANINGS.items()],
    )


def _operation(document: dict[str, Any], name: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{operation['summary']}. {prose(operation.get('description'))}\n"
    parameters = [
        [f"`{one['name']}`", one["in"], _schema_words(one["schema"]), _sentence(one.get("description"), one)]
        for one in operation.get("parameters", ())
    ]
    if parameters:
        yield table(["parameter", "in", "type", "meaning"], parameters)
    if (body := operation.get("requestBody")) is not None:
        seen: list[list[list[str]]] = []
        for media_type, content in body["content"].items():
            fields = _members(document, content["schema"])
            if fields in seen:
                yield f"Body, `{media_type}`: a list of these.\n"
                continue
            seen.append(fields)
            many = _many_words(content["schema"])
            yield f"Body, `{media_type}`{many}:\n"
            yield table(["member", "type", "meaning"], fields)
    rows = []
    for status, answer in operation["responses"].items():
        if int(status) in EVERYWHERE:
            continue
        said = str(answer["description"])
        for media_type, content in answer.get("content", {}).items():
            if status < "300" and (members := _members(document, content["schema"])):
                said = f"`{media_type}` with " + "; ".join(f"{one[0]} ({one[2] or one[1]})" for one in members)
        rows.append([status, said.replace(" Needed.", "").replace(".)", ")")])
    yield table(["status", "answer"], rows)


def _members(document: dict[str, Any], schema: dict[str, Any]) -> list[list[str]]:
    """A row for each member of an object; of a list: of its objects."""
    while "properties" not in schema:
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        elif choices := schema.get("oneOf") or schema.get("anyOf"):
            schema = choices[0]
        elif "items" in schema:
            schema = schema["items"]
        else:
            return []
    needed = schema.get("required", ())
    return [
        [f"`{name}`", _schema_words(one), _sentence(one.get("description"), {"required": name in needed})]
        for name, one in schema["properties"].items()
    ]


def _many_words(schema: dict[str, Any]) -> str:
    """What follows the name of a body that may be a list, too."""
    for one in schema.get("oneOf") or schema.get("anyOf") or ():
        if one.get("type") == "array":
            span = f"{one['minItems']:,} to {one['maxItems']:,} " if "maxItems" in one else ""
            return f", or a list of {span}such objects"
    return ""


def _sentence(text: str | None, of: dict[str, Any]) -> str:
    return " ".join(part for part in (prose(text), "Needed." if of.get("required") else "") if part)


def _schema_words(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_schema_words(one) for one in choices))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if schema.get("type") == "array":
        return f"list of {_schema_words(schema.get('items', {}))}"
    least, most = schema.get("minimum"), schema.get("maximum")
    span = "" if least is None or most is None else f", {least:,} to {most:,}"
    if schema.get("type") == "string" and "maxLength" in schema:
        span = f" of at most {schema['maxLength']:,} characters"
    return f"{schema.get('type', 'any JSON')}{span}"


# -- Rooms ------------------------------------------------------------------------------------------------------------


def rooms() -> str:
    """Every room of the package, and the first sentence of what it says of itself."""
    package = DOCS.parent / "bridge"
    rows = []
    for init in sorted([*package.glob("*/__init__.py"), *package.glob("leader/*/__init__.py")]):
        folder = init.parent
        # The links that make the top-level folders part of the package.
        shown = folder.resolve() if folder.is_symlink() else folder
        said = ast.get_docstring(ast.parse(init.read_text("utf-8"))) or ""
        sentence = re.split(r"(?<=\.)\s", prose(said))[0]
        rows.append([f"`{shown.relative_to(DOCS.parent)}/`", sentence])
    return table(["room", "what lives there"], rows)


def audit_checks() -> str:
    """What each check of the audit proves, and what it cannot."""
    return table(["check", "proves", "cannot prove"], [[one.value, one.proves, one.cannot] for one in Check])


# -- Pages ------------------------------------------------------------------------------------------------------------


def chaos_benchmark() -> str:
    """What the last run of the chaos benchmark that was published came to."""
    return chaos_table(json.loads((DOCS.parent / "benchmarks" / "data" / "chaos.json").read_text("utf-8")))


BLOCKS: dict[str, Callable[[], str]] = {
    "chaos benchmark": chaos_benchmark,
    "settings": settings,
    "schedule entry": schedule_entry,
    "keys of a lane": lane_keys,
    "keys of masters": master_keys,
    "keys of versions": version_keys,
    "keys of pushes": push_keys,
    "errors": error_tree,
    "rooms": rooms,
    "http errors": http_errors,
    "http interface": http_interface,
    "audit checks": audit_checks,
}


def block(name: str) -> str:
    """The text of one block."""
    return BLOCKS[name]() if name in BLOCKS else command_block(name)


def filled(text: str) -> str:
    """A page with all of its blocks as the code has them now."""

    def replacement(found: re.Match[str]) -> str:
        name = found["name"]
        return f"<!-- generated: {name} -->\n{block(name)}<!-- end of {name} -->\n"

    return BLOCK.sub(replacement, text)


def pages() -> list[Path]:
    """The pages that have generated parts."""
    return [page for page in sorted(DOCS.rglob("*.md")) if BLOCK.search(page.read_text("utf-8"))]


def main() -> None:
    """Writes the pages that are out of date, and names them."""
    for page in pages():
        before = page.read_text("utf-8")
        after = filled(before)
        if after != before:
            page.write_text(after, "utf-8")
            sys.stdout.write(f"{page.relative_to(DOCS.parent)}\n")


if __name__ == "__main__":
    main()
