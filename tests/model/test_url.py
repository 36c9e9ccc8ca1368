"""Database URLs: sorted by their kind, refused in a sentence, and never shown with a password."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast import ConfigurationError, Stepfast
from stepfast.model.url import parse_url, redact

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
        ("mysql://user@host/db", "mysql", None),
        ("mariadb://user@host/db", "mysql", None),
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
    """Bad input: saying what would do."""
    with pytest.raises(ConfigurationError, match=r"URL.*(sqlite://|postgresql://)") as caught:
        parse_url(text)
    assert "\n" not in str(caught.value)


MALFORMED = [
    f"postgresql://user:{SECRET}@host:port/db",
    f"postgresql://user:{SECRET}@host:99999999/db",
    f"postgresql://user:{SECRET}@[::1/db",
    f"postgresql://user:{SECRET}",
    f"postgresql://user:{SECRET}/db",
    f"postgresql://user:a@{SECRET}@host:x/db",
    f"postgresql://user:a/{SECRET}@host:x/db",
    f"postgresql://user:a?{SECRET}@host:x/db",
    f"postgresql://user:a#{SECRET}@host:x/db",
    f"postgresql://user:a:{SECRET}@host:x/db",
    f"postgresql://user:@{SECRET}@host:x/db",
    f"postgresql://:{SECRET}@host:x/db",
    f"user:{SECRET}@host/db",
    f"postgresql:user:{SECRET}@host/db",
    f"postgresql:/user:{SECRET}@host/db",
    f"postgresql//user:{SECRET}@host/db",
    f"oracle://user:{SECRET}@host/db",
    f"sqlite://user:{SECRET}@host/db",
    f"host=x user=y password={SECRET}",
    f"host=x password='{SECRET} {SECRET}' user=y",
    f"nonsense://host/db?password={SECRET}",
    f"postgresql://host:x/db?user=a&password={SECRET}&x=1",
    f"postgresql://host:x/db?PassWord={SECRET}",
    f"postgresql://host:x/db?sslpassword={SECRET}",
]


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_url_is_refused_without_showing_the_password(text: str) -> None:
    """Bad input: however it is malformed."""
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
    [
        "postgresql://user@host:5432/db",
        "sqlite:///a.db",
        "postgresql://host/db?sslmode=require",
        "postgresql://[::1]:5432/db",
        "postgresql://one:5432,two:5433/db",
        "postgresql:///db?host=/var/run/postgresql",
    ],
)
def test_a_url_without_a_password_is_shown_as_it_is(text: str) -> None:
    assert redact(text) == text


@given(st.text(min_size=4, max_size=20), st.text(alphabet="abcxyz", min_size=1, max_size=8))
def test_no_password_survives_redaction(password: str, user: str) -> None:
    marked = f"{password}§{password}"
    assert "§" not in redact(f"postgresql://{user}:{marked}@host/db")
    assert "§" not in redact(f"postgresql://{user}:{marked}@host:5432/db?x=y@z")
