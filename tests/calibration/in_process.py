"""Puts a mutation into the product that this process has imported."""

from __future__ import annotations

import importlib
import types

import pytest

from tests.calibration.mutation import Mutation, mutated


def put(monkeypatch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    """Puts the functions and methods that the mutation changes into the place of the product's."""
    for file, text in mutated(mutation).items():
        name = file.removesuffix(".py").replace("/", ".")
        copy = types.ModuleType(name)
        exec(compile(text, file, "exec"), copy.__dict__)
        module = importlib.import_module(name)
        for ours_name, ours in vars(module).items():
            if getattr(ours, "__module__", None) != name:
                continue
            if isinstance(ours, type):
                for method, own in list(vars(ours).items()):
                    _replace(monkeypatch, ours, method, own, vars(getattr(copy, ours_name)).get(method))
            else:
                _replace(monkeypatch, module, ours_name, ours, getattr(copy, ours_name))


def _replace(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, ours: object, changed: object) -> None:
    own, other = _code(ours), _code(changed)
    if own == other:
        return
    if own is not None and other is not None and isinstance(ours, types.FunctionType) and not own.co_freevars:
        # It still sees what a test has put into the module.
        monkeypatch.setattr(ours, "__code__", other)
    else:
        monkeypatch.setattr(owner, name, changed)


def _code(method: object) -> types.CodeType | None:
    return getattr(getattr(method, "__func__", method), "__code__", None)
