"""Published variants, one file each: the formula, what it needs, and its state. ``registry`` names them."""
