"""What the Python sides share: the orders of bench/sides/main.cpp, and the peak of the profiler's memory events."""

import sys
import time
import traceback

import torch


class Clock:
    """with Clock() as clock: ...; clock.ms"""

    def __enter__(self):
        self.begin = time.perf_counter()
        return self

    def __exit__(self, *_):
        self.ms = 1000 * (time.perf_counter() - self.begin)


def peak_bytes(make_side):
    """The most bytes that tensors hold during a run, once the first ones have made what stays. The profiler is on before
    the side is made, so that its weights count, as they do for the C++ sides."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        side = make_side()
        for _ in range(2):
            side.run()
        with torch.profiler.record_function("the run"):
            side.run()
    changes, begin, end = [], None, None
    to_see = list(profiler.profiler.kineto_results.experimental_event_tree())
    while to_see:
        event = to_see.pop()
        to_see += event.children
        if event.name == "[memory]":
            changes.append((event.start_time_ns, event.extra_fields.alloc_size))
        elif event.name == "the run":
            begin, end = event.start_time_ns, event.end_time_ns
    held = peak = 0
    for when, change in sorted(changes, key=lambda item: item[0]):
        if begin <= when <= end:
            peak = max(peak, held)  # what was there as the run began counts too
        held += change
        if begin <= when <= end:
            peak = max(peak, held)
    return peak


def obey(side):
    print("ready", flush=True)
    for line in sys.stdin:
        order, *words = line.split()
        if order == "quit":
            return
        if order == "run":
            print(" ".join(f"{side.run():.4f}" for _ in range(int(words[0]))), flush=True)
        elif order == "save":
            torch.save(side.result(), words[0])
            print("ok", flush=True)
        else:
            raise ValueError(f"the order '{line.strip()}' came; run, save or quit is accepted")


def main(make_side):
    """make_side(settings) of the words name=value on the command line; then what main.cpp says."""
    try:
        settings = dict(word.split("=", 1) for word in sys.argv[1:])
        torch.set_num_threads(int(settings["threads"]))
        if settings.get("mode") == "peak":
            print(peak_bytes(lambda: make_side(settings)))
        else:
            obey(make_side(settings))
    except Exception:  # pylint: disable=broad-except
        traceback.print_exc()
        print("error", flush=True)
        sys.exit(1)
