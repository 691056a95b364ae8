"""Where hosts live (``dapo.contracts.remote``): in the driver, in processes of this machine."""
