"""A tuned config in use: what it would do on this machine, and what an export wrote."""

from dataclasses import asdict

from autotune.deploy.check import Check
from autotune.export.writing import Exported
from autotune.report.view import Line, View, lines


def view_check(check: Check, config: str) -> View:
    """Returns what a check found."""
    data = {**asdict(check), "valid": check.valid, "outcome": check.outcome}
    if not check.valid:
        return View(blocks=[Line(check.problem, "bad"), Line(check.outcome)], data=data)
    blocks = [
        Line(f"{config} is a valid config of the format {check.format}.", "good"),
        Line(
            f"Its model files have the sizes and digests that it names: {', '.join(check.files)}."
        ),
    ]
    if check.steps:
        blocks.append(
            Line(f"Its model differs from the untouched one by {', '.join(check.steps)}.")
        )
    if check.tuned_for:
        blocks.append(Line(f"It was {check.tuned_for}."))
    if check.refusal:
        words = f"It would give wrong answers on this processor: {check.refusal}."
        blocks.append(Line(words, "bad"))
    if check.lacking:
        blocks.append(Line(f"This machine lacks {', '.join(check.lacking)}.", "bad"))
    if check.differences:
        blocks.append(Line(f"It was tuned elsewhere: {'; '.join(check.differences)}."))
    if check.adapted:
        blocks.append(Line(f"Here {check.adapted}."))
    blocks += lines(*check.calls)
    return View(blocks=[*blocks, Line(check.outcome)], data=data)


def view_export(exported: Exported) -> View:
    """Returns the written files, what the target cannot express, and how to use them."""
    blocks = lines(*(f"Wrote {path}" for path in exported.files))
    if exported.lost:
        blocks.append(Line(f"{exported.target} cannot express:", "warning"))
        blocks += lines(*(f"  {part}" for part in exported.lost))
    for need in exported.needs:
        blocks.append(Line(f"Not checked: its processor needs {need}", "bad"))
    return View(
        blocks=[*blocks, Line(f"Use: {exported.use}")],
        data={**asdict(exported), "files": [str(path) for path in exported.files]},
    )
