"""Say `ready`, then count the interrupts of the next moments, each by itself."""

import signal
import sys

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print("ready", flush=True)
seen, patience_s = 0, 30.0
while signal.sigtimedwait({signal.SIGINT}, patience_s) is not None:
    seen, patience_s = seen + 1, 0.4
print("interrupts", seen, flush=True)
sys.exit(12)
