"""The pages of runs, on both databases: what they show, and that their JSON is what the command line writes."""

from __future__ import annotations

from stepfast.console import console
from tests.console.conftest import JSON, OWN, TOKEN, browse, shop


async def test_the_list_and_a_run(url: str) -> None:
    app = shop(url)
    async with app:
        waiting = await app.start("order", "tea", key="o-1", tags=["vip"])
        failed = await app.start("breaks", "milk")
        await app.drain()
        async with browse(console(app, token=TOKEN)) as client:
            page = await client.get("/runs")
            assert page.status_code == 200, page.text
            assert waiting.id in page.text and failed.id in page.text and "no milk today" in page.text
            one = await client.get(f"/runs/{waiting.id}")
            assert one.status_code == 200, one.text
            assert "waits for signal" in one.text
            listed = (await client.get("/runs", headers=JSON)).json()
            assert {run["id"] for run in listed} == {waiting.id, failed.id}
            told = (await client.get(f"/runs/{waiting.id}", headers=JSON)).json()
            assert told["status"] == "waiting" and told["steps"][0]["name"] == "pack"
            assert (await client.get(f"/runs/{failed.id}")).status_code == 200
            confirm = await client.get(f"/runs/{waiting.id}/confirm/cancel")
            assert "1 completed step will be undone" in confirm.text, confirm.text
            sent = await client.post(
                f"/runs/{waiting.id}/signal", data={"name": "approved", "value": "true"}, headers=OWN
            )
            assert sent.status_code == 303, sent.text
            await app.drain()
            assert await waiting.result() == "tea: True"
            out = await client.get(f"/runs/{waiting.id}/payload?what=step&branch=&position=0")
            assert "12345678901234567890" in out.text, out.text
