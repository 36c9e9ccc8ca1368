"""Streams: what the code of a run sends while it works, in order, for readers outside.

An item leaves with the next commit of the journal. Items of workflow code are counted over the whole run, so that a
replay sends nothing again. Items of the function of a step belong to a try of it, and are sent again by the next.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import deque
from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Any

from ..errors import AttemptEnded, ContextMisuse, StreamFull
from ..model.names import LOGS, check_stream
from ..model.records import StreamItem, StreamItems
from ..model.status import WORKFLOW
from .history import Cursor
from .host import current_call, current_cursor, current_execution, current_try
from .step import TRANSACTION

if TYPE_CHECKING:
    from .execution import Execution
    from .step import StepCall

_ENTRY_ITEMS, _ENTRY_BYTES = 500, 256 * 1024
"""An entry of the journal takes further items until it has so many, or leaves."""
_SOURCE = 500
"""Characters that the name of a source has at most."""


class RunStreams:
    """What one attempt sends to streams; made when it first asks for one."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._recorder = execution.recorder
        claimed = execution.claimed
        self.owner = claimed.dag_id or execution.run_id
        """The run whose streams these are: of a step of a dag run, the dag run."""
        self._exact = claimed.claim == 1 and claimed.dag_id is None
        """Whether nothing was sent before this claim, so that what is counted here is all there is."""
        self._open: StreamItems | None = None
        """The entry in the journal that takes further items, until it leaves."""
        self._totals: dict[str, tuple[int, int]] = {}
        """Items and bytes that this attempt has sent to each stream."""
        self._counts: dict[tuple[str, str], int] = {}
        """Items of each source of workflow code in each stream, those of earlier attempts included."""
        self._sent: deque[StreamItem] = deque()
        """Items that are not journaled yet: a thread may have sent them."""
        self._unsettled = False
        """Whether items may be under way that find no room."""
        self._full: set[str] = set()
        """Streams that had no room for an item."""
        self._untold: set[str] = set()
        """Those among them that were not reported to the code."""

    def count(self, stream: str, source: str) -> int:
        """Count an item of workflow code: its number among those of its source, from 0."""
        number = self._counts.get((stream, source), 0)
        self._counts[stream, source] = number + 1
        return number

    def source(self, kind: str, address: str) -> str:
        """What a branch (``/``) or a step (``:``) is called in the table of sources."""
        text = f"{self._execution.claimed.dag_step or ''}{kind}{address}"
        return text if len(text) <= _SOURCE else hashlib.blake2b(text.encode(), digest_size=32).hexdigest()

    def send(self, item: StreamItem) -> None:
        """Have an item journaled; safe to call from any thread."""
        self._check_room(item.stream, len(item.value or ""))
        self._sent.append(item)
        if threading.get_ident() == self._recorder.loop_thread:
            self.journal()
        else:
            self._recorder.loop.call_soon_threadsafe(self.journal)

    def journal(self) -> None:
        """Journal what was sent and logged, before what comes of it is: the event loop may hear that a thread has
        returned before it hears of each item."""
        while self._sent:
            self.append(self._sent.popleft())
        if self._execution.own_lines is not None:
            self._execution.own_lines.leave()

    def append(self, item: StreamItem) -> None:
        """Put an item into the journal, in the thread of the event loop."""
        entry = self._open
        if entry is None or entry.left or len(entry.items) >= _ENTRY_ITEMS or entry.size >= _ENTRY_BYTES:
            entry = self._open = self._entry()
            if self._execution.closed is None:
                self._recorder.note(entry)
        self._execution.has_notes = True
        if item.stream == LOGS:
            if item.value is None and entry.items and (last := entry.items[-1]).stream == LOGS and last.value is None:
                entry.items.pop()  # a later count holds for it, too
        else:
            self._unsettled = True
        entry.items.append(item)
        entry.size += len(item.value or "")

    def _entry(self) -> StreamItems:
        settings = self._recorder.settings
        most = (settings.max_stream_items, settings.max_stream_bytes)
        return StreamItems(self._execution.run_id, self._execution.claim, *most, most_lines=settings.max_log_lines)

    async def flush(self) -> None:
        """Wait until everything sent so far is committed."""
        self.journal()
        entry = self._open = self._entry()
        self._unsettled = False
        await self._execution.journal(entry)
        if self._untold:
            untold, self._untold = self._untold, set()
            raise self._has_no_room(min(untold))

    async def settle(self) -> None:
        """Before an outcome is recorded: learn whether its items had room, where that is not known here."""
        self.journal()
        if self._untold or (self._unsettled and not self._exact):
            await self.flush()

    def had_no_room(self, stream: str) -> None:
        """Note that an item was left out because its stream is full: the next step that ends raises it."""
        self._full.add(stream)
        self._untold.add(stream)

    def _check_room(self, stream: str, size: int) -> None:
        settings = self._recorder.settings
        if size > settings.max_stream_item:
            raise StreamFull(
                f"an item of {size} bytes is too large for stream {stream!r}: an item may have "
                f"{settings.max_stream_item} (setting max_stream_item). Store it elsewhere, and send its address"
            )
        items, total = self._totals.get(stream, (0, 0))
        if stream in self._full or items >= settings.max_stream_items or total + size > settings.max_stream_bytes:
            raise self._has_no_room(stream)
        self._totals[stream] = (items + 1, total + size)

    def _has_no_room(self, stream: str) -> StreamFull:
        settings = self._recorder.settings
        return StreamFull(
            f"stream {stream!r} of run {self.owner} has no room for another item: it takes {settings.max_stream_items} "
            f"items (setting max_stream_items) of {settings.max_stream_bytes} bytes together (max_stream_bytes). Send "
            "less, use a stream of another name, or let the run continue by ctx.continue_as"
        )


