"""A seeded slice of `fuzz.py`, which makes as many mutants as one likes."""

from __future__ import annotations

import pytest

from fuzz import fuzz, legitimate, new_lock, parcel_blob, CALL, occurrence  # isort: skip

from comity.wire.codec import decode, encode

pytestmark = pytest.mark.quick


def test_what_is_mutated_was_legitimate():
    for tree in legitimate():
        occurrence(decode(encode(tree)))
        assert new_lock().open(decode(parcel_blob(tree), sealed_messages=True), CALL)


def test_mutants_are_refused_or_harmless():
    blobs, sealed_messages = fuzz(2000, seed=1)
    assert blobs.read > 50  # they are not all refused at the door
    assert sealed_messages.read > 3
    assert len(blobs.refused) > 20
    assert any("changed on its way" in reason for reason in sealed_messages.refused)
