"""NumPy with its bundled OpenBLAS: many medium matmul, solve and SVD calls, one after the other.

Every call wakes OpenBLAS's own pthread pool and ends in a barrier at which the pool spins and yields, so what
a shortage of CPUs costs here is the waiting between calls, not the arithmetic.
Matmul and solve work on small integers, so their results are exact whatever the order of summation.
"""

import numpy as np
from threadpoolctl import threadpool_info

import appkit

ROUNDS = 180


def openblas_threads():
    """Size of NumPy's OpenBLAS pool."""
    return next((pool["num_threads"] for pool in threadpool_info() if pool["internal_api"] == "openblas"), None)


def main():
    app = appkit.start("numpy_blas", openblas_threads())
    rng = np.random.default_rng(20261121)
    n = 320
    left = rng.integers(-9, 10, (n, n)).astype(np.float64)
    right = rng.integers(-9, 10, (n, n)).astype(np.float64)
    system = left + 40.0 * n * np.eye(n)
    wanted = rng.integers(-99, 100, (n, 48)).astype(np.float64)
    constants = system @ wanted
    block = left[:160, :160].copy()
    left @ right

    app.begin()
    verified = True
    sums = np.zeros(n)
    for _ in range(app.rounds(ROUNDS)):
        for _ in range(12):
            product = left @ right
            sums += product[:, 0]
        solution = np.linalg.solve(system, constants)
        values = np.linalg.svd(block, compute_uv=False)
        verified &= bool(np.abs(solution - wanted).max() < 1e-6)
    app.end()

    exact = left.astype(np.int64) @ right.astype(np.int64)
    verified &= bool((product == exact).all())
    energy = float((block**2).sum())
    verified &= abs(float((values**2).sum()) - energy) < 1e-9 * energy
    app.finish(verified, product.tobytes(), sums.tobytes(), np.rint(solution).astype(np.int64).tobytes(),
               [f"{value:.6e}" for value in values])


if __name__ == "__main__":
    main()
