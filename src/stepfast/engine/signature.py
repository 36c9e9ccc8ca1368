"""What a user's function says of itself: its name, whether it is async, the types of its input and result."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ..errors import ConfigurationError


class Shape(NamedTuple):
    """What a step needs to know of a function before it calls it."""

    name: str
    is_async: bool
    returns: Any


_shapes: WeakKeyDictionary[Any, Shape] = WeakKeyDictionary()


def shape_of(function: Callable[..., Any], check: Callable[[Any, Shape], None] | None = None) -> Shape:
    """The shape of any callable, remembered for as long as the callable lives; ``check`` may refuse it when it is first
    seen."""
    key = getattr(function, "__func__", function)
    try:
        return _shapes[key]
    except (KeyError, TypeError):
        shape = Shape(name_of(function), is_async(function), return_type(function))
        if check is not None:
            check(function, shape)
        try:
            _shapes[key] = shape
        except TypeError:  # not weakly referable: asked anew each time
            pass
        return shape


def name_of(function: Callable[..., Any]) -> str:
    """The name a function goes by."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    return getattr(function, "__name__", type(function).__name__)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine; also for partials and objects with an async ``__call__``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(_call_method(function))


def mark_async(wrapper: Any, function: Callable[..., Any] | None = None) -> None:
    """Let ``inspect`` and ``asyncio`` see that calls of an object give coroutines, as ``mock.patch`` and web frameworks
    ask. On Python 3.11 ``inspect`` asks the code of a function, which the object then shows as its own."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(wrapper)
        return
    wrapper._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    if inspect.isfunction(function):
        for name in ("__code__", "__defaults__", "__kwdefaults__", "__globals__", "__closure__"):
            setattr(wrapper, name, getattr(function, name))


def return_type(function: Callable[..., Any], scope: dict[str, Any] | None = None) -> Any:
    """The annotated result; Any where there is none or it cannot be resolved."""
    plain = _unwrap(function)
    annotation = getattr(plain, "__annotations__", {}).get("return", Any)
    if annotation is Any:
        return Any
    found = _resolve(plain, annotation, scope)
    return Any if found in (UNRESOLVED, typing.NoReturn, typing.Never) else meant(found)


def input_type(function: Callable[..., Any], parameter: inspect.Parameter, scope: dict[str, Any] | None) -> Any:
    """The annotated type of a workflow's input. It is checked at every start, so it must be resolvable."""
    if parameter.annotation is inspect.Parameter.empty:
        return Any
    found = annotation_of(function, parameter.annotation, scope)
    if found is UNRESOLVED:
        raise ConfigurationError(
            f"{name_of(function)!r} ({source_line(function)}): the annotation {parameter.annotation!r} of its input "
            "cannot be resolved; import the type where the function is defined, not only for type checking"
        )
    return meant(found)


def annotation_of(function: Callable[..., Any], annotation: Any, scope: dict[str, Any] | None) -> Any:
    """What an annotation of the function stands for; UNRESOLVED, if it names what is not there at run time."""
    return _resolve(_unwrap(function), annotation, scope)


