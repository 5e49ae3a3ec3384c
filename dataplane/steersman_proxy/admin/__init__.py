"""The pages of the metrics port: probes of Kubernetes, metrics, and what the proxy knows."""

from steersman_proxy.admin.app import admin_app

__all__ = ["admin_app"]
