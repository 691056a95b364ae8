"""Pages made from run folders: ``dapo report`` and ``dapo view``. Reads files only; never writes into what it reads."""
