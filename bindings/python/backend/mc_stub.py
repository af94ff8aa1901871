"""Writes the calls of the classes into the stub `_native.pyi`, from where they are defined:

* those of `Client` and `AsyncClient` from the tables `calls!` and `questions!` in
  `src/client/calls`, with the classes of reports from `reports!`;
* those of `Store` and `TransferEngine` from the first lines of their descriptions in `src/store`
  and `src/engine`, which show Mooncake's signatures to `help()`;
* the keys of a configuration from the table `settings!` of the crate `mc-store`.

Run it after a change of one: `python bindings/python/backend/mc_stub.py`. It replaces the lines
between the marks in these classes; the others are written by hand, and stubtest checks all of them
against the library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).resolve().parents[1]
CONFIG = PROJECT.parents[1] / "mc-store" / "src" / "config" / "settings.rs"
STUB = PROJECT / "python" / "mc_store" / "_native.pyi"

BEGIN = "    # Written by backend/mc_stub.py:\n"
END = "    # The end of what is written.\n"
#: The longest line of a stub, as ruff formats it.
WIDTH = 100

#: Types of arguments and results.
TYPES = {
    "&'static str": "str",
    "Buffer": "Buffer",
    "Done": "None",
    "EventInfo": "StoreEventInfo",
    "EventInfos": "Iterable[StoreEventInfo | None]",
    "Gotten": "Buffer",
    "Parts": "Iterable[_BytesLike]",
    "Seconds": "float",
    "Size": "_Size",
    "String": "str",
    "Target": "_BytesLike",
    "Texts": "Iterable[str]",
    "Value": "_BytesLike",
    "bool": "bool",
    "f64": "float",
    "u64": "int",
    "usize": "int",
}
GENERIC = {"HashMap": "dict", "Pairs": "_Items", "Vec": "list"}
#: The keyword arguments that `Placement` consists of.
PLACEMENT = {
    "replicas": "int",
    "soft_pin": "bool | float",
    "hard_pin": "bool",
    "group": "str | None",
    "parent": "str | None",
    "preferred_segments": "Iterable[str]",
    "excluded_segments": "Iterable[str]",
    "medium": "str | None",
}
#: Values as Rust writes them.
VALUES = {"false": "False", "true": "True"}

#: Types as descriptions show them, and as type checkers need them.
SHOWN = {
    r"\bBuffer\b": "_BytesLike",
    r"\bdict\b(?!\[)": "dict[str, Any]",
    r"\bTransferOpcode\b": "_TransferOpcode",
    r"ReplicateConfig = ReplicateConfig\(\)": "ReplicateConfig | None = ...",
    r"store_event_infos=None": "store_event_infos: _Events = ...",
    # They only add to what is shown.
    r"-> TransferEngine$": "-> Self",
    r"src_ptr: bytes": "src_ptr: _BytesLike",
}
#: Types of settings; the others are texts in Python.
SETTINGS = {
    "ByteSize": "_Size",
    "Duration": "int",
    "NonZeroU8": "int",
    "NonZeroUsize": "int",
    "Vec<String>": "str | list[str]",
    "bool": "bool",
    "u16": "int",
    "u32": "int",
    "u8": "int",
}
#: Methods that only raise.
NEVER = {"batch_transfer_write_on_cuda"}


class Call(NamedTuple):
    """A call of a table, in the words of Rust, except that `parameters` are Python's."""

    name: str
    parameters: list[str]
    arguments: dict[str, str]
    result: str
    #: The only texts that it can return, if there are such.
    texts: list[str]
    is_property: bool
    is_awaited: bool


def calls() -> list[Call]:
    """The calls of all tables, in the order of the files and in each."""
    found: list[Call] = []
    for path in sorted((PROJECT / "src" / "client" / "calls").glob("*.rs")):
        source = re.sub(r"^ *//.*\n", "", path.read_text(), flags=re.MULTILINE)
        for table in re.finditer(r"^(calls|questions)! \{\n(.*?)^\}$", source, re.M | re.S):
            found += _calls_of(table[2], is_awaited=table[1] == "calls")
    return found


