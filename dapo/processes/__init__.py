"""Processes that hold hosts (``dapo.processes.transport``): the driver, or others of this machine."""
