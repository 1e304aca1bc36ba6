# shellcheck shell=bash
# shellcheck disable=SC2034  # the lists of packages are used by those who source this
# Sourced by quickstart.sh, test.sh, bench.sh, .ci/run and tools/check: speaking, failing, packages, the build's environment.
# The caller stands in the source folder and has set -Eeuo pipefail.

# say "what happens now": one line, and the name of the step if it fails. advise "what to do then".
say() {
  doing=$1
  advice="The lines above name the reason; after mending it, run this command again: finished steps are not repeated."
  printf '\n== %s\n' "$1"
}
advise() { advice=$1; }

fail() {  # fail "reason and what to do"
  trap - ERR
  printf '\n%s: stopped: %s\n' "$(basename "$0")" "$1" >&2
  exit "${2:-1}"
}

on_error() {
  fail "'$doing' failed (exit code $1). $advice" "$1"
}
on_interrupt() {
  trap - ERR INT TERM
  printf '\n%s: interrupted during: %s. Run it again to go on; finished steps are not repeated.\n' "$(basename "$0")" "$doing" >&2
  exit "$1"
}
doing="start" advice=""
trap 'on_error $?' ERR
trap 'on_interrupt 130' INT
trap 'on_interrupt 143' TERM

is_installed() {  # a Debian package; a command of the same purpose that stands elsewhere on PATH is as good
  local command
  case $1 in
    g++ | cmake | ccache | python3 | clang-format | shellcheck) command=$1 ;;
    ninja-build) command=ninja ;;
    python3-pip) python3 -m pip --version > /dev/null 2>&1 && return 0 ;;
  esac
  if [[ -n ${command:-} ]] && command -v "$command" > /dev/null; then return 0; fi
  [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2> /dev/null) == installed ]]
}

