"""The picture of a Pareto front."""

from pathlib import Path
from xml.etree import ElementTree as ET

from front_svg import svg

from autotune.results.result import StudyResult

FOLDER = Path(__file__).parent / "data" / "study"


def test_every_member_is_a_dot_with_its_words() -> None:
    """The picture is valid XML with a dot, a number and a legend for each member."""
    result = StudyResult.read(FOLDER)
    root = ET.fromstring(svg(result))
    name = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{name}circle")) == len(result.members)
    texts = " ".join(text.text or "" for text in root.iter(f"{name}text"))
    for member in result.members:
        assert f"{member.trial}: " in texts
        assert all(word in texts for word in member.words.split())


def test_a_faster_member_lies_further_left() -> None:
    """The dots are in the order of their latencies."""
    root = ET.fromstring(svg(StudyResult.read(FOLDER)))
    dots = root.findall("{http://www.w3.org/2000/svg}circle")
    across = [float(dot.attrib["cx"]) for dot in dots]
    assert across == sorted(across)
