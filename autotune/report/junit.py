"""The verdicts of a gate as JUnit XML, which build servers show as tests."""

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from autotune.report.text import without_controls
from autotune.results.gate import Verdict


def junit_document(verdicts: Sequence[Verdict]) -> str:
    """Returns a JUnit document with one test case for each verdict."""
    root = ET.Element("testsuites")
    broken = [verdict for verdict in verdicts if not verdict.kept]
    counts = {
        "tests": len(verdicts),
        "failures": sum(verdict.limit != "runs" for verdict in broken),
        "errors": sum(verdict.limit == "runs" for verdict in broken),
    }
    attributes = {
        "name": "autotune compare",
        **{name: str(count) for name, count in counts.items()},
    }
    tests = ET.SubElement(root, "testsuite", attributes)
    for verdict in verdicts:
        config = without_controls(verdict.config)
        case = ET.SubElement(
            tests, "testcase", {"classname": config, "name": verdict.limit, "time": "0"}
        )
        if not verdict.kept:
            kind = "error" if verdict.limit == "runs" else "failure"
            message = without_controls(verdict.words)
            ET.SubElement(case, kind, {"message": message}).text = message
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
