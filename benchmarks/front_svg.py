"""Draws the Pareto front of a study: latency against memory, the default beside it.

    python benchmarks/front_svg.py model.autotune/front.json docs/front.svg

The picture needs no package. A study with other objectives is drawn by these two as well.
"""

import argparse
import textwrap
from html import escape
from pathlib import Path

from autotune.results.result import Member, StudyResult

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 760, 340, 60, 40, 50
_LINE, _LETTERS = 17, 100


def svg(result: StudyResult) -> str:
    """Returns the picture as SVG: the front as a line of dots, numbered as the trials below it."""
    members = sorted(result.members, key=lambda member: member.evidence.latency_ms)
    front = [member for member in members if member.trial != result.baseline.trial]
    most_ms = 1.1 * max(member.evidence.latency_ms for member in members)
    most_mib = 1.1 * max(member.evidence.peak_memory_mib for member in members)

    def place(member: Member) -> tuple[float, float]:
        x = _LEFT + (_WIDTH - _LEFT - 20) * member.evidence.latency_ms / most_ms
        y = _HEIGHT - _BOTTOM
        return x, y - (y - _TOP) * member.evidence.peak_memory_mib / most_mib

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, front))
    parts = [
        _text(_LEFT, 20, f"{result.model.name}: latency against memory", "bold"),
        f'<path d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - 20}" fill="none" stroke="#666"/>',
        _text(_LEFT, _HEIGHT - 18, f"latency of one run, 0 to {most_ms:.3g} ms"),
        f'<g transform="translate(24 {_HEIGHT - _BOTTOM}) rotate(-90)">',
        _text(0, 0, f"peak memory, 0 to {most_mib:.3g} MiB"),
        "</g>",
        f'<polyline points="{line}" fill="none" stroke="#2a6fb0" stroke-width="2"/>',
    ]
    y = float(_HEIGHT + _LINE)
    for member in members:
        color = "#c0392b" if member not in front else "#2a6fb0"
        weight = "bold" if member.trial == result.picked else "normal"
        across, down = place(member)
        parts.append(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="5" fill="{color}"/>')
        parts.append(_text(across + 8, down - 6, str(member.trial), weight))
        for words in textwrap.wrap(_legend(member), _LETTERS):
            parts.append(_text(_LEFT, y, words, weight))
            y += _LINE
    size = f'width="{_WIDTH}" height="{y:.0f}"'
    style = 'font-family="sans-serif" font-size="13"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>'
    background = f'<rect {size} fill="white"/>'
    return "\n".join([start, background, *parts, "</svg>", ""])


def _legend(member: Member) -> str:
    evidence = member.evidence
    numbers = f"{evidence.latency_ms:.3g} ms, {evidence.peak_memory_mib:.3g} MiB"
    return f"{member.trial}: {numbers}: {member.words}"


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}">{escape(text)}</text>'


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draws the Pareto front of a study as SVG.")
    parser.add_argument("front", type=Path, help="front.json of a study")
    parser.add_argument("picture", type=Path, help="the SVG file to write")
    arguments = parser.parse_args()
    arguments.picture.write_text(svg(StudyResult.read(arguments.front.parent)), encoding="utf-8")
