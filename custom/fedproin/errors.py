"""Mistakes that a person can mend: each message is one sentence that says what to do.

These messages travel: they reach logs, the server and the console. So they carry counts, settings and class names, and
never a file name, a path below the data root, or anything that names a patient.
"""

LONGEST_SENTENCE = 500
NOT_JSON = (ValueError, RecursionError)  # what json.loads raises: syntax, encoding, endless numbers; endless nesting


class UserError(Exception):
    """A mistake that its reader can mend; the message says how.

    It may quote what somebody else wrote: whatever that is, the message stays one line of bounded length.
    """

    def __init__(self, message: str) -> None:
        line = "".join(letter if letter.isprintable() else " " for letter in message)
        super().__init__(line if len(line) <= LONGEST_SENTENCE else f"{line[: LONGEST_SENTENCE - 3]}...")


class SettingsError(UserError):
    """A setting is unknown, out of range, or cannot work with the others."""


class DataError(UserError):
    """The data of a site cannot be used as it is."""
