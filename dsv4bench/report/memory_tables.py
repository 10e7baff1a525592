"""The tables of ``memory``: layers, kinds, pages or totals, then capacity and budget, for people and for CSV."""

from collections.abc import Callable

from dsv4bench.errors import UserError
from dsv4bench.memory.account import Account, View
from dsv4bench.memory.budget import Budget
from dsv4bench.memory.layout import CacheLayout
from dsv4bench.memory.page import BUCKETS, CACHES
from dsv4bench.memory.usage import PARTS, Capacity, LayerBytes
from dsv4bench.report.sections import Section
from dsv4bench.scenario.sizes import format_bytes, format_tokens, half_up


def memory_sections(account: Account, by: str, *, explain: bool, defaulted: bool) -> list[Section]:
    """The report of an accounting; the first section is the table that ``--format csv`` writes.

    Args:
        account: what to print.
        by: ``layer``, ``kind``, ``page`` or ``total``.
        explain: whether to show each term with its numbers.
        defaulted: whether the precision of main entries is the default and not the user's choice.
    """
    main = _TABLES[by](account)
    sections = [
        Section(
            heading(account),
            main.columns,
            main.rows,
            main.raw_columns,
            main.raw,
            footer=main.footer,
        )
    ]
    sections.append(Section(lines=(*main.lines, _precisions(account, defaulted=defaulted), *_summary(account))))
    if account.capacity is not None:
        sections.append(_capacity(account, account.capacity))
    if account.budget is not None:
        sections.append(_budget(account.budget, account.deployment.fixed_state_bytes))
    if explain:
        sections.append(_explanation(account))
    if account.notes:
        sections.append(Section(lines=tuple(f"note: {note}" for note in account.notes)))
    return sections


def heading(account: Account) -> str:
    """Model, context and engine."""
    engine = account.engine.title if account.engine else "ideal"
    layout = f", {account.deployment.layout}" if account.layout else ""
    size = f"{format_tokens(account.context)} tokens"
    exact = f" ({account.context:,})" if format_tokens(account.context) != f"{account.context:,}" else ""
    return f"KV cache of {account.view.shape.name} at {size}{exact}: {engine}{layout}"


def precision_label(view: View) -> str:
    """``main bf16, indexer bf16``."""
    return f"main {view.main}, indexer {view.indexer}"


def three_digits(count: float) -> str:
    """Bytes with three significant digits: ``9.62 GiB``, ``83.9 GiB``."""
    value, unit = count, "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    digits = 0 if unit == "B" or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{half_up(value, digits):,.{digits}f} {unit}"


# --- tables ----------------------------------------------------------------------------------------------------------
def _by_layer(account: Account) -> Section:
    pairs = _pairs(account)
    rows = [(f"{ideal.layer} {ideal.kind}", ideal, held) for ideal, held in pairs]
    return _bytes_table(account, "layer", rows, [(ideal.layer, ideal.kind.value) for ideal, _ in pairs])


def _by_kind(account: Account) -> Section:
    pairs = _pairs(account)
    rows, names = [], []
    for kind in dict.fromkeys(ideal.kind for ideal, _ in pairs):
        own = [(ideal, held) for ideal, held in pairs if ideal.kind is kind]
        rows.append(
            (
                f"{kind} × {len(own)}",
                _total([i for i, _ in own]),
                _total([h for _, h in own if h]) if own[0][1] else None,
            )
        )
        names.append((len(own), kind.value))
    return _bytes_table(account, "kind", rows, names)


def _by_total(account: Account) -> Section:
    return _bytes_table(account, "total", [], [])


def _pairs(account: Account) -> list[tuple[LayerBytes, LayerBytes | None]]:
    engine = account.view.engine
    held = engine.layers if engine else (None,) * len(account.view.ideal.layers)
    return list(zip(account.view.ideal.layers, held, strict=True))


def _total(layers: list[LayerBytes]) -> LayerBytes:
    first = layers[0]
    return LayerBytes(first.layer, first.kind, *(sum(getattr(layer, part) for layer in layers) for part in PARTS))


_Row = tuple[str, LayerBytes, LayerBytes | None]


