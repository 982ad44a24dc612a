"""Ignore SIGTERM, in this process and in one it starts; print both process ids."""

import os
import signal
import subprocess
import sys
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
with open(sys.argv[1], "w") as file:
    print(os.getpid(), child.pid, file=file)
time.sleep(60)
