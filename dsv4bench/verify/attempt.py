"""A row from beginning to end: it is tried, and of a failure the inputs are on the disk before the next row starts."""

from dataclasses import replace
from pathlib import Path

from dsv4bench.providers.base import Provider
from dsv4bench.verify.replay import save_failure
from dsv4bench.verify.suite import Outcome, Row, Status, run_row
from dsv4bench.verify.trial import Setting


def attempt(provider: Provider, row: Row, setting: Setting, allow: frozenset[str], folder: Path) -> Outcome:
    """Try one row with one setting; the outcome names the file in ``folder`` and holds no tensors."""
    outcome = run_row(provider, row, setting, allow=allow)
    if outcome.status is not Status.FAIL:
        return replace(outcome, failed_call=None)
    try:
        saved, unsaved = save_failure(outcome, folder), ""
    except OSError as error:  # a disk that has filled up since; what is wrong is known all the same
        saved, unsaved = None, f"; its inputs can't be saved: {error.filename}: {error.strerror}"
    return replace(outcome, failed_call=None, saved=saved, reason=outcome.reason + unsaved)
