#!/usr/bin/env python3
"""Prints the ninja targets that compile a public header alone, for those that no build proves already.

A header that stands first in the source of its name is compiled as it is whenever the library is, which has no precompiled
header. What is left are headers without a source, and sources that begin with something else.

usage: tools/lone_headers.py BUILD      a configured build folder with the targets of all_verify_interface_header_sets
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = re.compile(r"^(\S*verify_interface_header_sets/(torchamp/\S+\.h)\.cxx\.o):", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)


def is_first_in_its_source(header):
    source = (ROOT / header).with_suffix(".cpp")
    first = INCLUDE.search(source.read_text()) if source.exists() else None
    return first is not None and first.group(1) == header


def main():
    if len(sys.argv) != 2:
        print(__doc__.split("usage:")[1], file=sys.stderr)
        return 2
    listing = subprocess.run(["ninja", "-C", sys.argv[1], "-t", "targets", "all"], check=True, capture_output=True, text=True)
    targets = TARGET.findall(listing.stdout)
    if not targets:
        print(f"{sys.argv[1]} has no targets that compile headers alone", file=sys.stderr)
        return 1
    for target, header in targets:
        if not is_first_in_its_source(header):
            print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
