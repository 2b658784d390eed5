"""How far down it could go: one training step of ten images, written by hand without autograd,
against the eager one.

    python benchmarks/limits.py [--repeats 60]

Interleaved in one process with one thread; medians. What is written by hand uses the kernels that
torch has: no step of these networks that is made of them can be much faster.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from bare import BATCH, LR, network
from torch import Tensor, nn

Step = Callable[[], object]
LAST = torch.channels_last
STEPS = 7  # in a row: a local epoch of 70 samples
aten = torch.ops.aten


def in_last(model: nn.Sequential) -> nn.Sequential:
    """The model with its weights laid out channels last."""
    return model.to(memory_format=LAST)  # type: ignore[call-overload]  # torch's own types leave it out


def eager(function: str, last: bool = False) -> Step:
    """As the bare loop does it, with channels last if asked for."""
    model, x, y = network(function), torch.randn(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))
    if last:
        model, x = in_last(model), x.to(memory_format=LAST)
    params: list[Tensor] = list(model.parameters())

    def step() -> None:
        grads = torch.autograd.grad(F.cross_entropy(model(x), y), params)
        with torch.no_grad():
            torch._foreach_add_(params, grads, alpha=-LR)

    return step


def cnn4_by_hand() -> Step:
    """Channels last, pooling before ReLU, the linear layers' gradients added as products."""
    w1, b1, w2, b2, f1, c1, f2, c2 = (p.detach() for p in in_last(network("cnn4")).parameters())
    x, y = (
        torch.randn(BATCH, 1, 28, 28).to(memory_format=LAST),
        F.one_hot(torch.randint(0, 10, (BATCH,)), 10).float(),
    )

    def forward(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        made = F.conv2d(x, w, b)
        pooled, at = aten.max_pool2d_with_indices(made, 2, 2)
        return made, pooled.relu_(), at

    def backward(
        d: Tensor, x: Tensor, w: Tensor, made: tuple[Tensor, Tensor, Tensor], first: bool
    ) -> tuple[Tensor, ...]:
        d = aten.threshold_backward(d, made[1], 0)
        d = aten.max_pool2d_with_indices_backward(
            d, made[0], [2, 2], [2, 2], [0, 0], [1, 1], False, made[2]
        )
        wanted = [not first, True, True]
        return tuple(
            aten.convolution_backward(
                d, x, w, [len(w)], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, wanted
            )
        )

    @torch.no_grad()
    def step() -> None:
        one = forward(x, w1, b1)
        two = forward(one[1], w2, b2)
        h0 = two[1].flatten(1)
        h1 = torch.addmm(c1, h0, f1.t()).relu_()
        d = (torch.addmm(c2, h1, f2.t()).softmax(1) - y) / BATCH
        d1 = aten.threshold_backward(d @ f2, h1, 0)
        d0 = (d1 @ f1).view(BATCH, 64, 4, 4).contiguous(memory_format=LAST)
        for w, b, dy, into in ((f2, c2, d, h1), (f1, c1, d1, h0)):
            w.addmm_(dy.t(), into, alpha=-LR)
            b.sub_(dy.sum(0), alpha=LR)
        dx, g2, h2 = backward(d0, one[1], w2, two, first=False)
        _, g1, e1 = backward(dx, x, w1, one, first=True)
        torch._foreach_add_([w1, b1, w2, b2], [g1, e1, g2, h2], alpha=-LR)

    return step


def mlp2_stacked(parties: int, thin: bool) -> Step:
    """Many parties' steps at once, gradients as products by hand, or written out by autograd."""
    sizes = ((200, 784), (200, 200), (10, 200))
    x, y = (
        torch.randn(parties, BATCH, 784),
        F.one_hot(torch.randint(0, 10, (parties, BATCH)), 10).float(),
    )
    W = [(torch.randn(parties, o, i) / 28).requires_grad_(not thin) for o, i in sizes]
    B = [torch.zeros(parties, o).requires_grad_(not thin) for o, _ in sizes]

    def forward() -> list[Tensor]:
        made = [x]
        for k in range(3):
            made.append(torch.baddbmm(B[k].unsqueeze(1), made[-1], W[k].mT))
            if k < 2:
                made[-1] = made[-1].relu()
        return made

    @torch.no_grad()
    def by_hand() -> None:
        made = forward()
        d = (made[3].softmax(2) - y) / BATCH
        for k in (2, 1, 0):
            before = aten.threshold_backward(torch.bmm(d, W[k]), made[k], 0) if k else d
            W[k].baddbmm_(d.mT, made[k], alpha=-LR)
            B[k].sub_(d.sum(1), alpha=LR)
            d = before

    def written_out() -> None:
        grads = torch.autograd.grad(-(F.log_softmax(forward()[3], 2) * y).sum() / BATCH, W + B)
        with torch.no_grad():
            torch._foreach_add_(W + B, grads, alpha=-LR)

    return by_hand if thin else written_out


def pooling(last: bool) -> Step:
    x = torch.randn(BATCH, 32, 24, 24)
    x = x.to(memory_format=LAST) if last else x
    return lambda: F.max_pool2d(x, 2)


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--repeats", type=int, default=60)
    repeats = cli.parse_args().repeats
    torch.set_num_threads(1)
    contests: list[tuple[str, Step, dict[str, Step]]] = [
        ("cnn4", eager("cnn4"), {"eager, channels last": eager("cnn4", True), "by hand": cnn4_by_hand()}),
        ("its first max pooling", pooling(False), {"channels last": pooling(True)}),
        ("mlp2", eager("mlp2"), {"by hand": mlp2_stacked(1, True)}
            | {f"{n} parties stacked, by hand": mlp2_stacked(n, True) for n in (8, 16)}
            | {f"{n} parties stacked, autograd": mlp2_stacked(n, False) for n in (8, 16, 64)}),
    ]  # fmt: skip
    for function, base, others in contests:
        print(f"{function}: against the eager step")
        taken: dict[str, list[float]] = {name: [] for name in ("", *others)}
        for _ in range(repeats):
            for name, step in {"": base, **others}.items():
                step()  # its weights are in the cache now, as they are in a local training
                begin = time.perf_counter()
                for _ in range(STEPS):
                    step()
                taken[name].append(time.perf_counter() - begin)
        for name in others:
            parties = int(name.split()[0]) if name[0].isdigit() else 1
            ratio = (
                statistics.median(b / a for a, b in zip(taken[""], taken[name], strict=True))
                / parties
            )
            print(f"  {name:32}{ratio:6.2f}")


if __name__ == "__main__":
    main()
