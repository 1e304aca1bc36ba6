"""Times checkpoints: python bench/checkpoint_io.py --program build/release/bench/checkpoint_io [--folder DIR]
[--mebibytes 1024] [--turns 5]

Saving: TorchAmp (with fsync and checksums) beside `cp A B && sync B` and Python's torch.save with fsync. Loading: everything,
and mapped, beside torch.load, from a warm page cache. All sides take turns in one run, in an order that moves on each turn;
a figure is the median, the spread its quartiles. Saved files are checked against each other after timing.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--program", required=True, help="the C++ side, built from bench/checkpoint_io.cpp")
parser.add_argument("--folder", help="where files are written: the disk that is measured (default: a temporary folder here)")
parser.add_argument("--mebibytes", type=int, default=1024, help="size of the state (default 1024)")
parser.add_argument("--turns", type=int, default=5, help="turns of all sides (default 5)")
options = parser.parse_args()
torch.set_num_threads(os.cpu_count())


class Side:
    """The C++ program: a command, the seconds it took."""

    def __init__(self):
        self.process = subprocess.Popen([options.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, command):
        print(command, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"checkpoint_io.py: '{command}' failed; its words stand above")
        return float(answer)


def timed(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def torch_save(state, path):
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def measure(folder, count, cpp):
    cpp(f"state {options.mebibytes} {count}")
    reference, path = folder / "reference.pt", folder / "written.pt"
    cpp(f"save {reference}")
    state = torch.load(reference, weights_only=True)
    loaded = []

    def load(mmap):
        seconds = timed(lambda: loaded.append(torch.load(reference, weights_only=True, mmap=mmap)))
        loaded.clear()
        return seconds

    def fresh(work):  # nothing stands there, and nothing waits to be written
        path.unlink(missing_ok=True)
        os.sync()
        return work()

    saving = {
        "TorchAmp save": lambda: fresh(lambda: cpp(f"save {path}")),
        "cp && sync": lambda: fresh(lambda: timed(
            lambda: subprocess.run(f"cp '{reference}' '{path}' && sync '{path}'", shell=True, check=True))),
        "torch.save + fsync": lambda: fresh(lambda: timed(lambda: torch_save(state, path))),
        "TorchAmp in the background, held": lambda: fresh(lambda: cpp(f"hold {path}")),
        "memcpy of the state": lambda: cpp("copy"),
    }
    loading = {
        "TorchAmp load": lambda: cpp(f"load {reference}"),
        "torch.load": lambda: load(False),
        "TorchAmp mapped": lambda: cpp(f"open {reference}"),
        "torch.load mapped": lambda: load(True),
        "TorchAmp mapped, all checksums": lambda: cpp(f"open_verified {reference}"),
    }
    for title, sides, peers in (("save", saving, ("cp && sync", "torch.save + fsync", "memcpy of the state")),
                                ("load", loading, ("torch.load", "torch.load mapped"))):
        names, seconds = list(sides), {name: [] for name in sides}
        for turn in range(options.turns):
            for i in range(len(names)):
                name = names[(i + turn) % len(names)]
                seconds[name].append(sides[name]())
        print(f"\n{title}, {options.mebibytes} MiB in {count} tensors")
        print(f"{'':34}{'ms':>10}{'quartiles':>22}{'GB/s':>8}" + "".join(f"{'/ ' + p:>22}" for p in peers))
        for name in names:
            times = seconds[name]
            low, _, high = statistics.quantiles(times, n=4)
            ratios = "".join(
                f"{statistics.median(a / b for a, b in zip(times, seconds[p])):>22.3f}" for p in peers)
            middle = statistics.median(times)
            print(f"{name:34}{middle * 1e3:10.1f}{f'{low * 1e3:.1f} to {high * 1e3:.1f}':>22}"
                  f"{options.mebibytes * 1.048576e-3 / middle:8.2f}{ratios}")
    for file in (reference, path):
        file.unlink(missing_ok=True)


with tempfile.TemporaryDirectory(dir=options.folder or ".") as name:
    side = Side()
    for tensors in (400, 1):
        measure(pathlib.Path(name).resolve(), tensors, side)
