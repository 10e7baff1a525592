"""Failing inputs as a small file, and trying a provider on them again.

A file holds one call of one stage with its arguments; of large caches only the pages that the call addresses. Where a
row failed without any single call being wrong (two runs that should agree do not), it holds the row's setting alone.
"""

import tempfile
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.formats import FORMATS
from dsv4_kernels.weight import Fp8Weight

from dsv4bench.errors import UserError
from dsv4bench.model.shape import LayerKind
from dsv4bench.providers.base import Provider
from dsv4bench.results.atomic import replacing
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.verify.suite import Outcome, Row, Status, row_numbered, run_row
from dsv4bench.verify.trial import Setting, Trial

VERSION = 1
WHOLE_BYTES = 1 << 25
"""Caches up to this size are stored whole."""
_TABLES = ("block_table", "state_block_table")


def require_writable(folder: Path) -> None:
    """Refuse a folder in which nothing can be stored, without making it.

    Raises:
        UserError: with what stands in the way.
    """
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise UserError(f"can't write {folder}: {error.strerror}; --save names another folder") from error


def save_failure(outcome: Outcome, folder: Path) -> Path:
    """Store what made an outcome fail; returns the file's path.

    Raises:
        OSError: it can't be written.
    """
    setting = asdict(outcome.setting)
    setting["kind"] = outcome.setting.kind.value
    content: dict[str, Any] = {
        "version": VERSION,
        "row": outcome.row.number,
        "setting": setting,
        "reason": outcome.reason,
    }
    if outcome.failed_call is not None:
        name, arguments = outcome.failed_call
        content |= {"stage": name, "arguments": {key: _pack(key, v, arguments) for key, v in arguments.items()}}
    path = folder / f"row{outcome.row.number}-{outcome.setting.kind}-{outcome.setting.precision.label}.pt"
    file = BytesIO()  # torch's own writer calls a full disk a RuntimeError
    torch.save(content, file)
    with replacing(path) as beside:
        beside.write_bytes(file.getvalue())
    return path


def replay(path: Path, provider: Provider, *, device: str | None = None) -> Outcome:
    """Try a provider on stored inputs.

    Args:
        path: of ``save_failure``.
        provider: who is tried.
        device: where; by default the device that the failure was found on, if it is here.

    Returns:
        the outcome; of a failure that does not happen again, the reason says so.

    Raises:
        UserError: not such a file.
    """
    row, setting, content = _read(path)
    device = device or (setting.device if setting.device == "cpu" or torch.cuda.is_available() else "cpu")
    again = replace(setting, device=device)
    outcome = run_row(provider, _saved_call(row, content, device), again)
    if outcome.status is not Status.PASS:
        return outcome
    then, now = (f" on {setting.device}", f" on {device}") if device != setting.device else ("", "")
    return replace(outcome, reason=f"failed{then} when it was saved, passes{now} now; it was {content['reason']}")


def _saved_call(row: Row, content: dict[str, Any], device: str) -> Row:
    """The row, or of it the one call that was wrong."""
    if "stage" not in content:
        return row
    arguments = {key: _unpack(value, device) for key, value in content["arguments"].items()}

    def check(trial: Trial) -> None:
        trial.stage(content["stage"], **arguments)

    return Row(row.number, row.name, row.reported, row.kinds, check, (content["stage"],))


def _read(path: Path) -> tuple[Row, Setting, dict[str, Any]]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        version = content["version"]
        stored = content["setting"]
        precision = CachePrecision(**stored.pop("precision"))
        setting = Setting(**(stored | {"kind": LayerKind(stored["kind"]), "precision": precision}))
        row = row_numbered(content["row"])
    except FileNotFoundError as error:
        raise UserError(f"no such file: {path}") from error
    except Exception as error:  # torch.load and what follows raise many kinds; all mean the same to the user
        raise UserError(f"{path} is not a file that verify saved: {type(error).__name__}") from error
    if version != VERSION:
        raise UserError(f"{path} was saved by another version ({version}, this one reads {VERSION}); run the row again")
    return row, setting, content


def _pack(name: str, value: Any, arguments: dict[str, Any]) -> Any:
    if isinstance(value, PagedCache):
        pages = value.pages
        ids = _addressed(value.num_pages, value.entries, pages[0].numel(), arguments)
        return {
            "cache": value.format.name,
            "entries": value.entries,
            "num_pages": value.num_pages,
            "page_bytes": pages.shape[1],
            "stride": pages.stride(0),
            "ids": ids.cpu(),
            "pages": pages[ids.to(pages.device)].cpu(),
        }
    if isinstance(value, Fp8Weight):
        return {"values": value.values.cpu(), "scales": value.scales.cpu()}
    if name == "state_cache":
        ids = _addressed(len(value), value.shape[1], value[0].numel() * value.element_size(), arguments)
        rows = value[ids.to(value.device)].cpu()
        return {"num_pages": len(value), "stride": value.stride(0), "ids": ids.cpu(), "rows": rows}
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value


def _addressed(num_pages: int, entries: int, page_bytes: int, arguments: dict[str, Any]) -> torch.Tensor:
    """Pages that a call's tables, slots and indices name; all of a small cache."""
    if num_pages * page_bytes <= WHOLE_BYTES:
        return torch.arange(num_pages)
    ids = {0}
    for name, value in arguments.items():
        if not isinstance(value, torch.Tensor):
            continue
        if name in _TABLES:
            ids.update(value.flatten().tolist())
        elif name.endswith(("slots", "_indices")):
            ids.update((value.flatten() // entries).tolist())
    return torch.tensor(sorted(i for i in ids if 0 <= i < num_pages), dtype=torch.long)


def _unpack(value: Any, device: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if not isinstance(value, dict):
        return value
    if "scales" in value:
        return Fp8Weight(value["values"].to(device), value["scales"].to(device))
    count, stride = value["num_pages"], value["stride"]
    ids = value["ids"].to(device)
    if "rows" in value:
        rows = value["rows"].to(device)
        storage = torch.empty(count * stride, dtype=rows.dtype, device=device)
        state = storage.as_strided((count, *rows.shape[1:]), (stride, rows.shape[2], 1))
        state[ids] = rows
        return state
    storage = torch.empty(count * stride, dtype=torch.uint8, device=device)
    pages = storage.as_strided((count, value["page_bytes"]), (stride, 1))
    pages[ids] = value["pages"].to(device)
    return PagedCache(pages, FORMATS[value["cache"]], value["entries"])
