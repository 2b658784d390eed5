"""The documentation site, opened as files in a browser: its search works without a server."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("needs mkdocs: make docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("page", ["index.html", "how-to/advise.html"])
def test_search_works_from_files(page: str, site: Path, chromium: Browser) -> None:
    with open_page(chromium, site / page) as it:
        it.page.fill("input[name=query]", "certificates revoke")
        results = it.page.locator(".md-search-result__item a.md-search-result__link")
        results.first.wait_for(timeout=30_000)
        addresses = [link.get_attribute("href") or "" for link in results.all()]
        assert any("how-to/certificates.html" in address for address in addresses)
        results.first.click()
        it.page.wait_for_url("**/certificates.html*")
        assert it.requests == []  # from a network
