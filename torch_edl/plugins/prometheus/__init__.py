"""One target of Prometheus for a whole job, with alert rules and a dashboard of Grafana.

``families`` turns the status of a job into metrics and is pure; ``exporter`` serves them in the
process of the master, without torch. ``assets`` has the files for Prometheus and Grafana.
"""
