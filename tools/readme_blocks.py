#!/usr/bin/env python3
"""Proves every code block of README.md: C++ and CMake blocks stand word for word in a file that the tests compile and run,
commands are run, and the scripts are those that CI runs.

Usage: readme_blocks.py SOURCE_DIR TORCHAMP_BINARY
"""
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"^(?:<!-- from (?P<file>\S+) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$", re.M | re.S)
SCRIPTS = {"./quickstart.sh", "./test.sh"}


def fail(text: str) -> None:
    sys.exit(f"[readme_blocks] {text}")


def check_quote(source: pathlib.Path, block: re.Match) -> None:
    name = block["file"]
    if not name:
        fail(f"a {block['language']} block names no file it is from:\n{block['body']}")
    lines = [line.strip() for line in (source / name).read_text().splitlines()]
    wanted = [line.strip() for line in block["body"].splitlines()]
    if not any(lines[i : i + len(wanted)] == wanted for i in range(len(lines))):
        fail(f"a block does not stand in {name} word for word:\n{block['body']}")
    if block["language"] == "cpp":
        example = pathlib.Path(name)
        if example.parent.name != "examples" or example.stem not in (source / "examples/CMakeLists.txt").read_text():
            fail(f"{name} is quoted, but examples/CMakeLists.txt does not build and run it.")


def check_commands(source: pathlib.Path, binary: str, body: str, folder: str) -> int:
    ran = 0
    ci = (source / ".ci/run").read_text()
    for line in body.splitlines():
        if line in SCRIPTS:
            if line not in ci:
                fail(f"{line} is in the README, but .ci/run does not run it.")
            continue
        words = shlex.split(line)
        if words[0] != "build/release/torchamp":
            fail(f"'{line}' is neither a script of this project nor the torchamp command.")
        done = subprocess.run([binary, *words[1:]], cwd=folder, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=600)
        if done.returncode != 0:
            fail(f"'{line}' ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        ran += 1
    return ran


def main() -> None:
    source, binary = pathlib.Path(sys.argv[1]), sys.argv[2]
    quoted = ran = 0
    with tempfile.TemporaryDirectory() as folder:
        for block in BLOCK.finditer((source / "README.md").read_text()):
            if block["language"] in ("cpp", "cmake"):
                check_quote(source, block)
                quoted += 1
            elif block["language"] == "sh":
                ran += check_commands(source, binary, block["body"], folder)
            elif block["language"] != "text":
                fail(f"a block of language '{block['language']}' is proved by nothing:\n{block['body']}")
    if not quoted or not ran:
        fail(f"found {quoted} quoted blocks and {ran} commands; there should be some of each.")
    print(f"{quoted} quoted blocks, {ran} commands run")


if __name__ == "__main__":
    main()
