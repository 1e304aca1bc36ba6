#!/usr/bin/env python3
"""Writes op_table_<version>.json: what every op of the running LibTorch's autocast lists does in every kind of region.

  python make_op_table.py FOLDER       takes a few seconds; tests/parity/op_table_test.cpp runs the same calls

Rows: every op that is registered on AutocastCPU or AutocastCUDA and runs on a CPU, and some on neither list (op_recipes.py;
an op without a recipe is an error). Cells of a row, joined by blanks: for each region dtype (bfloat16, float16), each
region of REGIONS, each choice of input dtypes of INPUTS. A cell is the dtypes of the results, a bar, and the dtypes of the
gradients of the floating inputs, one letter each (LETTERS; "-" for none), as in "bl|ff"; an error is "!" and the number
of its text's first line in "errors", before the bar for the op and after it for its backward pass.

"cuda" has the rule of each op on AutocastCUDA's list, as ATen/autocast_mode.h names it, and the result dtypes that this
rule asks for in an enabled region, found by casting the arguments by hand on a CPU; where there is no kernel for CPUs,
only the dtype of the first result, of float32 inputs, is given: "own", the region's.
"""

import contextlib
import json
import os
import pathlib
import re
import sys
import warnings

import torch

from fingerprint import fingerprint
from op_recipes import CPU, CUDA, CUDA_ONLY, UNLISTED, arguments, overload

LETTERS = {torch.float32: "f", torch.bfloat16: "b", torch.float16: "h", torch.float64: "d", torch.complex64: "C",
           torch.complex128: "Z", torch.complex32: "c", torch.int64: "l", torch.int32: "i", torch.uint8: "B", torch.bool: "o"}
DTYPES = ("bfloat16", "float16")
# From the outermost inwards: the region's dtype or the other 16-bit one, enabled or not.
REGIONS = {"enabled": [("own", True)], "disabled": [("own", False)], "enabled_in_other": [("other", True), ("own", True)],
           "enabled_in_disabled": [("own", False), ("own", True)], "disabled_in_enabled": [("own", True), ("own", False)]}
# The first floating tensor, the others. With one floating tensor the mixtures are left out.
INPUTS = {"float32": ("float32", "float32"), "own": ("own", "own"), "other": ("other", "other"),
          "float64": ("float64", "float64"), "own_float32": ("own", "float32"), "float64_float32": ("float64", "float32")}
MIXTURES = ("own_float32", "float64_float32")
# Rules that the header has no macro for.
OTHER_RULES = {"binary_cross_entropy": "banned", "linalg_matrix_sqrth": "fp32", "_cudnn_rnn": "lower_precision_fp",
               "cudnn_convolution": "lower_precision_fp", "cudnn_convolution_transpose": "lower_precision_fp"}


def registered(key):
    names = {name.partition("::")[2] for name in torch._C._dispatch_get_registrations_for_dispatch_key(key)}
    return sorted(names)


@contextlib.contextmanager
def silence():
    """Drops what LibTorch itself writes to stderr: its words about deprecated ops do not pass through Python."""
    before = os.dup(2)
    with open(os.devnull, "w", encoding="ascii") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


class Errors:
    def __init__(self):
        self.texts = []

    def number(self, error):
        line = str(error).split("\n")[0]
        if line not in self.texts:
            self.texts.append(line)
        return f"!{self.texts.index(line)}"


def resolve(word, own):
    other = DTYPES[1 - DTYPES.index(own)]
    return getattr(torch, {"own": own, "other": other}.get(word, word))


def tensors(results):
    return results if isinstance(results, (tuple, list)) else [results]


def letters(values):
    return "".join("-" if value is None else LETTERS[value.dtype] for value in values
                   if value is None or isinstance(value, torch.Tensor))


class Regions:
    def __init__(self, stack, own):
        self.regions = [torch.autocast("cpu", resolve(dtype, own), enabled) for dtype, enabled in stack]

    def __enter__(self):
        for region in self.regions:
            region.__enter__()

    def __exit__(self, *what):
        for region in reversed(self.regions):
            region.__exit__(*what)


def cell(name, recipe, stack, own, inputs, errors):
    positional, named, leaves = arguments(recipe, [resolve(word, own) for word in inputs])
    try:
        with Regions(stack, own):
            results = tensors(overload(name)(*positional, **named))
    except Exception as error:
        return errors.number(error)
    text = letters(results)
    roots = [value for value in results if isinstance(value, torch.Tensor) and value.requires_grad]
    if not roots:
        return text
    try:
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    except Exception as error:
        return f"{text}|{errors.number(error)}"
    return f"{text}|{letters(leaf.grad for leaf in leaves)}"