def _bytes_table(account: Account, by: str, rows: list[_Row], names: list[tuple[int, str]]) -> Section:
    """Rows of ideal bytes and, with an engine, of what it reserves and for what."""
    engine = account.view.engine
    everything = _total(list(account.view.ideal.layers))
    held = _total(list(engine.layers)) if engine else None
    shown: list[tuple[str, ...]] = [_cells(name, ideal, mine) for name, ideal, mine in rows]
    if engine and engine.shared:
        shown.append(("slab rest", *[""] * (len(PARTS) + 1), three_digits(engine.shared)))
    total: tuple[str, ...] = _cells("total", everything, held)
    if engine:
        total = (*total[:-1], three_digits(engine.total))
    shown.append(total)
    parts = PARTS if engine else PARTS[:3]
    columns = (by, "ideal", *parts, "engine") if engine else (by, *parts, "ideal")
    raw_columns: tuple[str, ...] = ("layer" if by == "layer" else "layers", "kind", "ideal_bytes")
    raw_columns += tuple(f"{part}_bytes" for part in parts) + (("engine_bytes",) if engine else ())
    raw = [
        (*name, round(ideal.total), *(round(getattr(mine or ideal, part)) for part in parts),
         *((round(mine.total),) if mine else ()))
        for name, (_, ideal, mine) in zip(names, rows, strict=True)
    ]  # fmt: skip
    if engine and engine.shared:
        raw.append(("", "slab rest", 0, *[0] * len(parts), round(engine.shared)))
    source = held or everything
    raw.append(
        ("", "total", account.view.ideal.total, *(round(getattr(source, part)) for part in parts),
         *((engine.total,) if engine else ()))
    )  # fmt: skip
    return Section("", columns, tuple(shown), raw_columns, tuple(raw), footer=1)


def _cells(name: str, ideal: LayerBytes, held: LayerBytes | None) -> tuple[str, ...]:
    if held is None:
        return (name, *(_dash(getattr(ideal, part)) for part in PARTS[:3]), three_digits(ideal.total))
    parts = (_dash(getattr(held, part)) for part in PARTS)
    return (name, three_digits(ideal.total), *parts, three_digits(held.total))


def _dash(count: float) -> str:
    return three_digits(count) if count else "–"


def _by_page(account: Account) -> Section:
    layout = account.layout
    if layout is None:
        raise UserError("--by page: only vllm has pages; give --engine vllm")
    rows, raw = [], []
    for page in sorted(layout.pages, key=lambda page: BUCKETS.index(page.bucket)):
        owners = sum(page.kind in CACHES[kind] for kind in layout.layers)
        padding = f"{page.padding:,} ({100 * page.padding / page.page_bytes:.1f} %)"
        counts = (page.entries, page.tokens, page.raw_bytes, page.page_bytes)
        rows.append((page.kind.value, page.bucket, str(owners), *(f"{count:,}" for count in counts), padding))
        raw.append((page.kind.value, page.bucket, owners, *counts, page.padding, page.group))
    columns = ("cache", "bucket", "layers", "entries", "tokens", "raw B", "page B", "padding B")
    raw_columns = (
        "cache",
        "bucket",
        "layers",
        "entries",
        "tokens",
        "raw_bytes",
        "page_bytes",
        "padding_bytes",
        "group",
    )
    return Section("", columns, tuple(rows), raw_columns, tuple(raw), tuple(_page_lines(layout)))


def _page_lines(layout: CacheLayout) -> list[str]:
    sizes = {page.bucket: 0 for page in layout.pages}
    for page in layout.pages:
        sizes[page.bucket] = max(sizes[page.bucket], page.page_bytes)
    used = " / ".join(f"{sizes[bucket]:,}" for bucket in BUCKETS if bucket in sizes)
    lines = [f"page-size buckets: {used} B (the largest page of each)"]
    for group in layout.groups:
        window = f"the last {group.window} tokens" if group.window else "every token"
        fill = f"{group.bytes:,} B, {100 * group.bytes / layout.bytes_per_block:.0f} % of a block"
        pages = f"{len(group.placements)} pages = {fill}"
        lines.append(f"group {group.name}: {group.tokens} tokens a block, keeps {window}; {pages}")
    lines.append(f"bytes per block: {layout.bytes_per_block:,} ({layout.name})")
    return lines


