"""The cases of a scenario, before anything is imported or run: what they name has to exist."""

from collections.abc import Sequence

from dsv4bench.errors import UserError
from dsv4bench.model.config import load_shape
from dsv4bench.providers.registry import require_known
from dsv4bench.scenario.case import Case
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.schema import Scenario, require_stages


def known_cases(scenario: Scenario) -> list[Case]:
    """Every case of a scenario.

    Raises:
        UserError: it can't be expanded, or it names a provider or a baseline that can't exist.
    """
    cases = expand(scenario)
    for spec in dict.fromkeys(name for case in cases for name in case.provider.names):
        require_known(spec)
    provider, model = scenario.baseline.provider, scenario.baseline.model
    if provider is not None and provider not in {case.provider.label for case in cases}:
        for word in provider.split(","):
            stage, _, name = word.rpartition("=")
            try:
                require_stages([stage] if stage else [])
            except ValueError as error:
                raise UserError(f"baseline.provider {provider}: {error}") from error
            require_known(name)
    if model is not None and model not in {case.shape.name for case in cases}:
        load_shape(model)
    return cases


def unused_baselines(scenario: Scenario, cases: Sequence[Case]) -> list[str]:
    """Sentences about baselines that nothing will be compared with, since none of the cases is theirs."""
    found = {
        "provider": dict.fromkeys(case.provider.label for case in cases),
        "model": dict.fromkeys(case.shape.name for case in cases),
    }
    return [
        f"nothing is compared with baseline.{key} {name}: the {key}s of the cases are {', '.join(have)}"
        for key, have in found.items()
        if (name := getattr(scenario.baseline, key)) is not None and name not in have
    ]
