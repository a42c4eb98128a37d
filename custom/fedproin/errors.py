"""Mistakes that a person can mend: each message is one sentence that says what to do.

These messages travel: they reach logs, the server and the console. So they carry counts, settings and class names, and
never a file name, a path below the data root, or anything that names a patient.
"""


class UserError(Exception):
    """A mistake that its reader can mend; the message says how."""


class SettingsError(UserError):
    """A setting is unknown, out of range, or cannot work with the others."""


class DataError(UserError):
    """The data of a site cannot be used as it is."""
