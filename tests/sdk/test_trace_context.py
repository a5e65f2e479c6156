"""What is read of a trace's context: all that OpenTelemetry reads, and nothing that it would warn of."""

from __future__ import annotations

import pytest
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from oncelog.wire.trace_context import carried

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "state",
    ["", " , ", "a=1", "a=1 ,\tb=2,,", "0t@v=x", "a/b*c_d-e=!~ x", ",".join(f"k{at}={'v' * 200}" for at in range(32)), "a=1,a=2"],
)
def test_a_state_that_can_be_read_is_carried_as_it_is(state: str, caplog: pytest.LogCaptureFixture) -> None:
    given = {"traceparent": PARENT, "tracestate": state, "x": "y"}
    assert carried(given) == {"traceparent": PARENT, "tracestate": state}
    TraceContextTextMapPropagator().extract(carried(given), Context())
    assert not caplog.records


@pytest.mark.parametrize(
    "state",
    ["=", "A=1", "a", "a=", "a=1,b", "a=1;b=2=3", "0a=1", "a=\x7f", "a=é", "a=1\n", f"{'a' * 257}=1",
     f"a={'v' * 257}", f"a={'v' * 255} x", ",".join(f"k{at}=v" for at in range(33)), "," * 8_193],
)  # fmt: skip
def test_one_that_cannot_is_left_out(state: str) -> None:
    assert carried({"traceparent": PARENT, "tracestate": state}) == {"traceparent": PARENT}


def test_without_a_parent_there_is_nothing_to_carry() -> None:
    assert carried({"tracestate": "a=1"}) == carried({"traceparent": "0" * 513}) == {}
