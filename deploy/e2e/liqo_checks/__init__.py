"""The checks with Liqo, in their order. Each module adds its own to `lab.report.CHECKS`."""

from liqo_checks import install, network, peer, whole, operator  # noqa: F401
