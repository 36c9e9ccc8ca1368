"""Each example runs by itself and tells the story it promises."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.support import nursery

pytestmark = pytest.mark.empty

PROMISED = {
    "demo.py": [
        r"worker 1 is killed \(SIGKILL\), in the middle of pack_parcel",
        r"worker 2 calls pack_parcel",
        r"charge_card +. completed . receipt-o-42 +. 1 +. - ",
        r"Attempts of the code: 1\.",
    ],
    "order_checkout.py": [
        r"one run for one key: True",
        r"charge +try 3 completed",
        r"charged: 1 time",
        r"card was declined",
    ],
    "data_pipeline.py": [r"2026-01-10: 12 readings", r"10 runs, 9 steps each"],
    "fastapi_app.py": [r"the same run again: True", r"'status': 'completed'"],
    "agent_loop.py": [
        r"it ended with SIGKILL\n(.*\n)+.*it ended with SIGKILL",
        r"no worker has it: True",
        r"answer: in Celsius: Rome has",
        r"9 records: think, tool weather, think",
    ],
    "human_approval.py": [
        r"waiting for signal:answer, and no worker has it: True",
        r"train: 49\.00 paid to Ada, approved by Grace",
        r"hotel: withdrawn",
        r"yacht: nobody answered",
    ],
    "order_saga.py": [
        r"completed, None: reserve completed, charge completed, send completed",
        r"undo: 199\.00 refunded .*\n.*undo: samovar is back at shelf 7",
        r"failed \(code\): .*no courier goes there\n +compensated, code: .*refund compensated, put_back compensated",
        r"cancelled\n +compensated, cancelled: ",
        r"undo 'put_back' of step 'reserve': .*nobody can lift it",
        r"charged in the end: receipt o-1\noff the shelf in the end: o-1, o-4",
    ],
    "order_fulfillment.py": [
        r"result: parcel o-1 is on its way to Ada\n +completed\n.*\n +skipped: ask_manager, manager_ok",
        r"(undo of (print_label|pack): .*?\s+){2}undo of charge_card: receipt o-2 refunded\n.*undo of reserve_stock",
        r"failed \(code\): step 'ship' failed: .*no courier goes there\n +compensated\n",
        r"'manager_ok' was not approved\n +compensated\n +compensated: release_stock\n",
        r"cancelled\n +compensated\n +cancelled: manager_ok\n",
        r"charged in the end: receipt o-1\noff the shelf in the end: o-1\n",
    ],
    "fair_shares.py": [
        r"100 more are refused: 42 are ready, 100 may be",
        r"the quiet customer is done when the busy one has \d of 40",
        r"42 photos; at most 2 at once for the quiet customer",
    ],
    "map_files.py": [
        r"1757 words in 59 files; .*013\.txt is not text",
        r"files open at once, at most: [2-8]\n120 records",
        r"read before it failed: 60 files",
        r"after the repair: 1770 words in 60 files\nread again: \{'013\.txt': 1\}",
    ],
    "watched.py": [
        r"before there is a worker: 503\nready with one: 200\n",
        r"bell: try 2 of hand_over failed with ConnectionError\n(.*\n)*.*bell: a run of send failed for good",
        r'stepfast_runs_ended_total\{workflow="send",status="completed",reason=""\} 2',
        r"1 run failed at hand_over: ConnectionError",
    ],
    "traced.py": [
        r"run checkout: suspended  -> linked to start checkout\n    step charge: failed \(error\)\n",
        r"receive packed  -> linked to signal packed\n      run ship: completed\n",
        r"    run checkout: completed  -> linked to run checkout\na trace:",
    ],
    "fan_out.py": [
        r"175 sent; send_batch failed: .*nobody@nowhere is no address",
        r"8 children, all of this parent: True",
        r"the one to look at: failed",
    ],
    "reminders.py": [
        r"Ada's run is waiting until its time comes: True",
        r"to Ada: 7 days left\n(.*\n)*.*to Ada: 2 days left\n(.*\n)*.*to Ada: the trial is over",
        r"Ada left, after 1 attempt",
        r"Bob subscribed",
        r"more than one job did it: True",
    ],
    "poll_outside.py": [
        r"quick: 49\.00 after 3 questions, 1 record",
        r"it waits for: check",
        r"hooked: 120\.00\nhurried: 7\.00\nheld: paused after 1 question\nheld: 3\.00\nnever: no payment",
    ],
    "chat_session.py": [
        r"'hello': the conversation begins\nAda says 'how are you': the conversation goes on",
        r"You said: tell me more \(part 1, 5 lines known\) \n(.*\n)+.*You said: and then \(part 2, 5 lines known\)",
        r"it ended in part 2, read as \d+ items by one id",
    ],
    "payment_link.py": [
        r"422 Expected `integer`, got `string` - at `\$\.cents`\n(\{'state': 'completed'\}\n){2}books: paid 49\.00",
        r"410 completed",
        r"piano: not paid, declined\nlamp: not paid in time\nhouse: not paid in time",
    ],
    "one_commit.py": [
        r"the order that was rolled back has no run",
        r"booking of o-1, shipped in attempt 2\n +o-1: 4900\n +shipping o-1: 500\n",
        r"tries of the booking: \['failed', 'completed'\]",
        r"refused: a signal can only be sent",
    ],
    "remote_steps.py": [
        r"pipeline.extract: completed . ALL OF A PAGE\npipeline.extract: failed . nothing, because there is no address",
    ],
    "sql_trigger.py": [
        r"o-1: o-1 is shipped for 4900\no-2: signal:approved\no-2: o-2 is shipped for 20000\n",
        r"o-3: .*(invalid_input|at \$\.cents)\nruns: [23]",
    ],
    "by_the_clock.py": [
        r"the feed is polled\ntwice is once: True\n +report@2026-03-28T02:00:00Z: report of Friday\n",
        r"report@2026-03-29T01:00:00Z: .*\n.*report@2026-03-30T01:00:00Z",
        r"three changes, one run: indexed 'Draft'\nfeed: 0\.2, paused\nreport: 0 3 \* \* \*, awake\n",
    ],
    "code_changes.py": [
        r"second_deploy: diverges \(position 0 is recorded as step 'charge'\)",
        r"third_deploy: fits",
        r"old run: charged o-1\nnew run: reserved o-2, charged o-2",
        r"7 readings, 95 in all\n +a run with 3 records: continued\n.* 3 records: continued\n.* 2 records: completed",
    ],
    "stop_and_go.py": [
        r"it is still running\nthen it is paused, after: load 0\nresult: 3 after: load 0, load 1, load 2",
        r"the parent is cancelled\nits children too",
        r"undone: a machine given back\nanew: computed on a machine . linked: True",
    ],
}
BOTH = sorted(name for name in PROMISED if "STEPFAST_URL=postgresql" in (ROOT / "examples" / name).read_text())
"""Those that say they run on Postgres too."""


def test_every_example_has_its_promise() -> None:
    assert {path.name for path in ROOT.glob("examples/*.py") if not path.name.startswith("test_")} == set(PROMISED)


@pytest.mark.parametrize("name", PROMISED)
def test_the_example_runs(name: str, tmp_path: Path) -> None:
    printed = run(name, tmp_path)
    assert list(tmp_path.iterdir()) == [], "an example leaves nothing behind"
    if name == "agent_loop.py":  # though two processes die, the model is asked once per turn
        assert re.findall(r"model: turn (\d)", printed) == ["1", "2", "3", "4", "5"]
        assert re.findall(r"weather in (\w+)", printed) == ["Rome", "Oslo", "Oslo", "Lima"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", BOTH)
def test_the_example_runs_on_postgres(name: str, tmp_path: Path, postgres_url: str) -> None:
    run(name, tmp_path, STEPFAST_URL=postgres_url)


def run(name: str, folder: Path, **more: str) -> str:
    """Run it, and see that it tells what it promises."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STEPFAST_")}
    environment |= {"PYTHONWARNINGS": "error", **more}
    done = nursery.run([ROOT / "examples" / name], folder=folder, environment=environment, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in PROMISED[name]:
        assert re.search(words, done.stdout), f"{words!r} is not in:\n{done.stdout}"
    return done.stdout