_TABLES: dict[str, Callable[[Account], Section]] = {
    "layer": _by_layer,
    "kind": _by_kind,
    "page": _by_page,
    "total": _by_total,
}
VIEWS = tuple(_TABLES)
"""What ``--by`` may be."""


# --- sentences -------------------------------------------------------------------------------------------------------
def _precisions(account: Account, *, defaulted: bool) -> str:
    """Precisions and draft tokens; a default precision is named as such."""
    mtp = account.deployment.mtp
    drafts = f", {mtp} draft token{'s' if mtp > 1 else ''}" if mtp else ""
    why = f" (defaults for {'an engine' if account.engine else 'ideal'})" if defaulted else ""
    return f"{precision_label(account.view)}{why}{drafts}"


def _summary(account: Account) -> list[str]:
    view, base = account.view, account.baseline
    lines = []
    if base is not None and account.ratio is not None:
        lines.append(
            f"{three_digits(view.ideal.total)} against {three_digits(base.ideal.total)} for {base.shape.name} "
            f"({precision_label(base)}): {_times(account.ratio)}"
        )
    lines.append(f"{view.bytes_per_token:,.0f} B per token + {three_digits(view.fixed_bytes)} fixed (ideal)")
    if view.state_bytes:
        lines.append(f"compressor state, not in the ideal figure: {format_bytes(view.state_bytes)} a request")
    if view.engine is not None:
        held, ranks = view.engine.total, account.deployment.dcp
        extra = held * ranks / view.ideal.total - 1 if view.ideal.total else 0.0
        each = f" on each of {ranks} dcp ranks" if ranks > 1 else ""
        each += f" over {account.deployment.pp} pipeline stages" if account.deployment.pp > 1 else ""
        size = f"{three_digits(held)} ({held:,} B){each}"
        lines.append(f"a decoding request holds {size}, {100 * extra:+.1f} % over the ideal")
        if view.engine.buffers:
            sizes = ", ".join(f"{name} {size / 2**20:,.2f} MiB" for name, size in view.engine.buffers.items())
            lines.append(f"buffers: {sizes}")
        if base is not None and base.engine is not None and view.engine.total:
            ratio = base.engine.total / view.engine.total
            lines.append(f"{base.shape.name} in the same engine: {three_digits(base.engine.total)}, {ratio:.1f}×")
    if account.measured_bytes is not None:
        lines.append(f"measured: {three_digits(account.measured_bytes)} ({account.measured_bytes:,} B) from the device")
    if account.engine is not None:
        lines.append("checked against a server's log" if account.checked else "predicted, not checked against a log")
    return lines


def _times(ratio: float) -> str:
    """How much less the model takes than its baseline, or how much more."""
    return f"{ratio:.1f}× less" if ratio >= 1 else f"{1 / ratio:.1f}× more"


def _capacity(account: Account, got: Capacity) -> Section:
    d = account.deployment
    rows: list[tuple[str, ...]] = []
    if got.num_blocks is not None:
        rows.append(("blocks", f"{got.num_blocks:,}", f"of {got.bytes_per_block:,} B"))
        by_group = ", ".join(f"{name} {count:,}" for name, count in got.group_blocks.items())
        rows.append(("blocks per request", f"{got.blocks_per_request:,}", by_group))
    if got.in_flight_share is not None:
        why = f"{got.in_flight_tokens:,} tokens, charged at admission, not held while decoding"
        rows.append(("of these for tokens in flight", f"{100 * got.in_flight_share:.0f} %", why))
    if got.bytes_per_token is not None:
        rows.append(("bytes per full token", f"{got.bytes_per_token:,.2f}", "over all pools"))
        rows += [(f"{name} tokens", f"{count:,}", "") for name, count in got.pools.items()]
    bound = f", bound by {got.bound_by} tokens" if got.bound_by else ""
    size = format_tokens(got.max_model_len)
    rows.append(("concurrency", f"{got.concurrency:,.2f}×", f"requests of {size}{bound}"))
    if got.num_blocks is not None:
        rows.append(
            ("KV cache tokens", f"{got.kv_cache_tokens:,}", "derived: concurrency × max_model_len; vLLM logs it")
        )
    elif not got.pools:
        rows.append(("KV cache tokens", f"{got.kv_cache_tokens:,}", "slots × max_model_len"))
    longest = f"{got.largest_context:,}"
    limit = account.view.shape.max_positions
    rows.append(("largest context", longest, f"the model declares {limit:,}" if got.largest_context > limit else ""))
    lines = (
        _fitting(got, d.dp),
        *_uncounted(account.budget),
        *_decoding(got, d.dp),
        f"figures are per GPU and dp rank: KV is replicated over tp {d.tp}, split over dp {d.dp}"
        + (f", its layers split over pp {d.pp}" if d.pp > 1 else ""),
    )
    title = f"Capacity for requests of {size}"
    if account.budget is not None:
        title += f" in {three_digits(got.available_bytes)} per GPU"
    return Section(title, ("", "value", "of what"), tuple(rows), lines=lines)


