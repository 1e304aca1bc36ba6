#!/usr/bin/env python3
"""Times TorchAmp beside Python PyTorch and plain LibTorch, in turns, and prints the ratios; ./bench.sh calls it.

Each side is a process of its own that waits for orders. A turn is a few runs of one side, then of the next; whose turn
is first changes. Before a turn the threads of the side before have gone to sleep, which is checked by the processor time of
those who wait. The first run of a turn finds the caches full of another side's data and is not counted. All begin with
the same weights and data, bit for bit; what they arrive at is compared afterwards, and a side that is wrong fails the
whole. ratio = peer_ms / ours_ms of the medians: above 1, TorchAmp is faster.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import torch

import sides

ROOT = pathlib.Path(__file__).resolve().parent.parent
SLEEP_S = 0.05  # OpenMP's threads look for more work for a few milliseconds after the last, then sleep
IDLE_SHARE = 0.02  # of the time of the others, that a waiting side may compute


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


class Child:
    """A side as a process."""

    def __init__(self, command, environment):
        self.command = command
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.runs = []  # milliseconds, by turn
        self.counted = 0
        self.idle_s = 0.0
        self.cpu_at_rest = None

    def answer(self):
        line = self.process.stdout.readline().strip()
        if line in ("", "error"):
            raise RuntimeError(f"a side failed; its words stand above: {' '.join(map(str, self.command))}")
        return line

    def ask(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return self.answer()

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def turn(self, runs, counts):
        if self.cpu_at_rest is not None:
            self.idle_s += self.cpu_s() - self.cpu_at_rest
        times = [float(word) for word in self.ask(f"run {runs}").split()]
        time.sleep(SLEEP_S)
        self.cpu_at_rest = self.cpu_s()
        self.counted += runs
        if counts:
            self.runs.append(times[1:] if runs > 1 else times)

    def median(self):
        return statistics.median(ms for turn in self.runs for ms in turn)

    def spread(self):
        """Half the distance of the quartiles, as a part of the median."""
        times = [ms for turn in self.runs for ms in turn]
        if len(times) < 4:
            return 0.0
        low, _, high = statistics.quantiles(times, n=4)
        return (high - low) / 2 / statistics.median(times)

    def end(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def machine(arguments, libtorch):
    def first(path, key):
        for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
            if line.startswith(key):
                return line.split(":", 1)[1].strip()
        return "unknown"
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True,
                            check=False)
    return {"cpu": first("/proc/cpuinfo", "model name"), "family": first("/proc/cpuinfo", "cpu family"),
            "cores": len(os.sched_getaffinity(0)), "threads": arguments.threads,
            "capability": torch.backends.cpu.get_cpu_capability(), "memory": first("/proc/meminfo", "MemTotal"),
            "libtorch": libtorch, "pytorch": torch.__version__, "python": platform.python_version(),
            "commit": commit.stdout.strip() or "unknown", "date": time.strftime("%Y-%m-%d %H:%M")}


class Comparison:
    """One work: its sides, turn by turn."""

    def __init__(self, work, arguments, folder):
        self.work, self.arguments = work, arguments
        self.start = folder / (work.name.replace("/", "-") + ".pt")
        self.folder = folder
        self.environment = dict(os.environ, OMP_NUM_THREADS=str(arguments.threads),
                                KINETO_LOG_LEVEL="99",  # else the profiler tells of its comings and goings
                                TORCHINDUCTOR_CACHE_DIR=str(arguments.program.parent / "inductor"))

    def command(self, spec, **more):
        settings = {**self.work.settings, **spec.settings, "start": self.start, "threads": self.arguments.threads, **more}
        words = [f"{name}={value}" for name, value in settings.items()]
        if spec.program == "c++":
            return [self.arguments.program, *words]
        return [sys.executable, sides.PEERS / spec.program, *words]

    def peak_bytes(self, spec):
        if spec.is_memory or self.work.slow:
            return None
        done = subprocess.run(self.command(spec, mode="peak"), env=self.environment, stdout=subprocess.PIPE, text=True,
                              check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the memory of '{spec.name or 'ours'}' could not be measured; its words stand above")
        return int(done.stdout.split()[-1])

    def run(self):
        """The rows of this work."""
        work = self.work
        ours = sides.SideSpec("", "c++", {"side": "ours"})
        subprocess.run(self.command(ours, mode="start"), env=self.environment, check=True)
        say(f"{work.name}: memory of {len(work.sides)} sides")
        peaks = {spec.name: self.peak_bytes(spec) for spec in work.sides}
        children = {}
        try:
            for spec in work.sides:
                children[spec.name] = Child(self.command(spec), self.environment)
                children[spec.name].answer()
            if not work.slow:
                self.warm_up(list(children.values()))
                if work.is_step:  # after few runs: later the same rounding errors have led each side elsewhere
                    self.check_results(children, with_weights=True)
            self.take_turns(list(children.values()))
            self.check_idle(children)
            self.check_results(children, with_weights=work.slow)
            share_runs = 1 if work.slow else max(3, work.runs)
            shares = {spec.name: float(children[spec.name].ask(f"share {share_runs}")) if work.is_step else None
                      for spec in work.sides if spec.is_ours}
        finally:
            for child in children.values():
                child.end()
            self.start.unlink(missing_ok=True)
        return self.rows(children, peaks, shares)

    def warm_up(self, children):
        for child in children:
            child.turn(self.work.runs + 1, counts=False)

    def take_turns(self, children):
        runs, turns = self.work.runs, self.arguments.turns or self.work.turns
        if self.work.slow:
            turns = self.work.turns
        say(f"{self.work.name}: {turns} turns of {runs} runs, {len(children)} sides")
        more = 0 if self.work.slow else 1  # the first of a turn, not counted
        for turn in range(turns):
            first = turn % len(children)
            for child in children[first:] + children[:first]:
                child.turn(runs + more, counts=True)

    def check_idle(self, children):
        busy = sum(sum(map(sum, child.runs)) for child in children.values()) / 1000 * self.arguments.threads
        for name, child in children.items():
            if child.idle_s > IDLE_SHARE * busy + 0.05:
                raise RuntimeError(f"{self.work.name}: '{name or 'ours'}' computed for {child.idle_s:.2f} s while others "
                                   f"had their turn ({busy:.1f} s of processor time in all)")

    def check_results(self, children, with_weights):
        results = {}
        for spec in self.work.sides:
            if spec.checked != "nothing":
                file = self.folder / "result.pt"
                children[spec.name].ask(f"save {file}")
                results[spec.name] = torch.load(file, weights_only=True)
                file.unlink()
        for child in children.values():
            child.cpu_at_rest = child.cpu_s()  # saving is not idling
        start = torch.load(self.start, weights_only=True)
        for spec in self.work.sides:
            if spec.name == "" or spec.name not in results:
                continue
            if self.work.is_step:
                problem = sides.compare_steps(results[""], results[spec.name], start, spec.checked == "first",
                                              with_weights)
            else:
                problem = sides.compare_phases(results[""], results[spec.name], children[""].counted)
            if problem:
                raise RuntimeError(f"{self.work.name}: ours and '{spec.name}' do not do the same: {problem}")

    def rows(self, children, peaks, shares):
        rows = []
        for ours in (spec for spec in self.work.sides if spec.is_ours):
            own = children[ours.name]
            for peer in (spec for spec in self.work.sides if not spec.is_ours and spec.is_peer_of(ours)):
                other = children[peer.name]
                name, peer_ms = self.work.name + ours.name, other.median()
                scale = 1.0
                if peer.is_memory:
                    name = name.replace("optimizer", "bandwidth")
                if peer.name == "mul_":  # the time that memory takes for the bytes of the phase
                    per_parameter = sides.BYTES[ours.name.removesuffix("/ieee")]
                    scale = per_parameter * sides.SIZES[self.work.settings["size"]] / 512e6
                row = {"work": name, "ours_ms": round(own.median(), 4), "peer": peer.name.split("/", maxsplit=1)[0],
                       "peer_ms": round(peer_ms * scale, 4),
                       "ratio": round(peer_ms * scale / own.median(), 4), "peak_bytes": peaks[ours.name],
                       "peer_peak_bytes": peaks[peer.name], "matrix_share": shares[ours.name]}
                turns = sorted(scale * statistics.median(b) / statistics.median(a) for a, b in zip(own.runs, other.runs))
                show(row, own.spread(), other.spread(), turns)
                rows.append(row)
        if "mul_" in children:
            speed = 512e6 / children["mul_"].median() / 1e6
            print(f"{'':36} memory: {speed:.1f} GB/s in an in-place mul_ over 256 MB", flush=True)
        return rows


def show_head():
    print(f"{'work':36} {'peer':16} {'ours ms':>9} {'':>5} {'peer ms':>9} {'':>5} {'ratio':>7}  {'turns':13} {'asked':>6}  "
          f"{'peak MiB':>15} {'part':>6}  matrix", flush=True)


def show(row, spread, peer_spread, turns):
    key = (row["work"], row["peer"])
    asked = sides.ASKED.get(key)
    low, high = turns[len(turns) // 4], turns[(3 * len(turns)) // 4]
    text = f"{row['work']:36} {row['peer']:16} {row['ours_ms']:9.3f} {spread:5.1%} {row['peer_ms']:9.3f} {peer_spread:5.1%} "
    text += f"{row['ratio']:6.2f}x  {low:5.2f}..{high:5.2f}  {f'{asked}x' if asked else '':>6}  "
    if row["peak_bytes"] and row["peer_peak_bytes"]:
        text += f"{row['peak_bytes'] / 2**20:7.1f} {row['peer_peak_bytes'] / 2**20:7.1f} "
        text += f"{row['peak_bytes'] / row['peer_peak_bytes']:5.3f}x"
    else:
        text += " " * 22
    print(text + (f"  {row['matrix_share']:.2f}" if row["matrix_share"] is not None else ""), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--program", type=pathlib.Path, required=True, help="the built bench_side")
    parser.add_argument("--work", default="", metavar="PATTERN",
                        help="which works: phase, 'step/mlp/*', ...; by default all but those that are very slow here")
    parser.add_argument("--json", metavar="FILE",
                        help="also write the rows to this file; - prints them instead of the table")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=0, help="of each side; by default 12 to 20")
    arguments = parser.parse_args()
    arguments.program = arguments.program.resolve()
    works = [work for work in sides.all_works() if not arguments.work or sides.matches(work.name, arguments.work)]
    if arguments.work:
        works += [work for work in sides.more_works() if sides.matches(work.name, arguments.work)]
    if not works:
        names = ", ".join(work.name for work in sides.all_works() + sides.more_works())
        sys.exit(f"bench: [--work] nothing is called '{arguments.work}'; there are {names}.")
    if arguments.json not in (None, "-"):
        folder = pathlib.Path(arguments.json).parent
        if not folder.is_dir():
            sys.exit(f"bench: [--json] '{arguments.json}' cannot be written: there is no folder '{folder}'.")
    done = subprocess.run([arguments.program, "mode=version"], stdout=subprocess.PIPE, text=True, check=True)
    libtorch = done.stdout.strip()
    if torch.__version__.split("+", maxsplit=1)[0] != libtorch:
        sys.exit(f"bench: LibTorch is {libtorch} and Python's PyTorch {torch.__version__}; the same version is needed.")
    if sides.why_not_compile():
        say(f"pytorch-compile is left out: {sides.why_not_compile()}")
    report = {"machine": machine(arguments, libtorch), "rows": []}
    table = sys.stdout
    if arguments.json == "-":
        sys.stdout = sys.stderr
    print(json.dumps(report["machine"]))
    show_head()
    with tempfile.TemporaryDirectory(prefix="torchamp-bench-") as folder:
        for work in works:
            if work.slow and arguments.work != work.name:
                say(f"{work.name} is left out: {work.slow}; --work {work.name} runs it")
                continue
            report["rows"] += Comparison(work, arguments, pathlib.Path(folder)).run()
    text = json.dumps(report, indent=1) + "\n"
    if arguments.json == "-":
        table.write(text)
    elif arguments.json:
        pathlib.Path(arguments.json).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, subprocess.CalledProcessError) as error:
        sys.exit(f"bench: {error}")
