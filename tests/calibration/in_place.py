"""Makes a mutation in a process that has imported the product already.

A process that is forked with the product's modules starts for half of the processor time of one that imports them from
a copy. So functions get the code of the mutated text, and scripts its text. No file is changed. What a module or a
class does when it is imported cannot be made in place: such a mutation needs a copy (`product`).
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType

from bridge.routing.scripts import Script, with_shared
from bridge.testing.nodes.process import ROOT
from tests.calibration.mutation import Mutation, mutated

#: The variable with the place of a file: a JSON object with the texts of the mutation, by their files.
TEXTS = "CHAOS_MUTATED"
#: The compiler's flag of a body of functions and of classes: it is a function's own.
_OPTIMIZED = 0x1


class NeedsACopy(AssertionError):
    """The mutation changes more than functions and scripts."""


def fits(mutation: Mutation) -> bool:
    """Whether it can be made in place."""
    try:
        for file, text in mutated(mutation).items():
            if not file.endswith(".lua"):
                _codes(file, text)
    except NeedsACopy:
        return False
    return True


def make(texts: Mapping[str, str]) -> None:
    """Gives this process the product with these texts, by file. Raises `NeedsACopy`."""
    for file, text in texts.items():
        if file.endswith(".lua"):
            _put_script(file.rpartition("/")[2].removesuffix(".lua"), text)
        else:
            _put_functions(_module(file), _codes(file, text))


def _put_script(name: str, text: str) -> None:
    whole = with_shared(text)
    modules = [module for known, module in list(sys.modules.items()) if known.startswith("bridge.")]
    found = {
        id(value): value
        for module in modules
        for value in vars(module).values()
        if type(value) is Script and value.name == name
    }
    if not found:
        raise NeedsACopy(f"no module has loaded the script {name}")
    for script in found.values():
        script.text = whole
        script.sha = hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest()


def _put_functions(module: ModuleType, codes: Mapping[str, CodeType]) -> None:
    functions = {function.__qualname__: function for function in _functions(module)}
    lacking = codes.keys() - functions.keys()
    if lacking:
        raise NeedsACopy(f"{module.__name__} has no function {', '.join(sorted(lacking))}")
    for name, code in codes.items():
        functions[name].__code__ = code


def _module(file: str) -> ModuleType:
    name = file.removesuffix(".py").replace("/", ".")
    return importlib.import_module(name if name.startswith("bridge.") else f"bridge.{name}")


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions of a module and the methods of its classes, without what decorates them."""
    for owner in (module, *(one for one in vars(module).values() if isinstance(one, type))):
        if owner is module or owner.__module__ == module.__name__:
            for value in list(vars(owner).values()):
                function = _bare(value)
                if function is not None and function.__module__ == module.__name__:
                    yield function


def _bare(value: object) -> FunctionType | None:
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, functools.cached_property):
        value = value.func
    elif isinstance(value, staticmethod | classmethod):
        value = value.__func__
    while hasattr(value, "__wrapped__"):
        value = value.__wrapped__
    return value if isinstance(value, FunctionType) else None


def _codes(file: str, text: str) -> dict[str, CodeType]:
    """The code of each function of the new text that one name stands for, by that. Raises `NeedsACopy`."""
    before, after = (compile(each, file, "exec", dont_inherit=True) for each in ((ROOT / file).read_text(), text))
    old, new = _tops(before), _tops(after)
    if [(name, _is_body(code)) for name, code in old] != [(name, _is_body(code)) for name, code in new]:
        raise NeedsACopy(f"{file}: there are other functions than before")
    names = [name for name, _ in new]
    found = {}
    for (name, was), (_, code) in zip(old, new, strict=True):
        changed = _meaning(was, nested=not _is_body(was)) != _meaning(code, nested=not _is_body(code))
        if changed and (_is_body(code) or names.count(name) > 1):
            raise NeedsACopy(f"{file}: {name} does something else when it is imported")
        if not _is_body(code) and names.count(name) == 1:
            found[name] = code
    return found


def _tops(code: CodeType) -> list[tuple[str, CodeType]]:
    """A module's or class's own code, and that of its functions and classes, in their order."""
    found = [(code.co_qualname, code)]
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and not inner.co_name.startswith("<"):
            found += _tops(inner) if _is_body(inner) else [(inner.co_qualname, inner)]
    return found


def _is_body(code: CodeType) -> bool:
    """Whether it is that of a module or of a class: it runs once, when it is imported."""
    return not code.co_flags & _OPTIMIZED


def _meaning(code: CodeType, *, nested: bool) -> tuple[object, ...]:
    """What code does, wherever it stands in its file. ``nested``: with the functions in it; else with their names."""
    constants = [
        (_meaning(one, nested=True) if nested or one.co_name.startswith("<") else one.co_qualname)
        if isinstance(one, CodeType)
        else repr(one)
        for one in code.co_consts
    ]
    return (code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_flags, constants)
