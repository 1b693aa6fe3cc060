# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI documents of docs/openapi. Answers are compared with them, and the parts that they had are noted.

A part of a document is named by its JSON pointer: a response, a header, a key of a JSON body, a value of an enum.
"""

import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

from jsonschema import Draft202012Validator

DIRECTORY = Path(__file__).resolve().parents[2] / "docs" / "openapi"

#: Bytes of the largest JSON body that is compared. A list of thousands of extents is one extent thousands of times.
MOST = 64 * 1024

#: Fields of HTTP itself, which OpenAPI describes by other means or not at all.
_FRAMING = frozenset(("connection", "content-length", "content-type", "transfer-encoding"))

_RESPONSES = "/components/responses"
_HEADERS = "/components/headers"
_SCHEMES = re.compile(r"https?://[^/]*")


class Fields(Protocol):
    """The header fields of an answer."""

    @property
    def fields(self) -> list[tuple[str, str]]: ...


class Answered(Protocol):
    """An answer of the daemon."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Fields: ...
    @property
    def body(self) -> bytes: ...


class UndocumentedError(AssertionError):
    """An answer is not as the document says."""


class Document:
    """A document, and which of its parts were answered."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.content: dict[str, Any] = json.loads(path.read_text())
        self.answered: set[str] = set()
        self._validator = Draft202012Validator(self.content)
        templates = sorted(self.content["paths"])
        self._paths = [(re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))), path) for path in templates]

    def check(self, method: str, target: str, answer: Answered) -> None:
        """Compare an answer with the document, and note its parts. Raises UndocumentedError.

        A path or a method that the document does not name may only be refused, as the components say. The target `*`
        is no path, and OpenAPI has no place for it.
        """
        if target == "*" and method == "OPTIONS":
            return
        try:
            self._check_response(self._response(method, target, answer.status), method, answer)
        except UndocumentedError as e:
            raise UndocumentedError(f"{self.name}: {method} {answer.status}: {e}") from None

    @cached_property
    def named(self) -> set[str]:
        """All parts that an answer can have."""
        named = {f"{_HEADERS}/{_escape(name)}" for name in self._at(_HEADERS)}
        responses = [f"{_RESPONSES}/{status}" for status in self._at(_RESPONSES)]
        for path, item in self.content["paths"].items():
            for method in item.keys() - {"parameters"}:
                place = f"/paths/{_escape(path)}/{method}/responses"
                responses += [self._resolved(f"{place}/{status}") for status in self._at(place)]
        for response in responses:
            named.add(response)
            for name in self._at(response).get("headers", {}):
                named.add(f"{response}/headers/{_escape(name)}")
                self._name_parts(f"{response}/headers/{_escape(name)}/schema", named)
            for media in self._at(response).get("content", {}):
                self._name_parts(f"{response}/content/{_escape(media)}/schema", named)
        return named

    def _response(self, method: str, target: str, status: int) -> str:
        path = _SCHEMES.sub("", target, count=1).partition("?")[0]
        if "%2f" not in path.lower():  # an escaped slash must stay escaped (RFC 3986 6.2.2.2)
            path = unquote(path)
        template = next((template for pattern, template in self._paths if pattern.fullmatch(path)), None)
        place = _RESPONSES
        if template is not None and method.lower() in self.content["paths"][template]:
            place = f"/paths/{_escape(template)}/{method.lower()}/responses"
        if str(status) not in self._at(place):
            raise UndocumentedError(f"the status is not named in {place}")
        return self._resolved(f"{place}/{status}")

    def _check_response(self, place: str, method: str, answer: Answered) -> None:
        response = self._at(place)
        self.answered.add(place)
        self._check_headers(place, {name.lower(): (name, value) for name, value in answer.headers.fields})
        if method == "HEAD" or not answer.body:
            return
        types = dict(answer.headers.fields)
        media = types.get("Content-Type", "").partition(";")[0]
        if media not in response.get("content", {}):
            raise UndocumentedError(f"a body of the type {media!r}")
        schema = f"{place}/content/{_escape(media)}/schema"
        if "schema" in response["content"][media] and len(answer.body) <= MOST:
            text = answer.body.decode()
            value = json.loads(text) if media == "application/json" else text
            self._validate(schema, value)
            self._check_value(schema, value)

    def _check_headers(self, place: str, there: dict[str, tuple[str, str]]) -> None:
        named = {name.lower(): f"{place}/headers/{_escape(name)}" for name in self._at(place).get("headers", {})}
        everywhere = {name.lower(): f"{_HEADERS}/{_escape(name)}" for name in self._at(_HEADERS)}
        for key, pointer in named.items():
            if self._at(pointer).get("required") and key not in there:
                raise UndocumentedError(f"the header {key} is missing")
        for key, (name, value) in there.items():
            found = named.get(key) or everywhere.get(key)
            if found is not None:
                self.answered.add(found)
                self._validate(f"{found}/schema", value)
                self._check_value(f"{found}/schema", value)
            elif key not in _FRAMING:
                raise UndocumentedError(f"the header {name} is not named")

    def _validate(self, schema: str, value: object) -> None:
        error = next(self._validator.evolve(schema=self._at(schema)).iter_errors(value), None)
        if error is not None:
            raise UndocumentedError(f"{error.json_path}: {error.message[:300]}")

    def _check_value(self, pointer: str, value: object) -> None:
        """Note the parts of a schema that a valid value has. Unlike clients, refuse unknown keys."""
        pointer = self._resolved(pointer)
        schema = self._at(pointer)
        for number, choice in enumerate(schema.get("anyOf", ())):
            if self._validator.evolve(schema=choice).is_valid(value):
                self._check_value(f"{pointer}/anyOf/{number}", value)
        if "enum" in schema:
            self.answered.add(f"{pointer}/enum/{value}")
        if isinstance(value, list) and "items" in schema:
            for item in value:
                self._check_value(f"{pointer}/items", item)
        if isinstance(value, dict):
            self._check_object(pointer, schema, value)

    def _check_object(self, pointer: str, schema: dict[str, Any], value: dict[str, Any]) -> None:
        for key, item in value.items():
            if key in schema.get("properties", {}):
                self.answered.add(f"{pointer}/properties/{_escape(key)}")
                self._check_value(f"{pointer}/properties/{_escape(key)}", item)
            elif isinstance(schema.get("additionalProperties"), dict):
                self._check_value(f"{pointer}/additionalProperties", item)
            elif "anyOf" not in schema:
                raise UndocumentedError(f"the key {key!r} is not named in {pointer}")

    def _name_parts(self, pointer: str, named: set[str]) -> None:
        """Add the parts of a schema."""
        try:
            pointer = self._resolved(pointer)
        except KeyError:
            return  # bytes have no schema
        schema = self._at(pointer)
        named.update(f"{pointer}/enum/{value}" for value in schema.get("enum", ()))
        below = [f"{pointer}/anyOf/{number}" for number in range(len(schema.get("anyOf", ())))]
        below += [f"{pointer}/{key}" for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
        keys = [f"{pointer}/properties/{_escape(key)}" for key in schema.get("properties", {})]
        named.update(keys)
        for part in below + keys:
            self._name_parts(part, named)

    def _resolved(self, pointer: str) -> str:
        """Return the pointer to the part that a pointer leads to, following references."""
        while isinstance(found := self._at(pointer), dict) and "$ref" in found:
            pointer = found["$ref"].removeprefix("#")
        return pointer

    def _at(self, pointer: str) -> Any:
        """Return the part that a pointer (RFC 6901) leads to. Raises KeyError."""
        found: Any = self.content
        for part in _parts(pointer):
            found = found[int(part)] if isinstance(found, list) else found[part]
        return found


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _parts(pointer: str) -> Iterator[str]:
    return (part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


IMAGES = Document(DIRECTORY / "images.json")
CONTROL = Document(DIRECTORY / "control.json")
