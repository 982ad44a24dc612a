"""Say `ready`, then count the interrupts of the next moments."""

import signal
import sys
import time

seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", flush=True)
deadline = time.monotonic() + 30
while not seen and time.monotonic() < deadline:
    time.sleep(0.02)
time.sleep(0.4)
print("interrupts", len(seen), flush=True)
sys.exit(12)
