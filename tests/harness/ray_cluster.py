"""Two Ray workers on this machine measure different rigs at once into one results folder: `make test-ray`.

A local cluster of a head without a slot and two nodes with one slot each; jobs go through `rigs/hydra/launcher/ray.yaml`, as on
real machines. Heavy (Ray is 80 MB), so it is a program and no part of `make test`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

# A node whose helpers are slow to start gives itself up after half a minute: on a busy machine that is too early.
os.environ.setdefault("RAY_agent_register_timeout_ms", "600000")
os.environ.setdefault("RAY_raylet_start_wait_time_s", "600")

import ray
import scaled
from ray.cluster_utils import Cluster

from harness import cli

LIGHT = {"object_store_memory": 80 << 20, "include_dashboard": False}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rigs, results = scaled.write_rigs(folder), folder / "results"
        cluster = Cluster()
        for slots in (0, 1, 1):
            cluster.add_node(num_cpus=1, resources={"samerig": slots} if slots else {}, **LIGHT)
        try:
            started = time.monotonic()
            words = [f"hydra.launcher.ray.init.address={cluster.address}", "hydra/launcher=ray", "draft_budget=1,3"]
            code = cli.main(["bench", ",".join(map(str, rigs)), "-m", "--results", str(results), *words])
        finally:
            ray.shutdown()  # the launcher leaves this process connected, and a cluster lets no connected node go
            cluster.shutdown()
        assert code == 0, scaled.outcomes(results)
        times = scaled.check_runs(results, rigs, budgets=(1, 3))
        assert scaled.at_once(times), times
        assert _most_at_once(times) == 2, times
        print(f"ok: {len(times)} runs of {len(rigs)} rigs, two at a time, {time.monotonic() - started:.0f} s; each is whole")


def _most_at_once(times: list[tuple[str, str]]) -> int:
    return max(sum(other[0] <= start < other[1] for other in times) for start, _ in times)


if __name__ == "__main__":
    sys.exit(main())
