#!/usr/bin/env python3
"""Runs `torchamp bench` and bench/peers/step.py in alternation and prints the ratio of their steps.

Both run on this machine with the same threads and sizes; the two take turns, so that a slow minute of a shared machine
falls on both. What follows -- goes to both.

    python bench/compare_python.py --command build/release/torchamp --turns 3 -- --model mlp --precision fp32,bf16 --rounds 10
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

PEER = pathlib.Path(__file__).resolve().parent / "peers" / "step.py"


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"compare_python: {' '.join(map(str, command))} ended with code {done.returncode}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--command", default="build/release/torchamp", help="the torchamp command")
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--turns", type=int, default=3, help="runs of each side")
    parser.add_argument("--unfused", action="store_true", help="Python's optimizer with fused=False")
    parser.add_argument("options", nargs="*", help="after --: options of torchamp bench and of step.py")
    arguments = parser.parse_args()
    if not any(option.startswith("--rounds") for option in arguments.options):
        arguments.options += ["--rounds", "10"]  # else torchamp bench chooses by time and step.py does not
    sides = {"torchamp": [arguments.command, "bench", "--json", "-", *arguments.options],
             "python": [arguments.python, PEER, *arguments.options, *(["--no-fused"] if arguments.unfused else [])]}
    reports = {side: [] for side in sides}
    for turn in range(arguments.turns):
        for side in sorted(sides, reverse=turn % 2 == 1):
            reports[side].append(run(sides[side]))
    first = reports["torchamp"][0]
    print(f"{first['model']}, batch {first['batch']}, {first['threads']} threads, LibTorch {first['machine']['libtorch']}, "
          f"Python torch {reports['python'][0]['torch']}, {arguments.turns} turns")
    print(f"{'':5} {'torchamp ms':>12} {'python ms':>10} {'python/torchamp':>16}   by least step   phases, torchamp | python")
    for i, result in enumerate(first["results"]):
        def over_turns(side, key):
            return [report["results"][i][key] for report in reports[side]]
        ours, theirs = (statistics.median(over_turns(side, "step_ms_median")) for side in ("torchamp", "python"))
        least = min(over_turns("python", "step_ms_min")) / min(over_turns("torchamp", "step_ms_min"))
        phases = " | ".join(
            ", ".join(f"{name} {statistics.median(p[name] for p in over_turns(side, 'phase_ms')):.1f}"
                      for name in ("data", "forward", "backward", "optimizer")) for side in ("torchamp", "python"))
        print(f"{result['precision']:5} {ours:12.1f} {theirs:10.1f} {theirs / ours:15.2f}x {least:14.2f}x   {phases}")


if __name__ == "__main__":
    main()
