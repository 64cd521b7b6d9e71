# Sourced by venv.sh: llama-cpp-python, from what pip kept, prebuilt, or compiled.
#
#   install_llama_cpp SPEC    $python and $log are set; $meanwhile, if it is set, runs while llama.cpp is compiled
#
# Nothing is asked where nobody answers (no terminal, or CI is set); a CMAKE_ARGS that is set is a wish to compile, and
# LLAMA_CPP_BACKEND (cpu, cu124, vulkan, rocm72, metal: an index of the project's wheels) one for that backend.

WHEELS=${LLAMA_CPP_WHEELS:-https://abetlen.github.io/llama-cpp-python/whl}
CUDA_WHEELS="132 130 125 124 123 122 121 118" # the versions of CUDA that there are wheels for, as the project names them

# Whether a llama-cpp-python is installed, and one that $spec allows.
fits() {
    "$python" - "$spec" >/dev/null 2>&1 <<'END'
import importlib.metadata, sys
from pip._vendor.packaging.requirements import Requirement
sys.exit(not Requirement(sys.argv[1]).specifier.contains(importlib.metadata.version("llama-cpp-python")))
END
}

loads() {
    "$python" -c 'import llama_cpp' >/dev/null 2>&1
}

install_llama_cpp() {
    spec=$1
    if ! fits || ! loads; then
        choose_backend
        kept=$("$python" -m pip --disable-pip-version-check cache list --format=abspath llama_cpp_python 2>/dev/null |
            grep '\.whl$' | tail -n 1) || kept=
        take_kept || prebuilt || compile
    fi
    run_pip install "$spec"
}

# The wheel that pip kept of an earlier build, whatever newer release there is; false where it is not right. Its name does
# not tell what it was built for: only what is built by default is kept, and it never stands for a GPU that was chosen.
take_kept() {
    [ -z "${CMAKE_ARGS+set}" ] && [ -n "$kept" ] || return 1
    [ -z "$(gpu_flag)" ] || return 1
    "$python" -m pip --disable-pip-version-check install --no-deps "$kept" >>"$log" 2>&1 || return 1
    loads_or_goes "the llama.cpp that pip kept" || return 1
    say "taking the llama.cpp that pip kept (to build it again: pip cache remove llama_cpp_python)"
}

# Whether what was just installed is right, once what it needs is there too; it is taken away again where it is not.
loads_or_goes() {
    ! fits || ! "$python" -m pip --disable-pip-version-check install "$spec" >>"$log" 2>&1 || ! loads || return 0
    say "$1 does not load here"
    "$python" -m pip --disable-pip-version-check uninstall -y llama-cpp-python >>"$log" 2>&1
    return 1
}

# Sets $backend, cpu unless one was named, or a GPU is here that is wanted: Apple's by itself, NVIDIA's when the answer is
# yes.
choose_backend() {
    backend=${LLAMA_CPP_BACKEND:-cpu}
    [ -z "${LLAMA_CPP_BACKEND:-}" ] || return 0
    if [ "$(uname -s) $(uname -m)" = "Darwin arm64" ]; then
        backend=metal
    elif [ -z "${CMAKE_ARGS+set}" ] && command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then
        line="CMAKE_ARGS=\"-DGGML_CUDA=on\" $0"
        cuda=$(nvidia-smi 2>/dev/null | grep -oE 'CUDA Version: [0-9]+\.[0-9]+' | grep -oE '[0-9]+\.[0-9]+') || cuda=
        if [ -t 0 ] && [ -z "${CI:-}" ]; then
            printf 'An NVIDIA GPU is here. Use it? [Y/n] ' >&2
            read -r answer || answer=n
            case $answer in n* | N*) ;; *) backend=cu${cuda/./} ;; esac
        else
            say "an NVIDIA GPU is here; this is the build for the CPU. For the GPU: $line"
        fi
    fi
}

# The flag that compiles $backend; none for what is built by default.
gpu_flag() {
    case ${backend:-cpu} in
        cu*) printf -- '-DGGML_CUDA=on' ;;
        vulkan) printf -- '-DGGML_VULKAN=on' ;;
        rocm*) printf -- '-DGGML_HIP=on' ;;
    esac
}

# The indexes to ask, the best first: NVIDIA's drivers run what was built for an older CUDA than their own.
indexes() {
    printf '%s\n' "$backend"
    n=0
    for version in $CUDA_WHEELS; do
        case $backend in cu[0-9]*) ;; *) return ;; esac
        [ "$version" -lt "${backend#cu}" ] && [ "$n" -lt 2 ] || continue
        printf 'cu%s\n' "$version"
        n=$((n + 1))
    done
}