def choices(recipe):
    _, _, leaves = arguments(recipe, [torch.float32] * 2)
    return [key for key in INPUTS if len(leaves) > 1 or key not in MIXTURES]


def header_rules():
    """From ATen/autocast_mode.h: AT_FORALL_FP32(_) _(name) _(name, overload) ..."""
    text = (pathlib.Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text(encoding="ascii")
    macros = {"LOWER_PRECISION_FP": "lower_precision_fp", "FP32": "fp32", "FP32_SET_OPT_DTYPE": "fp32_set_opt_dtype",
              "PROMOTE": "promote"}
    rules = {}
    for macro, rule in macros.items():
        body = re.search(rf"#define AT_FORALL_{macro}\(_\)((?:.*\\\n)*.*\n)", text)[1]
        for name, kind in re.findall(r"_\((\w+)(?:, (\w+))?\)", body):
            rules[f"{name}.{kind}" if kind else name] = rule
    body = re.search(r"#define AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE\(_\)((?:.*\\\n)*.*\n)", text)[1]
    for name in re.findall(r'"([\w.]+)"', body):
        rules[name] = "fp32_append_dtype"
    return rules


def by_rule(name, recipe, rule, own, inputs):
    """The result dtypes, as letters, that `rule` asks for in an enabled region; None where the call is an error."""
    low = getattr(torch, own)
    positional, named, leaves = arguments(recipe, [resolve(word, own) for word in inputs])
    eligible = [leaf for leaf in leaves if leaf.dtype != torch.float64]
    if rule == "promote":
        if any(leaf.dtype not in (low, torch.float32) for leaf in eligible):
            return None
        to = torch.float32 if any(leaf.dtype == torch.float32 for leaf in eligible) else low
    else:
        to = {"lower_precision_fp": low, "fp32": torch.float32}.get(rule)

    def cast(value):
        if isinstance(value, list):
            return [cast(item) for item in value]
        return value.to(to) if to and any(value is leaf for leaf in eligible) else value

    positional, named = cast(positional), {key: cast(value) for key, value in named.items()}
    first = any(leaves[0] is leaf for leaf in eligible)
    given = any(isinstance(value, torch.dtype) for value in [*positional, *named.values()])
    try:
        results = tensors(overload(name)(*positional, **named))
    except Exception:
        return None
    if first and rule == "fp32_append_dtype" or first and rule == "fp32_set_opt_dtype" and not given:
        return "f" * len(results)
    return letters(results)


def cuda_rows():
    rules, rows = {**header_rules(), **OTHER_RULES}, {}
    for name in registered("AutocastCUDA"):
        assert name in rules, f"'{name}' is registered on AutocastCUDA; neither the header nor OTHER_RULES has its rule"
        rows[name] = {"rule": rules[name]}
        if name in CUDA_ONLY:
            rows[name]["args"] = CUDA_ONLY[name]
            rows[name]["first"] = "own"
        elif rules[name] != "banned":
            recipe = {**CPU, **CUDA}[name]
            rows[name]["cells"] = " ".join(by_rule(name, recipe, rules[name], own, INPUTS[key]) or "!"
                                           for own in DTYPES for key in choices(recipe))
    return rows


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cpu, cuda = registered("AutocastCPU"), registered("AutocastCUDA")
    without = [name for name in {*cpu, *cuda} if name not in {**CPU, **CUDA, **CUDA_ONLY}]
    if without:
        sys.exit(f"make_op_table.py: no recipe for {sorted(without)}, which LibTorch {torch.__version__} has on its autocast "
                 "lists; write one in op_recipes.py.")
    errors, rows = Errors(), {}
    with silence():
        for name, recipe in {**CPU, **CUDA, **UNLISTED}.items():
            if overload(name) is not None:
                cells = [cell(name, recipe, stack, own, INPUTS[key], errors)
                         for own in DTYPES for stack in REGIONS.values() for key in choices(recipe)]
                rows[name] = {"args": recipe, "cells": " ".join(cells)}
        cuda_by_rule = cuda_rows()
    table = {"generator": "tests/golden/make_op_table.py", "torch": torch.__version__.split("+")[0],
             "fingerprint": fingerprint(), "autocast_cpu": cpu, "autocast_cuda": cuda, "dtypes": DTYPES, "regions": list(REGIONS.items()),
             "inputs": list(INPUTS.items()), "mixtures": MIXTURES, "errors": errors.texts, "rows": rows, "cuda": cuda_by_rule}
    path = pathlib.Path(sys.argv[1]) / f"op_table_{table['torch']}.json"
    temporary = path.with_suffix(".part")
    lines = json.dumps(table, separators=(",", ":")).replace('"args":', '\n"args":')
    temporary.write_text(lines + "\n", encoding="ascii")
    os.replace(temporary, path)


main()
