#!/usr/bin/env bash
# From a fresh Debian or Ubuntu to numbers: installs what is missing, gets LibTorch, builds, measures fp32 against mixed
# precision on this machine, and trains on Fashion-MNIST both ways. About 10 minutes on 2 cores the first time.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source tools/setup.sh

usage="usage: ./quickstart.sh [--device cpu|cuda|cuda:N] [--build-only]"
device=cpu build_only='' epochs=6
while (($#)); do
  case $1 in
    --device) device=${2:?"$usage"}; shift ;;
    --build-only) build_only=yes ;;
    -h | --help) echo "$usage"; exit 0 ;;
    *) fail "'$1' is not an option. $usage" 2 ;;
  esac
  shift
done
options=(-DTORCHAMP_BUILD_TESTS=OFF -DTORCHAMP_BUILD_BENCH=OFF -DTORCHAMP_BUILD_EXAMPLES=OFF)
case $device in
  cpu) ;;
  cuda | cuda:[0-9]*) options+=(-DTORCHAMP_CUDA=ON) ;;
  *) fail "[--device] '$device' is not a device; cpu, cuda or cuda:N is accepted." 2 ;;
esac
begin=$SECONDS

need_packages "${packages_to_build[@]}"
configure_and_build release build/release "${options[@]}"
torchamp=$PWD/build/release/torchamp
if [[ -n $build_only ]]; then
  say "Built $torchamp in $((SECONDS - begin)) s"
  exit 0
fi

run() {  # shows the command, as a user would type it, and runs it
  printf '\n$ torchamp %s\n' "$*"
  "$torchamp" "$@"
}

say "What this machine can do"
run info

say "ResNet-18, 16 images of 3x224x224, in three precisions"
run bench --device "$device" --model resnet18 --batch 16 --precision fp32,bf16,fp16

say "MLP 1024-4096-4096-10, batch 256, in three precisions"
run bench --device "$device" --model mlp --batch 256 --precision fp32,bf16,fp16

amp=bf16
if [[ $device != cpu ]]; then amp=auto; fi  # older GPUs have no fast bf16: info names what auto takes
results=build/quickstart
mkdir -p "$results"
for precision in fp32 "$amp"; do
  say "Training the small CNN on Fashion-MNIST in $precision"
  rm -f "$results/$precision.json"
  run train --device "$device" --model cnn --data fashion-mnist --precision "$precision" --epochs "$epochs" --batch 128 \
    --lr 0.002 --warmup-steps 100 --schedule cosine --seed 1 --json "$results/$precision.json"
done

say "Accuracy on the 10,000 validation images after $epochs epochs"
last() { tail -n 1 "$results/$1.json" | grep -o "\"$2\": *[0-9.eE+-]*" | sed 's/.*: *//'; }
for precision in fp32 "$amp"; do
  printf '%-5s  %6.2f %%  %8.0f examples/s\n' "$precision" \
    "$(awk "BEGIN {print 100 * $(last "$precision" val_accuracy)}")" "$(last "$precision" examples_per_s)"
done
awk -v fp32="$(last fp32 val_accuracy)" -v amp="$(last "$amp" val_accuracy)" 'BEGIN {
  points = 100 * (amp - fp32)
  verdict = (points <= 0.5 && points >= -0.5) ? "within half a point, as it should be" : \
    "more than half a point: one seed and a short run scatter by about that; train longer, or with other seeds"
  printf "Mixed precision is %+.2f points from fp32: %s.\n", points, verdict
}'
printf '\nDone in %d min %d s. The command is build/release/torchamp; ./test.sh runs the tests.\n' $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60))
