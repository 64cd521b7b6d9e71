# Sourced by the other scripts, in the repository's root: a virtual environment with specgguf in it.
#
#   use_venv [GROUP]    sets $python; makes .venv where no environment is active, and installs only what changed;
#                       with a dependency group of pyproject.toml, that too
#
# Everything said here goes to stderr; what pip says goes to a log, whose path is named when something fails.

. scripts/llama_cpp.sh

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "error: $1"
    [ -z "${2:-}" ] || say "  $2"
    exit 1
}

# The first Python of at least 3.11 among the usual names.
find_python() {
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s' "$candidate"
            return
        fi
    done
    fail "no Python of version 3.11 or later was found" "install one, or name it: PYTHON=/path/to/python3.12 $0"
}

# pip, with its output in the log.
run_pip() {
    "$python" -m pip --disable-pip-version-check "$@" >>"$log" 2>&1 && return
    pip_failed "${*: -1}"
}

pip_failed() {
    reason=$(grep -iE '^ *(error|fatal)|No space|Temporary failure|No matching' "$log" | tail -n 1)
    fail "pip $1 failed: ${reason:-see the log}" "the whole story: $log"
}

# Run-time requirements, and those of the dependency group $1, from pyproject.toml: pip reads groups itself from 25.1 on.
requirements() {
    "$python" - "$1" <<'END'
import sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))
print(*project["project"]["dependencies"], *project["dependency-groups"].get(sys.argv[1], []), sep="\n")
END
}

use_venv() {
    group=${1:-}
    if [ -n "${VIRTUAL_ENV:-}" ]; then
        folder=$VIRTUAL_ENV
    else
        folder=$PWD/.venv
        if ! [ -x "$folder/bin/python" ]; then
            base=$(find_python) || exit 1
            say "making .venv with $("$base" --version)"
            "$base" -m venv "$folder" >/dev/null 2>&1 ||
                fail "$base -m venv failed" "Debian and Ubuntu keep it apart: sudo apt install python3-venv"
        fi
    fi
    python=$folder/bin/python
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "$folder has $("$python" --version), and specgguf needs 3.11 or later" "leave it, or remove it"
    log=$folder/install.log

    wanted=$(requirements "$group")
    stamp=$folder/.specgguf-requirements$group
    if [ "$wanted" != "$(cat "$stamp" 2>/dev/null)" ]; then
        say "installing what specgguf needs"
        : >"$log"
        printf '%s\n' "$wanted" | grep -v '^llama-cpp-python' >"$folder/requirements.txt"
        run_pip install "setuptools>=77" wheel
        run_pip install -r "$folder/requirements.txt"
        install_specgguf # before llama.cpp: while that is compiled, models are fetched
        install_llama_cpp "$(printf '%s\n' "$wanted" | grep '^llama-cpp-python')"
        printf '%s\n' "$wanted" >"$stamp"
    fi
    install_specgguf
}

install_specgguf() {
    # A strict editable install lists its files: it is renewed when one is added, and type checkers can read it.
    files=$(cksum pyproject.toml && find specgguf cli presets -name "*.py" -o -name "*.toml" -o -name "*.jsonl" | sort)
    listed=$folder/.specgguf-files
    if [ "$files" != "$(cat "$listed" 2>/dev/null)" ]; then
        : >>"$log"
        run_pip install --no-deps --no-build-isolation --config-settings editable_mode=strict -e .
        printf '%s\n' "$files" >"$listed"
    fi
}