def _calls_of(table: str, *, is_awaited: bool) -> Iterator[Call]:
    function = r"^    fn (\w+)\(([^()]*)\)\s*->\s*([^=\[]+?)\s*(?:\[[^\]]*\]\s*)?="
    items = list(re.finditer(function, table, re.MULTILINE))
    end = 0
    for item, after in zip(items, [*items[1:], None], strict=True):
        attributes, end = table[end : item.start()].rpartition(";\n")[2], item.end()
        body = table[end : after.start() if after else None].partition(";\n")[0]
        arguments = dict(re.findall(r"(\w+): ([^,]+(?:<[^>]*>+)?)(?:,|$)", item[2].strip()))
        yield Call(
            name=item[1],
            parameters=_parameters(attributes),
            arguments=arguments,
            result=item[3],
            texts=re.findall(r'"(\w+)"', body) if item[3] == "&'static str" else [],
            is_property="#[getter]" in attributes,
            is_awaited=is_awaited,
        )


def _parameters(attributes: str) -> list[str]:
    """The parameters without `self`, as Python's documentation shows them."""
    signature = re.search(r'text_signature = "\((.*)\)"', attributes) or re.search(
        r"[( ]signature = \((.*)\)\)\]", attributes
    )
    if signature is None:
        return []
    split = re.findall(r"[^,(]+(?:\([^)]*\))?", signature[1])
    return [each.strip() for each in split if each.strip() not in ("", "$self")]


def _reports() -> dict[str, str]:
    source = (PROJECT / "src" / "client" / "reports.rs").read_text()
    # A report may be made by a function of its class.
    return dict(re.findall(r'^    (\w+) = "(\w+)[\w.]*", \|', source, re.MULTILINE))


def _type(rust: str, reports: dict[str, str], *, raises: bool = False) -> str:
    """The type in Python; where an exception is `raise`d it is not returned."""
    name, inner = re.fullmatch(r"([^<]+)(?:<(.*)>)?", rust).groups()  # type: ignore[union-attr]
    if inner is None:
        return TYPES[name]
    if name == "Report":
        return f"reports.{reports[inner]}"
    kinds = [_type(each, reports, raises=raises) for each in re.findall(r"\w+(?:<.*>)?", inner)]
    if name == "Option":
        return _union(*kinds, "None")
    if name == "Each":
        return kinds[0] if raises else _union(*kinds, "StoreError")
    return f"{GENERIC[name]}[{', '.join(kinds)}]"


def _union(*kinds: str) -> str:
    """A union of the types, with `None` at its end."""
    each = [kind for kinds_ in kinds for kind in kinds_.split(" | ")]
    return " | ".join(sorted(each, key=lambda kind: kind == "None"))


def _signatures(call: Call, reports: dict[str, str]) -> Iterator[tuple[list[str], str]]:
    """The parameters and the result of each overload of a call."""

    def typed(parameter: str) -> str:
        name, given, value = parameter.partition("=")
        if name not in call.arguments:
            kind = PLACEMENT.get(name)
        else:
            kind = _type(call.arguments[name], reports)
        if kind is None:
            return parameter
        return f"{name}: {kind}" + (f" = {VALUES.get(value, value)}" if given else "")

    result = call.result
    if call.arguments.get("default") == "Fallback":
        found = _type(result, reports)
        others = [typed(each) for each in call.parameters if not each.startswith("default")]
        yield others, found
        yield [*others, "default: _T"], f"{found} | _T"
    elif "return_exceptions" in call.arguments:
        for kind, raises in (("Literal[False] = False", True), ("bool", False)):
            yield (
                [
                    f"return_exceptions: {kind}" if it.startswith("return_exc") else typed(it)
                    for it in call.parameters
                ],
                _type(result, reports, raises=raises),
            )
    elif call.texts:
        yield [], f"Literal[{', '.join(map(repr, call.texts))}]".replace("'", '"')
    else:
        yield [typed(each) for each in call.parameters], _type(result, reports)


