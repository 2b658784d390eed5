#!/bin/sh
# What tests with a browser need beside the rest: playwright, a Chromium, and axe-core. Usage: sh tests/browser/prepare.sh .venv/bin
set -eu
bin=$1
# A file of the environment, not of the repository, as axe-core has another licence. Both change together.
axe=4.14.1
axe_sha256=29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c

if ! "$bin/python" -c 'import playwright' 2>/dev/null; then
    "$bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt playwright || {
        echo 'Pages cannot be opened: playwright could not be installed; what pip says stands above.' >&2
        exit 1
    }
fi

# Without axe-core its tests are skipped, and the others run.
prepare_axe() {
    share=$("$bin/python" -c 'import sys; print(sys.prefix)')/share/axe-core
    if [ -f "$share/$axe.js" ]; then
        return
    fi
    if ! command -v npm >/dev/null; then
        echo 'Tests of accessibility by axe-core are skipped: npm, which downloads it, is not installed.' >&2
        return
    fi
    folder=$(mktemp -d)
    if (cd "$folder" && timeout 120 npm pack --silent "axe-core@$axe" >/dev/null && tar -xzf "axe-core-$axe.tgz" package/axe.min.js) &&
        "$bin/python" -c 'import hashlib, sys; sys.exit(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest() != sys.argv[2])' \
            "$folder/package/axe.min.js" "$axe_sha256"; then
        mkdir -p "$share"
        mv "$folder/package/axe.min.js" "$share/$axe.js"
    else
        echo "Tests of accessibility by axe-core are skipped: axe-core $axe could not be downloaded, or is not the file expected." >&2
    fi
    rm -r "$folder"
}
prepare_axe

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
