"""``dsv4bench schema``: the JSON Schema of scenarios, for editors."""

import json

import typer

from dsv4bench.scenario.schema import Scenario


def schema_text() -> str:
    """The schema as committed in ``scenarios/schema.json``."""
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Scenario.model_json_schema()}
    return json.dumps(document, indent=2) + "\n"


def schema() -> None:
    """Print the JSON Schema of scenario files."""
    typer.echo(schema_text(), nl=False)
