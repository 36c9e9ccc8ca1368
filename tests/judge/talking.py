"""What is wrong with runs that talk: each item is there once and in order; each question is answered, refused, or ended
with its run; each event is taken by each waiter once, and starts one run; each signal with an id is taken once; never
are two runs of one name at work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.faults.talking import BEGUN, GO, NEWS, NOTES, TALK, WORKFLOWS, answer_of
from tests.judge.cases import Violation, load
from tests.judge.evidence import Evidence, Run
from tests.judge.ledger import Ledger

ENDS = frozenset({"completed", "cancelled"})


@dataclass
class TalkScene:
    """All that is known of them."""

    evidence: Evidence
    notes: list[dict[str, Any]]
    items: list[tuple[str, str, int, bool, Any]]
    """Of streams: (run, stream, number, restarted, value), in order."""
    questions: dict[str, str]
    """The state of each, by id."""
    names: dict[str, str]
    """The names of sessions."""
    slack: int
    """Microseconds within which a run that waits is told of an event."""
    chains: dict[str, list[str]] = field(default_factory=dict)
    """By the run that continues none: all that continue it, in order."""
    roots: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        runs = {run.id: run for run in self.evidence.runs if run.workflow in WORKFLOWS}
        for run in runs.values():
            root = run
            while root.origin in runs:
                root = runs[root.origin]
            self.roots[run.id] = root.id
        for root_id in set(self.roots.values()):
            chain, at = [root_id], runs[root_id]
            while at.reason == "continued" and (after := load(at.output)) in runs:
                chain.append(after)
                at = runs[after]
            self.chains[root_id] = chain

    def of(self, kind: str, **wanted: Any) -> list[dict[str, Any]]:
        """The notes of a kind."""
        return [
            note
            for note in self.notes
            if note["kind"] == kind and all(note.get(name) == value for name, value in wanted.items())
        ]

    @property
    def runs(self) -> dict[str, Run]:
        return {run.id: run for run in self.evidence.runs if run.workflow in WORKFLOWS}


async def scene_of(evidence: Evidence, ledger: Ledger, fetch: Any, slack: int) -> TalkScene:
    """Read what is left in the tables. ``fetch`` takes the words of the audit."""
    items = await fetch(
        "SELECT run_id, name, number, restarted, value FROM [stream_items] ORDER BY run_id, name, number"
    )
    questions = await fetch("SELECT id, state FROM [questions]")
    names = await fetch("SELECT id, COALESCE(unique_name, awaits_name) FROM [runs] WHERE workflow = 'session'")
    return TalkScene(
        evidence, ledger.read(NOTES),
        [(str(run), name, number, bool(restarted), load(value)) for run, name, number, restarted, value in items],
        {str(id_): state for id_, state in questions}, {str(id_): name for id_, name in names}, slack,
    )  # fmt: skip


def check(scene: TalkScene) -> list[Violation]:
    """Every violation."""
    return [violation for rule in RULES for violation in rule(scene)]


def ended(scene: TalkScene) -> Iterator[Violation]:
    """Every run completes, but for those that somebody has cancelled."""
    for run in scene.runs.values():
        if run.status not in ENDS:
            yield Violation("wrong end", run.id, f"a {run.workflow} ended {run.status}: {run.error}")


def streams(scene: TalkScene) -> Iterator[Violation]:
    """What code says is there once, in order; what a step says, for each of its tries from the beginning."""
    found: dict[tuple[str, str], list[tuple[int, bool, Any]]] = defaultdict(list)
    for run, stream, number, restarted, value in scene.items:
        found[run, stream].append((number, restarted, value))
    finished = {note["run"]: note["said"] for note in scene.of("finished")}
    completed = {run.id for run in scene.runs.values() if run.status == "completed" and run.workflow == TALK}
    done = {(step.run, f"{step.branch}:{step.position}") for step in scene.evidence.steps if step.status == "completed"}
    for (run, stream), items in found.items():
        if [number for number, _, _ in items] != list(range(1, len(items) + 1)):
            yield Violation("item out of order", run, f"{stream!r} has {[number for number, _, _ in items]}")
        by_code, by_step = defaultdict(list), defaultdict(list)
        for _, restarted, value in items:
            if "by" in value:
                by_code[value["by"]].append(value["n"])
            else:
                by_step[value["step"]].append((restarted, value["n"]))
        for branch, numbers in by_code.items():
            if numbers != list(range(len(numbers))):
                yield Violation("item twice or lost", run, f"branch {branch!r} has sent {numbers} to {stream!r}")
        for place, sent in by_step.items():
            yield from _tries(run, stream, place, sent, (run, place) in done)
    for run in completed:
        for said, count in finished.get(run, {}).items():
            stream, _, branch = said.partition("|")
            kept = sum(value.get("by") == branch for _, _, value in found.get((run, stream), []))
            if kept != count:
                yield Violation("item twice or lost", run, f"{said!r}: {count} were sent, and {kept} are there")


def _tries(run: str, stream: str, place: str, sent: list[tuple[bool, int]], completed: bool) -> Iterator[Violation]:
    expected = 0
    for number, (restarted, value) in enumerate(sent):
        if restarted:
            expected = 0
        if value != expected or (restarted and number == 0):
            yield Violation("item out of order", run, f"step {place} has sent {sent} to {stream!r}")
            return
        expected += 1


def readers(scene: TalkScene) -> Iterator[Violation]:
    """A reader who came back as often as need be has read what there is, in order, over the whole chain."""
    for note in scene.of("read"):
        chain = scene.chains.get(scene.roots.get(note["run"], ""), [])
        chain = chain[chain.index(note["run"]) :] if note["run"] in chain else chain
        there = [
            [f"{chain.index(run):05d}.{number:010d}", value, restarted]
            for run, stream, number, restarted, value in sorted(
                (item for item in scene.items if item[0] in chain and item[1] == note["stream"]),
                key=lambda item: (chain.index(item[0]), item[2]),
            )
        ]
        if note["items"] != there:
            yield Violation("read amiss", note["run"], f"{note['stream']!r}: {note['items']} was read of {there}")


def questions(scene: TalkScene) -> Iterator[Violation]:
    """Each is taken once; who asked has the answer that was given, or knows that there is none."""
    taken = _taken(scene, "question")
    ids = {note["thing"]: note["id"] for note in scene.of("took", what="question")}
    given = {note["thing"] for note in scene.of("gave")}
    told: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for note in scene.of("told"):
        told[note["value"]].append(note)
    asked: dict[str, int] = defaultdict(int)
    for note in scene.of("asks"):
        asked[note["value"]] += 1
    for value, places in taken.items():
        if len(places) > 1:
            yield Violation("question twice", places[0][0], f"{value!r} was taken at {places}")
    for value, count in asked.items():
        notes = told[value]
        if len(notes) != count:
            yield Violation("question unanswered", "-", f"{value!r} was asked {count} times, and told {notes}")
        hows = {note["how"] for note in notes} & {"answered", "refused", "ended"}
        if len(hows) > 1:
            yield Violation("question twice", notes[0]["run"], f"{value!r}: {hows}")
        runs = [run for run, _ in taken.get(value, [])]
        for note in notes:
            if note["how"] == "answered" and note["answer"] not in [answer_of(value, run) for run in runs]:
                yield Violation("wrong answer", note["run"], f"{value!r}: {note['answer']!r}, taken by {runs}")
            if note["how"] == "refused" and not runs:
                yield Violation("wrong answer", note["run"], f"{value!r} was refused, and taken by no run")
            there = scene.questions.get(ids.get(value, "")) in ("answered", "refused") or value in given
            if note["how"] == "ended" and there:
                yield Violation(
                    "answer lost", note["run"], f"{value!r} has an answer, and the asker was told of an end"
                )


def events(scene: TalkScene) -> Iterator[Violation]:
    """Each run takes each event once, in the order of their publication; none that it waited for is missed."""
    published: dict[str, dict[str, Any]] = {}
    for note in scene.of("publishes", name=NEWS):
        published.setdefault(note["nonce"], note)
    acknowledged: dict[str, int] = {}
    for note in scene.of("published", name=NEWS):
        acknowledged.setdefault(note["nonce"], note["at"])
    by_run: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    when: dict[tuple[str, str], int] = {}
    for note in scene.of("took", what="event"):
        root = scene.roots.get(note["run"], note["run"])
        by_run[root][note["thing"]].add(f"{note['run']} {note['place']}")
        when[root, note["thing"]] = min(when.get((root, note["thing"]), note["at"]), note["at"])
        if note["thing"] not in published:
            yield Violation("event made up", note["run"], repr(note))
        elif note["key"] not in (None, published[note["thing"]]["key"]):
            yield Violation("wrong event", note["run"], f"{note} of {published[note['thing']]}")
    for root, taken in by_run.items():
        for nonce, places in taken.items():
            if len(places) > 1:
                yield Violation("event twice", root, f"{nonce!r} was taken at {sorted(places)}")
    yield from _missed(scene, published, acknowledged, when)


def _missed(
    scene: TalkScene, published: dict[str, Any], acknowledged: dict[str, int], when: dict[tuple[str, str], int]
) -> Iterator[Violation]:
    born: dict[str, int] = {}
    for move in scene.evidence.moves:
        born.setdefault(move.run, move.at)
    first: dict[tuple[str, str], dict[str, Any]] = {}
    for note in scene.of("missed"):
        first.setdefault((note["run"], note["place"]), note)
    for note in first.values():
        root = scene.roots.get(note["run"], note["run"])
        for nonce, at in acknowledged.items():
            event = published[nonce]
            fits = note["key"] in (None, event["key"]) and event["at"] > born.get(root, note["at"]) + 10_000
            if fits and at + scene.slack < note["at"] and when.get((root, nonce), note["at"] + 1) > note["at"]:
                yield Violation("event missed", note["run"], f"{nonce!r} was there, and {note['place']} timed out")


def starts(scene: TalkScene) -> Iterator[Violation]:
    """An event starts one run; one that was published for certain starts one."""
    begun: dict[str, list[str]] = defaultdict(list)
    for run in scene.runs.values():
        if run.workflow == BEGUN:
            begun[load(run.input)].append(run.id)
    sure = {note["nonce"] for note in scene.of("published", name=GO)}
    sent = {note["nonce"] for note in scene.of("publishes", name=GO)}
    for nonce, runs in begun.items():
        if len(runs) > 1 or nonce not in sent:
            yield Violation("start twice", runs[0], f"event {nonce!r} has started {runs}")
    for nonce in sorted(sure - begun.keys()):
        yield Violation("start lost", "-", f"event {nonce!r} has started nothing")


def words(scene: TalkScene) -> Iterator[Violation]:
    """Signals with an id are taken once, however often they were sent; what a chain has not taken is in its mailbox."""
    taken = _taken(scene, "word")
    for word, places in taken.items():
        if len(places) > 1:
            yield Violation("signal twice", places[0][0], f"{word!r} was taken at {places}")
    left = [(letter.run, load(letter.value)) for letter in scene.evidence.letters if letter.name == "word"]
    for note in scene.of("sent"):
        kept = sum(value == note["nonce"] for _, value in left) + (note["nonce"] in taken)
        if kept > 1:
            yield Violation("signal twice", note["run"], f"{note['nonce']!r} is there more than once")
        chain = scene.chains.get(scene.roots.get(note["run"], ""), [])
        if not kept and all(scene.runs[run].status == "completed" for run in chain):
            yield Violation("signal lost", note["run"], f"{note['nonce']!r} was sent, and neither taken nor kept")


def sessions(scene: TalkScene) -> Iterator[Violation]:
    """At no time are two runs of a name at work; each message of a start is taken once, unless a run of that name was
    cancelled."""
    at_work: dict[str, set[str]] = defaultdict(set)
    for move in scene.evidence.moves:
        name = scene.names.get(move.run)
        if name is None:
            continue
        at_work[name].discard(move.run)
        if move.worker is not None:
            at_work[name].add(move.run)
            if len(at_work[name]) > 1:
                yield Violation("two of a name", move.run, f"{sorted(at_work[name])} are at work as {name!r}")
    taken = _taken(scene, "message")
    for message, places in taken.items():
        if len(places) > 1:
            yield Violation("message twice", places[0][0], f"{message!r} was taken at {places}")
    for note in scene.of("refused"):
        if note["nonce"] in taken:
            yield Violation("message of the refused", taken[note["nonce"]][0][0], f"{note['nonce']!r} was taken")
    cancelled = {name for run, name in scene.names.items() if scene.runs[run].status == "cancelled"}
    for note in scene.of("opened"):
        if note["nonce"] not in taken and note["name"] not in cancelled:
            yield Violation("message lost", note["run"], f"{note['nonce']!r} was accepted, and taken by no run")


def _taken(scene: TalkScene, what: str) -> dict[str, list[tuple[str, str]]]:
    """Who has taken each thing, and where; a place that is replayed counts once."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for note in scene.of("took", what=what):
        found[note["thing"]].add((note["run"], note["place"]))
    return {thing: sorted(places) for thing, places in found.items()}


def same_again(scene: TalkScene) -> Iterator[Violation]:
    """A place takes the same thing whenever its code is executed."""
    first: dict[tuple[str, str, str], str] = {}
    for note in scene.of("took"):
        place = (note["what"], note["run"], note["place"])
        if first.setdefault(place, note["thing"]) != note["thing"]:
            yield Violation("taken anew", note["run"], f"{place}: {first[place]!r}, then {note['thing']!r}")


RULES = (ended, streams, readers, questions, events, starts, words, sessions, same_again)
