#!/usr/bin/env bash
# Times TorchAmp beside Python PyTorch of the same version and plain LibTorch, in turns in one run, and prints the ratios.
#   ./bench.sh [--work PATTERN] [--json FILE] [--libtorch VERSION] [--threads N] [--turns N]
# --work step/mlp/bf16, 'step/*/bf16' or phase: these works alone (all of them take about 20 minutes on 2 cores);
# --json also writes the figures to FILE, - writes them to the output instead of the table. Python PyTorch stands in .venv;
# where no Python at hand has it, it is installed into .deps, 4 GB, once, and LibTorch is taken from it.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source tools/setup.sh

version=$(sed -n 's/^set(TORCHAMP_LIBTORCH_VERSION \([0-9.]*\) .*/\1/p' cmake/LibTorchFetch.cmake)
if [[ -n ${Torch_ROOT:-} ]]; then  # the user's own: its version, as the wheel or the archive of LibTorch says it
  version=$({ sed -n "s/^__version__ = '\([0-9.]*[0-9]\).*/\1/p" "$Torch_ROOT/version.py" ||
    sed 's/+.*//' "$Torch_ROOT/build-version"; } 2> /dev/null) ||
    fail "No LibTorch was found in '$Torch_ROOT', which Torch_ROOT names. Unset it, and one is fetched."
fi
arguments=()
while (($#)); do
  case $1 in
    --work | --json | --threads | --turns) arguments+=("$1" "${2:?"$1 needs a value; --help tells which"}"); shift ;;
    --libtorch) version=${2:?"--libtorch needs a version, for example 2.11.0"}; unset Torch_ROOT; shift ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) fail "'$1' is not an option; --help lists them." 2 ;;
  esac
  shift
done
{
  need_packages "${packages_to_build[@]}"
  need_venv "$version"
  # torch.compile compiles against the header of the Python that runs it
  "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    need_packages python3-dev
  root=${Torch_ROOT:-$("$python" -c 'import torch; print(torch.__path__[0])')}
  configure_and_build release "build/bench-$version" -DTORCHAMP_BUILD_TESTS=OFF -DTORCHAMP_BUILD_CLI=OFF \
    -DTORCHAMP_BUILD_EXAMPLES=OFF "-DTorch_ROOT=$root"
  say "Measuring; for trustworthy figures nothing else should run on this machine"
  advise "The words above name the side that failed. A side that computes something else than the others fails too."
} >&2
"$python" bench/run.py --program "build/bench-$version/bench/bench_side" "${arguments[@]}"