# The project's own wheels; false, in seconds, where they cannot be had or were not wanted.
prebuilt() {
    [ -z "${CMAKE_ARGS+set}" ] || return 1
    for index in $(indexes); do
        say "looking for a prebuilt llama.cpp ($index)"
        "$python" -m pip --disable-pip-version-check install --only-binary llama-cpp-python --no-deps --no-cache-dir \
            --retries 0 --timeout 4 --index-url "$WHEELS/$index" "$spec" >>"$log" 2>&1 || continue
        ! loads_or_goes "the prebuilt llama.cpp" || return 0
    done
    return 1
}

# Sets $compiler; false where there is none.
find_compiler() {
    for compiler in ${CXX:-} c++ g++ clang++; do
        ! command -v "$compiler" >/dev/null 2>&1 || return 0
    done
    return 1
}

no_compiler() {
    case $(uname -s) in
        Darwin) how="xcode-select --install" ;;
        *) how="for example: sudo apt install g++ (Debian, Ubuntu), sudo dnf install gcc-c++ (Fedora)" ;;
    esac
    fail "no C++ compiler: there is no prebuilt llama-cpp-python for this machine, so it is compiled" "$how"
}

# How $compiler compiles llama.cpp: without what specgguf does not use, unless CMAKE_ARGS is set to something else, and
# without AMX where gcc drops the stores before _tile_loadconfig, so that the first tile instruction is a SIGILL.
# Sets $remark where there is something to say about it.
set_build_flags() {
    remark=
    if [ -z "${CMAKE_ARGS+set}" ]; then
        flag=$(gpu_flag)
        export CMAKE_ARGS="-DLLAVA_BUILD=OFF${flag:+ $flag}"
    fi
    version=$("$compiler" -dumpfullversion 2>/dev/null) || return 0 # only gcc knows this option
    [ "${version%%.*}" -lt 13 ] && grep -qw amx_tile "${CPUINFO:-/proc/cpuinfo}" 2>/dev/null || return 0
    no_amx="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    export CFLAGS="${CFLAGS:+$CFLAGS }$no_amx" CXXFLAGS="${CXXFLAGS:+$CXXFLAGS }$no_amx"
    remark="gcc $version miscompiles llama.cpp's AMX code: built without it (gcc 13 or later: CXX=g++-13 CC=gcc-13)"
}

# Measured: 18 minutes of one core.
minutes_to_compile() {
    cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null) || cores=2
    printf '%s' $(((18 + cores - 1) / cores))
}

# pip in the background and a line of progress; pip keeps the wheel that comes of it.
compile() {
    find_compiler || no_compiler
    keep= # otherwise pip would hand out again what it kept
    [ -z "${CMAKE_ARGS+set}$kept" ] || keep=--no-cache-dir
    [ -z "$(gpu_flag)" ] || keep=--no-cache-dir # the next clone may choose the CPU
    set_build_flags
    [ -z "$remark" ] || say "$remark"
    say "compiling llama.cpp, once: about $(minutes_to_compile) minutes on this machine ($log)"
    set -m # a process group of its own: the compilers end with it
    "$python" -m pip --disable-pip-version-check -v install --no-deps $keep "$spec" >>"$log" 2>&1 </dev/null &
    job=$!
    set +m
    trap 'kill -- -$job 2>/dev/null' EXIT
    trap 'exit 130' INT TERM
    [ -z "${meanwhile:-}" ] || $meanwhile || true # it is tried again afterwards, and fails there if it must
    show_progress
    code=0
    wait "$job" || code=$?
    trap - EXIT INT TERM
    [ "$code" = 0 ] || pip_failed "$spec"
    loads_or_goes "the compiled llama.cpp" || fail "llama-cpp-python was built and does not load" "$log tells more"
    [ -n "$keep" ] || ! "$python" -m pip cache dir >/dev/null 2>&1 ||
        say "llama.cpp is compiled; pip keeps the wheel for the next clone"
}

# What ninja says, "[37/140] …", as one line that is rewritten; where nobody looks, a line a quarter.
show_progress() {
    shown=0
    while kill -0 "$job" 2>/dev/null; do
        step=$(tail -n 40 "$log" | grep -oE '^ *\[[0-9]+/[0-9]+\]' | tail -n 1 | tr -d ' []') || step=
        if [ -n "$step" ]; then
            quarter=$((4 * ${step%/*} / ${step#*/}))
            if [ -t 2 ]; then
                printf '\rcompiling llama.cpp: %s of %s files ' "${step%/*}" "${step#*/}" >&2
            elif [ "$quarter" -gt "$shown" ]; then
                say "compiling llama.cpp: ${step%/*} of ${step#*/} files"
                shown=$quarter
            fi
        fi
        sleep 1
    done
    [ ! -t 2 ] || printf '\r\033[K' >&2
}
