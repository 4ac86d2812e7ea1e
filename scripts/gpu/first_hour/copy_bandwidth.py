"""GB/s of a copy within a device's memory, bytes read and written, as one line of JSON: the median of some rounds.

usage: copy_bandwidth.py DEVICE BYTES
"""

import json
import statistics
import sys
import time

import torch


def main():
    device, num_bytes = torch.device(sys.argv[1]), int(sys.argv[2])
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    source = torch.randint(-128, 127, (num_bytes,), dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(15):
        wait()
        start = time.perf_counter()
        target.copy_(source)
        wait()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"gigabytes_per_s": 2 * num_bytes / statistics.median(seconds[5:]) / 1e9}))


if __name__ == "__main__":
    main()
