#!/usr/bin/env python3
"""clang-tidy over the library, in parallel; with --all over models, cli, bench and examples too. LibTorch's headers make a
file take some seconds, torch/torch.h (which the library never includes) more, so a clean result is remembered (build/tidy/clean) under a hash of the file, of every header of ours that
it reaches and of the configuration; only what changed is looked at again.

usage: tools/tidy.py [--all] [--jobs N] [--command clang-tidy] [FILE ...]      needs build/tidy/compile_commands.json (cmake --preset tidy)
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "tidy"
LIBRARY = ("torchamp",)
PROGRAMS = ("models", "cli", "bench", "examples")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def installed_command():
    """The clang-tidy that tools/setup.sh installed; else the one on PATH, which must know the options of .clang-tidy."""
    found = sorted(ROOT.glob(".deps/clang-tidy-*/clang_tidy/data/bin/clang-tidy"))
    return str(found[-1]) if found else "clang-tidy"


def reached(path, seen):
    """The file and every header of ours that it includes, directly or not."""
    if path in seen or not path.is_file():
        return seen
    seen.add(path)
    for name in INCLUDE.findall(path.read_text(errors="replace")):
        for base in (ROOT, path.parent, BUILD / "generated"):
            if (base / name).is_file():
                reached(base / name, seen)
                break
    return seen


def fingerprint(path, command, version):
    digest = hashlib.sha256()
    for part in (version, command, (ROOT / ".clang-tidy").read_text()):
        digest.update(part.encode())
    for file in sorted(reached(path, set())):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--command", default=installed_command())
    parser.add_argument("--all", action="store_true")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    folders = LIBRARY + PROGRAMS if options.all or options.files else LIBRARY
    wanted = {pathlib.Path(name).resolve() for name in options.files}
    version = subprocess.run([options.command, "--version"], capture_output=True, text=True, check=True).stdout
    clean = BUILD / "clean"
    clean.mkdir(parents=True, exist_ok=True)

    work = []
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        if BUILD in path.parents or ROOT not in path.parents or path.relative_to(ROOT).parts[0] not in folders:
            continue
        if wanted and path not in wanted:
            continue
        mark = clean / fingerprint(path, entry["command"], version)
        if wanted or not mark.exists():
            work.append((path, mark))
    print(f"clang-tidy: {len(work)} files", flush=True)

    # g++'s warning options are in the compile commands, and clang does not know them all; the package has no omp.h, which
    # LibTorch includes.
    openmp = BUILD / "openmp" / "omp.h"
    openmp.parent.mkdir(exist_ok=True)
    header = subprocess.run(["g++", "-print-file-name=include/omp.h"], capture_output=True, text=True, check=True).stdout.strip()
    openmp.unlink(missing_ok=True)
    openmp.symlink_to(header)
    call = [options.command, "-p", str(BUILD), "--quiet", "--extra-arg=-Wno-unknown-warning-option",
            f"--extra-arg=-isystem{openmp.parent}"]

    def check(item):
        path, mark = item
        run = subprocess.run(call + [str(path)], capture_output=True, text=True)
        if run.returncode == 0:
            mark.touch()
            return ""
        return run.stdout or run.stderr

    failed = False
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for (path, _), output in zip(work, pool.map(check, work)):
            if output:
                failed = True
                print(f"{path.relative_to(ROOT)}:\n{output}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
