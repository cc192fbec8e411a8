"""Fetching over HTTP, against servers on this machine that behave well, badly and strangely."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from unskew import data
from unskew.types import UnskewError

RATINGS = b"userID\tmovieID\trating\ttimestamp\n" + b"".join(
    b"%d\t%d\t4\t%d\n" % (n % 50, n, 7_000_000_000_000 + n) for n in range(40_000)
)


def archive(ratings: bytes = RATINGS, prefix: str = "") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as opened:
        opened.writestr(prefix + "user_ratedmovies-timestamps.dat", ratings)
        opened.writestr(prefix + "movies.dat", "id\ttitle\n1\tOne\n")
        opened.writestr(prefix + "unwanted.txt", "x")
    return packed.getvalue()


class Publisher(ThreadingHTTPServer):
    """Serves ``body`` at any path. ``cut`` bytes are sent before the connection is dropped."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.body = archive()
        self.cut: int | None = None
        self.ranges = True
        self.status = 200
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Publisher

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        body = self.server.body
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        start = 0
        if wanted and self.server.ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(body):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start : self.server.cut])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    server = Publisher()
    monkeypatch.setenv("UNSKEW_MIRROR", server.url)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_fetched_unpacked_and_read(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    steps = []
    got = data.load("hetrec2011", progress=lambda done, total: steps.append((done, total)))
    assert len(got.users) == 40_000
    size = len(publisher.body)
    assert steps[-1] == (size, size)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    folder = tmp_path / "unskew/hetrec2011"
    assert sorted(path.name for path in folder.iterdir()) == [
        "checksums.json",
        "movies.dat",
        "user_ratedmovies-timestamps.dat",
    ]
    assert len(data.load("hetrec2011").users) == 40_000
    assert len(publisher.asked) == 1, "the second load reads the cache"


def test_truncated_then_resumed(publisher: Publisher, tmp_path: Path) -> None:
    publisher.cut = 200_000
    with pytest.raises(UnskewError, match=r"200000 of .* run it again"):
        data.fetch("hetrec2011", folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".dat"] == []
    publisher.cut = None
    data.fetch("hetrec2011", folder=tmp_path)
    assert publisher.asked == [None, "bytes=200000-"]
    assert (tmp_path / "user_ratedmovies-timestamps.dat").read_bytes() == RATINGS


def test_a_server_that_cannot_resume_starts_over(publisher: Publisher, tmp_path: Path) -> None:
    publisher.cut = 100_000
    with pytest.raises(UnskewError, match="100000"):
        data.fetch("hetrec2011", folder=tmp_path)
    publisher.cut, publisher.ranges = None, False
    data.fetch("hetrec2011", folder=tmp_path)
    assert (tmp_path / "user_ratedmovies-timestamps.dat").read_bytes() == RATINGS


def test_the_parts_of_two_versions_are_refused(publisher: Publisher, tmp_path: Path) -> None:
    publisher.cut = 100_000
    with pytest.raises(UnskewError, match="100000"):
        data.fetch("hetrec2011", folder=tmp_path)
    newer = RATINGS.replace(b"\t4\t", b"\t5\t")
    publisher.cut, publisher.body = None, archive(newer)
    with pytest.raises(UnskewError, match="not a sound zip archive and was deleted"):
        data.fetch("hetrec2011", folder=tmp_path)
    data.fetch("hetrec2011", folder=tmp_path)
    assert (tmp_path / "user_ratedmovies-timestamps.dat").read_bytes() == newer


def test_a_part_longer_than_the_file_is_thrown_away(publisher: Publisher, tmp_path: Path) -> None:
    part = tmp_path / "hetrec2011-movielens-2k-v2.zip.part"
    part.write_bytes(b"x" * (len(publisher.body) + 5))
    data.fetch("hetrec2011", folder=tmp_path)
    assert len(publisher.asked) == 2
    assert not part.exists()


def test_a_wrong_checksum_is_refused(publisher: Publisher, tmp_path: Path) -> None:
    with pytest.raises(UnskewError, match=r"not the one on record \(50d2a982c669"):
        data.fetch("ml-100k", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_a_sum_on_record_the_first_download_is_remembered(
    publisher: Publisher, tmp_path: Path
) -> None:
    data.fetch("hetrec2011", folder=tmp_path)
    record = json.loads((tmp_path / "checksums.json").read_text())
    assert record["version"] == 1
    name = "hetrec2011-movielens-2k-v2.zip"
    assert record["sha256"][name] == hashlib.sha256(publisher.body).hexdigest()
    data.fetch("hetrec2011", folder=tmp_path, force=True)
    publisher.body = archive(RATINGS + b"1\t1\t1\t1\n")
    with pytest.raises(UnskewError, match="not the one on record"):
        data.fetch("hetrec2011", folder=tmp_path, force=True)
    assert (tmp_path / "user_ratedmovies-timestamps.dat").read_bytes() == RATINGS


def test_a_cached_file_that_changed_is_noticed(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = data.fetch("hetrec2011")
    with (folder / "user_ratedmovies-timestamps.dat").open("ab") as file:
        file.write(b"1\t1\t1\t1\n")
    with pytest.raises(UnskewError, match="differs from what was downloaded"):
        data.load("hetrec2011")
    (folder / "checksums.json").write_text("{}")
    with pytest.raises(UnskewError, match=r"checksums\.json: not a record"):
        data.load("hetrec2011")


@pytest.mark.parametrize("prefix", ["hetrec/", "../../", "/etc/"])
def test_members_land_in_the_folder_whatever_their_path(
    publisher: Publisher, tmp_path: Path, prefix: str
) -> None:
    publisher.body = archive(prefix=prefix)
    folder = tmp_path / "a/b/c"
    data.fetch("hetrec2011", folder=folder)
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.dat")}
    assert found == {"a/b/c/movies.dat", "a/b/c/user_ratedmovies-timestamps.dat"}


def test_not_a_zip_and_a_zip_without_the_file(publisher: Publisher, tmp_path: Path) -> None:
    publisher.body = b"<html>Please log in to this network</html>"
    with pytest.raises(UnskewError, match="not a sound zip"):
        data.fetch("hetrec2011", folder=tmp_path)
    sound = archive()
    publisher.body = sound[:5_000] + b"\0\0\0\0" + sound[5_004:]
    with pytest.raises(UnskewError, match="not a sound zip"):
        data.fetch("hetrec2011", folder=tmp_path)
    publisher.body = archive().replace(b"movies.dat", b"movies.dot")
    with pytest.raises(UnskewError, match=r"holds no movies\.dat"):
        data.fetch("hetrec2011", folder=tmp_path)
    assert not (tmp_path / "checksums.json").exists()


def test_a_server_that_refuses_and_no_server_at_all(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.status = 404
    with pytest.raises(UnskewError, match=r"answered 404 .*unpack its files into .*licence"):
        data.fetch("hetrec2011", folder=tmp_path)
    monkeypatch.setenv("UNSKEW_MIRROR", "http://127.0.0.1:9")
    with pytest.raises(UnskewError, match=r"not be fetched .*hetrec2011-movielens-2k-v2\.zip"):
        data.fetch("hetrec2011", folder=tmp_path)
    monkeypatch.setenv("UNSKEW_MIRROR", "mirror")
    with pytest.raises(UnskewError, match="unknown url type: 'mirror"):
        data.fetch("hetrec2011", folder=tmp_path)


def test_a_folder_that_cannot_be_written(publisher: Publisher, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UnskewError, match="cannot be written"):
        data.fetch("hetrec2011", folder=tmp_path / "file")


def test_names_that_cannot_be_fetched(tmp_path: Path) -> None:
    with pytest.raises(UnskewError, match="generated"):
        data.fetch("demo")
    with pytest.raises(UnskewError, match="choose from demo, filmtrust"):
        data.fetch("netflix")
    with pytest.raises(UnskewError, match="its publisher is gone"):
        data.fetch("filmtrust", folder=tmp_path)