# need_packages name...: installs with apt what is missing. Without anything missing it needs neither network nor rights.
need_packages() {
  local package sudo=() missing=()
  for package in "$@"; do
    is_installed "$package" || missing+=("$package")
  done
  if ((${#missing[@]} == 0)); then return 0; fi
  say "Installing ${#missing[@]} Debian packages: ${missing[*]}"
  command -v apt-get > /dev/null ||
    fail "these are missing, and there is no apt-get to install them (Debian 12 and Ubuntu 24.04 have it): ${missing[*]}. Install them by your system's means."
  if [[ $(id -u) != 0 ]]; then
    command -v sudo > /dev/null ||
      fail "installing needs root or sudo. As root, run: apt-get install ${missing[*]}"
    sudo=(sudo)
  fi
  advise "apt's own words stand above. Is there a network, and do apt's sources work (apt-get update)? By hand: apt-get install ${missing[*]}"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 update
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 \
    install -y --no-install-recommends "${missing[@]}" > /dev/null
}

# torch_version python: the version of the PyTorch that this interpreter imports; nothing where it cannot.
torch_version() {
  "$1" -c "import torch; torch.nn.Linear; print(torch.__version__.split('+')[0])" 2> /dev/null || true
}

# need_python_torch version: a virtual environment with that PyTorch in .deps/python-<version>, made once; $python is its
# interpreter. pip itself runs, so its configuration, proxies and indexes hold.
need_python_torch() {
  local home=.deps/python-$1
  python=$PWD/$home/bin/python
  if [[ -e $home/complete ]]; then return 0; fi
  say "Installing Python PyTorch $1 into $home (about 2.5 GB to fetch, 4 GB of disk, once)"
  advise "pip's own words stand above. Are there a network, a pip index that has torch $1 (pip config list), and 8 GB of free space?"
  rm -rf "$home"
  mkdir -p .deps
  python3 -m venv --without-pip "$home"
  local pip=(env PIP_DISABLE_PIP_VERSION_CHECK=1 python3 -m pip --python "$home/bin/python" install
    --quiet --no-input --no-compile --only-binary=:all:) needed
  "${pip[@]}" --no-deps "torch==$1"
  # All that it asks for but the compiler for GPUs (triton, 1 GB unpacked), which neither tests nor benchmarks use.
  mapfile -t needed < <("$python" -c 'import importlib.metadata as m
for line in m.requires("torch"):
    if not line.startswith("triton") and "extra ==" not in line:
        print(line)')
  "${pip[@]}" numpy safetensors "${needed[@]}" 2> "$home/pip.log" || { cat "$home/pip.log" >&2; false; }  # else: that triton is absent
  advise "That Python installed torch but cannot import it; the reason stands above. To begin anew: rm -r $home"
  "$python" -c 'import torch; torch.nn.Linear'
  touch "$home/complete"
}

# need_clang_tidy: $clang_tidy, of the package on PyPI. Debian's version 14 looks for findings in LibTorch's headers too, which
# takes three quarters of its time and is thrown away; versions from 22 on leave them out.
need_clang_tidy() {
  local version=23.1.4
  local home=.deps/clang-tidy-$version
  clang_tidy=$PWD/$home/clang_tidy/data/bin/clang-tidy
  if [[ -e $home/complete ]]; then return 0; fi
  say "Installing clang-tidy $version into $home (150 MB, once)"
  advise "pip's own words stand above. Are there a network and a pip index that has clang-tidy $version?"
  rm -rf "$home"
  mkdir -p .deps
  PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-input --no-compile --only-binary=:all: \
    --target "$home" "clang-tidy==$version"
  touch "$home/complete"
}

# need_venv version: .venv, a virtual environment at the root whose Python imports that PyTorch; $python is its interpreter.
# It holds no copy: it borrows the PyTorch of the environment that LibTorch lies in, of the active Python, or of .deps, where
# need_python_torch installs it if nothing at hand has it.
need_venv() {
  local owner candidate
  if [[ -e .venv && ! -e .venv/made-by-torchamp ]]; then
    [[ $(torch_version .venv/bin/python) == "$1" ]] ||
      fail "'.venv' is not of this script's making and has not PyTorch $1. Install that there, or move .venv away: it is made anew."
  elif [[ $(torch_version .venv/bin/python) != "$1" ]]; then
    owner=''
    for candidate in ${Torch_ROOT:+"$Torch_ROOT/../../../../bin/python"} "${VIRTUAL_ENV:-/}/bin/python" \
      ".deps/python-$1/bin/python" python3; do
      if [[ $(torch_version "$candidate") == "$1" ]]; then owner=$candidate; break; fi
    done
    if [[ -z $owner ]]; then
      need_python_torch "$1"
      owner=$python
    fi
    say "Making .venv, which borrows the PyTorch $1 of $owner"
    advise "The lines above name the reason. To begin anew: rm -r .venv"
    rm -rf .venv
    mkdir .venv
    touch .venv/made-by-torchamp  # first, so that what an interrupted run leaves is known too
    "$owner" -m venv --without-pip .venv
    "$owner" -c 'import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec("torch").origin).parent.parent)' \
      > "$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch-of-another.pth"
    .venv/bin/python -c 'import torch; torch.nn.Linear'
  fi
  python=$PWD/.venv/bin/python
}

packages_to_build=(g++ cmake ninja-build ccache ca-certificates python3 python3-pip
  libcli11-dev nlohmann-json3-dev zlib1g-dev dataset-fashion-mnist)
packages_to_test=(libgtest-dev libbenchmark-dev)

# The LibTorch that is fetched where none is found.
newest_libtorch() { sed -n 's/^set(TORCHAMP_LIBTORCH_VERSION \([0-9.]*\) .*/\1/p' cmake/LibTorchFetch.cmake; }

# Compilers that parse torch/torch.h take up to 2 GB each.
num_jobs() {
  local cores memory_jobs
  cores=$(nproc)
  memory_jobs=$(awk '/^MemAvailable/ {print int($2 / 2097152)}' /proc/meminfo)
  if ((memory_jobs < 1)); then memory_jobs=1; fi
  echo $((cores < memory_jobs ? cores : memory_jobs))
}

# build preset folder [configure options]
configure_and_build() {
  local preset=$1 folder=$2
  shift 2
  say "Configuring $folder${*:+ ($*)}"
  advise "CMake's message above says what to do. To begin anew: rm -r $folder"
  cmake --preset "$preset" -B "$folder" "$@" > "$folder.configure.log" 2>&1 ||
    { cat "$folder.configure.log" >&2; false; }
  grep -E 'LibTorch|passed over' "$folder.configure.log" || true
  say "Building $folder with $(num_jobs) jobs"
  advise "The compiler's message stands above. If it was killed, memory was short: run ninja -j1 -C $folder, then this command again."
  local status=0
  NINJA_STATUS="[%f/%t %es] " ninja -C "$folder" -j "$(num_jobs)" || status=$?
  case $status in
    0) ;;
    2 | 130) on_interrupt 130 ;;  # how ninja says that it was interrupted; a failure is 1
    *) return "$status" ;;
  esac
}

mkdir -p build
export CCACHE_DIR=${CCACHE_DIR:-$PWD/.ccache}
export CCACHE_SLOPPINESS=pch_defines,time_macros  # what a precompiled header needs
# One build's objects serve the others: paths in the clone count as relative, and whether a warning stops the compiler does not.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_IGNOREOPTIONS=${CCACHE_IGNOREOPTIONS:--Werror}
