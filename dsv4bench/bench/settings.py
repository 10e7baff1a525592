"""What a worker has to know beside its cases; small, frozen and picklable."""

from dataclasses import dataclass
from typing import Any

from dsv4bench.bench.contract import make_contract
from dsv4bench.bench.device import Device
from dsv4bench.bench.footprint import memory_of
from dsv4bench.results.row import Contract, Row, Status
from dsv4bench.scenario.case import Case
from dsv4bench.scenario.schema import TimingSection


@dataclass(frozen=True)
class Settings:
    """How a run measures.

    Attributes:
        timing: the scenario's section.
        device: where.
        check: compare outputs with the reference around the timing.
        first_round: number of the first round, when earlier ones were measured before.
    """

    timing: TimingSection
    device: Device
    check: bool = True
    first_round: int = 0

    def wants_gaps(self, case: Case) -> bool:
        """Whether a case's launch gaps are traced: on a GPU, and if the scenario doesn't say, for layers."""
        asked = self.timing.gaps
        return self.device.type == "cuda" and (case.scenario_kind == "layer" if asked is None else asked)

    def contract(self, case: Case) -> Contract:
        """The contract of a case's numbers."""
        return make_contract(self.timing, case, self.device)

    def failed(self, case: Case, status: Status, reason: str) -> Row:
        """A row without numbers."""
        return self._row(case, status, reason)

    def blank(self, case: Case) -> Row:
        """The row of a case that is not timed (``kind: memory``)."""
        return self._row(case, Status.OK, "", memory=memory_of(case))

    def measured(self, case: Case, **found: Any) -> Row:
        """The row of a case with what was found, as fields of `Row`."""
        return self._row(case, Status.OK, "", **found)

    def _row(self, case: Case, status: Status, reason: str, **found: Any) -> Row:
        contract = self.contract(case)
        return Row(
            case_id=case.case_id,
            pair_id=case.pair_id,
            contract_id=contract.contract_id,
            label=case.label,
            case=case.describe(),
            contract=contract,
            status=status,
            reason=reason,
            **found,
        )
