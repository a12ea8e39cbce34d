"""Declarations of options, and a command line parser that starts faster than typer.

Importing typer takes 46 ms, four times as long as Python takes to start, and longer than everything else in a short
run. So stages declare their options with the classes below, and plain command lines are parsed here: operands, and
options written in full with a value of their type. Everything else (--help, mistakes, bundles like -rC) goes to typer,
which gets the same declarations. tests/test_options.py checks that both parse plain lines alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from gpt.base.numbers import parse_float, parse_int

MISSING = object()  # for a parameter without a default
NUMBERS: dict[Any, Callable[[str], Any]] = {int: parse_int, float: parse_float}


class Option:
    """An option, declared like typer.Option(). Without a name, it's named after its parameter."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.names = names
        self.settings = settings


class Argument(Option):
    """The operands, declared like typer.Argument()."""


class _Parameter:
    """A parameter of a command: its type without `| None` and `list`, and its declaration, which is None if typer
    declares it.
    """

    def __init__(self, name: str, annotation: Any, default: Any) -> None:
        self.name, self.annotation, self.default = name, annotation, default
        type_, *notes = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        self.declared = next((note for note in notes if isinstance(note, Option)), None)
        self.whole = type_
        some = [one for one in get_args(type_) if one is not type(None)]
        self.type = some[0] if len(some) == 1 and get_origin(type_) is not list else type_
        self.several = get_origin(self.type) is list
        if self.several:
            (self.type,) = get_args(self.type)
        if self.declared and self.type is float and isinstance(default, int):
            self.default = float(default)

    def convert(self, texts: list[str]) -> Any:
        """Return the value of these words. Raises ValueError if they might be wrong, so that typer decides."""
        values = [self._convert(text) for text in texts]
        return values if self.several else values[-1]

    def _convert(self, text: str) -> Any:
        assert self.declared
        settings = self.declared.settings
        if parser := settings.get("parser"):
            return parser(text)
        if self.type not in (str, int, float, Path) and not (
            isinstance(self.type, type) and issubclass(self.type, Enum)
        ):
            raise ValueError(text)
        value = NUMBERS.get(self.type, self.type)(text)
        low, high = settings.get("min", value), settings.get("max", value)
        if not low <= value <= high:
            raise ValueError(text)
        return value


def _iter_parameters(command: Callable[..., Any]) -> Iterator[_Parameter]:
    """Yield the parameters of a function. `inspect` could do this, but takes long to import."""
    code, given, hints = command.__code__, command.__defaults__ or (), get_type_hints(command, include_extras=True)
    names = code.co_varnames[: code.co_argcount]
    defaults = dict(zip(names[len(names) - len(given) :], given, strict=True)) | (command.__kwdefaults__ or {})
    hints.pop("return", None)
    for name in dict.fromkeys([*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], *hints]):
        yield _Parameter(name, hints.get(name, str), defaults.get(name, MISSING))


def read(command: Callable[..., Any], words: list[str], words_after: bool = False) -> dict[str, Any] | None:
    """Parse a simple command line, and return the arguments of the command. Return None if typer has to parse it.

    With `words_after`, every word from the first operand on is an operand. The callbacks of options are called.
    """
    parameters = list(_iter_parameters(command))
    options: dict[str, _Parameter] = {}
    operands = None
    for parameter in parameters:
        declared = parameter.declared
        if declared is None or declared.settings.get("envvar", "") in os.environ:
            return None
        if isinstance(declared, Argument):
            operands = parameter
        for name in declared.names or [f"--{parameter.name.replace('_', '-')}"]:
            options[name] = parameter
    found: dict[_Parameter, list[str]] = {}
    rest = iter(words)
    for word in rest:
        plain = word[:1] != "-" or word in ("-", "--")
        name, equals, text = word.partition("=") if word.startswith("--") else (word, "", "")
        taken = operands if plain else options.get(name)
        if taken is None or (taken.type is bool and equals):
            return None
        texts = found.setdefault(taken, [])
        if not plain:
            value = next(rest, None) if taken.type is not bool and not equals else text
            if value is None:
                return None
            texts.append(value)
            continue
        if word != "--":
            texts.append(word)
        if word == "--" or words_after:
            texts += rest
    return _convert(parameters, {parameter: texts for parameter, texts in found.items() if texts})


def _convert(parameters: list[_Parameter], found: dict[_Parameter, list[str]]) -> dict[str, Any] | None:
    values = {}
    for parameter in sorted(parameters, key=lambda one: not (one.declared and one.declared.settings.get("is_eager"))):
        value = parameter.default
        if value is MISSING and parameter not in found:
            return None
        if parameter in found:
            try:
                value = parameter.type is bool or parameter.convert(found[parameter])
            except ValueError:
                return None
        if parameter.declared and (callback := parameter.declared.settings.get("callback")):
            value = callback(value)
        values[parameter.name] = value
    return values


def for_typer(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with typer's declarations in place of ours."""
    import copy
    import inspect

    import typer

    def wrapped(**given: Any) -> Any:
        return command(**given)

    parameters = []
    for one in _iter_parameters(command):
        annotation = one.annotation
        if one.declared:
            make = typer.Argument if isinstance(one.declared, Argument) else typer.Option
            made = make(*one.declared.names, **one.declared.settings)
            if one.type in NUMBERS:
                made.click_type = copy.copy(typer.main.get_click_type(annotation=one.type, parameter_info=made))
                made.click_type._number_class = NUMBERS[one.type]  # in place of int or float
                made.click_type.name = "number"  # in messages
            annotation = Annotated[one.whole, made]
        kind = inspect.Parameter.KEYWORD_ONLY
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        parameters.append(inspect.Parameter(one.name, kind, annotation=annotation, default=default))
    wrapped.__name__, wrapped.__doc__, wrapped.__annotations__ = command.__name__, command.__doc__, {}
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return wrapped
