"""The checks, in the order in which they run."""

from checks import install, forward, nodes, faults, security, upgrade, gateways, replicas, observe, remove  # noqa: F401
