"""What an import costs, in a fresh interpreter each time."""


def timeraw_import_numpy():
    return "import numpy"


def timeraw_import_pagedcache():
    return "import pagedcache"
