"""What a user's function declares: its name, its types, whether it is async.

Functions that cannot work are refused when declared.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import inspect
import sys
import types
import typing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import msgspec

from ..errors import ConfigurationError, ContextMisuse, InvalidInput
from ..model.backoff import Again, Done
from ..model.payload import check_type


class Shape(msgspec.Struct, frozen=True):
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
        except TypeError:  # not weakly referable: computed again each time
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
    return Any if found in (UNRESOLVED, typing.NoReturn, typing.Never) else _answered(meant(found))


def _answered(annotation: Any) -> Any:
    """The annotation of a result, where that of a check of ``ctx.wait_until`` is taken for what the wait gives: the
    value of a Done."""
    if type(annotation) is type and annotation not in _ANSWERS:
        return annotation
    parts = typing.get_args(annotation) if typing.get_origin(annotation) in _UNIONS else (annotation,)
    if not any(part in _ANSWERS or typing.get_origin(part) is Done for part in parts):
        return annotation
    values = [Any if part is Done else typing.get_args(part)[0] if typing.get_origin(part) is Done else part
              for part in parts if part is not Again]  # fmt: skip
    return typing.Union[tuple(values)] if values else Any  # noqa: UP007


_ANSWERS, _UNIONS = (Again, Done), (typing.Union, types.UnionType)


def first_type(function: Callable[..., Any]) -> Any:
    """The annotated type of the first argument; Any where there is none or it cannot be resolved."""
    try:
        first = next(iter(positional(function)), None)
    except (TypeError, ValueError):  # of some functions written in C nothing is known
        return Any
    if first is None or first.annotation is inspect.Parameter.empty:
        return Any
    found = annotation_of(function, first.annotation, None)
    return Any if found is UNRESOLVED else meant(found)


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
    """The type that an annotation of the function names; UNRESOLVED, if it names what is not there at run time."""
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
        except TypeError:  # not weakly referable, or not hashable: computed again each time
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
    parameters: ParameterNames, args: tuple[Any, ...], kwargs: dict[str, Any], given: int = 0
) -> dict[str, Any]:
    """The arguments of a call by the names of its parameters; the ``given`` first ones are not among them. What has no
    name of its own is a list under the name of ``*args``, or under ``args`` where that has none either."""
    names, rest = parameters
    named = dict(zip(names[given:], args, strict=False))
    if len(args) > len(named):
        named[rest or "args"] = args[len(named) :]
    if kwargs:
        if not named.keys().isdisjoint(kwargs):
            return {"args": args, "kwargs": kwargs}
        named |= kwargs
    return named


ParameterNames = tuple[tuple[str, ...], str | None]
_names: dict[int, tuple[ParameterNames, types.CodeType]] = {}
"""Id of a code object → its `parameter_names`, and the code object itself, so that its id stays its own."""


def parameter_names(function: Callable[..., Any]) -> ParameterNames:
    """The names of the parameters that are filled by position, and that of ``*args``. This is asked for each call of a
    step: of a plain function, which may be a new one each time, its code tells it at once."""
    if type(function) is types.FunctionType and "__wrapped__" not in function.__dict__:
        code = function.__code__
        try:
            return _names[id(code)][0]
        except KeyError:
            return _names_in(code)
    try:
        parameters = signature_of(function).parameters.values()
    except (TypeError, ValueError):  # of some functions written in C nothing is known
        return (), None
    rest = next((each.name for each in parameters if each.kind is each.VAR_POSITIONAL), None)
    filled = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(each.name for each in parameters if each.kind in filled), rest


def _names_in(code: types.CodeType) -> ParameterNames:
    if len(_names) > 10_000:  # code made at run time; keep it bounded
        _names.clear()
    own, count = code.co_varnames, code.co_argcount
    names = own[:count], own[count + code.co_kwonlyargcount] if code.co_flags & inspect.CO_VARARGS else None
    _names[id(code)] = names, code
    return names


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
"""The file of code made by ``exec``. Lines that Python finds under this name may be those of another text."""


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


_EMPTY = inspect.Parameter.empty
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_CONTEXT_NAMES = ("ctx", "context")


def located(function: Any) -> str:
    """A function as its author finds it: its name, file and line."""
    line = source_line(function)
    return f"{name_of(function)!r} ({line})" if line else repr(name_of(function))


def check_function(function: Any, what: str) -> None:
    """Refuse what is no function that gives one value when it is called: a class, a generator, a method without its
    object."""
    said = f"{what} {located(function)}"
    if not callable(function):
        raise ConfigurationError(f"a {what} must be a function, not {function!r}")
    if isinstance(function, staticmethod):
        raise ConfigurationError(f"{said} is a staticmethod: write @staticmethod above the other decorator, not below")
    if inspect.isclass(function):
        raise ConfigurationError(f"{said} is a class; declare a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"{said} is a generator; it must give one value: return it, and do not yield")
    if _is_method(function):
        raise ConfigurationError(
            f"{said} is a method, and is called without an object as its self. Declare a function outside of the "
            "class; or give a bound method, as in app.task(thing.method) or ctx.step(thing.method, …)"
        )


def input_parameter(function: Any, kind: str, takes_context: bool, scope: dict[str, Any] | None) -> Any:
    """The parameter that is given the input of a task or workflow; None, if it takes none."""
    check_function(function, kind)
    said = f"{kind} {located(function)}"
    for parameter in signature_of(function).parameters.values():
        if parameter.kind in _VARIADIC:
            raise ConfigurationError(
                f"{said} takes {parameter}; it must take one input with a name and a type. If that is the work of a "
                "decorator, let the decorator use functools.wraps"
            )
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.default is _EMPTY:
            raise ConfigurationError(
                f"{said} needs the keyword {parameter.name!r}, but is called with its input alone; {_ONE_INPUT}"
            )
    parameters = positional(function)
    if takes_context:
        if not parameters:
            raise ConfigurationError(f"{said} must take a context as its first parameter: {_example(function)}")
        _check_context(function, parameters[0], kind, scope)
        parameters = parameters[1:]
    else:
        _refuse_contexts(function, parameters, said, scope)
    return _only(parameters, said)


_ONE_INPUT = "a run has one input: a dict, a dataclass"


def _only(parameters: list[inspect.Parameter], said: str) -> inspect.Parameter | None:
    if len(parameters) > 1:
        names = ", ".join(parameter.name for parameter in parameters)
        constants = [p.name for p in parameters[1:] if p.default is not _EMPTY]
        hint = f"; put a * before {constants[0]!r} if its default is all it ever has" if constants else ""
        raise ConfigurationError(
            f"{said} takes {len(parameters)} inputs ({names}); it must take one value: a dict, a dataclass{hint}"
        )
    if not parameters:
        return None
    [only] = parameters
    if only.default is not _EMPTY and only.default is not None:
        raise ConfigurationError(
            f"{said} has a default for {only.name!r} that would never be used: a start without an input gives None. "
            f"Write {only.name}=None, and choose the value in the function"
        )
    return only


def _check_context(function: Any, parameter: inspect.Parameter, kind: str, scope: dict[str, Any] | None) -> None:
    found = annotation_of(function, parameter.annotation, scope)
    kinds = [each for each in typing.get_args(found) or (found,) if each is not type(None)]
    ways = [way for way in map(_way_of, kinds) if way is not None]
    said = f"{kind} {located(function)}"
    if not ways:
        hint = "" if kind != "workflow" else ", or declare it with @app.task if it needs no context"
        raise ConfigurationError(
            f"{said}: its first parameter {parameter.name!r} is annotated with {_type_name(found)}, but is given the "
            f"context. Write {_example(function)}{hint}"
        )
    if kind == "workflow" and ANY_WAY not in ways and _way(function) not in ways:
        if _is_wrapped_async(function):
            raise ConfigurationError(
                f"{said} is an async def, but a decorator has wrapped it in a plain def. Write its inner function as "
                "`async def wrapper(*args, **kwargs)`, which awaits the function"
            )
        raise ConfigurationError(
            f"{said} is written with {_way(function)}, but its context is annotated with {_type_name(found)}. "
            f"Write {_example(function)}"
        )


def _is_wrapped_async(function: Any) -> bool:
    """Whether a plain def wraps an async def, by functools.wraps."""
    return not is_async(function) and is_async(inspect.unwrap(function))


def _refuse_contexts(
    function: Any, parameters: list[inspect.Parameter], said: str, scope: dict[str, Any] | None
) -> None:
    for parameter in parameters:
        found = annotation_of(function, parameter.annotation, scope)
        by_name = parameter.annotation is _EMPTY and parameter.name in _CONTEXT_NAMES
        if by_name or getattr(found, "_written_with", None) is not None:
            raise ConfigurationError(
                f"{said} takes a context ({parameter.name!r}), but a task has none. Declare it with @app.workflow"
            )


ANY_WAY = "any"


def _way_of(kind: Any) -> str | None:
    """By which kind of function a context of this type is taken; None, if it is the type of no context."""
    loose = kind in (Any, object, _EMPTY, UNRESOLVED) or isinstance(kind, typing.TypeVar)
    if loose or getattr(kind, "_is_protocol", False):
        return ANY_WAY
    found: str | None = getattr(kind, "_written_with", None)
    return found


def _way(function: Any) -> str:
    return "async def" if is_async(function) else "def"


def _example(function: Any) -> str:
    way = _way(function)
    context = "Context" if way == "async def" else "SyncContext"
    return f"{way} {name_of(function)}(ctx: {context}, …)"


def _type_name(kind: Any) -> str:
    return kind.__qualname__ if inspect.isclass(kind) and not typing.get_args(kind) else str(kind)


def _is_method(function: Any) -> bool:
    code = code_of(function)
    if code is None or inspect.ismethod(function) or not code.co_argcount:
        return False
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    inside_class = bool(owner) and not owner.endswith("<locals>")
    return inside_class and code.co_varnames[0] in _SELF


def check_types(types: dict[str, Any], what: str, function: Any) -> None:
    """The annotations can be read from JSON; ``types`` says which is whose."""
    for whose, type_ in types.items():
        try:
            check_type(type_, f"{whose} of {what} {located(function)}")
        except InvalidInput as error:
            raise ConfigurationError(str(error)) from None


def check_called(function: Any, shape: Shape) -> None:
    """Check a function that is a step without being declared as one: said when it is first called. A lambda is new at
    every call, so what is plainly in order is seen at a glance."""
    code = getattr(function, "__code__", None)
    if (
        code is not None
        and not code.co_flags & _UNUSUAL
        and (shape.returns is Any or _is_readable(shape.returns))
        and (not code.co_argcount or code.co_varnames[0] not in _SELF)
    ):
        return
    _check_called(function, shape)


_SELF = ("self", "cls")
_UNUSUAL = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR | inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_readable: set[Any] = set()
"""Annotations that were found to be readable from JSON."""


def _is_readable(type_: Any) -> bool:
    try:
        return type_ in _readable
    except TypeError:  # an annotation that cannot be hashed
        return False


def _check_called(function: Any, shape: Shape) -> None:
    kind = getattr(function, "kind", None)
    if kind is not None and hasattr(function, "takes_input"):
        name = function.name
        raise ContextMisuse(
            f"{name!r} is a {kind}, not a step: ctx.call({name}, input) starts it as a child and waits for its result, "
            f"ctx.start({name}, input) does not wait. To call its function as a step, give {name}.function"
        )
    try:
        check_function(function, "step")
        check_types({"the result": shape.returns}, "step", function)
    except ConfigurationError as error:
        raise ContextMisuse(str(error)) from None
    warn_if_types_are_lost(function)
    if len(_readable) < 10_000:  # classes made at run time; keep it bounded
        with contextlib.suppress(TypeError):
            _readable.add(shape.returns)


# -- undo ------------------------------------------------------------------------------------------------------------


def check_undo(undo: Any, function: Any) -> None:
    """An undo is called with the output and the arguments of its step: refused if there are none that it could take. A
    function that takes a context is a step of a dag, whose undo takes a context too."""
    try:
        takes, given = signature_of(undo), signature_of(function)
    except (TypeError, ValueError):  # some functions written in C do not say
        return
    parameters = list(given.parameters.values())
    if parameters and parameters[0].name in _CONTEXT_NAMES:
        return
    fixed = [p for p in parameters if p.default is _EMPTY and p.kind not in _VARIADIC]
    every = [p for p in parameters if p.kind not in _VARIADIC]
    if not any(_takes(takes, chosen) for chosen in (fixed, every)):
        _refuse_undo(undo, located(function), ", ".join(["output", *(p.name for p in every)]), ConfigurationError)


def _takes(signature: inspect.Signature, parameters: list[inspect.Parameter]) -> bool:
    keywords = {p.name: None for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    return _binds(signature, [None] * (len(parameters) - len(keywords)), keywords)


def _binds(signature: inspect.Signature, args: Any, kwargs: dict[str, Any]) -> bool:
    try:
        signature.bind(None, *args, **kwargs)
    except TypeError:
        return False
    return True


def check_undo_call(undo: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before a step is called that names an undo: the undo can be called with what the step is called with."""
    try:
        signature = signature_of(undo)
    except (TypeError, ValueError):
        return
    if not _binds(signature, args, kwargs):
        given = ", ".join(["output", *(["…"] * len(args)), *(f"{key}=…" for key in kwargs)])
        _refuse_undo(undo, repr(name), given, ContextMisuse)


