"""The audit: what people have done by the console."""

from __future__ import annotations

from stepfast.model.ids import new_id
from stepfast.store.answers import Deed
from tests.store.scene import DAY, Scene


def deed(what: str = "run.cancel", which: str = "a", detail: str | None = None) -> Deed:
    return Deed(new_id(), "ada", what, which, "192.0.2.7", detail)


async def test_a_line_is_begun_and_closed(scene: Scene) -> None:
    first, second = deed(detail='{"n": 1}'), deed("queue.pause", "mail")
    await scene.store.audit_begin(first, DAY)
    await scene.store.audit_begin(first, DAY)  # a lost reply: the same line
    await scene.store.audit_begin(second, None)
    await scene.store.audit_end(first.id, "refused", "it has ended")
    newest, oldest = await scene.store.audit()
    assert oldest[2:] == ("ada", "run.cancel", "a", "192.0.2.7", '{"n": 1}', "refused", "it has ended")
    assert newest[2:] == ("ada", "queue.pause", "mail", "192.0.2.7", None, "begun", None)
    [(now,)] = await scene.rows.fetch("SELECT max(at) FROM [audit]")
    assert 0 <= now - oldest.at < DAY


async def test_pages_go_back_in_time_and_those_of_one_run_leave_the_others_out(scene: Scene) -> None:
    deeds = [deed(which=which) for which in "abab"]
    for each in deeds:
        await scene.store.audit_begin(each, DAY)
    ids = [each.id for each in reversed(deeds)]
    page = await scene.store.audit(limit=3)
    assert [line.id for line in page] == ids[:3]
    assert [line.id for line in await scene.store.audit(before=page[-1].id)] == ids[3:]
    assert [line.id for line in await scene.store.audit("a")] == [ids[1], ids[3]]
    assert [line.id for line in await scene.store.audit("a", before=ids[1])] == [ids[3]]


async def test_lines_whose_time_is_over_go_when_others_come(scene: Scene) -> None:
    for _ in range(30):
        await scene.store.audit_begin(deed(), DAY)
    await scene.rows.fetch("UPDATE [audit] SET at = at - ?", 2 * DAY)
    await scene.store.audit_begin(deed(), None)
    assert len(await scene.store.audit()) == 31
    for left in (12, 3, 4):  # twenty go at a time, and those of this minute stay
        await scene.store.audit_begin(deed(), DAY)
        assert len(await scene.store.audit()) == left
