# SPDX-License-Identifier: Apache-2.0
"""What depends on the image being certainly the same: ETag, and the conditions of RFC 9110 13.1.

A download that was interrupted goes on where it ended, and who has the image does not get it again.
"""

import subprocess
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, MakeDaemon
from tests.support.http_client import Answer, Connection
from tests.support.images import Image, MakeImage, MiB, make_image, pattern
from tests.support.places import Trait, needs
from tests.support.polling import eventually
from tests.support.processes import thread_names
from tests.support.services import Connect

CONTENT = pattern(MiB)
REST = {"Range": "bytes=1000-"}


@pytest.fixture
def image(new_image: MakeImage) -> Image:
    return new_image(CONTENT, ops=["read"])


@pytest.fixture
def writable(new_image: MakeImage, image: Image) -> Image:
    """Another ticket of the image, that may write."""
    return new_image(of=image)


def tag(client: Connection, image: Image) -> str:
    return client.get(image.url).headers["ETag"]


def rest(client: Connection, image: Image, etag: str) -> Answer:
    return client.get(image.url, REST | {"If-Range": etag})


def check_whole(answer: Answer) -> None:
    assert (answer.status, answer.body) == (200, CONTENT)
    assert "Content-Range" not in answer.headers


@needs(Trait.TAGGED)
def test_the_tag_is_a_strong_one(client: Connection, image: Image) -> None:
    answer = client.get(image.url)
    found = answer.headers["ETag"]
    assert found[0] == found[-1] == '"'
    assert len(found) == 34
    assert image.ticket not in found
    assert client.request("HEAD", image.url).headers["ETag"] == found


@needs(Trait.TAGGED)
def test_a_range_has_the_tag_of_the_whole(client: Connection, image: Image) -> None:
    """RFC 9110 15.3.7: what an answer to the same request without Range would tell."""
    for method in ("GET", "HEAD"):
        answer = client.request(method, image.url, REST)
        assert (answer.status, answer.headers["ETag"]) == (206, tag(client, image))


@needs(Trait.TAGGED)
def test_the_rest_of_the_same_image_is_sent(client: Connection, image: Image) -> None:
    etag = tag(client, image)
    answer = rest(client, image, etag)
    assert (answer.status, answer.body, answer.headers["ETag"]) == (206, CONTENT[1000:], etag)
    assert answer.headers["Content-Range"] == f"bytes 1000-{MiB - 1}/{MiB}"


@needs(Trait.TAGGED)
def test_each_ticket_of_the_image_has_the_same_tag(client: Connection, image: Image, new_image: MakeImage) -> None:
    assert tag(client, new_image(of=image, ops=["read"])) == tag(client, image)


@needs(Trait.TAGGED)
def test_another_image_has_another_tag(client: Connection, image: Image, new_image: MakeImage) -> None:
    other = new_image(CONTENT, ops=["read"])
    assert rest(client, image, tag(client, other)).status == 200


@needs(Trait.OWN)
@pytest.mark.parametrize(
    "change",
    [
        lambda client, url: client.put(url, b"x"),
        lambda client, url: client.patch(url, {"op": "zero", "size": 1}),
    ],
    ids=["PUT", "PATCH"],
)
def test_what_was_changed_is_sent_whole(client: Connection, image: Image, writable: Image, change: object) -> None:
    etag = tag(client, image)
    assert callable(change)
    assert change(client, writable.url).status == 200
    answer = rest(client, image, etag)
    assert (answer.status, answer.body) == (200, image.content())
    assert answer.headers["ETag"] != etag


@needs(Trait.OWN)
def test_a_connection_that_goes_on_has_the_tag_of_now(
    client: Connection, connect: Connect, image: Image, writable: Image
) -> None:
    """The tag is written when C gets the connection."""
    tags = [tag(client, image) for _ in range(2)]
    assert connect().put(writable.url, b"x").status == 200
    tags += [tag(client, image) for _ in range(2)]
    assert tags[0] == tags[1] != tags[2] == tags[3]
    assert connect().request("HEAD", image.url).headers["ETag"] == tags[3]


@needs(Trait.OWN)
def test_a_range_has_the_tag_of_now(client: Connection, connect: Connect, image: Image, writable: Image) -> None:
    before = client.get(image.url, REST).headers["ETag"]
    assert connect().put(writable.url, b"x").status == 200
    assert before != client.get(image.url, REST).headers["ETag"] == tag(client, image)


@needs(Trait.TAGGED)
@pytest.mark.unopened
def test_what_was_changed_while_the_image_was_closed_is_sent_whole(
    client: Connection, daemon: Daemon, image: Image
) -> None:
    def ticket(access: str) -> Image:
        where = {key: value for key, value in image.place.where.items() if key != "url"}  # not by way of another daemon
        return Image(image.place, daemon.add_ticket(image.path, MiB, ops=[access], **where))

    etag = tag(client, image)
    daemon.remove(image.ticket)
    with daemon.connect("unix") as other:
        changing = ticket("write")
        assert other.put(changing.url, b"x").status == 200
        daemon.remove(changing.ticket)
        assert not daemon.has_open(image.path)
        assert rest(other, ticket("read"), etag).status == 200


@needs(Trait.OWN, Trait.GROWS)
def test_what_grew_is_sent_whole(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT, ops=["read"], ticket_size=2 * MiB)
    writable = new_image(of=image)
    etag = tag(client, image)
    assert client.put(writable.url, b"x", {"Content-Range": f"bytes {MiB}-*/*"}).status == 200
    answer = rest(client, image, etag)
    assert (answer.status, len(answer.body)) == (200, MiB + 1)


