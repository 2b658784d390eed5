#!/bin/sh
# Set up a virtual environment with Comity in it. Prints one line per step. pip's output goes to VENV/install.log and is shown
# only if a step fails.
#
# Usage: sh scripts/install.sh VENV EXTRAS     for example: sh scripts/install.sh .venv dev,sites
# PYTHON is the interpreter, TORCH_INDEX the package index to take torch from (by default pip's own).
set -eu
venv=$1
extras=$2
python=${PYTHON:-python3}
begin=$(date +%s)

step() {
    title=$1
    shift
    printf '%s ... ' "$title"
    if "$@" >>"$log" 2>&1; then
        echo "done"
    else
        code=$?
        echo "failed"
        tail -n 30 "$log" >&2
        echo "comity: $title failed with exit code $code. The end of the log is above, all of it in $log." >&2
        exit "$code"
    fi
}

mkdir -p "$venv"
log=$venv/install.log
: >"$log"
if [ ! -x "$venv/bin/pip" ]; then
    step "Creating the environment in $venv" "$python" -m venv "$venv"
fi
# torch first and pinned. On Linux, torch from PyPI is the CUDA build, with several gigabytes of GPU packages. For the CPU build, set
# TORCH_INDEX=https://download.pytorch.org/whl/cpu.
torch=$(grep '^torch==' constraints.txt)
if ! "$venv/bin/pip" freeze 2>/dev/null | grep -q "^$torch"; then
    step "Installing $torch" "$venv/bin/pip" install --disable-pip-version-check ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$torch"
fi
step "Installing Comity with [$extras] (a minute or two)" "$venv/bin/pip" install --disable-pip-version-check -c constraints.txt -e ".[$extras]"
echo "Ready after $(($(date +%s) - begin)) s."