class Flushed(Awaitable[None]):
    """What ``flush`` returns in a thread, where it has waited."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


class Stream:
    """A stream of a run, as its code sends to it."""

    __slots__ = ("_execution", "_name", "_streams")

    def __init__(self, execution: Execution, name: str) -> None:
        check_stream(name, execution.recorder.settings.max_name)
        self._execution = execution
        self._streams = execution.streams
        self._name = name

    def __repr__(self) -> str:
        return f"<stream {self._name!r} of run {self._streams.owner}>"

    def send(self, value: Any) -> None:
        """Send an item: it leaves with the next commit, and nothing waits for it."""
        payloads = self._execution.recorder.payloads
        self._send(payloads.encode(value, f"an item of stream {self._name!r}"))

    def close(self) -> None:
        """End the stream: readers come to its end before the run does."""
        self._send(None)

    def flush(self) -> Awaitable[None]:
        """Wait until everything sent so far is committed: ``await out.flush()``. A plain ``def`` waits in the call."""
        recorder, call = self._execution.recorder, current_call.get()
        if call is not None and call.kind == TRANSACTION:
            raise ContextMisuse(
                f"the function of ctx.transaction cannot wait for {self}: what the run records is stored after the "
                "transaction. Leave flush() out; the items leave with the next commit"
            )
        if threading.get_ident() == recorder.loop_thread:
            return self._streams.flush()
        asyncio.run_coroutine_threadsafe(self._streams.flush(), recorder.loop).result()
        return Flushed()

    def _send(self, text: str | None) -> None:
        raise NotImplementedError


class WorkflowStream(Stream):
    """A stream as the code of a workflow sends to it: each item once, also in replays."""

    __slots__ = ("_cursor",)

    def __init__(self, execution: Execution, name: str, cursor: Cursor) -> None:
        super().__init__(execution, name)
        self._cursor = cursor

    def _send(self, text: str | None) -> None:
        execution, cursor = self._execution, self._cursor
        execution.check_caller(cursor)
        source = self._streams.source("/", cursor.branch)
        number = self._streams.count(self._name, source)
        if execution.replaying or execution.history.goes_on(cursor.branch, cursor.position):
            return  # it was committed with the record that follows it, or before
        self._streams.send(self._item(source, number, text))

    def _item(self, source: str, number: int, text: str | None) -> StreamItem:
        format_ = self._execution.recorder.payloads.format
        return StreamItem(self._streams.owner, self._name, source, None, number, 1, text, format_)


class StepStream(Stream):
    """A stream as the function of a step, a task or a step of a dag sends to it: again with each try."""

    __slots__ = ("_blocking", "_call", "_sent", "_try")

    def __init__(self, execution: Execution, name: str, call: StepCall[Any] | None) -> None:
        super().__init__(execution, name)
        self._call = call
        self._blocking = current_try.get()
        self._try = execution.claimed.attempt if call is None else call.number_of_try
        self._sent = 0

    def _send(self, text: str | None) -> None:
        execution, call = self._execution, self._call
        if execution.closed is not None:
            raise execution.closed
        late = call is not None and (call not in execution.active or call.number_of_try != self._try)
        if late or (self._blocking is not None and self._blocking.abandoned):
            raise AttemptEnded(f"the try that opened {self} is over")
        source = self._streams.source(":", "" if call is None else f"{call.branch}:{call.position}")
        number = self._streams.count(self._name, f"{source}#{self._try}")
        format_ = execution.recorder.payloads.format
        self._streams.send(
            StreamItem(self._streams.owner, self._name, source, execution.claim, number, self._try, text, format_)
        )


def open_stream(execution: Execution, cursor: Cursor, name: str) -> Stream:
    """A stream for the code that executes here: of the workflow, or of a step."""
    call = current_call.get()
    if call is not None and call.execution is execution:
        return StepStream(execution, name, call)
    if execution.workflow.kind == WORKFLOW:
        execution.check_caller(cursor)
        return WorkflowStream(execution, name, cursor)
    return StepStream(execution, name, None)


def stream(name: str) -> Stream:
    """The stream of that name of the run whose code calls this: in the function of a step, a task, or a workflow.

    ``out = stepfast.stream("tokens")``, then ``out.send(token)``. In a test that calls a step's function directly there
    is no run: use ``stepfast_lab``, or pass the stream as an argument.
    """
    execution = current_execution.get()
    if execution is None:
        raise ContextMisuse(
            f"stepfast.stream({name!r}) was called outside of a run; call it in the function of a step, a task or a "
            "workflow that a worker executes"
        )
    return open_stream(execution, current_cursor.get() or execution.main, name)