@needs(Trait.TAGGED)
@pytest.mark.parametrize(
    "condition", ['"other"', "W/{tag}", "{tag}, {tag}", "*", "", "x", "Wed, 21 Oct 2015 07:28:00 GMT"]
)
def test_another_condition_is_not_met(client: Connection, image: Image, condition: str) -> None:
    check_whole(rest(client, image, condition.format(tag=tag(client, image))))


@needs(Trait.TAGGED)
def test_without_a_range_it_says_nothing(client: Connection, image: Image) -> None:
    check_whole(client.get(image.url, {"If-Range": tag(client, image)}))


def test_an_image_that_may_be_written_has_no_tag(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT)
    assert "ETag" not in client.get(image.url).headers
    assert rest(client, image, '"x"').status == 206, "as before: there is no tag to compare with"


def test_another_process_has_other_tags(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    tags = []
    path = tmp_path / "image"
    path.write_bytes(CONTENT)
    for _ in range(2):
        daemon = make_daemon()
        with daemon.connect("unix") as client:
            tags.append(tag(client, make_image(daemon, tmp_path)(path=path, ops=["read"])))
    assert tags[0] != tags[1]


@pytest.mark.every_kind
def test_only_what_the_server_writes_itself_has_a_tag(client: Connection, image: Image) -> None:
    answer = client.get(image.url)
    if Trait.TAGGED in type(image.place).traits:
        assert rest(client, image, answer.headers["ETag"]).body == CONTENT[1000:]
    else:
        assert "ETag" not in answer.headers
        check_whole(rest(client, image, '"x"'))


# If-Match: what Firefox sends


@needs(Trait.TAGGED)
@pytest.mark.parametrize(
    ("condition", "status"), [("{tag}", 206), ('"a", {tag}', 206), ("*", 206), ('"a"', 412), ("W/{tag}", 412)]
)
def test_if_match(client: Connection, image: Image, condition: str, status: int) -> None:
    answer = client.get(image.url, REST | {"If-Match": condition.format(tag=tag(client, image))})
    assert (answer.status, answer.closes) == (status, False)
    assert client.get(image.url).status == 200


# If-None-Match: what caches and mirrors send


@needs(Trait.TAGGED)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("condition", ["{tag}", "W/{tag}", '"a", {tag}', "*"])
def test_who_has_the_image_is_told_so(client: Connection, image: Image, method: str, condition: str) -> None:
    etag = tag(client, image)
    for more in ({}, REST):
        answer = client.request(method, image.url, more | {"If-None-Match": condition.format(tag=etag)})
        assert (answer.status, answer.headers["ETag"], answer.body, answer.closes) == (304, etag, b"", False)
    check_whole(client.get(image.url, {"If-None-Match": '"a"'}))


@needs(Trait.OWN)
def test_who_has_what_the_image_was_gets_what_it_is(client: Connection, image: Image, writable: Image) -> None:
    etag = tag(client, image)
    assert client.put(writable.url, b"x").status == 200
    answer = client.get(image.url, {"If-None-Match": etag})
    assert (answer.status, answer.body) == (200, image.content())


@pytest.mark.every_kind
def test_an_image_without_a_tag_is_one_of_any(client: Connection, new_image: MakeImage) -> None:
    image = new_image(CONTENT)
    assert client.get(image.url, {"If-None-Match": "*"}).status == 304
    check_whole(client.get(image.url, {"If-None-Match": '"a"'}))


@pytest.mark.every_kind
def test_a_change_for_no_image_changes_nothing(client: Connection, connect: Connect, new_image: MakeImage) -> None:
    image = new_image(CONTENT)
    for method, body in (("PUT", b"x" * 9000), ("PATCH", b'{"op": "zero", "size": 4096}')):
        answer = connect().request(method, image.url, {"If-None-Match": "*"}, body)
        assert (answer.status, answer.code) == (412, "changed")
    assert image.content() == CONTENT
    assert client.put(image.url, b"x", {"If-None-Match": '"a"'}).status == 200
    assert image.read(0, 1) == b"x"


# Through C


@pytest.mark.parametrize(
    ("name", "same", "another"), [("If-Range", 206, 200), ("If-Match", 206, 412), ("If-None-Match", 304, 206)]
)
def test_a_connection_that_c_serves(
    make_daemon: MakeDaemon, tmp_path: Path, name: str, same: int, another: int
) -> None:
    daemon = make_daemon(log={"level": "INFO"})
    image = make_image(daemon, tmp_path)(CONTENT, ops=["read"])
    with daemon.connect("unix") as client:
        etag = tag(client, image)
        for condition, answered in ((etag, same), ('"other"', another)):
            for _ in range(20):
                assert client.get(image.url, {"Range": "bytes=0-9"}).body == CONTENT[:10]
            eventually(lambda: "http-lane" in thread_names(daemon.pid), "C has the connection")
            assert client.get(image.url, REST | {name: condition}).status == answered


# A real client


@needs(Trait.TAGGED)
def test_curl_goes_on(daemon: Daemon, image: Image, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    curl = ["curl", "--silent", "--show-error", "--fail", "--cacert", str(daemon.cafile), daemon.url(image.ticket)]
    head = subprocess.check_output([*curl, "--head"], text=True)
    etag = next(line.split(": ")[1] for line in head.splitlines() if line.lower().startswith("etag"))
    target.write_bytes(CONTENT[:1000])
    subprocess.check_call([*curl, "--continue-at", "-", "--header", f"If-Range: {etag}", "--output", target])
    assert target.read_bytes() == CONTENT
