"""What can be wrong with data, each error naming the file and the way out."""


class DataError(RuntimeError):
    """A data set cannot be read or fetched; the message names the file and what to do."""


class MissingDataError(DataError):
    """A data set, or a file of it, is not where it is looked for."""


class CorruptDataError(DataError):
    """A file is there but is truncated, swapped, altered or of another kind."""


class UnreachableError(DataError):
    """A host does not answer, or does not have the file."""
