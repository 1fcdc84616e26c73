"""Kubernetes clusters on one machine, and traffic between their pods."""
