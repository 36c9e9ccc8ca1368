"""Pausing and resuming queues, and `app.queues()`."""

from __future__ import annotations

import pytest

from stepfast import ConfigurationError, Stepfast
from tests.engine.conftest import MakeApp
from tests.support.engine import PATIENCE, Gate, bystander, drained, eventually
from tests.support.workflows import task


async def test_a_paused_queue_is_not_claimed_until_it_is_resumed(app: Stepfast) -> None:
    mail = task(app, "mail", returns="sent")
    others = bystander(app)
    await app.pause_queue("mail")
    run = await app.start(mail)
    async with app.worker():
        await others()
        assert await run.status() == "queued"
        await app.resume_queue("mail")
        assert await run.result(timeout=PATIENCE) == "sent"
        late = await app.start(mail)
        assert await late.result(timeout=PATIENCE) == "sent"


async def test_what_is_being_executed_goes_on_when_its_queue_is_paused(app: Stepfast) -> None:
    gate = Gate()
    mail = task(app, "mail", gate=gate, returns="sent")
    async with app.worker():
        run = await app.start(mail)
        await gate.reached()
        await app.pause_queue("mail")
        gate.open()
        assert await run.result(timeout=PATIENCE) == "sent"


async def test_a_paused_queue_keeps_nobody_from_draining(app: Stepfast) -> None:
    mail = task(app, "mail", returns=None)
    await app.pause_queue("mail")
    run = await drained(app, mail)
    assert await run.status() == "queued"


async def test_queues_as_they_stand(app: Stepfast, make_app: MakeApp) -> None:
    gate = Gate()
    mail = task(app, "mail", gate=gate, returns=None)
    await app.start_many(mail, [1, 2, 3])
    await app.start(mail, 4, delay=60)
    await app.start(mail, 5, queue="unheard of")
    other = make_app()
    await other.pause_queue("held")
    async with app.worker(queues=["mail"], concurrency=1):
        await gate.reached()
        found = {info.name: info for info in await eventually(other.queues)}
        mails = found["mail"]
        assert (mails.ready, mails.running, mails.waiting, mails.delayed) == (2, 1, 0, 1)
        assert (mails.paused, mails.workers, mails.concurrency, mails.rate) == (False, 1, None, None)
        assert mails.oldest is not None and 0 <= mails.oldest < PATIENCE
        assert (found["unheard of"].ready, found["unheard of"].workers) == (1, 0)
        assert (found["held"].paused, found["held"].ready, found["held"].oldest) == (True, 0, None)
        gate.open()


def test_the_same_without_an_event_loop(url: str) -> None:
    app = Stepfast(url)
    try:
        app.sync.pause_queue("mail")
        assert [(info.name, info.paused) for info in app.sync.queues()] == [("mail", True)]
        app.sync.resume_queue("mail")
        assert [(info.name, info.paused) for info in app.sync.queues()] == [("mail", False)]
    finally:
        app.sync.close()


@pytest.mark.enough_on("sqlite")
@pytest.mark.parametrize("name", ["", "a,b", 7])
async def test_a_queue_that_cannot_be_is_refused(app: Stepfast, name: str) -> None:
    with pytest.raises(ConfigurationError, match="the queue"):
        await app.pause_queue(name)