def meant(annotation: Any) -> Any:
    """The annotation, where ``object`` is taken for what it says: anything."""
    if annotation is object:
        return Any
    if type(annotation) is type:  # a plain class, as most are
        return annotation
    arguments, origin = typing.get_args(annotation), typing.get_origin(annotation)
    wide = tuple(map(meant, arguments))
    if wide == arguments or origin is None:
        return annotation
    return (typing.Union if origin is types.UnionType else origin)[wide]


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a callable, remembered for as long as that lives; ValueError where it has none."""
    try:
        return _signatures[function]
    except (KeyError, TypeError):
        signature = inspect.signature(function)
        try:
            _signatures[function] = signature
        except TypeError:  # not weakly referable, or not hashable: asked anew each time
            pass
        return signature


_signatures: WeakKeyDictionary[Any, inspect.Signature] = WeakKeyDictionary()


def code_of(function: Any) -> types.CodeType | None:
    """The code that a call of it executes, as far as it is written in Python."""
    found = getattr(_unwrap(function), "__code__", None) if callable(function) else None
    return found if isinstance(found, types.CodeType) else None


def source_line(function: Any) -> str:
    """File and line where it is written; empty where that is not known."""
    code = code_of(inspect.unwrap(function)) if callable(function) else None
    return "" if code is None else f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def module_of(function: Callable[..., Any]) -> str:
    """The module a function is from; that of a script is called as it would be if it were imported."""
    name = getattr(inspect.unwrap(_unwrap(function)), "__module__", None) or ""
    if name != "__main__":
        return name
    main = sys.modules.get(name)
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return spec.name.removesuffix(".__main__") if spec is not None else Path(file).stem if file else name


def positional(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters a caller can fill by position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in signature_of(function).parameters.values() if p.kind in kinds]


def by_name(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], given: int = 0
) -> dict[str, Any]:
    """The arguments of a call by the names of its parameters; the ``given`` first ones are not among them. What has no
    name of its own is a list under the name of ``*args``, or under ``args`` where that has none either."""
    names, rest = _parameter_names(function)
    named = dict(zip(names[given:], args, strict=False))
    if len(args) > len(named):
        named[rest or "args"] = args[len(named) :]
    if kwargs:
        if not named.keys().isdisjoint(kwargs):
            return {"args": args, "kwargs": kwargs}
        named |= kwargs
    return named


def _parameter_names(function: Callable[..., Any]) -> tuple[tuple[str, ...], str | None]:
    """The names of the parameters that are filled by position, and that of ``*args``. This is asked for each call of a
    step: of a plain function, which may be a new one each time, its code tells it at once."""
    if type(function) is types.FunctionType and "__wrapped__" not in function.__dict__:
        code = function.__code__
        own, count = code.co_varnames, code.co_argcount
        return own[:count], own[count + code.co_kwonlyargcount] if code.co_flags & inspect.CO_VARARGS else None
    try:
        parameters = signature_of(function).parameters.values()
    except (TypeError, ValueError):  # of some functions written in C nothing is known
        return (), None
    rest = next((each.name for each in parameters if each.kind is each.VAR_POSITIONAL), None)
    filled = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(each.name for each in parameters if each.kind in filled), rest


def code_version(function: Callable[..., Any]) -> str:
    """A short hash of the source, or of the code where no source is known. It changes when the code does."""
    plain = inspect.unwrap(_unwrap(function))
    code = getattr(plain, "__code__", None)
    try:
        text = inspect.getsource(plain) if code is None or code.co_filename != _ANY_TEXT else _told(code)
    except (OSError, TypeError):
        text = _told(code) if code else name_of(function)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]


_ANY_TEXT = "<string>"
"""The file of whatever was made by ``exec``. Lines that Python finds under this name may be those of another text."""


def _told(part: Any) -> str:
    """Code, or a constant of it, as a text that is the same in every process."""
    if isinstance(part, types.CodeType):
        names = (part.co_code, part.co_names, part.co_varnames)
        return f"{names!r} {[_told(constant) for constant in part.co_consts]}"
    return repr(sorted(map(repr, part))) if isinstance(part, frozenset) else repr(part)


UNRESOLVED = object()
"""In place of a type that an annotation names and that is not there at run time."""


def _resolve(function: Any, annotation: Any, scope: dict[str, Any] | None) -> Any:
    """One annotation alone, so that an unresolvable neighbour (a Context imported for typing) does not matter."""
    if annotation is None:
        return type(None)
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    names = {**_closure(function), **(scope or {})}
    try:
        return typing.get_type_hints(holder, getattr(function, "__globals__", {}), names, include_extras=True)["it"]
    except Exception:
        return UNRESOLVED


def _call_method(function: Any) -> Any:
    return type(function).__dict__.get("__call__") or type(function).__call__


def _closure(function: Any) -> dict[str, Any]:
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or not cells:
        return {}
    found = {}
    for name, cell in zip(code.co_freevars, cells, strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def _unwrap(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__code__") and not inspect.ismethod(function) and not inspect.isclass(function):
        return _call_method(function)
    return getattr(function, "__func__", function)
