"""Three roles of least privilege for a namespace: one starts and signals, one works, one reads.

What they may do is written in ``roles.sql``; here the lists of tables, views and functions are filled in from the
migrations, so that none is forgotten. Whoever has the roles in use need not think of them at an upgrade: a migration
grants anew.
"""

from __future__ import annotations

from ..migrations import Migration, made_by
from ..statements import fill, load_statements, split_statements
from .catalogue import qualify

OPERATING = ("cancel", "resume", "reschedule")
"""Functions that are granted to the worker's role alone; the other functions do nothing that a role may not do."""

_LAST = 253_402_300_799_999
"""The last millisecond of the year 9999."""
_TIMES = ("created_at", "started_at", "ready_at", "visible_at", "deadline_at", "expires_at")
_SPANS = ("timeout_ms", "deadline_ms")
_NOT_NEGATIVE = ("place", "pending", "ordinal", "max_attempts")
_LARGEST_PLACE = _LAST * 1000

_CHECKED = {
    "runs": " AND ".join(
        (
            "worker IS NULL AND claim = 0 AND output IS NULL",
            "parent_id IS NULL AND parent_branch IS NULL AND parent_position IS NULL",
            "reply_to IS NULL AND origin_id IS NULL",
            "(dag_id IS NULL) = (dag_step IS NULL)",
            "(dag_id IS NULL OR (graph IS NOT NULL AND key IS NULL AND {schema}.sql_is_step(dag_id, dag_step)))",
            "(status IN ('queued', 'waiting') OR (status = 'running' AND graph IS NOT NULL AND dag_id IS NULL))",
            "format IN (1, 2)",
            *(f"COALESCE({time}, 0) BETWEEN 0 AND {_LAST}" for time in _TIMES),
            *(f"COALESCE({span}, 0) BETWEEN 0 AND {_LAST}" for span in _SPANS),
            *(f"COALESCE({number}, 0) >= 0" for number in _NOT_NEGATIVE),
            f"COALESCE(place, 0) <= {_LARGEST_PLACE}",
        )
    ),
    "run_tags": "{schema}.sql_is_tag(run_id, tag)",
    "mailbox": "kind = 'signal' AND NOT delivered AND error IS NULL AND format IN (1, 2)"
    f" AND sent_at BETWEEN 0 AND {_LAST}",
    "run_values": "key = '~graph' AND {schema}.sql_is_graph(run_id)",
}
"""What the rows must be that a starter inserts: runs of its own, with times that a calendar has, and nothing that adds
to a run which another process started."""


class Roles:
    """The script that makes the roles of one namespace."""

    def __init__(self, package: str, namespace: str, schema: str, known: list[Migration]) -> None:
        functions = [name for name in made_by(known, "FUNCTION") if name.rpartition(".")[2] not in OPERATING]
        words = {
            "schema": schema,
            "namespace": namespace,
            "tables": ", ".join(made_by(known, "TABLE")),
            "views": ", ".join(made_by(known, "VIEW")),
            "functions": ", ".join(functions),
            **{role: f'"{namespace}_{role}"' for role in ("starter", "worker", "reader")},
        }
        self._sql = {name: qualify(text) for name, text in load_statements(package, "roles.sql", words).items()}
        each = self._sql["policies_of_all"]
        policies = [
            fill(each, {"table": f"{schema}.{table}", "rule": fill(rule, words)}) for table, rule in _CHECKED.items()
        ]
        self._grants = fill(self._sql["grant_roles"], {"policies": ";\n".join(policies)})
        self.known = self._sql["have_roles"]

    @property
    def grants(self) -> list[str]:
        """The statements that say what each role may do. The owner of the tables may run them."""
        return split_statements(self._grants)

    def script(self) -> str:
        """The whole of it for psql. Making the roles needs the right to, unless they are there."""
        parts = [self._sql["roles_head"], self._sql["make_roles"], self._grants, "COMMIT"]
        return ";\n\n".join(parts) + ";\n"