def _written(call: Call, reports: dict[str, str], *, awaited: bool) -> str:
    lines = []
    overloads = list(_signatures(call, reports))
    for parameters, result in overloads:
        if call.is_property:
            lines.append("    @property\n")
        if len(overloads) > 1:
            lines.append("    @overload\n")
        if awaited and call.is_awaited:
            result = f"Call[{result}]"
        lines.append(_fitted(f"    def {call.name}(", ["self", *parameters], f") -> {result}: ..."))
    return "".join(lines)


def _fitted(start: str, parameters: list[str], end: str) -> str:
    """A definition as ruff formats it."""
    together = ", ".join(parameters)
    for line in (f"{start}{together}{end}\n", f"{start}\n        {together}\n    {end}\n"):
        if all(len(part) <= WIDTH for part in line.splitlines()):
            return line
    return start + "\n" + "".join(f"        {each},\n" for each in parameters) + f"    {end}\n"


def _described(folder: str, owner: str) -> Iterator[str]:
    """The methods of the class `owner` that the sources in the folder describe."""
    methods = r"^#\[pymethods\]\n(?:#.*\n)*impl (\w+) "
    for path in sorted((PROJECT / "src" / folder).rglob("*.rs")):
        # Tables stand before the first of these.
        table, *parts = re.split(methods, path.read_text(), flags=re.MULTILINE)
        yield from _of_descriptions(table)
        for name, part in zip(parts[::2], parts[1::2], strict=True):
            if name == owner:
                yield from _of_descriptions(part)


def _of_descriptions(source: str) -> Iterator[str]:
    for description in re.finditer(r"(?:^ *///.*\n)+", source, re.MULTILINE):
        first = re.sub(r"^ */// ?", "", description[0], flags=re.MULTILINE).split("\n\n")[0]
        shown = re.split(r" (?=\w+\(self\b)", " ".join(first.split()))
        methods = [re.fullmatch(r"(\w+)\((self.*)\) -> (.*)", each) for each in shown]
        for method in methods:
            if method is None:
                break
            if len(methods) > 1:
                yield "    @overload\n"
            yield _of_description(*method.groups())


def _of_description(name: str, parameters: str, result: str) -> str:
    for shown, kind in SHOWN.items():
        parameters = re.sub(shown, kind, parameters)
        result = re.sub(shown.removeprefix("-> "), kind.removeprefix("-> "), result)
    if name in NEVER:
        result = "Never"
    parameters = parameters.replace("list[", "Sequence[")
    split = re.split(r", (?![^\[]*\])", re.sub(r" = [^,]+", " = ...", parameters))
    return _fitted(f"    def {name}(", split, f") -> {result}: ...")


def _settings() -> Iterator[str]:
    """The keys of a configuration."""
    table = re.search(r"^settings! \{\n(.*?)^\}$", CONFIG.read_text(), re.M | re.S)
    source = re.sub(r"^ *//.*\n", "", table[1] if table else "", flags=re.MULTILINE)
    for kind, names in re.findall(r"\w+: ([\w<>]+) = ([^,]*),[^;]*;", source):
        for name in re.findall(r'"(\w+)"', names):
            yield f"    {name}: {SETTINGS.get(kind, 'str')}\n"


def with_calls(stub: str) -> str:
    """The stub with the calls and the settings as they are defined.

    Raises:
        ValueError: a class has no marks.
    """
    reports = _reports()
    written = {
        "Store": "".join(_described("store", "Store")),
        "TransferEngine": "".join(_described("engine", "TransferEngine")),
        "Client": "".join(_written(call, reports, awaited=False) for call in calls()),
        "AsyncClient": "".join(_written(call, reports, awaited=True) for call in calls()),
        "_Settings": "".join(_settings()),
    }
    for owner, content in written.items():
        before, begin, rest = stub.partition(f"class {owner}")
        head, mark, rest = rest.partition(BEGIN)
        _, end, rest = rest.partition(END)
        if not end or "\nclass " in head:
            raise ValueError(f"{STUB}: the class {owner} has no marks")
        stub = "".join([before, begin, head, mark, content, end, rest])
    return stub


if __name__ == "__main__":
    STUB.write_text(with_calls(STUB.read_text()))
