"""Writes the input of zstd_T0: 120 MB of made-up log lines, the same bytes on every machine.

usage: make_input.py FILE

Words are drawn with a falling frequency from a vocabulary of 4096, numbers and a rare random token are mixed
in, so that zstd reaches a factor of 2.7. The random source is splitmix64 on a counter, written out here,
so that the file does not depend on the version of NumPy.
"""

import hashlib
import os
import sys

import numpy as np

BYTES = 120_000_000
SHA256 = "ab287a154370bea1e26dcee3e0090ade2488403e9497af91e45537047f210c3e"
CHUNK_WORDS = 1 << 18


def mixed(first, count):
    """splitmix64 of the counters first .. first + count."""
    with np.errstate(over="ignore"):
        z = (np.arange(count, dtype=np.uint64) + np.uint64(first + 1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def vocabulary():
    """4096 words of 2 to 9 letters, and every eighth one followed by a line end."""
    words = []
    for i, bits in enumerate(mixed(1 << 60, 4096).tolist()):
        letters = [chr(97 + (bits >> (5 * k)) % 26) for k in range(2 + bits % 8)]
        words.append("".join(letters) + ("\n" if i % 8 == 7 else " "))
    return np.array(words, dtype=object)


def chunk(index, words):
    """The index-th piece of text."""
    bits = mixed(index * CHUNK_WORDS, CHUNK_WORDS)
    uniform = (bits >> np.uint64(40)).astype(np.float64) / 2**24
    picked = words[(4096 * uniform**3).astype(np.int64)]
    rare = np.flatnonzero((bits & np.uint64(31)) == 0)
    picked[rare] = [f"id={value % 10**9} " for value in (bits[rare] >> np.uint64(8)).tolist()]
    return "".join(picked.tolist()).encode("ascii")


def main():
    if len(sys.argv) != 2:
        sys.exit("make_input: usage: make_input.py FILE")
    path, words, digest, left, index = sys.argv[1], vocabulary(), hashlib.sha256(), BYTES, 0
    with open(path + ".part", "wb") as out:
        while left:
            piece = chunk(index, words)[:left]
            digest.update(piece)
            out.write(piece)
            left -= len(piece)
            index += 1
    if digest.hexdigest() != SHA256:
        sys.exit(f"make_input: {path}.part has sha256 {digest.hexdigest()}, expected {SHA256}: fix the generator")
    os.replace(path + ".part", path)


if __name__ == "__main__":
    main()
