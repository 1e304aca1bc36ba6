#!/usr/bin/env python3
"""Fails on an #include that points up. Each room may include only the rooms named beside it, and of LibTorch only what
its layer allows. The table is the one of ARCHITECTURE.md; a change of either changes both.

usage: tools/layers.py            (from anywhere in the source tree)
"""
import pathlib
import re
import sys

# room: what it may include. A string with a slash is a single header.
MAY_INCLUDE = {
    "base": set(),
    "kernels": set(),
    "multi_tensor": {"kernels", "base"},
    "ops": {"kernels", "base"},
    "nn": {"ops", "kernels", "base"},
    "checkpoint": {"base"},
    "amp": {"multi_tensor", "base"},
    "optim": {"amp/scaled_step.h", "multi_tensor", "kernels", "base"},
    "distributed": {"amp/grad_scaler.h", "multi_tensor", "base"},
    "observe": {"amp", "multi_tensor", "base"},
    "train": {"amp", "optim", "distributed", "observe", "ops", "checkpoint", "multi_tensor", "base"},
}
# Outside the library: which folders of ours, and whether the library's public headers (or all of them).
OUTSIDE = {
    "models": ({"models"}, None),
    "cli": ({"cli", "models"}, "public"),
    "examples": (set(), "public"),
    "bench": ({"bench", "models"}, "public"),
    "tests": ({"tests", "models", "cli"}, "all"),
}
# LibTorch headers that a room must not include, as a pattern, with the reason.
FORBIDDEN = {
    "kernels": (r"(torch|ATen|c10)/", "kernels know no torch"),
    "base": (r"torch/", "base stands on ATen and c10"),
    "multi_tensor": (r"torch/", "multi_tensor stands on ATen and c10"),
    "checkpoint": (r"torch/", "checkpoint knows only StateDict"),
}
UMBRELLA = (r"torch/torch\.h$|torch/extension\.h$", "it takes 14 s to parse; include the narrowest header")

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def public_headers():
    """Headers that a room's CMakeLists.txt lists in FILE_SET HEADERS, as they are included."""
    found = {"torchamp/torchamp.h", "torchamp/base/version.h"}
    for cmake in ROOT.glob("torchamp/**/CMakeLists.txt"):
        for block in re.findall(r"FILE_SET HEADERS([^)]*)\)", cmake.read_text()):
            for name in re.findall(r"[\w/.]+\.h\b", block):
                found.add((cmake.parent / name).relative_to(ROOT).as_posix())
    return found


def check_library(room, target):
    """What is wrong with the line `#include target` in a file of the library, or None."""
    parts = target.split("/")
    if parts[0] == "torchamp":
        if len(parts) < 3:
            return "the umbrella is for users"
        if parts[1] == room or parts[1] in MAY_INCLUDE[room] or "/".join(parts[1:]) in MAY_INCLUDE[room]:
            return None
        allowed = ", ".join(sorted(MAY_INCLUDE[room])) or "no other room"
        return f"{room} may include {allowed}"
    if parts[0] in OUTSIDE:
        return f"the library may not include {parts[0]}/"
    for pattern, reason in (UMBRELLA, FORBIDDEN.get(room)) if room in FORBIDDEN else (UMBRELLA,):
        if re.match(pattern, target):
            return reason
    return None


def check_outside(folder, target, public):
    parts = target.split("/")
    ours, library = OUTSIDE[folder]
    if parts[0] == "torchamp":
        if library is None:
            return f"{folder} knows torch only"
        if library == "public" and target not in public:
            return "this header is private to its room (not in a FILE_SET HEADERS)"
    elif parts[0] in OUTSIDE and "/" in target and parts[0] not in ours:
        return f"{folder} may include {', '.join(sorted(ours)) or 'none of the other folders'}"
    return None


def main():
    public = public_headers()
    errors = []
    for top in ["torchamp", *OUTSIDE]:
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix not in {".h", ".cpp", ".cu", ".cuh"} or not path.is_file():
                continue
            relative = path.relative_to(ROOT)
            text = path.read_text(errors="replace")
            for match in INCLUDE.finditer(text):
                target = match.group(2)
                if top != "torchamp":
                    error = check_outside(top, target, public)
                elif len(relative.parts) == 2:  # the umbrella itself
                    error = None if target in public else "the umbrella includes public headers only"
                elif relative.parts[1] not in MAY_INCLUDE:
                    error = f"{relative.parts[1]} is no room of the table in tools/layers.py"
                else:
                    error = check_library(relative.parts[1], target)
                if error:
                    line = text.count("\n", 0, match.start(2)) + 1
                    errors.append(f"{relative}:{line}: includes {target}: {error}")
    print("\n".join(errors), file=sys.stderr, end="\n" if errors else "")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
