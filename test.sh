#!/usr/bin/env bash
# Builds TorchAmp with its tests and runs all of them. The last line is ctest's summary.
#   ./test.sh [--libtorch VERSION] [--python] [--sanitize] [ctest options, for example -L slow or -R GradScaler]
# --libtorch 2.11.0 fetches that LibTorch and builds against it in a folder of its own; --python compares with Python
# PyTorch as the tests run (label live) and installs it into .deps, 4 GB, once; --sanitize builds our code with
# AddressSanitizer and UndefinedBehaviorSanitizer.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source tools/setup.sh

preset=test folder=build/test options=() with_python=
version=$(newest_libtorch)
while (($#)); do
  case $1 in
    --libtorch)
      version=${2:?"--libtorch needs a version, for example 2.11.0"}
      folder=build/test-$version
      options+=("-DTORCHAMP_LIBTORCH_VERSION=$version" -DTORCHAMP_FETCH_LIBTORCH=ON)
      shift 2 ;;
    --python) with_python=yes; shift ;;
    --sanitize) preset=dev folder=build/dev; shift ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) break ;;
  esac
done

need_packages "${packages_to_build[@]}" "${packages_to_test[@]}"
if [[ -n $with_python ]]; then
  need_python_torch "$version"
  options+=("-DTORCHAMP_PYTHON_WITH_TORCH=$python")
fi
configure_and_build "$preset" "$folder" "${options[@]}"

say "Running the tests in $folder"
advise "The failed tests are listed above; run one alone with: ctest --test-dir $folder --output-on-failure -R NAME"
ctest --test-dir "$folder" --output-on-failure --no-label-summary --no-tests=error -j "$(nproc)" "$@" 2>&1 | tee "$folder/ctest.log"
printf '\n'
grep -E '^[0-9]+% tests passed' "$folder/ctest.log" | tail -n 1