def _refuse_undo(undo: Any, step: str, given: str, error: type[Exception]) -> NoReturn:
    raise error(
        f"step {step}: compensate={name_of(undo)} cannot undo it. An undo is called with the output of its step and "
        f"the same arguments, {name_of(undo)}({given}), but {located(undo)} takes {signature_of(undo)}"
    )


# -- decorators ------------------------------------------------------------------------------------------------------


def warn_if_types_are_lost(function: Callable[..., Any]) -> None:
    """A decorator that does not use functools.wraps hides the types of what it wraps: results come back as plain
    JSON. It cannot be known for sure, so it is a warning."""
    code = code_of(function)
    if code is None or hasattr(function, "__wrapped__") or getattr(function, "__annotations__", None):
        return
    both = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    if code.co_flags & both != both or code.co_argcount:
        return
    wrapped = [cell for cell in _cells(function) if getattr(cell, "__annotations__", None) and code_of(cell)]
    if wrapped:
        text = (
            f"step {located(function)} seems to wrap {located(wrapped[0])} without functools.wraps: the step is "
            f"recorded under the name {name_of(function)!r}, and its result comes back untyped. Put @functools.wraps "
            "above the inner function of the decorator"
        )
        warnings.warn_explicit(text, UserWarning, code.co_filename, code.co_firstlineno)


def _cells(function: Any) -> list[Any]:
    found = []
    for cell in getattr(function, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue
    return found
