"""Make `.venv`: the package in editable form, all its extras, and the tools of the `dev` group.

Run by `make setup` with any Python that is new enough; uses nothing but the standard library. uv does the
installing because it is ten times faster; where uv cannot be had or does not manage, plain pip does, which
may be too old to know dependency groups, so the group is read here. Package hosts come from the machine's own
configuration and are written nowhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / os.environ.get("VENV", ".venv")
PYTHON = VENV / "bin" / "python"


def requirements(group: str, *, frameworks: bool, only: str | None = None) -> list[str]:
    """The package with its extras, and a group of tools. Extras that bring a web or agent framework are left out of
    the environment of demo and test: they are large, and have an environment of their own. ``only``: one of them, which
    has a group of its own too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    large = set() if frameworks else set(project["tool"]["stepfast"]["frameworks"])
    extras = sorted(set(project["project"]["optional-dependencies"]) - {"all"} - large | ({only} if only else set()))
    groups = project["dependency-groups"]
    more = [*(groups["frameworks"] if frameworks else ()), *(groups[only] if only else ())]
    return ["--editable", f"{ROOT}[{','.join(extras)}]", *groups[group], *more]


OF_THEIR_TIME = ["click<8.4"]
"""What the oldest versions need themselves, where a newer one warns of how they use it."""


def oldest() -> list[str]:
    """The oldest versions of the dependencies that the package says it works with. Frameworks bring dependencies of
    their own, which need newer ones."""
    read = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, large = read["project"], set(read["tool"]["stepfast"]["frameworks"])
    extras = [extra for name, extra in project["optional-dependencies"].items() if name not in large]
    named = [*project["dependencies"], *(one for extra in extras for one in extra)]
    return [*(one.replace(">=", "==") for one in named if ">=" in one), *OF_THEIR_TIME]


def create_venv() -> None:
    """A new environment, unless the one that is there runs and is of this very Python version."""
    probe = "import sys, pip; print(sys.version)"
    if PYTHON.exists():
        found = subprocess.run([PYTHON, "-c", probe], capture_output=True, text=True)
        if found.returncode == 0 and found.stdout.strip() == sys.version:
            return
    print(f"creating {VENV.name} with Python {sys.version.split()[0]}", flush=True)
    venv.create(VENV, clear=True, with_pip=True, symlinks=True)


def writable_home() -> bool:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    while not home.exists():
        home = home.parent
    return os.access(home, os.W_OK)


def pip(*arguments: str | Path) -> bool:
    cache = [] if writable_home() else ["--no-cache-dir"]
    command = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *cache, *arguments]
    return subprocess.run(command, cwd=ROOT).returncode == 0


def pip_setting(name: str) -> str | None:
    """One value of pip's own configuration (files and PIP_… variables), because uv reads neither."""
    listing = subprocess.run([PYTHON, "-m", "pip", "config", "list"], capture_output=True, text=True)
    for line in listing.stdout.splitlines():
        key, _, value = line.partition("=")
        if key.rpartition(".")[2] == name:
            return value.strip("'\"")
    return None


def uv(*arguments: str | Path) -> bool:
    if not pip("uv"):
        return False
    environment = dict(os.environ)
    for variable, setting in (("UV_DEFAULT_INDEX", "index-url"), ("SSL_CERT_FILE", "cert")):
        if variable not in environment and (value := pip_setting(setting)):
            environment[variable] = value
    cache = [] if writable_home() else ["--no-cache"]
    command = [VENV / "bin" / "uv", "pip", "install", "--quiet", "--python", PYTHON, *cache, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode == 0


def main(arguments: list[str]) -> int:
    """Install the package, its extras, a group of tools and the packages of requirements files.

    `--docs` installs the tools of the docs site instead of those of development, `--oldest` the oldest dependencies
    that the package works with, `--frameworks` also the frameworks that extras bring, `--django` only the newest
    Django. All other arguments are requirements files.
    """
    create_venv()
    group = "docs" if "--docs" in arguments else "dev"
    frameworks = "--frameworks" in arguments
    only = "django" if "--django" in arguments else None
    wanted = requirements(group, frameworks=frameworks, only=only) + (oldest() if "--oldest" in arguments else [])
    wanted += [word for file in arguments if not file.startswith("--") for word in ("--requirement", file)]
    print(f"installing stepfast, its extras and the {group} tools", flush=True)
    if uv(*wanted):
        return 0
    print("uv did not manage; trying again with pip", flush=True)
    if pip(*wanted):
        return 0
    print("set-up failed: neither uv nor pip could install the packages (see above)", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
