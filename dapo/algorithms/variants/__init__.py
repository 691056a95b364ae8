"""Published variants, one file each: the formula, what it needs, and its state. Options: ``config/schema/kinds.py``."""
