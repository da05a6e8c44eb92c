"""What every Python app here does the same way: its scale argument, its clock, its last lines.

Lines on stdout, in this order; the last three are those that the other languages' apps print, too:

    app: NAME
    threads: N        what the runtime under test believes it may use
    startup_s: X      process start to the call of `start` (interpreter and imports)
    setup_s: X        making the input, warming up
    verified: yes|NO
    checksum: HEX     the same for every thread count
    time_s: X         the measured part alone
"""

import hashlib
import os
import sys
import time


class App:
    """One run of one app. `start`, then set up, `begin`, then work, `end`, then check, `finish`."""

    def __init__(self, name, threads, scale):
        self.scale = scale
        self._made = time.perf_counter()
        self._begun = self._time_s = 0.0
        print(f"app: {name}\nthreads: {threads}\nstartup_s: {_age_s():.2f}")

    def rounds(self, at_scale_one):
        """Repetitions for this scale, at least 1."""
        return max(1, round(at_scale_one * self.scale))

    def begin(self):
        """The measured part starts here."""
        self._begun = time.perf_counter()
        print(f"setup_s: {self._begun - self._made:.2f}", flush=True)

    def end(self):
        """The measured part ends here."""
        self._time_s = time.perf_counter() - self._begun

    def finish(self, verified, *results):
        """Prints the last lines and exits: 0 verified, 1 not. `results` are exact or already rounded."""
        digest = hashlib.sha256()
        for result in results:
            digest.update(result if isinstance(result, bytes) else repr(result).encode())
        print(f"verified: {'yes' if verified else 'NO'}")
        print(f"checksum: {digest.hexdigest()[:16]}")
        print(f"time_s: {self._time_s:.3f}", flush=True)
        sys.exit(0 if verified else 1)


def start(name, threads):
    """Reads the optional scale (a positive number, 1 = 2 to 4 s on two idle CPUs) from the command line."""
    words = sys.argv[1:]
    try:
        scale = float(words[0]) if words else 1.0
    except ValueError:
        scale = 0.0
    if len(words) > 1 or not 0.0 < scale <= 1000.0:
        print(f"{name}: usage: {name}.py [SCALE], SCALE above 0 and at most 1000; got {words}", file=sys.stderr)
        sys.exit(2)
    return App(name, threads, scale)


def _age_s():
    """Seconds since this process started, to a clock tick (proc(5): field 22 of /proc/PID/stat)."""
    with open("/proc/self/stat", encoding="ascii") as stat:
        started_ticks = int(stat.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")
