"""Asking a health port, and reading what it says as strictly as Prometheus does."""

from __future__ import annotations

import asyncio
import http.client
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> Samples:
    """Every sample of an exposition, by name and labels. Refuses what Prometheus would."""
    found: Samples = {}
    described: set[str] = set()
    for family in text_string_to_metric_families(text):
        assert family.name not in described, f"{family.name} is described twice"
        described.add(family.name)
        assert family.documentation, f"{family.name} does not say what it means"
        assert family.type in ("counter", "gauge", "histogram"), f"{family.name} has no type"
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, /, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def total(samples: Samples, name: str) -> float:
    """The sum of a metric over all its labels."""
    return sum(number for (sample, _), number in samples.items() if sample == name)


def get(port: int, path: str, method: str = "GET") -> tuple[int, str, Any]:
    """The code, the text and the headers of an answer. Blocks."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode(), response.headers
    finally:
        connection.close()


async def ask(port: int, path: str, method: str = "GET") -> tuple[int, str, Any]:
    """The same, without blocking the event loop of the worker."""
    return await asyncio.to_thread(get, port, path, method)


async def raw(port: int, sent: bytes) -> bytes:
    """All that comes back for some bytes, until the port closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()
