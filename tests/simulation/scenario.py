"""A scenario: what a seed makes up. Plain values, so that it can be printed, and made smaller.

``SIZE`` bounds how much there is in one: many small worlds find more than a few large ones.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.faults import talking
from tests.simulation import dags, remote

Scenario = dict[str, Any]
Op = dict[str, Any]

WORKFLOWS = ("plain", "plain", "plain", "plain", "plain", "plain_def", "doomed", "saga", "saga_def", "sour", "chain",
             "task", "task_def")  # fmt: skip
SIMPLE = ("step", "step", "step", "step", "sleep", "sleep", "signal", "signal", "until", "transaction", "transaction",
          "tell", "draw", "stumble", "child", "child")  # fmt: skip
NESTED = ("together", "branches", "branches", "map", "race", "race", "patience")
FAULTS = ("kill", "death", "death", "request", "reply", "reply", "freeze", "freeze", "freeze", "freeze", "cut", "leave",
          "step", "deaf")  # fmt: skip
NARROW = "narrow"
"""The queue with limits."""
NAMES = ("red", "blue")
"""Of signals."""
QUESTIONS = ("flush", "flush", "flush", "flush", "flush", "claim", "claim", "claim", "transact", "transact", "transact",
             "promote", "deliver", "mail", "tick", "beat", "give_back", "reap")  # fmt: skip
"""What a worker asks of the database, where something may happen to it."""


def make(seed: int, size: int = 3) -> Scenario:
    """The scenario of a seed."""
    chance = Random(f"{seed} scenario")
    lease = chance.choice((3.0, 6.0))
    made: Scenario = {
        "workers": chance.choice((1, 2, 2, 2, 3)), "settings": _settings(chance, lease),
        "slow": chance.choice((0.0, 0.02, 0.1)), "restart": chance.choice((0.1, 1.0, lease * 1.5)), "horizon": 0.0,
    }  # fmt: skip
    made["dag"] = dags.make(chance) if chance.random() < 0.3 else None
    made["remote"] = chance.random() < 0.2
    made["limits"] = _limits(chance) if chance.random() < 0.25 else None
    made["schedule"] = _schedule(chance) if chance.random() < 0.12 else None
    made["runs"] = [_any_run(chance, made) for _ in range(chance.randint(1, size))]
    if chance.random() < 0.15:
        made["runs"] += _debounced(chance)
    _add_pairs(Random(f"{seed} pairs of waits"), made)
    _add_own_cancels(Random(f"{seed} own cancels"), made)
    _add_echo(Random(f"{seed} echo"), made)
    last = max(run["at"] for run in made["runs"])
    made["horizon"] = last + chance.choice((2.0, 5.0, 10.0))
    made["signals"] = [_signal(chance, made) for _ in range(chance.choice((0, 1, 2, 4)))]
    made["wishes"] = [_wish(chance, made) for _ in range(chance.choice((0, 0, 0, 1, 2)))]
    made["holders"] = []
    made["orders"] = _orders(chance, made) if made["limits"] else []
    made["faults"] = [_fault(chance, made, lease) for _ in range(chance.choice((0, 1, 2, 2, 3, 4)))]
    _add_callbacks(Random(f"{seed} callback holders"), made)
    made["talk"] = []
    _add_talk(Random(f"{seed} talk"), made)
    return made


def _settings(chance: Random, lease: float) -> dict[str, Any]:
    return {
        "lease": lease, "sweep_interval": lease / 3, "poll_interval": chance.choice((1.0, 2.0)),
        "inline_wait": chance.choice((0.0, 0.2, 2.0)), "concurrency": chance.choice((1, 3, 10)),
        "history_records": chance.choice((1, 3, 64)), "flush_records": chance.choice((2, 1000)),
        "history_cache": chance.choice((0, 1 << 20)), "shutdown_grace": chance.choice((0.0, 1.0)), "max_losses": 20,
        "running_after": 1.0,
    }  # fmt: skip


# -- runs --------------------------------------------------------------------------------------------------------------


def _any_run(chance: Random, made: Scenario) -> dict[str, Any]:
    """A run of whatever the scenario has."""
    kinds = ["plain", *(["dag"] * 2 if made["dag"] else []), *(["remote"] * 2 if made["remote"] else [])]
    kind = chance.choice(kinds)
    if kind == "dag":
        run: dict[str, Any] = {"at": _early(chance), "workflow": dags.NAME, "input": dags.fate(chance, made["dag"])}
        return {**run, "options": {}}
    if kind == "remote":
        workflow = chance.choice(remote.WORKFLOWS)
        return {"at": _early(chance), "workflow": workflow, "input": remote.make(chance, workflow), "options": {}}
    run = _run(chance)
    if made["limits"] and chance.random() < 0.8:
        run["options"] |= {"queue": NARROW, "concurrency_key": chance.choice(("one", "other"))}
    return run


def _early(chance: Random) -> float:
    return round(chance.random() * 2, 3)


def _run(chance: Random) -> dict[str, Any]:
    workflow = chance.choice(
        ("plain",) * 6 + ("plain_def", "doomed", "saga", "saga_def", "sour", "chain", "task", "task_def")
    )
    run: dict[str, Any] = {"at": _early(chance), "workflow": workflow, "input": _input(chance, workflow)}
    if chance.random() < 0.3:
        run["watched"] = True
    options: dict[str, Any] = {}
    if chance.random() < 0.2:
        options["priority"] = chance.choice((-5, 5))
    if chance.random() < 0.15:
        options["delay"] = chance.choice((0.1, 2.0))
    if workflow == "doomed" and chance.random() < 0.5:
        options |= chance.choice(({"deadline": 0.5}, {"deadline": 3.0}, {"expires_in": 0.2}, {"timeout": 1.0}))
    if workflow == "plain" and chance.random() < 0.1:
        options["key"] = "a key"
    run["options"] = options
    return run


def _input(chance: Random, workflow: str, depth: int = 2) -> Any:
    if workflow.startswith("task"):
        return {"pause": _pause(chance), "fails": chance.choice((0, 0, 1, 2))}
    program = _program(chance, depth, plain="_def" in workflow)
    if workflow in ("saga", "saga_def", "sour"):
        for op in program:
            if op["do"] in ("step", "transaction") and chance.random() < 0.8:
                op["undo"] = chance.choice(("quick", "slow", "never") if workflow == "sour" else ("quick", "slow"))
        if chance.random() < 0.7:
            program.append({"do": "give_up"})
        program = [op for op in program if op["do"] != "stumble"]
    if workflow in ("doomed", "doomed_def"):
        program.append({"do": "step", "fails": chance.choice((1, 9)), "retries": 1, "caught": False})
    made = {"program": program}
    return {**made, "left": chance.choice((1, 2))} if workflow == "chain" else made


def _program(chance: Random, depth: int, plain: bool = False) -> list[Op]:
    return [_op(chance, depth, plain) for _ in range(chance.randint(1, 4))]


def _op(chance: Random, depth: int, plain: bool) -> Op:
    do = chance.choice(SIMPLE if plain or depth <= 0 else SIMPLE + NESTED)
    if do == "child" and depth <= 0:
        do = "step"
    made: Op = _MAKERS[do](chance, depth)
    return made


def _pause(chance: Random) -> float:
    return chance.choice((0.0, 0.01, 0.1, 0.5, 2.5))


def _step(chance: Random, depth: int) -> Op:
    op: Op = {"do": "step", "pause": _pause(chance)}
    kind = chance.random()
    if kind < 0.3:
        op |= {
            "fails": chance.choice((1, 2)),
            "retries": chance.choice((1, 2)),
            "backoff": chance.choice(("quick", "slow")),
        }
    elif kind < 0.4:
        op |= {"fails": 1, "retries": 1, "timeout": 0.3, "pause": 0.05}
    if chance.random() < 0.3:
        op["plain"] = True
    return op


def _transaction(chance: Random, depth: int) -> Op:
    return {"do": "transaction", "fails": chance.choice((0, 0, 1)), "retries": chance.choice((1, 2))}


def _sleep(chance: Random, depth: int) -> Op:
    op: Op = {"do": "sleep", "seconds": chance.choice((0, 0.1, 1.0, 3.0))}
    return {**op, "until": True} if chance.random() < 0.3 else op


def _signalled(chance: Random, depth: int) -> Op:
    op: Op = {"do": "signal", "name": chance.choice(NAMES)}
    return {**op, "timeout": chance.choice((0.1, 1.5))} if chance.random() < 0.4 else op


def _until(chance: Random, depth: int) -> Op:
    return {"do": "until", "asks": chance.choice((0, 1, 2)), "every": chance.choice((0.1, 1.0))}


def _child(chance: Random, depth: int) -> Op:
    workflow = chance.choice(("plain", "plain", "task", "doomed", "saga", "chain", "plain_def"))
    op: Op = {"do": "child", "workflow": workflow, "how": chance.choice(("call", "result", "start"))}
    return {**op, "input": _input(chance, workflow, depth - 2)}


def _lines(chance: Random, depth: int) -> list[list[Op]]:
    return [[_op(chance, depth - 2, False) for _ in range(chance.randint(1, 2))] for _ in range(chance.randint(2, 3))]


_MAKERS: dict[str, Any] = {
    "step": _step,
    "transaction": _transaction,
    "sleep": _sleep,
    "signal": _signalled,
    "until": _until,
    "child": _child,
    "tell": lambda chance, depth: {"do": "tell", "value": chance.randrange(100)},
    "draw": lambda chance, depth: {"do": "draw"},
    "stumble": lambda chance, depth: {"do": "stumble", "attempts": 1},
    "together": lambda chance, depth: {"do": "together", "ops": [_step(chance, 0), _step(chance, 0)]},
    "branches": lambda chance, depth: {"do": "branches", "lines": _lines(chance, depth)},
    "map": lambda chance, depth: {"do": "map", "lines": _lines(chance, depth), "limit": chance.choice((1, 2, 3))},
    "race": lambda chance, depth: {"do": "race", "ops": _racers(chance)},
    "patience": lambda chance, depth: {
        "do": "patience", "seconds": chance.choice((0.05, 1.0)), "op": {"do": "step", "pause": _pause(chance)}
    },
}  # fmt: skip


def _racers(chance: Random) -> list[Op]:
    kinds: list[Op] = [
        {"do": "sleep", "seconds": chance.choice((0.1, 1.0))},
        {"do": "signal", "name": chance.choice(NAMES)},
        {"do": "step", "pause": _pause(chance)},
        {"do": "line", "ops": [{"do": "step", "pause": 0.1}, {"do": "sleep", "seconds": 0.5}, {"do": "step"}]},
    ]
    picked: list[Op] = chance.sample(kinds, 2)
    if all(op["do"] == "signal" for op in picked):
        picked[0] = kinds[0]
    return picked


# -- branches that wait ------------------------------------------------------------------------------------------------


def _add_pairs(chance: Random, made: Scenario) -> None:
    """Often a run of branches that all wait, each for something else; drawn apart from the rest of the scenario. In
    half of these, workers remember runs that they release, and release them soon."""
    if chance.random() < 0.6:
        return
    program = [_waiting_branches(chance, depth=1), {"do": "step"}]
    made["runs"].append({"at": _early(chance), "workflow": "plain", "input": {"program": program}, "options": {}})
    if chance.random() < 0.5:
        made["settings"] |= {"history_records": 64, "history_cache": 1 << 20, "inline_wait": chance.choice((0.0, 0.2))}


def _add_echo(chance: Random, made: Scenario) -> None:
    """Now and then a run that signals itself, and starts several children at once."""
    if chance.random() < 0.7:
        return
    children: Op = {"do": "children", "workflow": "task", "inputs": [_input(chance, "task", 0) for _ in range(3)]}
    program: list[Op] = [{"do": "echo"}, _step(chance, 0), children, {"do": "echo"}]
    made["runs"].append({"at": _early(chance), "workflow": "plain", "input": {"program": program}, "options": {}})


def _waiting_branches(chance: Random, depth: int) -> Op:
    """Two branches, or three; one may be such branches itself."""
    lines = [_waiting_line(chance) for _ in range(chance.choice((2, 2, 2, 2, 3)))]
    if depth and chance.random() < 0.3:
        lines[-1].insert(chance.randint(0, 1), _waiting_branches(chance, depth - 1))
    if chance.random() < 0.5:
        return {"do": "branches", "lines": lines}
    return {"do": "map", "lines": lines, "limit": chance.choice((2, 3))}


def _waiting_line(chance: Random) -> list[Op]:
    """A wait, and what comes after it; then perhaps the same once more."""
    line: list[Op] = []
    for _ in range(chance.choice((1, 1, 2))):
        line += [
            _WAITS[chance.choice(("call", "result", *_WAITS))](chance),
            {"do": "step", "pause": chance.choice((0.0, 0.1))},
        ]
    return line


def _waiting_child(chance: Random, how: str) -> Op:
    """A child that waits itself, mostly longer than a moment."""
    wait = chance.choice(("sleep", "sleep", "signal", "step"))
    program: list[Op] = [_WAITS[wait](chance) if wait in _WAITS else _step(chance, 0)]
    return {"do": "child", "workflow": "plain", "how": how, "input": {"program": program}}


_RETRIED = {"fails": 1, "retries": 1, "backoff": "slow"}
_WAITS: dict[str, Any] = {
    "call": lambda chance: _waiting_child(chance, "call"),
    "result": lambda chance: _waiting_child(chance, "result"),
    "signal": lambda chance: {"do": "signal", "name": chance.choice(NAMES)},
    "timed signal": lambda chance: {
        "do": "signal",
        "name": chance.choice(NAMES),
        "timeout": chance.choice((1.5, 60.0)),
    },
    "sleep": lambda chance: {"do": "sleep", "seconds": chance.choice((0.1, 1.0, 3.0))},
    "race": lambda chance: {"do": "race", "ops": _racers(chance)},
    "until": lambda chance: {"do": "until", "asks": chance.choice((0, 1, 2)), "every": chance.choice((0.1, 1.0, 3.0))},
    "timed until": lambda chance: {**_WAITS["until"](chance), "timeout": 60.0},
    "retry": lambda chance: {"do": "step", **_RETRIED},
    "transaction": lambda chance: {"do": "transaction", **_RETRIED},
}
"""Everything that a branch can wait for; remote steps have workflows of their own."""


# -- code that cancels its own task, or makes tasks --------------------------------------------------------------------


def _add_own_cancels(chance: Random, made: Scenario) -> None:
    """Sometimes a run whose steps and code cancel their own tasks, and whose steps are awaited in tasks of the code."""
    if chance.random() < 0.85:
        return
    made["runs"].append(
        {"at": _early(chance), "workflow": "plain", "input": {"program": _own_cancels(chance)}, "options": {}}
    )


def _own_cancels(chance: Random) -> list[Op]:
    def step() -> Op:
        op = {"do": "step", "pause": _pause(chance), "retries": 2, "backoff": chance.choice(("quick", "slow"))}
        return op | chance.choice(({}, {"fails": 1, "cancels": True}, {"fails": 2, "cancels": True, "timeout": 9.0}))

    line = [
        {"do": "together", "tasks": True, "ops": [step(), step()]},
        step(),
        {"do": "stumble", "attempts": 1, "cancels": True},
        chance.choice((_sleep, _signalled, _until))(chance, 0),
        step(),
    ]
    chance.shuffle(line)
    if chance.random() < 0.4:
        return [{"do": "branches", "lines": [line[:2], line[2:]]}]
    return line


def _add_callbacks(chance: Random, made: Scenario) -> None:
    """Sometimes a run that makes callbacks, and holders of its tokens; drawn apart, and last: others stay what they
    were."""
    if chance.random() < 0.85:
        return
    program = [*(_callback(chance) for _ in range(chance.randint(1, 3))), {"do": "step"}]
    if chance.random() < 0.5:
        lines = [[_callback(chance)], [_callback(chance), _waiting_line(chance)[0]]]
        program.insert(chance.randint(0, 1), {"do": chance.choice(("branches", "map")), "lines": lines, "limit": 2})
    made["runs"].append({"at": _early(chance), "workflow": "plain", "input": {"program": program}, "options": {}})
    span = max(made["horizon"], 5.0)
    made["holders"] = [
        {
            "at": round(chance.random() * span, 3), "token": chance.randrange(4),
            "do": chance.choice(("complete", "complete", "fail", "beat")), "value": chance.choice("ab"),
        }
        for _ in range(chance.randint(2, 10))
    ]  # fmt: skip
    if chance.random() < 0.5:
        made["faults"].append(
            {
                "kind": chance.choice(("request", "reply", "death")), "worker": chance.randrange(made["workers"]),
                "question": "look_at_callback", "number": chance.choice((1, 1, 2)),
            }
        )  # fmt: skip


def _callback(chance: Random) -> Op:
    op: Op = {"do": "callback", "asks": chance.choice((1, 1, 2))}
    if chance.random() < 0.6:
        op["timeout"] = chance.choice((0.1, 1.0, 3.0))
    if chance.random() < 0.3:
        op["heartbeat"] = chance.choice((0.5, 2.0))
    if chance.random() < 0.5:
        op["meanwhile"] = [chance.choice(({"do": "step", "pause": _pause(chance)}, {"do": "sleep", "seconds": 1.0}))]
    return op


def _add_talk(chance: Random, made: Scenario) -> None:
    """Sometimes runs that talk, and those who talk with them; drawn apart, and last."""
    if chance.random() < 0.8:
        return
    span, first = max(made["horizon"], 5.0), len(made["runs"])
    runs = range(first, first + chance.randint(1, 3))
    for _ in runs:
        given: Op = {"program": talking.program(chance, (0.1, 1.5, 30.0)), "left": chance.choice((0, 0, 1, 2))}
        made["runs"].append({"at": _early(chance), "workflow": talking.TALK, "input": given, "options": {}})
    made["talk"] = [
        _talk(chance, runs) | {"at": round(chance.random() * span, 3)} for _ in range(chance.randint(4, 20))
    ]
    made["talk"] += [
        {"do": "read", "run": run, "stream": chance.choice("st"), "at": round(chance.random() * span, 3)}
        for run in runs
        for _ in range(chance.choice((1, 1, 2)))
    ]
    for _ in range(chance.choice((0, 1, 1, 2))):
        worker, question = chance.randrange(made["workers"]), chance.choice(_OF_TALK)
        kind, number = chance.choice(("request", "reply", "death", "death")), chance.choice((1, 1, 2, 3))
        made["faults"].append({"kind": kind, "worker": worker, "question": question, "number": number})


_OF_TALK = ("flush", "flush", "match_events", "next_events", "start_by_events", "due_event_starts", "hand_on",
            "deliver", "mail", "stream_counts", "claim")  # fmt: skip
"""What a worker asks of the database for them."""


def _talk(chance: Random, runs: range) -> dict[str, Any]:
    """What one of those outside does."""
    do = chance.choice(("ask", "ask", "publish", "publish", "word", "word", "open", "open", "open", "wish"))
    run = chance.choice(runs)
    if do == "ask":
        timeout = chance.choice((None, None, 0.5))
        return {
            "do": do,
            "run": run,
            "name": chance.choice("qr"),
            "id": chance.choice((None, "a", "b")),
            "timeout": timeout,
        }
    if do == "publish":
        name, key = chance.choice((talking.NEWS, talking.NEWS, talking.GO)), chance.choice((None, "k", "l"))
        return {"do": do, "name": name, "key": key, "id": chance.choice((None, None, "e"))}
    if do == "word":
        return {"do": do, "run": run, "id": chance.choice("vw")}
    if do == "open":
        policy = chance.choice(talking.POLICIES)
        return {"do": do, "name": chance.choice("mn"), "on_conflict": policy, "input": talking.session_input(chance)}
    return {"do": do, "run": run, "what": chance.choice(("cancel", "pause", "resume", "pause", "resume"))}


# -- people and faults -------------------------------------------------------------------------------------------------


def _signal(chance: Random, made: Scenario) -> dict[str, Any]:
    number = chance.randrange(len(made["runs"]))
    at = made["runs"][number]["at"] + chance.random() * 3
    return {"at": round(at, 3), "run": number, "name": chance.choice(NAMES)}


def _wish(chance: Random, made: Scenario) -> dict[str, Any]:
    number = chance.randrange(len(made["runs"]))
    at = made["runs"][number]["at"] + chance.random() * 3
    what = chance.choice(("cancel", "cancel", "pause", "resume", "retry"))
    if what == "retry" and made["runs"][number]["workflow"] not in (dags.NAME, *remote.WORKFLOWS):
        what = "cancel"  # the checker of the others knows of one end only
    return {"at": round(at + 3 * (what == "retry"), 3), "run": number, "what": what}


_NOTED: tuple[dict[str, Any], ...] = (
    {"kind": "freeze", "question": "transact", "number": 1},
    {"kind": "freeze", "question": "flush", "number": 1},
    {"kind": "freeze", "question": "flush", "number": 2},
    {"kind": "reply", "question": "claim", "number": 1},
    {"kind": "death", "question": "flush", "number": 2},
)
"""Faults at the places where most is at stake."""


def _limits(chance: Random) -> dict[str, Any]:
    """Of the one queue that has any."""
    limits: dict[str, Any] = {"concurrency": chance.choice((1, 2))}
    if chance.random() < 0.4:
        limits["key_concurrency"] = 1
    if chance.random() < 0.4:
        limits["rate"] = [chance.choice((1, 3)), chance.choice((1.0, 3.0))]
    return limits


def _orders(chance: Random, made: Scenario) -> list[dict[str, Any]]:
    """What an operator does to that queue."""
    some: list[Op] = [
        {"do": "pause_queue"},
        {"do": "resume_queue"},
        {"do": "set_limits", "concurrency": chance.choice((1, 3))},
    ]
    return [
        {**chance.choice(some), "at": round(chance.random() * made["horizon"], 3)}
        for _ in range(chance.choice((0, 1, 2)))
    ]


def _schedule(chance: Random) -> dict[str, Any]:
    return {
        "every": chance.choice((1.0, 2.5)),
        "missed": chance.choice(("all", "latest", "skip")),
        "overlap": chance.choice(("allow", "skip")),
        "jitter": chance.choice((0.0, 0.5)),
    }


def _debounced(chance: Random) -> list[dict[str, Any]]:
    """Several starts of one key, each of which puts the run off."""
    options = {"key": "bounce", "debounce": chance.choice((0.3, 1.0)), "debounce_max": 2.0}
    return [
        {"at": _early(chance), "workflow": "task", "input": {"pause": 0.0, "number": number}, "options": options}
        for number in range(chance.randint(2, 4))
    ]


def _fault(chance: Random, made: Scenario, lease: float) -> dict[str, Any]:
    if chance.random() < 0.25:
        return {**chance.choice(_NOTED), "worker": chance.randrange(made["workers"]), "seconds": lease * 2}
    kind = chance.choice(FAULTS)
    fault: dict[str, Any] = {"kind": kind, "worker": chance.randrange(made["workers"])}
    if kind in ("freeze", "cut"):
        fault["seconds"] = round(lease * chance.choice((0.3, 1.5, 2.0, 2.0)), 3)
    if kind == "step":
        back = chance.random() < 0.25
        ms = chance.choice((-400, -20_000)) if back else chance.choice((500, 20_000, 3_600_000))
        return {"kind": kind, "at": round(chance.random() * 5, 3), "ms": ms}
    if kind == "deaf":
        return {"kind": kind, "at": 0.0}
    if kind in ("death", "request", "reply") or chance.random() < 0.6:
        return {**fault, "question": chance.choice(QUESTIONS), "number": chance.choice((1, 1, 2, 2, 3, 4, 5))}
    return {**fault, "at": round(chance.random() * made["horizon"], 3)}
