"""SciPy's FFT with `workers=-1`: batches of 2-D transforms over pocketfft's own pool of C++ threads.

The worker count is `os.cpu_count()` at the time of each call. The pool sleeps between calls, so this is the
well-behaved program of the set: it loses little when CPUs are short, and must lose nothing under corefit.
Each round moves the images by one pixel in the spectrum, in place; the result is known without a transform.
"""

import os

import numpy as np
from scipy import fft

import appkit

ROUNDS = 150
SIDE = 256


def main():
    app = appkit.start("scipy_fft", os.cpu_count())
    rng = np.random.default_rng(20261121)
    images = rng.integers(-128, 128, (12, SIDE, SIDE))
    work = images.astype(np.complex128)
    one_pixel = np.exp(-2j * np.pi * np.arange(SIDE) / SIDE)

    app.begin()
    rounds = app.rounds(ROUNDS)
    for _ in range(rounds):
        work = fft.fft2(work, overwrite_x=True, workers=-1)
        work *= one_pixel
        work = fft.ifft2(work, overwrite_x=True, workers=-1)
    app.end()

    moved = np.rint(work.real).astype(np.int64)
    verified = bool((moved == np.roll(images, rounds, axis=2)).all()) and float(np.abs(work.imag).max()) < 1e-6
    app.finish(verified, moved.tobytes())


if __name__ == "__main__":
    main()
