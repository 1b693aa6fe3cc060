# SPDX-License-Identifier: Apache-2.0
"""curl: the client that everybody has."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.images import Image, MakeImage, MiB, pattern
from tests.support.services import Service

Curl = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def curl(service: Service) -> Curl:
    """Run curl with arguments, the last one a path; it must succeed."""

    def run(*arguments: str | Path) -> "subprocess.CompletedProcess[bytes]":
        command = [*service.curl, *map(str, arguments[:-1]), f"{service.origin}{arguments[-1]}"]
        result = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert result.returncode == 0, result.stderr.decode()
        return result

    return run


def test_download(curl: Curl, image: Image, tmp_path: Path) -> None:
    curl("--fail", "--output", tmp_path / "copy", image.url)
    assert (tmp_path / "copy").read_bytes() == image.content()


@pytest.mark.parametrize(
    ("value", "first", "last"), [("0-99", 0, 99), ("1000-", 1000, MiB - 1), ("-5", MiB - 5, MiB - 1)]
)
def test_ranges(curl: Curl, image: Image, value: str, first: int, last: int) -> None:
    assert curl("--fail", "--range", value, image.url).stdout == image.read(first, last - first + 1)


def test_a_download_is_continued(curl: Curl, image: Image, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(image.read(0, 300_000))
    curl("--fail", "--continue-at", "-", "--output", copy, image.url)
    assert copy.read_bytes() == image.content()


def test_upload_of_a_whole_file(curl: Curl, new_image: MakeImage, tmp_path: Path) -> None:
    source, image = tmp_path / "source", new_image(size=40 * MiB + 5)
    source.write_bytes(pattern(40 * MiB + 5))
    curl("--fail", "--upload-file", source, image.url)
    assert image.content() == source.read_bytes()


def test_upload_expects_100_continue(curl: Curl, new_image: MakeImage, tmp_path: Path) -> None:
    source, image = tmp_path / "source", new_image(size=2 * MiB)
    source.write_bytes(pattern(2 * MiB))
    told = curl("--fail", "--verbose", "--header", "Expect: 100-continue", "--upload-file", source, image.url).stderr
    assert b"< HTTP/1.1 100 Continue" in told
    assert b"Done waiting for 100-continue" not in told
    assert image.content() == source.read_bytes()


def test_a_refused_upload_sends_nothing_and_reads_the_reason(curl: Curl, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(20 * MiB))
    arguments = (
        "--header",
        "Expect: 100-continue",
        "--upload-file",
        source,
        "--write-out",
        "%{http_code} %{size_upload}",
    )
    out = curl(*arguments, "/images/unknown").stdout.decode()
    assert out.startswith("You are not allowed to access this resource")
    assert out.endswith("403 0")


def test_a_refused_upload_that_does_not_wait_reads_the_reason(curl: Curl, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(20 * MiB))
    out = curl("--header", "Expect:", "--upload-file", source, "--write-out", "%{http_code}", "/images/unknown").stdout
    assert out.startswith(b"You are not allowed to access this resource")
    assert out.endswith(b"403")


def test_upload_to_a_place_in_the_image(curl: Curl, image: Image, tmp_path: Path) -> None:
    before, source = image.content(), tmp_path / "source"
    source.write_bytes(b"hello")
    curl("--fail", "--header", "Content-Range: bytes 1000-1004/*", "--upload-file", source, image.url)
    assert image.content() == before[:1000] + b"hello" + before[1005:]


def test_upload_from_a_pipe_is_chunked(curl: Curl, service: Service, image: Image) -> None:
    command = [*service.curl, "--fail", "--upload-file", "-", f"{service.origin}{image.url}"]
    subprocess.run(command, input=pattern(MiB, seed=1), capture_output=True, check=True, timeout=60)
    assert image.content() == pattern(MiB, seed=1)


def test_two_uploads_in_chunks_by_one_command(service: Service, image: Image) -> None:
    upload = ["--fail", "--upload-file", "-", "--header", "Expect:", f"{service.origin}{image.url}"]
    command = [*service.curl, *upload, "--next", *service.curl[1:], *upload]
    subprocess.run(command, input=pattern(MiB, seed=1), capture_output=True, check=True, timeout=60)
    assert image.content() == pattern(MiB, seed=1), "the second one was empty"


def test_zero_and_flush(curl: Curl, image: Image) -> None:
    curl("--fail", "--request", "PATCH", "--json", '{"op": "zero", "size": 4096, "flush": true}', image.url)
    curl("--fail", "--request", "PATCH", "--json", '{"op": "flush"}', image.url)
    assert image.read(0, 4096) == bytes(4096)


def test_head(curl: Curl, image: Image) -> None:
    told = curl("--fail", "--head", image.url).stdout.decode()
    assert "200 OK" in told
    assert f"Content-Length: {MiB}" in told


@pytest.mark.parametrize(
    ("name", "saved"),
    [
        ("my-disk.raw", "my-disk.raw"),
        ("my disk; filename=other.raw", "my disk; filename=other.raw"),
        ('";x=y.raw', "_;x=y.raw"),
        ("Größe.raw", "Gr__e.raw"),  # curl knows no extended values
    ],
)
def test_saves_under_the_name_that_the_ticket_offers(
    curl: Curl, new_image: MakeImage, tmp_path: Path, name: str, saved: str
) -> None:
    image = new_image(filename=name)
    directory = tmp_path / "saved"
    directory.mkdir()
    curl("--fail", "--remote-name", "--remote-header-name", "--output-dir", directory, image.url)
    assert [path.name for path in directory.iterdir()] == [saved]
    assert (directory / saved).read_bytes() == image.content()


def test_options_of_the_server(curl: Curl) -> None:
    told = curl("--fail", "--include", "--request", "OPTIONS", "--request-target", "*", "/").stdout
    assert b"200 OK" in told
    assert b"Allow: OPTIONS,GET,PUT,PATCH" in told


def test_http_1_0(curl: Curl, image: Image) -> None:
    assert curl("--fail", "--http1.0", image.url).stdout == image.content()


def test_an_offer_of_http_2_is_not_taken(curl: Curl, image: Image) -> None:
    assert curl("--fail", "--http2", image.url).stdout == image.content()


def test_one_connection_for_several_requests(curl: Curl, image: Image, service: Service) -> None:
    url = f"{service.origin}{image.url}"
    command = [*service.curl, "--fail", "--verbose", "--output", "/dev/null", url, "--output", "/dev/null", url]
    told = subprocess.run(command, capture_output=True, check=True, timeout=60).stderr
    assert re.search(b"(?i)re-?using existing", told)
