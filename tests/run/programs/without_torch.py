"""Never import torch; end as the arguments say: an exit code, `wait` to be ended, `fill` a disk."""

import sys
import time

way = sys.argv[1] if sys.argv[1:] else "0"
if way == "wait":
    print("ready", flush=True)
    time.sleep(60)
if way == "fill":
    for size in (1 << 12, 1):
        try:
            with open(f"{sys.argv[2]}/filler{size}", "wb", buffering=0) as file:
                while file.write(b"x" * size):
                    pass
        except OSError as problem:
            print(problem.strerror)
    way = "4"
print("no torch here")
sys.exit(int(way))
