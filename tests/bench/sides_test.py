#!/usr/bin/env python3
"""What ./bench.sh promises: the rows of its JSON, and that a side which computes something else fails the run.

usage: sides_test.py build/.../bench_side
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import sides  # noqa: E402

PROGRAM = None
KEYS = ["work", "ours_ms", "peer", "peer_ms", "ratio", "peak_bytes", "peer_peak_bytes", "matrix_share"]


def run(*arguments):
    return subprocess.run([sys.executable, ROOT / "bench" / "run.py", "--program", PROGRAM, *arguments], capture_output=True,
                          text=True, check=False)


def step_result(losses, weight):
    return {"losses": torch.tensor(losses), "model": {"w": torch.tensor(weight)}}


class Run(unittest.TestCase):
    def test_json_has_the_rows_of_the_work(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "rows.json"
            done = run("--work", "phase/optimizer/1000x64", "--turns", "2", "--json", file)
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(file.read_text())
        self.assertEqual(list(report), ["machine", "rows"])
        self.assertEqual({row["peer"] for row in report["rows"]}, {"pytorch", "libtorch"})
        for row in report["rows"]:
            self.assertEqual(list(row), KEYS)
            self.assertAlmostEqual(row["ratio"], row["peer_ms"] / row["ours_ms"], delta=0.01 * row["ratio"])
            self.assertGreater(row["peak_bytes"], 64_000 * 12)  # weights and two moments at the least

    def test_a_step_reports_memory_and_matrix_share(self):
        done = run("--work", "step/cnn/fp32", "--turns", "1", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(done.stdout)["rows"]
        self.assertIn("pytorch", {row["peer"] for row in rows})
        for row in rows:
            self.assertTrue(0.1 < row["matrix_share"] < 1, row)
            # The same work holds about the same bytes, whoever counts them.
            self.assertTrue(0.5 < row["peak_bytes"] / row["peer_peak_bytes"] < 2 or row["peer"] == "pytorch-compile", row)

    def test_bad_input_is_one_sentence(self):
        for arguments, text in ((["--work", "nothing"], "[--work] nothing is called 'nothing'"),
                                (["--json", "/no/such/folder/f.json"], "[--json] '/no/such/folder/f.json' cannot be written")):
            done = run(*arguments)
            self.assertEqual(done.returncode, 1)
            self.assertIn(text, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


class Checks(unittest.TestCase):
    START = {"model": {"w": torch.zeros(4)}}

    def compare(self, ours, theirs, only_first=False, with_weights=True):
        return sides.compare_steps(ours, theirs, self.START, only_first, with_weights)

    def test_a_step_that_goes_the_same_way_passes(self):
        self.assertIsNone(self.compare(step_result([2.3, 1.0], [1.0, 2, 3, 4]), step_result([2.3, 1.001], [1.0, 2, 3, 4.01])))

    def test_other_losses_other_weights_and_nan_are_found(self):
        good = step_result([2.3, 1.0], [1.0, 2, 3, 4])
        for bad in (step_result([2.5, 1.0], [1.0, 2, 3, 4]), step_result([2.3, 1.2], [1.0, 2, 3, 4]),
                    step_result([2.3, float("nan")], [1.0, 2, 3, 4]), step_result([2.3, 1.0], [1.0, 2, 3, -4]),
                    step_result([2.3], [1.0, 2, 3, 4])):
            self.assertIsNotNone(self.compare(bad, good))
        self.assertIsNone(self.compare(step_result([2.3, 9.0], [0.0] * 4), good, only_first=True))
        other_weights = step_result([2.3, 1.0], [1.0, 2, 3, -4])
        self.assertIsNone(self.compare(other_weights, good, with_weights=False))

    def test_a_phase_may_differ_by_rounding_alone(self):
        weights = torch.tensor([0.02, -0.05])
        self.assertIsNone(sides.compare_phases({"weights": weights}, {"weights": weights + 2**-30}, 10))
        self.assertIsNotNone(sides.compare_phases({"weights": weights}, {"weights": weights + 1e-5}, 10))
        self.assertIsNotNone(sides.compare_phases({"weights": weights * float("nan")}, {"weights": weights}, 10))

    def test_patterns(self):
        for pattern in ("step/mlp/bf16", "step/mlp", "step", "step/*/bf16", "*bf16"):
            self.assertTrue(sides.matches("step/mlp/bf16", pattern), pattern)
        for pattern in ("step/ml", "phase", "step/mlp/bf"):
            self.assertFalse(sides.matches("step/mlp/bf16", pattern), pattern)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
