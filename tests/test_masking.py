"""Passwords in what may be printed."""

import pytest

from autotune.storage.masking import without_secrets

SECRET = "s3cr3t"  # a password in an URL


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
