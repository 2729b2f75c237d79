"""The examples in docs/, the commands of the pages, and what their links lead to exist."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from autotune.cli.app import app

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "docs" / "examples"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = ("docs", "search_spaces", "benchmarks", "tests")
MARKDOWN = [*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))]


def _assert_command(arguments: list[str]) -> None:
    """Parses a command line of autotune as the program does, without running it."""
    command: Any = typer.main.get_command(app)
    name, *rest = arguments
    assert name in command.commands, f"there is no command {name}"
    with command.commands[name].make_context(name, rest):
        pass


def _commands(text: str) -> list[list[str]]:
    """Returns the command lines of autotune in the indented blocks and fences of a page."""
    lines = re.findall(r"^(?: {4}|\$ |RUN |run: )autotune ([a-z].*)$", text, re.MULTILINE)
    plain = [line.split("#")[0].split("|")[0].split("&&")[0] for line in lines]
    return [shlex.split(line) for line in plain]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    commands = _commands(page.read_text(encoding="utf-8"))
    assert len(commands) > 10 or page.name != "deploying.md"
    for arguments in commands:
        _assert_command(arguments)


def _anchors(page: Path) -> set[str]:
    """Returns what a link to a page may name: its headings as GitHub writes them, and its marks."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
    headings = [heading.lower() for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    marks = re.findall(r'<a (?:id|name)="([^"]+)">', text)
    return {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in headings} | {*marks}


def test_the_links_of_all_pages_lead_somewhere() -> None:
    wrong = []
    for page in MARKDOWN:
        links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
        for link in [link for link in links if "://" not in link]:
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            if not target.exists() or (anchor and anchor not in _anchors(target)):
                wrong.append(f"{page.relative_to(ROOT)}: {link}")
    assert wrong == []


@pytest.mark.parametrize("page", [*PAGES, EXAMPLES / "gate.yml"], ids=lambda page: page.name)
def test_the_name_on_a_registry_stands_only_where_it_is_said_to_be_missing(page: Path) -> None:
    for line in page.read_text(encoding="utf-8").splitlines():
        assert "ort-autotune" not in line or "not published yet" in line


def _yaml(name: str) -> Any:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    return yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8"))


def test_the_compose_file() -> None:
    document = _yaml("compose.yaml")
    services = document["services"]
    workers = {name: service for name, service in services.items() if name != "database"}
    assert len(workers) == 2
    for worker in workers.values():
        assert (ROOT / worker["build"]["dockerfile"]).is_file()
        assert worker["depends_on"] == {"database": {"condition": "service_healthy"}}
        assert "healthcheck" in services["database"]
        _assert_command(worker["command"])
        assert worker["environment"]["AUTOTUNE_STORAGE"].startswith("postgresql://")
        named = {volume.split(":")[0] for volume in worker["volumes"]} - {"./models"}
        assert named <= document["volumes"].keys()
    volumes = [set(worker["volumes"]) for worker in workers.values()]
    assert volumes[0] & volumes[1] == {"./models:/models:ro"}
    assert len({worker["cpuset"] for worker in workers.values()}) == 2
    password = str(document)
    assert password.count("${POSTGRES_PASSWORD:?") == 3, "no password stands in the file"


def test_the_dockerfile() -> None:
    text = (EXAMPLES / "Dockerfile").read_text(encoding="utf-8")
    instructions = [line.split() for line in text.splitlines() if line and line[0] not in "# "]
    copied = [source for words in instructions if words[0] == "COPY" for source in words[1:-1]]
    assert {"pyproject.toml", "autotune", "search_spaces"} <= set(copied)
    assert all((ROOT / source).exists() for source in copied)
    match = re.search(r'"/src\[([\w,]+)\]"', text)
    assert match is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(match[1].split(",")) <= project["optional-dependencies"].keys()
    assert ["USER", "worker"] in instructions


def test_the_gate_of_a_hosted_build() -> None:
    steps = _yaml("gate.yml")["jobs"]["gate"]["steps"]
    commands = [step["run"] for step in steps if step.get("run", "").startswith("autotune ")]
    assert [shlex.split(command)[1] for command in commands] == ["check", "compare"]
    for command in commands:
        _assert_command(shlex.split(command)[1:])
