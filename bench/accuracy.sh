#!/usr/bin/env bash
# Does mixed precision cost accuracy? Trains the cnn on Fashion-MNIST in each precision from each seed with
# `torchamp train` and compares the mean validation accuracies: 16-bit within 0.5 points of fp32, and fp32 at least 88%.
#   bench/accuracy.sh [--command build/release/torchamp] [--seeds "0 1 2"] [--precisions "fp32 bf16 fp16"] [--epochs 1]
#                     [--result FILE.md] [-- more options of torchamp train]
# The verdict is the exit code, 0 or 1. One core without fp16 arithmetic takes about four minutes.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command=build/release/torchamp seeds='0 1 2' precisions='fp32 bf16 fp16' epochs=1 result='' more=()
while (($#)); do
  case $1 in
    --command) command=${2:?} ;;
    --seeds) seeds=${2:?} ;;
    --precisions) precisions=${2:?} ;;
    --epochs) epochs=${2:?} ;;
    --result) result=${2:?} ;;
    --) shift; more=("$@"); break ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "accuracy.sh: '$1' is not an option; --help lists them." >&2; exit 2 ;;
  esac
  shift 2
done
[[ -x $command ]] || { echo "accuracy.sh: there is no '$command'; build it with ./quickstart.sh or name it with --command." >&2; exit 2; }

options=(--model cnn --data fashion-mnist --epochs "$epochs" --batch 64 --optimizer adamw --lr 0.002 --warmup-steps 20 "${more[@]}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

field() {  # field NAME FILE: the value in the last epoch's object
  tail -n 1 "$2" | sed -nE "s/.*\"$1\": ?([^,}]*).*/\1/p"
}

for seed in $seeds; do  # precisions in turn, so that a busy hour of the machine falls on all of them
  for precision in $precisions; do
    echo "== $precision, seed $seed"
    "$command" train "${options[@]}" --precision "$precision" --seed "$seed" --json "$folder/$precision-$seed.json"
    printf '%s %s %s %s %s\n' "$precision" "$seed" "$(field val_accuracy "$folder/$precision-$seed.json")" \
      "$(field skipped_steps "$folder/$precision-$seed.json")" "$(field examples_per_s "$folder/$precision-$seed.json")" >> "$folder/all"
  done
done

table() {
  awk -v precisions="$precisions" -v seeds="$seeds" '
    { accuracy[$1, $2] = 100 * $3; sum[$1] += 100 * $3; count[$1]++; skipped[$1] += $4; rate[$1] += $5 }
    END {
      n = split(seeds, seed, " "); m = split(precisions, name, " ")
      line = "| precision |"; rule = "|---|"
      for (j = 1; j <= n; j++) { line = line " seed " seed[j] " |"; rule = rule "---|" }
      print line " mean | against fp32 | skipped steps | examples/s |"; print rule "---|---|---|---|"
      for (i = 1; i <= m; i++) {
        p = name[i]; mean[p] = sum[p] / count[p]; line = "| " p " |"
        for (j = 1; j <= n; j++) line = line sprintf(" %.2f |", accuracy[p, seed[j]])
        difference = ("fp32" in mean) ? sprintf("%+.2f", mean[p] - mean["fp32"]) : "-"
        printf "%s %.2f | %s | %d | %.0f |\n", line, mean[p], difference, skipped[p], rate[p] / count[p]
        if (p != "fp32" && ("fp32" in mean) && (mean[p] - mean["fp32"] > 0.5 || mean["fp32"] - mean[p] > 0.5)) bad = bad " " p " is more than 0.5 points from fp32."
      }
      if (("fp32" in mean) && mean["fp32"] < 88) bad = bad " fp32 is below 88%."
      print ""; print "Verdict: " (bad == "" ? "passed: fp32 at least 88%, 16-bit within 0.5 points of it." : "failed:" bad)
    }' "$folder/all"
}

table > "$folder/table"
cat "$folder/table"
if [[ -n $result ]]; then
  {
    echo "# Validation accuracy (%) of the cnn on Fashion-MNIST by precision"
    echo
    cat "$folder/table"
    echo
    echo "Command: \`bench/accuracy.sh --seeds \"$seeds\" --precisions \"$precisions\" --epochs $epochs${more[*]:+ -- ${more[*]}}\`, each run \`torchamp train ${options[*]}\`."
    echo "Commit: $(git rev-parse --short HEAD 2> /dev/null || echo unknown). Date: $(date -u +%Y-%m-%d)."
    echo
    echo '```'
    "$command" info
    echo '```'
  } > "$result"
fi
grep -q '^Verdict: passed' "$folder/table"
