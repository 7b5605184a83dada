"""What the servers of a side, and the rest of the machine, used while a load ran."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.cluster.sides import Side, cpu_s_by_role, memory_by_role
from tests.bench.sides import machine_cpu_s, tools_cpu_s
from tests.peers.processes import tree_usage

Figures = dict[str, float]


class Meter:
    """Counts from the moment it is made. `tools` are processes that load the side meanwhile."""

    def __init__(self, side: Side, tools: Sequence[int] = ()) -> None:
        self._side = side
        self._tools = tools
        self._cpu_s = cpu_s_by_role(side)
        self._machine = machine_cpu_s()
        self._tools_s = self._known_tools_s()

    def _known_tools_s(self) -> float:
        return tools_cpu_s() + sum(tree_usage(pid).cpu_s for pid in self._tools)

    def figures(self, record_bytes: int, records: float) -> Figures:
        """Return CPU seconds per GB by role and of all servers, memory, and the others' share."""
        used_s = {
            role: seconds - self._cpu_s.get(role, 0.0)
            for role, seconds in cpu_s_by_role(self._side).items()
        }
        gigabytes = max(1.0, record_bytes * records) / 1e9
        all_s = sum(used_s.values())
        found = {f"{role}_cpu_s_per_gb": seconds / gigabytes for role, seconds in used_s.items()}
        shares = {"cpu_s_per_gb": all_s / gigabytes, **found}
        shares["cpu_us_per_record"] = 1e6 * all_s / max(1.0, records)
        busy_s, machine_s = (
            now - then for now, then in zip(machine_cpu_s(), self._machine, strict=True)
        )
        others_s = busy_s - all_s - (self._known_tools_s() - self._tools_s)
        memory = memory_by_role(self._side)
        shares["memory_mb"] = sum(memory.values()) / 1e6
        shares |= {f"{role}_memory_mb": size / 1e6 for role, size in memory.items()}
        return {**shares, "others_share": max(0.0, others_s) / max(0.01, machine_s)}
