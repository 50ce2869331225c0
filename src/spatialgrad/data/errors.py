"""Errors of data sets; each message names the file and says what to do."""


class DataError(RuntimeError):
    """A data set cannot be read, downloaded or written."""


class MissingDataError(DataError):
    """A data set, or one of its files, was not found."""


class CorruptDataError(DataError):
    """A file is truncated, damaged, swapped with another one, or in the wrong format."""


class UnreachableError(DataError):
    """A host does not respond, or does not have the file."""
