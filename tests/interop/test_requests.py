# SPDX-License-Identifier: Apache-2.0
"""requests: what most Python programs use."""

import io
from collections.abc import Iterator

import pytest
import requests

from tests.support.images import Image, MakeImage, MiB, pattern
from tests.support.services import Service


@pytest.fixture
def session(service: Service) -> Iterator[requests.Session]:
    with service.session() as session:
        yield session


@pytest.fixture
def url(service: Service, image: Image) -> str:
    return f"{service.origin}{image.url}"


def test_upload_and_download(session: requests.Session, service: Service, new_image: MakeImage) -> None:
    image = new_image(size=20 * MiB)
    url, content = f"{service.origin}{image.url}", pattern(20 * MiB)
    session.put(url, data=io.BytesIO(content)).raise_for_status()
    assert session.get(url).content == content
    assert image.content() == content


def test_a_generator_is_sent_in_chunks(session: requests.Session, url: str, image: Image) -> None:
    content = pattern(MiB, seed=1)
    session.put(url, data=(content[at : at + 10_000] for at in range(0, MiB, 10_000))).raise_for_status()
    assert image.content() == content


def test_a_session_goes_on_after_bodies_in_chunks(session: requests.Session, url: str, image: Image) -> None:
    for seed in range(5):
        content = pattern(MiB, seed=seed)
        session.put(url, data=iter([content[:1000], content[1000:]])).raise_for_status()
        assert session.get(url).content == content


def test_a_streamed_download(session: requests.Session, url: str, image: Image) -> None:
    with session.get(url, stream=True) as response:
        assert b"".join(response.iter_content(65_536)) == image.content()


def test_a_download_that_is_given_up(session: requests.Session, service: Service, new_image: MakeImage) -> None:
    url = f"{service.origin}{new_image(size=100 * MiB).url}"
    with session.get(url, stream=True) as response:
        next(response.iter_content(1000))
    assert session.get(url, headers={"Range": "bytes=0-9"}).content == bytes(10)


def test_json_answers(session: requests.Session, url: str) -> None:
    assert "zero" in session.options(url).json()["features"]
    assert session.get(f"{url}/extents").json() == [{"start": 0, "length": MiB, "zero": False, "hole": False}]
    assert session.get(f"{url}/checksum").json()["algorithm"] == "blake2b"


def test_json_requests(session: requests.Session, url: str, image: Image) -> None:
    session.patch(url, json={"op": "zero", "size": 4096}).raise_for_status()
    assert image.read(0, 4096) == bytes(4096)


def test_errors(session: requests.Session, service: Service, url: str) -> None:
    assert session.get(f"{service.origin}/images/unknown").status_code == 403
    assert session.get(url, headers={"Range": "bytes=9999999-"}).headers["Content-Range"] == f"bytes */{MiB}"
    assert session.put(url, data=b"x", headers={"Content-Range": "x"}).text.endswith("\n")
    assert session.post(url, data=b"x").status_code == 405


def test_a_large_upload_that_is_refused_reads_the_reason(session: requests.Session, service: Service) -> None:
    response = session.put(f"{service.origin}/images/unknown", data=bytes(30 * MiB))
    assert response.status_code == 403
    assert response.text.startswith("You are not allowed to access this resource")
