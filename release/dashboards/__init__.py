"""Describes the Grafana dashboards as code, and writes them as JSON into the package: ``python -m release.dashboards``."""
