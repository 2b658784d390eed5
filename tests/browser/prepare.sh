#!/bin/sh
# What tests with a browser need beside the rest: playwright, and a Chromium. Usage: sh tests/browser/prepare.sh .venv/bin
set -eu
bin=$1

if ! "$bin/python" -c 'import playwright' 2>/dev/null; then
    "$bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt playwright || {
        echo 'Pages cannot be opened: playwright could not be installed; what pip says stands above.' >&2
        exit 1
    }
fi

browser() {
    command -v chromium || command -v chromium-browser || command -v google-chrome || command -v google-chrome-stable
}
if browser >/dev/null; then
    exit 0
fi
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "Installing Debian's chromium (once; a minute or two) ..."
    timeout 600 apt-get update -qq || true
    DEBIAN_FRONTEND=noninteractive timeout 600 apt-get install -y -qq --no-install-recommends chromium >/dev/null || true
fi
browser >/dev/null || {
    echo 'Pages cannot be opened: there is no browser here; install chromium or google-chrome and try again.' >&2
    exit 1
}
