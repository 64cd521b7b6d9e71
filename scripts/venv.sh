# Sourced by the other scripts, in the repository's root: a virtual environment with specgguf in it.
#
#   use_venv [EXTRA]    sets $python; makes .venv where no environment is active, and installs only what changed
#
# Everything said here goes to stderr; what pip says goes to a log, whose path is named when something fails.

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
    reason=$(grep -iE '^ *(error|fatal)|No space|Temporary failure|No matching' "$log" | tail -n 1)
    fail "pip ${*: -1} failed: ${reason:-see the log}" "the whole story: $log"
}

# Run-time requirements, and those of the extra $1, from pyproject.toml.
requirements() {
    "$python" - "$1" <<'END'
import sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
print(*project["dependencies"], *project["optional-dependencies"].get(sys.argv[1], []), sep="\n")
END
}

# Sets $compiling, the remark that llama.cpp has to be compiled, where it has to.
need_compiler() {
    compiling=""
    "$python" -c 'import llama_cpp' >/dev/null 2>&1 && return
    compiling=" (llama.cpp is compiled once: about 9 minutes on 2 cores)"
    for compiler in ${CXX:-} c++ g++ clang++; do
        if command -v "$compiler" >/dev/null 2>&1; then
            set_build_flags
            return
        fi
    done
    case $(uname -s) in
        Darwin) how="xcode-select --install" ;;
        *) how="for example: sudo apt install g++ (Debian, Ubuntu), sudo dnf install gcc-c++ (Fedora)" ;;
    esac
    fail "no C++ compiler: llama-cpp-python is compiled when it is installed" "$how"
}

# How $compiler compiles llama.cpp: without what specgguf does not use, unless CMAKE_ARGS is set to something else, and
# without AMX where gcc drops the stores before _tile_loadconfig, so that the first tile instruction is a SIGILL.
set_build_flags() {
    [ -n "${CMAKE_ARGS+set}" ] || export CMAKE_ARGS=-DLLAVA_BUILD=OFF
    version=$("$compiler" -dumpfullversion 2>/dev/null) || return 0 # only gcc knows this option
    [ "${version%%.*}" -lt 13 ] && grep -qw amx_tile "${CPUINFO:-/proc/cpuinfo}" 2>/dev/null || return 0
    no_amx="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    export CFLAGS="${CFLAGS:+$CFLAGS }$no_amx" CXXFLAGS="${CXXFLAGS:+$CXXFLAGS }$no_amx"
    say "gcc $version miscompiles llama.cpp's AMX code: built without it (gcc 13 or later: CXX=g++-13 CC=gcc-13)"
}

use_venv() {
    extra=${1:-}
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

    wanted=$(requirements "$extra")
    stamp=$folder/.specgguf-requirements$extra
    if [ "$wanted" != "$(cat "$stamp" 2>/dev/null)" ]; then
        need_compiler
        say "installing what specgguf needs$compiling"
        : >"$log"
        printf '%s\n' "$wanted" >"$folder/requirements.txt"
        run_pip install "setuptools>=77" wheel
        run_pip install -r "$folder/requirements.txt"
        printf '%s\n' "$wanted" >"$stamp"
    fi

    # A strict editable install lists its files: it is renewed when one is added, and type checkers can read it.
    files=$(cksum pyproject.toml && find specgguf cli presets -name "*.py" -o -name "*.toml" -o -name "*.jsonl" | sort)
    stamp=$folder/.specgguf-files
    if [ "$files" != "$(cat "$stamp" 2>/dev/null)" ]; then
        : >>"$log"
        run_pip install --no-deps --no-build-isolation --config-settings editable_mode=strict -e .
        printf '%s\n' "$files" >"$stamp"
    fi
}
