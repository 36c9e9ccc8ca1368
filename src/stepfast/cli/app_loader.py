"""Finding what ``module:app`` names: an application, or a remote worker."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType
from typing import Any, TypeVar

from ..app import Stepfast
from ..errors import ConfigurationError, StepfastError, sentence

Kind = TypeVar("Kind")


def load_app(name: str) -> Stepfast:
    """The application, imported from the current directory or wherever Python finds the module."""
    return load_named(name, Stepfast, "Stepfast application", "orders:app")


def load_named(name: str, kind: type[Kind], called: str, example: str) -> Kind:
    """The object that ``module:attribute`` names, which must be of a kind."""
    module_name, colon, attribute = name.partition(":")
    if not (colon and module_name and attribute):
        last = example.partition(":")[2]
        raise ConfigurationError(
            f"{name!r} does not name {_article(called.split()[-1])}; write module:{last}, as in {example}"
        )
    if module_name.endswith(".py") or "/" in module_name:
        module = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigurationError(f"{module_name!r} is a file; name the module instead: {module}:{attribute}")
    found: Any = _import(module_name)
    for part in attribute.split("."):
        found = _attribute(found, part, module_name, kind)
    if not isinstance(found, kind):
        raise ConfigurationError(f"{name} is not {_article(called)}, but {_article(type(found).__name__)}")
    return found


def _import(name: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"there is no module {error.name!r}, neither in {folder} nor among the installed packages"
            ) from None
        raise _broken(name, error) from None
    except StepfastError as error:
        raise ConfigurationError(f"module {name!r} cannot be used: {error}") from None
    except Exception as error:
        raise _broken(name, error) from None


def _broken(name: str, error: Exception) -> ConfigurationError:
    """An error in the user's code: they need its traceback, beginning where their code does."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    print("Traceback (most recent call last):", file=sys.stderr)
    print("".join(traceback.format_list(frames)), end="", file=sys.stderr)
    return ConfigurationError(f"module {name!r} cannot be imported: {sentence(error)}")


def _attribute(owner: Any, name: str, module: str, kind: type[Any]) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        apps = sorted(key for key, value in vars(owner).items() if isinstance(value, kind))
        hint = f"; it has {', '.join(f'{module}:{app}' for app in apps)}" if apps else ""
        raise ConfigurationError(f"module {module!r} has no {name!r}{hint}") from None


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
