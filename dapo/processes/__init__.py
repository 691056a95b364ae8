"""Where hosts live (``dapo.processes.transport``): in the driver, in processes of this machine."""
