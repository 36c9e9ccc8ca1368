"""Database URLs: sorted by their kind, refused in a sentence, and never shown with a password."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast import ConfigurationError, Settings, Stepfast, StepfastError
from stepfast.model.urls import parse_url, redact, scrub
from stepfast.runtime import database_shown
from stepfast.store.postgres.connections import Connector

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("text", "kind", "path"),
    [
        ("postgresql://user@host/db", "postgres", None),
        ("postgres://user@host:5432/db", "postgres", None),
        ("POSTGRESQL://host/db", "postgres", None),
        ("postgresql:///db?host=/var/run/postgresql", "postgres", None),
        ("postgresql://[::1]:5432/db", "postgres", None),
        ("postgresql://one:5432,two:5433/db", "postgres", None),
        ("sqlite:///relative.db", "sqlite", "relative.db"),
        ("sqlite:////var/lib/absolute.db", "sqlite", "/var/lib/absolute.db"),
        ("sqlite:///with space.db", "sqlite", "with space.db"),
        ("sqlite://", "sqlite", None),
        ("sqlite:///:memory:", "sqlite", None),
        ("  sqlite:///a.db \n", "sqlite", "a.db"),
    ],
)
def test_a_url_is_sorted_by_its_scheme(text: str, kind: str, path: str | None) -> None:
    url = parse_url(text)
    assert (url.kind, url.path, url.text) == (kind, path, text.strip())


@pytest.mark.parametrize(
    "text", ["", "  ", None, 5, "oracle://host/db", "host/db", "postgresql", "://", "sqlite://a.db"]
)
def test_what_is_no_url_is_refused_in_one_sentence(text: Any) -> None:
    """Saying what would do."""
    with pytest.raises(ConfigurationError, match=r"URL.*(sqlite://|postgresql://)") as caught:
        parse_url(text)
    assert "\n" not in str(caught.value)


MALFORMED = [
    f"postgresql://user:{SECRET}@host:port/db", f"postgresql://user:{SECRET}@host:99999999/db",
    f"postgresql://user:{SECRET}@[::1/db", f"postgresql://user:{SECRET}", f"postgresql://user:{SECRET}/db",
    f"postgresql://user:a@{SECRET}@host:x/db", f"postgresql://user:a/{SECRET}@host:x/db",
    f"postgresql://user:a?{SECRET}@host:x/db", f"postgresql://user:a#{SECRET}@host:x/db",
    f"postgresql://user:a:{SECRET}@host:x/db", f"postgresql://user:@{SECRET}@host:x/db",
    f"postgresql://:{SECRET}@host:x/db", f"user:{SECRET}@host/db", f"postgresql:user:{SECRET}@host/db",
    f"postgresql:/user:{SECRET}@host/db", f"postgresql//user:{SECRET}@host/db", f"oracle://user:{SECRET}@host/db",
    f"sqlite://user:{SECRET}@host/db", f"host=x user=y password={SECRET}",
    f"host=x password='{SECRET} {SECRET}' user=y", f"nonsense://host/db?password={SECRET}",
    f"postgresql://host:x/db?user=a&password={SECRET}&x=1", f"postgresql://host:x/db?PassWord={SECRET}",
    f"postgresql://host:x/db?sslpassword={SECRET}", f"postgresql://user@server:{SECRET}@host/db",
    f"postgresql://user:12/{SECRET}@host/db", f"postgresql://user:12?{SECRET}@host/db",
    f"postgresql://user:12#{SECRET}@host/db", f"postgresql://us er:12/{SECRET}@host/db",
    f"postgresql://us/er:{SECRET}@host/db", f"postgresql://us?er:{SECRET}@host/db",
    f"postgresql://us#er:{SECRET}@host/db", f"postgresql://us er:{SECRET}",
    f"postgresql://host:x/db?pass%77ord={SECRET}", f"mysql://user:{SECRET}@host:x/db",
    f"mysql://user:{SECRET}@host/db?nonsense=1", f"mariadb://user:{SECRET}@host/", f"sqlite://user:a?{SECRET}@host/db",
    f"postgresql+psycopg://user:{SECRET}@host/db",
]  # fmt: skip


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_url_is_refused_without_showing_the_password(text: str) -> None:
    """However it is malformed."""
    with pytest.raises(ConfigurationError) as caught:
        parse_url(text)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("text", MALFORMED)
def test_an_application_shows_no_password_either(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Stepfast(text)
    assert SECRET not in str(caught.value)


def test_a_good_url_is_shown_without_its_password() -> None:
    text = f"postgresql://user:{SECRET}@host:5432/db?sslmode=require"
    assert repr(parse_url(text)) == "DatabaseUrl('postgresql://user:***@host:5432/db?sslmode=require')"


@pytest.mark.parametrize(
    "text",
    ["postgresql://user@host:5432/db", "sqlite:///a.db", "postgresql://host/db?sslmode=require",
     "postgresql://[::1]:5432/db", "postgresql://one:5432,two:5433/db", "postgresql:///db?host=/var/run/postgresql"],
)  # fmt: skip
def test_a_url_without_a_password_is_shown_as_it_is(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("libsql://h", "libSQL is not supported, because .*sqlite:///file.db opens"),
        ("sqs://q", "SQS"),
        ("mysql+aiomysql://u@h/d", "driver"),
        ("postgresql+psycopg2://u@h/d", "driver"),
        ("sqlite:///x.db?mode=ro", "parameters"),
        ("sqlite://?cache=shared", "parameters"),
    ],
)
def test_what_others_take_is_refused_by_name(text: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        parse_url(text)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("postgresql+asyncpg://u:p@h/d", "postgresql://u:p@h/d"),
        ("postgres+asyncpg://h/d", "postgres://h/d"),
        ("sqlite+aiosqlite:///a.db", "sqlite:///a.db"),
    ],
)
def test_a_url_of_sqlalchemy_will_do(text: str, plain: str) -> None:
    assert parse_url(text) == parse_url(plain)
    assert parse_url(text).text == plain


def test_a_secret_in_somebodys_sentence_is_hidden() -> None:
    for text in (f"no: postgresql://u:{SECRET}@h/d", f"no: u:{SECRET}@h", f"password={SECRET}", f"pass%77ord={SECRET}"):
        assert SECRET not in scrub(text)
    assert scrub("run 12:30 of a@b failed, lease=3") == "run 12:30 of a@b failed, lease=3"


anybody = st.text(min_size=1, max_size=8) | st.sampled_from(["user@server", "us er", "a/b", "a?b", "a#b", "a:b", "%40"])
passwords = st.text(max_size=8).map(lambda text: f"{text}§{text}")


@st.composite
def urls(draw: st.DrawFn) -> str:
    """Of every shape that people write, with a password that has a § in it."""
    scheme = draw(
        st.sampled_from(["postgresql://", "postgres://", "postgresql+asyncpg://", "postgresql:/", "pg://", ""])
    )
    host = draw(st.sampled_from(["127.0.0.1:1", "127.0.0.1:1/db", "[::1]:1/db", "127.0.0.1:x/db", "", "/db"]))
    if draw(st.booleans()):
        return f"{scheme}{draw(anybody)}:{draw(passwords)}@{host}"
    name = "".join(draw(st.sampled_from([letter, letter.upper(), f"%{ord(letter):x}"])) for letter in "password")
    return f"{scheme}{draw(anybody)}@{host}?user=x&{name}={draw(passwords)}"


@settings(max_examples=150, deadline=None)
@given(urls())
def test_no_password_is_shown_whatever_the_url(text: str) -> None:
    """By no error, repr or log, whether it is refused here, by the driver, or by nobody being there."""
    shown = [redact(text)]
    try:
        url = parse_url(text)
        shown += [repr(url), database_shown(url)]
        asyncio.run(Connector(url, Settings(connect_timeout=1)).connect())
    except StepfastError as error:
        shown.append("".join(traceback.format_exception(error)))
        shown.append(scrub(str(error)))
    assert not [each for each in shown if "§" in each or "%C2%A7" in each]
