"""The report of ``memory --simulate``: hits, peaks, and one pool against one pool per kind."""

from dataclasses import asdict
from typing import Any

from dsv4bench.memory.simulate import Outcome, Pools, Simulation
from dsv4bench.report.memory_tables import three_digits
from dsv4bench.report.sections import Cell, Section


def simulation_sections(simulation: Simulation, title: str) -> list[Section]:
    """Sections of a simulation; the first is what ``--format csv`` writes."""
    if simulation.num_blocks is None:
        pool = "unlimited pool (give --available, --gpu or --num-blocks to see evictions)"
    else:
        size = three_digits(simulation.num_blocks * simulation.layout.bytes_per_block)
        pool = f"{simulation.num_blocks:,} blocks, {size}"
    heading = f"Replay of {simulation.requests:,} requests ({simulation.source}): {title}, {pool}"
    kept = "each prompt's last boundary" if simulation.retention == 0 else f"every {simulation.retention:,} tokens"
    lines = (
        "no retention: the windows of every 256-token boundary stay reusable, all free blocks wait in one queue",
        f"retention: windows are kept at {kept}, blocks without reusable content are used first",
        "time is a model: one prefill at a time and a fixed decode rate; see --prefill-rate and --decode-rate",
    )
    return [_outcomes(simulation, heading), _groups(simulation), Section(lines=(*_pools(simulation), *lines))]


def simulation_json(simulation: Simulation) -> dict[str, Any]:
    """The simulation as one JSON object."""
    return {
        "source": simulation.source,
        "requests": simulation.requests,
        "num_blocks": simulation.num_blocks,
        "bytes_per_block": simulation.layout.bytes_per_block,
        "group_bytes": list(simulation.layout.group_bytes),
        "retention_interval": simulation.retention,
        "without_retention": _outcome_json(simulation.dense, simulation.pools[0]),
        "with_retention": _outcome_json(simulation.retained, simulation.pools[1]),
    }


def _outcome_json(outcome: Outcome, pools: Pools) -> dict[str, Any]:
    return asdict(outcome) | {"hit_rate": outcome.hit_rate} | asdict(pools) | {"fragmentation": pools.fragmentation}


def _outcomes(simulation: Simulation, heading: str) -> Section:
    both = (simulation.dense, simulation.retained)
    rows: list[tuple[str, str, tuple[float, ...]]] = [
        ("prefix hit rate", "{:.1%}", tuple(o.hit_rate for o in both)),
        ("prompt tokens reused", "{:,}", tuple(o.hit_tokens for o in both)),
        ("finished requests", "{:,}", tuple(o.requests for o in both)),
        ("rejected (never fit)", "{:,}", tuple(o.rejected for o in both)),
        ("preemptions", "{:,}", tuple(o.preemptions for o in both)),
        ("most running at a time", "{:,}", tuple(o.peak_running for o in both)),
        ("peak blocks held", "{:,}", tuple(o.peak_blocks for o in both)),
        ("reusable blocks evicted", "{:,}", tuple(o.evicted for o in both)),
        ("fragmentation at the peak", "{:.1%}", tuple(pools.fragmentation for pools in simulation.pools)),
        ("simulated seconds", "{:,.0f}", tuple(o.seconds for o in both)),
    ]
    shown = tuple((name, *(form.format(value) for value in values)) for name, form, values in rows)
    raw: tuple[tuple[Cell, ...], ...] = tuple((name, *values) for name, _, values in rows)
    return Section(heading, ("", "no retention", "retention"), shown, ("figure", "no_retention", "retention"), raw)


def _groups(simulation: Simulation) -> Section:
    rows = []
    for group in simulation.layout.groups:
        peaks = [outcome.peak_by_group[group.name] for outcome in (simulation.dense, simulation.retained)]
        at = simulation.retained.at_peak.get(group.name, 0)
        rows.append((group.name, *(f"{peak:,}" for peak in peaks), f"{at:,}", three_digits(peaks[1] * group.bytes)))
    columns = ("peak blocks of group", "no retention", "retention", "at the pool's peak", "own pages")
    return Section("", columns, tuple(rows))


def _pools(simulation: Simulation) -> tuple[str, ...]:
    if not simulation.retained.peak_blocks:
        return ("no request of this trace fits in the pool, however empty it is",)
    pools = simulation.pools[1]
    rest = f"{100 * pools.fragmentation:.0f} % of it the rest of slabs"
    return (
        f"one pool (retention): {three_digits(pools.shared_bytes)} at its peak, {rest}",
        f"one pool per kind, each sized for this very trace: {three_digits(pools.separate_bytes)}",
        f"one pool per kind, split as one longest request needs them: {pools.first_full} runs out first, while "
        f"{100 * pools.stranded:.0f} % of the memory is still empty",
    )
