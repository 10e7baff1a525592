"""The gate's result as JUnit XML, which every CI shows: a test case a verdict.

A regression is a failure, a failed measurement or an incomparable case an error, an inconclusive case skipped (with
``strict`` a failure). The elements and attributes are those of the schema that Jenkins' xUnit plug-in publishes.
"""

from xml.etree import ElementTree

from dsv4bench.analysis.gate import GateReport
from dsv4bench.analysis.verdict import Outcome, Verdict
from dsv4bench.report.verdict_cells import explanation, name, why


def junit_xml(report: GateReport) -> str:
    """The report as an XML document."""
    kinds = [_element(verdict, report.strict) for verdict in report.verdicts]
    suite = ElementTree.Element(
        "testsuite",
        name=f"dsv4bench.{report.run.manifest.scenario_name}",
        tests=str(len(kinds)),
        failures=str(kinds.count("failure")),
        errors=str(kinds.count("error")),
        skipped=str(kinds.count("skipped")),
        time="0",
        timestamp=report.run.manifest.started[:19],
    )
    for verdict, kind in zip(report.verdicts, kinds, strict=True):
        case = ElementTree.SubElement(
            suite,
            "testcase",
            name=name(verdict.subject),
            classname=f"dsv4bench.{report.run.manifest.scenario_name}",
            time=f"{verdict.new or 0:.9f}" if verdict.evidence else "0",
        )
        if kind:
            ElementTree.SubElement(
                case, kind, message=f"{verdict.outcome.value}: {why(verdict)}", type=verdict.outcome.value
            )
        ElementTree.SubElement(case, "system-out").text = "\n".join(explanation(verdict))
    root = ElementTree.Element("testsuites", name="dsv4bench gate")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _element(verdict: Verdict, strict: bool) -> str:
    """Element that says how a verdict ended; empty for a passed test."""
    inconclusive = "failure" if strict else "skipped"
    return {
        Outcome.REGRESSED: "failure",
        Outcome.FAILED: "error",
        Outcome.INCOMPARABLE: "error",
        Outcome.INCONCLUSIVE: inconclusive,
    }.get(verdict.outcome, "")