def _fitting(got: Capacity, dp: int) -> str:
    """How many whole requests fit, over all dp ranks; or what does fit where none of that length does."""
    size, count = format_tokens(got.max_model_len), int(got.concurrency)
    if not got.largest_context:
        return "no request fits, however short"
    if not count:
        return f"a request of {size} does not fit, the longest that does has {got.largest_context:,} tokens"
    each = f": {count:,} on each of {dp} dp ranks" if dp > 1 else ""
    return f"{count * dp:,} request{'s' if count * dp > 1 else ''} of {size} fit{'' if count * dp > 1 else 's'}{each}"


def _decoding(got: Capacity, dp: int) -> tuple[str, ...]:
    """How many decode at once, where admission charges for more than a request keeps."""
    if got.decoding_requests is None or got.decoding_requests <= int(got.concurrency):
        return ()
    each = f", {got.decoding_requests:,} on each of {dp} dp ranks" if dp > 1 else ""
    return (f"decoding, {got.decoding_requests * dp:,} fit{each}: each gives back the charge for tokens in flight",)


def _uncounted(budget: Budget | None) -> tuple[str, ...]:
    """What of a GPU's memory the number of requests leaves out, because nobody gave it."""
    lines = budget.lines if budget is not None and budget.gpu is not None else ()
    names = [line.name for line in lines if line.bytes is None]
    return (f"not counted: {', '.join(names)}; less fits beside them",) if names else ()


def _budget(budget: Budget, fixed_state: int) -> Section:
    """The budget line by line; request-scoped state is part of the cache's memory that its pools do not get."""
    rows: list[tuple[str, ...]] = []
    state = [("request-scoped state", f"− {three_digits(fixed_state)}", "as given, out of the cache's memory")]
    if budget.gpu is not None:
        rows.append(("memory", three_digits(budget.gpu.memory_bytes), f"{budget.gpu.name}, one of {budget.count}"))
        rows.append((f"× utilization {budget.utilization:g}",
                     three_digits(budget.gpu.memory_bytes * budget.utilization), ""))  # fmt: skip
    for line in budget.lines:
        sign = "− " if budget.gpu is not None and line.bytes else ""
        rows.append((line.name, sign + three_digits(line.bytes) if line.bytes is not None else "not counted", line.how))
    if budget.gpu is not None:
        rows.append(("for the KV cache", three_digits(budget.available_bytes), ""))
        if fixed_state:
            rows += [*state, ("for its pools", three_digits(max(0, budget.available_bytes - fixed_state)), "")]
        return Section("Budget per GPU", ("", "size", "how"), tuple(rows), footer=1)
    rows += state if fixed_state else []
    rows += [
        (name, "not counted", "the available memory was given") for name in ("weights", "activations", "CUDA graphs")
    ]
    return Section("Workspaces outside the pool, per GPU", ("", "size", "how"), tuple(rows))


def _explanation(account: Account) -> Section:
    lines = [f"ideal: {term}" for term in account.view.ideal.terms]
    lines.append(f"ideal: total = {account.view.ideal.total:,} B")
    if account.baseline is not None:
        name = account.baseline.shape.name
        lines += [f"{name}: {term}" for term in account.baseline.ideal.terms]
        lines.append(f"{name}: total = {account.baseline.ideal.total:,} B")
    if account.view.engine is not None:
        lines += [f"request: {term}" for term in account.view.engine.terms]
    if account.capacity is not None:
        lines += [f"capacity: {term}" for term in account.capacity.terms]
    return Section("Terms", lines=tuple(lines))
