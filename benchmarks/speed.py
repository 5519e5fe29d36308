"""How fast `attn` is beside `nn.MultiheadAttention` asked for the same per-head weights: `python benchmarks/speed.py`.

Prints, for each number of tokens, the median over rounds of the ratio attn / torch; both are timed in every round, in turn, so
that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from attn import MultiHeadAttention, boolean_to_additive, causal_mask, to_torch


def seconds(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def backward(module: torch.nn.Module, output: Tensor) -> None:
    module.zero_grad(set_to_none=True)
    output.sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    ours = MultiHeadAttention(arguments.d_model, arguments.heads)
    theirs = to_torch(ours)
    print(f"d_model={arguments.d_model} heads={arguments.heads} batch={arguments.batch} threads={torch.get_num_threads()}")
    print(f"{'tokens':>7} {'mask':>8} {'forward':>9} {'+backward':>10}   (time of attn / time of nn.MultiheadAttention)")
    for tokens in arguments.tokens:
        x = torch.randn(arguments.batch, tokens, arguments.d_model, requires_grad=True)
        for name, mask in (("none", None), ("causal", boolean_to_additive(causal_mask(tokens), x.dtype))):

            def our_forward(x: Tensor = x, mask: Tensor | None = mask) -> Tensor:
                return ours(x, mask)[0]  # type: ignore[no-any-return]

            def their_forward(x: Tensor = x, mask: Tensor | None = mask) -> Tensor:
                return theirs(x, x, x, attn_mask=mask, average_attn_weights=False)[0]  # type: ignore[no-any-return]

            calls = {
                "forward": (our_forward, their_forward),
                "+backward": (lambda f=our_forward: backward(ours, f()), lambda f=their_forward: backward(theirs, f())),
            }
            medians = []
            for a, b in calls.values():
                repeats = max(1, round(0.05 / max(seconds(b, 2), 1e-6)))
                ratios = [seconds(a, repeats) / seconds(b, repeats) for _ in range(arguments.rounds)]
                medians.append(statistics.median(ratios))
            print(f"{tokens:>7} {name:>8} {medians[0]:>9.2f} {medians[1]:>10.2f}", flush=True)


if __name__ == "__main__":
    main()
