"""Tasks and results as the bodies of messages.

The envelopes are those that the workers of others read and write. What comes in is typed and bounded before it is used.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Literal

import msgspec

from ...model.remote_steps import Result, Task
from ..protocol import COMPLETED, FAILED, LONGEST, ClaimedTask, TaskOutcome

_NOT_IN_A_MESSAGE = {"\ufffe": "\\ufffe", "\uffff": "\\uffff"}
"""SQS takes all characters of XML. Of others JSON escapes all but these, which it has in texts only."""
_POINTER = "software.amazon.payloadoffloading.PayloadS3Pointer"
"""How Amazon's own extended clients say that a body is in S3."""
_GROUP_ID = re.compile(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}")
_LARGEST_NUMBER = 2**31 - 1


class Unreadable(Exception):
    """A message that no try can read. Its text says why."""


class _Task(msgspec.Struct, rename="camel"):
    step_id: str
    run_id: str
    seq: int
    name: str
    input: msgspec.Raw = msgspec.Raw(b"null")
    attempt: int = 1


class _Result(msgspec.Struct, rename="camel"):
    step_id: str
    status: Literal["completed", "failed"]
    output: msgspec.Raw | None = None
    error: Any = None
    started_at: Any = None
    attempt: Any = None


def encode_task(task: Task) -> str:
    """The body of a task. What observers send along stands where workers of others look for it."""
    body: dict[str, Any] = {
        "runId": task.run_id,
        "seq": task.seq,
        "name": task.name,
        "stepId": task.step_id,
        "group": task.group,
        "input": msgspec.Raw((task.input or "null").encode()),
        "attempt": task.attempt,
    }
    trace = json.loads(task.trace) if task.trace else {}
    if parent := trace.pop("traceparent", None):
        body["traceparent"] = parent
    if trace:
        body["context"] = trace
    return _text(body)


def decode_task(body: str, created_at: int, now: int) -> ClaimedTask:
    """The task in a body."""
    try:
        task = msgspec.json.decode(body, type=_Task)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Unreadable(f"it is not a task of a remote step ({error})") from None
    if max(len(task.step_id), len(task.run_id), len(task.name)) > LONGEST or not task.step_id:
        raise Unreadable(f"its stepId, runId or name is empty or has more than {LONGEST} characters")
    if not 1 <= task.attempt <= _LARGEST_NUMBER or abs(task.seq) > _LARGEST_NUMBER:
        raise Unreadable("its attempt or seq is out of range")
    text = bytes(task.input).decode()
    return ClaimedTask(task.step_id, task.run_id, task.seq, task.name, text, task.attempt, created_at, now)


def task_of_broken(body: str) -> ClaimedTask | None:
    """The task whose body is no JSON, but can be told whose it is: Python writes NaN as it is, and says so."""
    try:
        found = json.loads(body)
        return ClaimedTask(
            str(found["stepId"])[:LONGEST], str(found["runId"])[:LONGEST], int(found["seq"]), str(found["name"]),
            None, int(found.get("attempt", 1)), 0, 0,
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def encode_result(outcome: TaskOutcome, run_id: str, seq: int) -> str:
    """The body of a result. ``attempt`` is more than others write: it tells a late failure from the present one."""
    body: dict[str, Any] = {
        "runId": run_id,
        "seq": seq,
        "stepId": outcome.step_id,
        "status": outcome.status,
        "startedAt": outcome.started_at,
        "attempt": outcome.attempt,
    }
    for name, text in (("output", outcome.output), ("error", outcome.error)):
        if text is not None:
            body[name] = msgspec.Raw(text.encode())
    return _text(body)


def decode_result(body: str, created_at: int) -> Result:
    """The result in a body. An output that is no JSON is kept as it is: the step then fails, and says so."""
    try:
        result = msgspec.json.decode(body, type=_Result)
        output = None if result.output is None else bytes(result.output).decode()
        step_id, status, error = result.step_id, result.status, result.error
        started_at, attempt = result.started_at, result.attempt
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
        try:
            found = json.loads(body)
            step_id, status, error = str(found["stepId"]), found["status"], found.get("error")
            started_at, attempt = found.get("startedAt"), found.get("attempt")
            output = json.dumps(found.get("output"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Unreadable(f"it is not the result of a remote step ({problem})") from None
    if status not in (COMPLETED, FAILED):
        raise Unreadable(f"its status is {str(status)[:40]!r}, neither completed nor failed")
    run_id, _, number = step_id.rpartition(":")
    seq = int(number) if re.fullmatch(r"-?[0-9]{1,9}", number) else 0
    said = None if error is None else json.dumps(error)
    return Result(step_id, run_id, seq, status, output, said, _number(started_at), created_at, attempt=_number(attempt))


def pointer(bucket: str, key: str) -> str:
    """The body that stands for one in S3."""
    return json.dumps([_POINTER, {"s3BucketName": bucket, "s3Key": key}])


def pointed(body: str) -> tuple[str, str] | None:
    """The bucket and the key, if a body stands for one in S3."""
    if not body.startswith("[") or _POINTER not in body[:200]:
        return None
    try:
        _, where = json.loads(body)
        return str(where["s3BucketName"]), str(where["s3Key"])
    except (ValueError, KeyError, TypeError):
        raise Unreadable("it points to S3 in a way that cannot be read") from None


def group_of(step_id: str) -> str:
    """The message group of a step in a queue that keeps an order: attempts of one step follow each other, and no step
    waits for another."""
    return step_id if _GROUP_ID.fullmatch(step_id) else hashlib.sha256(step_id.encode()).hexdigest()


def _text(body: dict[str, Any]) -> str:
    text = msgspec.json.encode(body).decode()
    for found, escaped in _NOT_IN_A_MESSAGE.items():
        text = text.replace(found, escaped)
    return text


def _number(value: Any) -> int | None:
    """A number of milliseconds or attempts that another program wrote, if it is one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**53:
        return None
    return int(value)
