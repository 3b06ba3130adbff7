"""Grafana dashboards and recording rules on a real Prometheus, with what real agents exported."""
