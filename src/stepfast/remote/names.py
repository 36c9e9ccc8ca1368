"""Names of the contract: table prefixes, step names, groups and step ids.

They are checked before anything is sent: a column of the contract keeps 191 characters, and some servers cut longer
ones off without a word. The prefix is the only thing that is ever put into SQL, so it is spelled plainly.
"""

from __future__ import annotations

import re

from ..errors import ConfigurationError
from ..model.names import check_name

LONGEST = 191
"""Characters in a step id, a run id, a name and a group: what an index of an old MySQL could hold."""
DEFAULT_PREFIX = "durable"

_PREFIX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,34}")
"""With what is put behind it, 35 characters still fit into the 63 that Postgres keeps of a name."""


def check_prefix(prefix: object) -> str:
    """The first part of the two tables' names."""
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise ConfigurationError(
            f"the table prefix {prefix!r} is not usable: letters, digits, underscores and hyphens, at most 35, "
            "not starting with a hyphen"
        )
    return prefix


def tasks_table(prefix: str) -> str:
    """Where tasks lie, unquoted."""
    return f"{check_prefix(prefix)}_transport_tasks"


def results_table(prefix: str) -> str:
    """Where results lie, unquoted."""
    return f"{check_prefix(prefix)}_transport_results"


def check_step_name(name: object) -> str:
    """The name of a remote step, by which a worker finds its handler."""
    return check_name(name, "the name of a remote step", LONGEST)


def check_group(group: object) -> str:
    """The group that a worker serves, spelled as engines spell it: with a hyphen in place of each colon. What is behind
    an ``@`` is a partition, and stays as it is."""
    base, at, partition = check_name(group, "the group of a remote worker", LONGEST).partition("@")
    name = base.replace(":", "-") + at + partition
    if name != name.strip():
        raise ConfigurationError(
            f"the group {name!r} begins or ends with blanks, which some databases ignore: leave them out"
        )
    return name


def ids_of_step(step_id: str) -> dict[str, str]:
    """The ids for a record of the log about a step. Its id is made of that of its run and a number."""
    return {"run_id": step_id.rpartition(":")[0], "step_id": step_id}
