"""Loading, packed attention, and weights that travel."""

import logging

# transformers imports torchao wherever it is installed, and torchao then warns of GPU kernels that nothing here uses.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
