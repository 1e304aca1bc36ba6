#!/usr/bin/env python3
"""Fails when an object that was compiled for one instruction set shares a symbol with other objects.

A weak symbol (an inline function, a template) of such an object may be the copy that the linker keeps for everyone; a CPU
without the instructions then dies far from the kernels. Only the kernel table itself may be visible.

usage: tools/isa_symbols.py OBJECT...                       objects of torchamp/kernels/cpu; those for every CPU are left out
       tools/isa_symbols.py --compile COMPILE_COMMANDS      compiles each file for an instruction set itself, -O0 to -O3
"""
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

FOR_EVERY_CPU = {"attention", "scalar", "table", "transpose"}
LEVELS = ["-O0", "-O0 -g", "-O1", "-O3"]


def isa_of(path):
    """avx2 for avx2.cpp, avx2.cpp.o and avx2.o; None for what runs on every CPU."""
    stem = pathlib.Path(path).name.split(".")[0]
    return None if stem in FOR_EVERY_CPU else stem


def shared_symbols(object_file, isa):
    """Symbols that `object_file` defines for others, beside its table."""
    table = f"torchamp::kernels::{isa}_table"
    listing = subprocess.run(["nm", "--demangle", "--defined-only", str(object_file)], check=True, capture_output=True,
                             text=True).stdout
    shared = []
    for line in listing.splitlines():
        kind, name = line.split(maxsplit=2)[1:]
        # Lower case is local, but for u (unique), v and w (weak) and i (chosen at load).
        if (kind.isupper() or kind in "uvwi") and not (kind in "DR" and name == table):
            shared.append(f"{kind} {name}")
    return shared


def compile_and_list(command, folder, source, object_file, level):
    arguments = [argument for argument in shlex.split(command) if not argument.startswith("-O")]
    arguments[arguments.index("-o") + 1] = str(object_file)
    arguments[arguments.index("-c") + 1] = str(source)
    subprocess.run(arguments + shlex.split(level), cwd=folder, check=True)
    return shared_symbols(object_file, isa_of(source))


def entries_for_isa(compile_commands):
    for entry in json.loads(pathlib.Path(compile_commands).read_text()):
        if "torchamp/kernels/cpu/" in entry["file"] and isa_of(entry["file"]):
            yield entry


def check_compiled(compile_commands):
    entries = list(entries_for_isa(compile_commands))
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        for entry in entries:
            for level in LEVELS:
                target = pathlib.Path(folder) / "kernel.o"
                for symbol in compile_and_list(entry["command"], entry["directory"], entry["file"], target, level):
                    errors.append(f"{isa_of(entry['file'])}.cpp with {level}: {symbol}")
        if entries:  # the check itself: an inline function must be found
            bad = pathlib.Path(folder) / "bad.cpp"
            bad.write_text("inline int twice(int x) { return 2 * x; }\nint (*use)(int) = twice;\n")
            found = compile_and_list(entries[0]["command"], entries[0]["directory"], bad, target, "-O0")
            if not any("twice" in symbol for symbol in found):
                errors.append(f"the check is blind: an inline function gave {found}")
    return errors


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--compile":
        errors = check_compiled(sys.argv[2])
    elif len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        errors = [f"{path}: {symbol}" for path in sys.argv[1:] if isa_of(path)
                  for symbol in shared_symbols(path, isa_of(path))]
    else:
        print(__doc__.split("usage:")[1], file=sys.stderr)
        return 2
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
