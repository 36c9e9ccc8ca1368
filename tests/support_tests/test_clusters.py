"""The files of a server are made once and copied from then on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import clusters

OPTIONS = ["--an", "option"]


class Maker:
    """In place of `initdb`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(clusters, "KEPT", folder / "kept")
        self.folder, self.times = folder, 0
        self.program = folder / "initdb"
        self.program.touch()

    def __call__(self, name: str, options: list[str] = OPTIONS) -> str:
        data = self.folder / name

        def make() -> None:
            self.times += 1
            data.mkdir(mode=0o700)
            (data / "file").write_text(f"made {self.times}")

        clusters.make_cluster(data, self.program, options, make)
        assert data.stat().st_mode & 0o777 == 0o700
        return (data / "file").read_text()


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    return Maker(tmp_path, monkeypatch)


def test_the_second_is_a_copy_that_is_its_own(maker: Maker) -> None:
    assert maker("first") == "made 1"
    (maker.folder / "first" / "file").write_text("used")
    assert [maker("second"), maker("third")] == ["made 1", "made 1"]
    assert sorted(path.name for path in clusters.KEPT.iterdir()) == [*(p.name for p in _kept()), "lock"]


def test_another_program_or_other_options_make_their_own(maker: Maker) -> None:
    assert maker("first") == "made 1"
    assert maker("second", ["--another"]) == "made 2"
    maker.program.unlink()
    maker.program.write_text("a new release")
    assert maker("third") == "made 3"


def test_what_cannot_be_copied_is_made_anew(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert maker("first") == "made 1"
    monkeypatch.setattr(clusters, "_copied", lambda _, target: Path(target, "half").mkdir(parents=True))
    assert maker("second") == "made 2"
    assert [path.name for path in (maker.folder / "second").iterdir()] == ["file"]


def test_where_nothing_can_be_kept_each_is_made(maker: Maker) -> None:
    clusters.KEPT.write_text("a file where the folder should be")
    assert [maker("first"), maker("second")] == ["made 1", "made 2"]


def _kept() -> list[Path]:
    return [path for path in clusters.KEPT.iterdir() if path.name != "lock"]
