"""Tracebacks show the user's code."""

from __future__ import annotations

import traceback

from stepfast.model.tracebacks import own_code_only

MIXED = """\
Traceback (most recent call last):
  File "/app/.venv/lib/python3.11/site-packages/stepfast/engine/step_call.py", line 132, in _try_until_done
    result = await self._call()
             ^^^^^^^^^^^^^^^^^^
  File "/srv/stepfast/orders.py", line 7, in charge
    raise ValueError("no stock")
ValueError: no stock

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "C:\\venv\\stepfast\\worker\\executor.py", line 230, in _drive
    result = await self._work(execution)
  File "/srv/shop/flow.py", line 3, in checkout
    await ctx.step(charge)
  File "/app/.venv/lib/python3.11/site-packages/stepfast/run.py", line 5, in x
stepfast.errors.StepFailed: step 'charge' failed: ValueError: no stock
with a second line"""


def test_frames_of_the_library_are_left_out() -> None:
    assert (
        own_code_only(MIXED)
        == """\
Traceback (most recent call last):
  File "/srv/stepfast/orders.py", line 7, in charge
    raise ValueError("no stock")
ValueError: no stock

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/srv/shop/flow.py", line 3, in checkout
    await ctx.step(charge)
stepfast.errors.StepFailed: step 'charge' failed: ValueError: no stock
with a second line"""
    )


def test_what_the_library_raised_itself_keeps_its_message() -> None:
    head, own = "Traceback (most recent call last):", '  File "/x/stepfast/engine/cursor.py", line 1, in f\n    go()'
    assert own_code_only(f"{head}\n{own}\nContextMisuse: await it") == "ContextMisuse: await it"


def test_a_traceback_without_such_frames_stays_as_it_is() -> None:
    try:
        raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])
    except ExceptionGroup as error:
        text = "".join(traceback.format_exception(error)).strip()
    assert own_code_only(text) == text
