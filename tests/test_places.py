"""Where studies are kept: URLs, whose passwords are not printed."""

import traceback
from pathlib import Path

import pytest

from autotune.errors import RequestError
from autotune.storage.database import Place, open_storage, quiet_optuna
from autotune.storage.masking import without_secrets
from autotune.study.resume import place_of

SECRET = "s3cr3t"  # a password in an URL


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of whoever runs the tests does not matter."""
    monkeypatch.delenv("AUTOTUNE_STORAGE", raising=False)


def test_a_folder_has_its_own_database(tmp_path: Path) -> None:
    place = Place.of(None, tmp_path)
    assert place.file == (tmp_path / "study.db").resolve()
    assert not place.is_shared
    assert str(place) == str(place.file)


@pytest.mark.parametrize("name", ["run 100%25", "a%41", "what?", "#1", "новая папка", "a&b=c"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with quiet_optuna(), open_storage(Place.of(None, folder)):
        pass
    assert (folder / "study.db").is_file()
    place, _ = place_of(str(folder))
    assert place.file == (folder / "study.db").resolve()
    assert Place.of(place.text, Path()).file == place.file
    with quiet_optuna(), open_storage(place):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_the_variable_names_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the password out of the list of processes; the option comes first."""
    monkeypatch.setenv("AUTOTUNE_STORAGE", f"postgresql://me:{SECRET}@host/name")
    place = Place.of(None, tmp_path)
    assert place.is_shared
    assert place.url.drivername == "postgresql+psycopg"
    assert place.url.password == SECRET
    assert Place.of("sqlite:///other.db", tmp_path).file == Path("other.db")


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@host/name",
        f"postgresql+psycopg://me:{SECRET}@host:5433/name?sslpassword={SECRET}",
        f"postgresql://host/name?user=me&password={SECRET}",
    ],
)
def test_secrets_are_not_printed(url: str) -> None:
    place = Place.of(url, Path())
    for text in (str(place), repr(place), f"{place}"):
        assert SECRET not in text
        assert "host" in text


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@{SECRET}@host/name",
        f"postgresql://me:@{SECRET}/{SECRET}@host/name",
        f"postgresql://me:a@{SECRET}:{SECRET}@host/name",
        f"postgresql://me:{SECRET}@host:{SECRET}/name",
        f"me:{SECRET}@host/name",
        f"//me:{SECRET}@host/name",
        f"postgresql:/me:{SECRET}@host/name",
        f"postgresql:me:{SECRET}@host",
        f"nonsense://me:{SECRET}@host",
    ],
)
def test_an_url_that_cannot_be_read_is_not_printed(url: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as refusal:
        Place.of(url, tmp_path)
    assert SECRET not in str(refusal.value)
    assert "--storage" in str(refusal.value)
    assert SECRET not in "".join(traceback.format_exception(refusal.value))
    with pytest.raises(RequestError) as refusal:
        place_of(url)
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "must be a URL"),
        ("mysql://host/name", "not in mysql"),
        ("redis://host", "not in redis"),
    ],
)
def test_other_storages_are_refused(url: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Place.of(url, Path())


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://me:s3cr3t@host/name", "postgresql://me:***@host/name"),
        ("--storage=postgresql://me:s3cr3t@host/name", "--storage=postgresql://me:***@host/name"),
        ("postgresql://me:s3cr3t@s3cr3t@host/name", "postgresql://me:***@host/name"),
        ("postgresql://me:a@s3cr3t/s3cr3t?@host/name", "postgresql://me:***@host/name"),
        ("postgresql://me:a s3cr3t@host", "postgresql://me:***@host"),
        ("postgresql://a@s3cr3t@host", "postgresql://***@host"),
        ("postgresql://host/name?password=s3cr3t&b=1", "postgresql://host/name?password=***&b=***"),
        ("mysql://me:s3cr3t@host", "mysql://me:***@host"),
        ("me:s3cr3t@host/name", "me:***@host/name"),
        ("postgresql:/me:s3cr3t@host", "postgresql:***@host"),
        ("//me:a@s3cr3t@host", "//me:***@host"),
        ("no file 'me:s3cr3t@host' here", "no file 'me:***@host' here"),
        ("first\nx://me:s3cr3t@host\nlast", "first\nx://me:***@host\nlast"),
    ],
)
def test_passwords_are_masked_to_the_last_at(text: str, masked: str) -> None:
    assert without_secrets(text) == masked
    assert without_secrets(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "--trials",
        "model.onnx",
        "sqlite:///a.db",
        "a=b",
        "x://",
        "postgresql://me@host/name",
        "me@example.com",
        "autotune: there is no file a@b.onnx",
        "see https://example.com/docs",
        "",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert without_secrets(text) == text


def test_long_text_takes_no_time() -> None:
    """The time grows with the length and not with its square: this would take minutes."""
    text = "n" * 1_000_000
    assert without_secrets(text) == text
    assert SECRET not in without_secrets(f"x://me:{SECRET}{text}@{text}")
