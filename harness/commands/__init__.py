"""One verb a module; the command line finds them by scanning this folder."""
