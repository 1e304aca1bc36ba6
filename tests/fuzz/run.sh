#!/usr/bin/env bash
# Builds the fuzz targets with clang's sanitizers and runs each for a fixed number of executions; a fault ends with the path of
# the input that shows it.
#   tests/fuzz/run.sh [--runs N | --seconds S] [TARGET ...]      by default 30000 runs of fuzz_pt and 150000 of fuzz_safetensors
# What the runs find new is kept in build/fuzz/corpus, so that a long run goes on where the last one stopped.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/setup.sh

limit='' targets=()
while (($#)); do
  case $1 in
    --runs) limit=-runs=${2:?"--runs needs a number"}; shift ;;
    --seconds) limit=-max_total_time=${2:?"--seconds needs a number"}; shift ;;
    -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;;
    fuzz_pt | fuzz_safetensors) targets+=("$1") ;;
    *) fail "'$1' is neither an option (--runs N, --seconds S) nor a target (fuzz_pt, fuzz_safetensors)." 2 ;;
  esac
  shift
done
if ((${#targets[@]} == 0)); then targets=(fuzz_pt fuzz_safetensors); fi

folder=build/fuzz
clang=$(command -v clang++-14 || command -v clang++) ||
  fail "there is no clang++, whose libFuzzer runs the targets; install the Debian packages clang and libclang-rt-14-dev."
say "Building the fuzz targets with $clang"
advise "The messages stand above. If -lclang_rt is missing, install the Debian package libclang-rt-14-dev; to begin anew: rm -r $folder"
cmake -S tests/fuzz -B "$folder" -G Ninja "-DCMAKE_CXX_COMPILER=$clang" > "$folder.configure.log" 2>&1 ||
  { cat "$folder.configure.log" >&2; false; }
ninja -C "$folder" -j "$(num_jobs)" --quiet "${targets[@]}"

for target in "${targets[@]}"; do
  say "Fuzzing: $target"
  log=$folder/$target.log corpus=$folder/corpus/$target
  advise "The end of the log stands above, the whole is $log; repeat one input with: $folder/$target build/fuzz/$target-..."
  rm -rf "$folder/seeds/$target"
  python3 tests/fuzz/make_seeds.py "$target" "$folder/seeds/$target"
  mkdir -p "$corpus"
  runs=${limit:-$([[ $target == fuzz_pt ]] && echo -runs=30000 || echo -runs=150000)}
  # A single allocation, memory in all (LibTorch's start takes 300 MB, the sanitizer's quarantine 256), and time have bounds.
  "$folder/$target" "$runs" -timeout=10 -malloc_limit_mb=256 -rss_limit_mb=2048 -max_len=8192 -print_final_stats=1 \
    "-dict=tests/fuzz/$target.dict" "-artifact_prefix=$folder/$target-" "$corpus" "$folder/seeds/$target" > "$log" 2>&1 ||
    { grep -vE 'NEW|REDUCE|pulse|RELOAD' "$log" | tail -n 60 >&2; false; }
  grep -E '(INITED|DONE) ' "$log" | sed -E 's/ +lim:.*//'
  printf '%s: no fault in %s\n' "$target" "$(sed -n 's/^Done //p' "$log")"
done
