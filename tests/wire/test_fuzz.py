"""A short, seeded run of the fuzz test in `fuzz.py`."""

from __future__ import annotations

import pytest

from fuzz import fuzz, legitimate, new_lock, sealed_message_blob, CALL, check_tree  # isort: skip

from comity.wire.codec import decode, encode

pytestmark = pytest.mark.quick


def test_originals_of_mutants_are_valid():
    for tree in legitimate():
        check_tree(decode(encode(tree)))
        assert new_lock().open(decode(sealed_message_blob(tree), sealed_messages=True), CALL)


def test_mutants_are_refused_or_harmless():
    blobs, sealed_messages = fuzz(2000, seed=1)
    assert blobs.read > 50  # not all are refused
    assert sealed_messages.read > 3
    assert len(blobs.refused) > 20
    assert any("changed on its way" in reason for reason in sealed_messages.refused)
