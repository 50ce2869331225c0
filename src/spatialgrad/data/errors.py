"""What can be wrong with data on disk, each error naming the file and the way out."""


class DataError(RuntimeError):
    """A data set cannot be read or fetched; the message names the file and what to do."""


class MissingDataError(DataError):
    """A data set is not where it is looked for."""


class CorruptDataError(DataError):
    """A file is there but is truncated, swapped, altered or of another kind."""
