"""Images per second through the convolutional networks, by formulation, block size and kind of pass."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.common import Row, finish, notes, numbers, parse, parser, row, short, table
from benchmarks.contestant import peak_mb
from boonta.nets.vision import GridCNN, NatureCNN
from boonta.ops.blocks import mapped

NETWORKS = {"NatureCNN": (NatureCNN, (84, 84, 4), 256), "GridCNN": (GridCNN, (10, 10, 4), 4096)}
MINIBATCHES = 2
MODES = ("forward", "gradient", "gradient in scan")


def program(net: Any, mode: str, block: int) -> Callable[[Any, jax.Array], Any]:
    """(params, images [N, H, W, C]) -> something that needs all the work of the mode."""

    def forward(params: Any, x: jax.Array) -> jax.Array:
        return mapped(lambda x: net.apply(params, x), x, block)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(forward(params, x) ** 2)

    def scanned(params: Any, x: jax.Array) -> Any:
        def body(params: Any, x: jax.Array) -> tuple[Any, None]:
            return jax.tree.map(lambda p, g: p - 1e-3 * g, params, jax.grad(loss)(params, x)), None

        return jax.lax.scan(body, params, x.reshape(MINIBATCHES, -1, *x.shape[1:]))[0]

    return {"forward": forward, "gradient": jax.grad(loss), "gradient in scan": scanned}[mode]


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Run the benchmark with these arguments; the rows it wrote."""
    options = parser("convolution", __doc__ or "", rounds=5)
    options.add_argument("--blocks", type=numbers, help="images in a block, besides all at once (default 8,16,32,64)")
    options.add_argument("--images", type=int, help=f"images in a call; a scan makes {MINIBATCHES} steps of them")
    args = parse(options, argv)
    blocks = args.blocks or ([] if args.quick else [8, 16, 32, 64])
    if jax.default_backend() != "cpu":
        blocks = []  # elsewhere there is only all at once
    rows: list[Row] = []
    tables = []
    for name, (network, shape, images) in NETWORKS.items():
        n = args.images or (8 if args.quick else images)
        x = jax.random.uniform(jax.random.key(0), (n, *shape))
        compiled: dict[tuple[str, int, str], Any] = {}
        seconds: dict[tuple[str, int, str], float] = {}
        for mode in MODES:
            for formulation in ("direct", "matmul"):
                net = network(formulation=formulation)
                params = net.init(jax.random.key(1), x[:1])
                for block in [*blocks, n]:
                    begin = time.perf_counter()
                    key = (mode, block, formulation)
                    lowered = jax.jit(program(net, mode, block)).lower(params, x)
                    compiled[key] = (lowered.compile(), params)
                    seconds[key] = time.perf_counter() - begin
        notes.print(f"{name}: {len(compiled)} programs compiled in {sum(seconds.values()):.0f} s")
        rates: dict[tuple[str, int, str], list[float]] = {key: [] for key in compiled}
        for i in range(args.rounds + (not args.quick)):
            for key, (go, params) in compiled.items():
                begin = time.perf_counter()
                jax.block_until_ready(go(params, x))
                if i or args.quick:
                    rates[key].append(n / (time.perf_counter() - begin))
        title = f"{name}, {'x'.join(map(str, shape))}, {n} images: images/s (direct / matmul)"
        result = table(title, "block", *MODES)
        for key in compiled:
            mode, block, formulation = key
            cell = f"{name}/{mode}/{'whole' if block == n else block}"
            more = {"images": n, "block": block, "compile_seconds": seconds[key], "peak_rss_mb": peak_mb()}
            rows.append(row(args, cell, formulation, rates[key], "images/s", **more))
        medians = {(r["cell"], r["contestant"]): r["median"] for r in rows}
        for block in [*blocks, n]:
            label = "whole" if block == n else str(block)
            cells = [f"{name}/{mode}/{label}" for mode in MODES]
            pairs = ([medians[cell, formulation] for formulation in ("direct", "matmul")] for cell in cells)
            result.add_row(label, *(" / ".join(short(value) for value in pair) for pair in pairs))
        tables.append(result)
    remark = f"A scan makes {MINIBATCHES} gradient steps, each on 1/{MINIBATCHES} of the images."
    return finish(args, rows, *tables, remarks=[remark])


if __name__ == "__main__":
    main()
