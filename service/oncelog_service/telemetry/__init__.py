"""Spans and metrics for OpenTelemetry (the extra `otel`): loaded only where the setting `telemetry` is on."""
