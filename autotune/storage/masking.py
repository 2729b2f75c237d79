"""Text that may be printed: passwords in URLs are masked.

This module knows the forms of URLs alone and needs no library, because every message of the program
passes through it.
"""

import re

HIDDEN = "***"

_OPTION = re.compile(r"(?P<name>[?&][\w.-]+=)[^&\s'\")]+")


def without_secrets(text: str) -> str:
    """Returns the text with ``***`` for all that may be a password in an URL.

    That is what stands between the user and the last ``@`` of the line, because a password may hold
    any character, and the value of every option. A word such as ``user:password@host`` is one too.
    """
    return "".join(map(_without_secrets, text.splitlines(keepends=True)))


def _without_secrets(line: str) -> str:
    head, at, tail = line.rpartition("@")
    before, scheme, login = head.partition("://")
    if at and scheme:
        user, colon, _ = login.partition(":")
        if re.search(r"[\s/?@]", user):  # no user: the password may begin anywhere
            line = f"{before}{scheme}{HIDDEN}@{tail}"
        elif colon:
            line = f"{before}{scheme}{user}:{HIDDEN}@{tail}"
    elif at:
        line = "".join(map(_masked_word, re.split(r"(\s+)", line)))
    return _OPTION.sub(rf"\g<name>{HIDDEN}", line) if "://" in line else line


def _masked_word(word: str) -> str:
    login, at, host = word.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{user}:{HIDDEN}@{host}" if at and colon else word
