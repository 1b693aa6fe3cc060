# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI documents are valid. tests/support/openapi.py compares answers with them, wherever tests get some."""

import json
from pathlib import Path

import pytest
from openapi_spec_validator import validate

from tests.support.openapi import DIRECTORY

DOCUMENTS = sorted(DIRECTORY.glob("*.json"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_document_is_valid(path: Path) -> None:
    validate(json.loads(path.read_text()))
