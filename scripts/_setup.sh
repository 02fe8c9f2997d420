# Sourced by the scripts: `setup EXTRA` makes .venv hold frontrank with that extra, puts it first on PATH, and looks at the machine.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset PYTHONDONTWRITEBYTECODE # where it is set, each test worker and each command would compile everything again: 20 s of a quick test

fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# The newest Python that fits, one with venv and pip if there is any. A name on PATH may be a shim without a Python behind it.
find_python() {
    local candidate without_venv="" candidates=(python3.14 python3.13 python3.12 python3.11 python3 python)
    [[ ${PYTHON:-} ]] && candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            echo "$candidate"
            return
        fi
        without_venv=${without_venv:-$candidate}
    done
    echo "$without_venv"
}

# Debian and Ubuntu ship Python without venv.
install_venv() {
    local package
    package=$("$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [[ $EUID != 0 ]] || ! command -v apt-get >/dev/null; then
        fail "$1 has no venv: install it (Debian, Ubuntu: sudo apt-get install $package) and run this again"
    fi
    echo "installing $package ..."
    { apt-get -qq update && apt-get -qq install -y "$package"; } || fail "could not install $package: install it by hand and run this again"
}

# need COMMAND PACKAGE: a program that pip cannot bring; on Debian and Ubuntu, root installs it.
need() {
    local command=$1 package=$2
    command -v "$command" >/dev/null && return
    if [[ $EUID != 0 ]] || ! command -v apt-get >/dev/null; then
        fail "needs $command: install it (Debian, Ubuntu: sudo apt-get install $package) and run this again"
    fi
    echo "installing $package (once) ..."
    mkdir -p .venv
    if ! { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$package"; } \
        >.venv/apt.log 2>&1; then
        tail -n 20 .venv/apt.log >&2
        fail "could not install $package: install it by hand and run this again"
    fi
}

venv_works() {
    .venv/bin/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

make_venv() {
    local python
    python=$(find_python)
    [[ $python ]] || fail "needs Python 3.11 or newer: install it, or name it as in PYTHON=/path/to/python $0"
    "$python" -c 'import ensurepip, venv' 2>/dev/null || install_venv "$python"
    "$python" -m venv .venv || fail "could not make .venv with $python: remove .venv and run this again"
    venv_works || fail "the Python in .venv does not work or is older than 3.11: remove .venv and run this again"
}

# Names what takes long; the rest is in the log.
show_progress() {
    awk '
        /(Downloading|Using cached) .*\([0-9][0-9]+\.[0-9] [MG]B\)/ { sub(/^ */, "  "); print; fflush() }
        /^Installing collected packages/ { print "  unpacking " NF - 3 " packages ..."; fflush() }
    '
}

# Some virtual machines claim AMX but cannot run it: a bfloat16 product then kills the process (illegal instruction).
avoid_broken_amx() {
    grep -qs amx_bf16 /proc/cpuinfo || return 0
    [[ ${ONEDNN_MAX_CPU_ISA:-} ]] && return 0
    local product='import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x'
    if ! { .venv/bin/python -c "$product"; } 2>/dev/null; then
        echo "this machine claims AMX but cannot run it: going on without (ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16)"
        export ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16
    fi
}

setup() {
    install_extra "$1"
    avoid_broken_amx
}

install_extra() {
    local extra=$1 stamp=.venv/setup-$1.stamp log=.venv/setup.log state
    state="$PWD $(cat pyproject.toml constraints.txt | cksum)"
    export PATH="$PWD/.venv/bin:$PATH"
    if [[ -x .venv/bin/python && -f $stamp && $(<"$stamp") == "$state" ]]; then
        return
    fi
    if [[ -f $stamp && $(<"$stamp") != "$PWD "* ]]; then
        echo "this folder was moved or copied: making .venv anew"
        rm -rf .venv
    fi
    echo "setting up .venv with frontrank[$extra] (once, minutes; details in $log) ..."
    if [[ $(uname) == Linux ]] && ! ls .venv/lib/python3*/site-packages/torch >/dev/null 2>&1; then
        echo "  pip downloads over 2 GB of CUDA libraries with torch; without a GPU see docs/install.md first (Ctrl-C stops this)"
    fi
    venv_works || make_venv
    if ! .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e ".[$extra]" 2>&1 \
        | tee "$log" | show_progress; then
        tail -n 20 "$log" >&2
        fail "pip could not install frontrank[$extra]: see above, or all of it in $log"
    fi
    echo "$state" >"$stamp"
}
