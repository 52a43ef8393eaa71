"""Prometheus's own parser of OpenMetrics reads what a service serves.

usage: prometheus_official.py BASE_URL NAMES, where NAMES are those that it may serve, with commas between.
"""

import importlib.metadata
import sys
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families

LIMIT_SECONDS = 30


def main():
    base_url, names = sys.argv[1:]
    with urllib.request.urlopen(f"{base_url}/metrics", timeout=LIMIT_SECONDS) as answer:
        assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0"), answer.headers
        text = answer.read().decode()
    families = list(text_string_to_metric_families(text))
    read = {served_name(family) for family in families}
    assert read <= set(names.split(",")), read
    counted = {sample.name: sample.value for family in families for sample in family.samples}
    assert counted["interpreterd_runs_total"] >= 1, counted
    assert any(family.type == "histogram" and family.samples for family in families), families
    version = importlib.metadata.version("prometheus-client")
    print(f"prometheus-client {version} reads {len(families)} metrics")


def served_name(family):
    return family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")


if __name__ == "__main__":
    main()
