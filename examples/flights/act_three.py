"""Act three: streams on Spark, killed on the way, give what a batch over the same topics gives.

1. A service, and a producer of flights and weather in the order of their hours.
2. A pipeline on Spark (`streams.py`): delays by airport and hour, in windows with a watermark, into a topic through the
   exactly-once sink and into files; a join of the flights with the weather of their hour, into files.
3. The pipeline is killed (SIGKILL, with its JVM) when a part of the delays is written, and started again from its checkpoints.
4. The service is killed and restarted beneath it; its tasks ride it out.
5. Topic and files are compared with a batch computation of the same queries: every row once, none else.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.table import Table

from flights.act import Act, Story
from flights.data import DELAYS_TOPIC, TOPIC, WEATHER_TOPIC
from flights.processes import Crew
from oncelog import Client


class ActThree(Act):
    """One run over the first ``rows`` flights of the year."""

    title = "Act three: streams that are killed give what a batch gives"
    failed = "The streams did not give what the batch gives."
    stalled_seconds = 300.0
    """A Spark starts in 15 seconds, and in minutes on a machine that has much else to do."""

    def __init__(self, rows: int, crew: Crew, client: Client, story: Story) -> None:
        super().__init__(crew, client, story)
        self.rows = rows
        self.proved = f"What three streams made of {rows:,} flights is what a batch makes of them: no row lost, none double."
        # An airport has 17 flights in an hour.
        self.delays = rows // 17
        self.results: Path = crew.work / "results"
        self.report: dict[str, Any] = {}

    def run(self) -> list[str]:
        """The problems found; none if the streams and the batch agree."""
        service = self.crew.service()
        for topic in (TOPIC, WEATHER_TOPIC, DELAYS_TOPIC):
            self.client.create_topic(topic)
        self.story.tell(f"service at {self.crew.url}; a producer, and Spark, which takes a while to start")
        producer = self.crew.producer_by_hour(self.rows)
        # Small batches, so that there is a middle to be killed in.
        pipeline = self.crew.streams("pipeline 1", self.results, self.rows // 8, to_the_end=False)
        self.wait(lambda: producer.exit_code is not None, self._flights)
        self.story.tell(
            f"{producer.report[TOPIC]:,} flights and {producer.report[WEATHER_TOPIC]:,} hours of weather are published"
        )
        self.wait(lambda: self._delays() >= self.delays // 4, self._delays)
        self.kill(pipeline)
        self.story.tell(f"    {self._delays():,} rows of delays are in the topic; the next one goes on from its checkpoints")
        begun = self._delays()
        pipeline = self.crew.streams("pipeline 2", self.results, self.rows // 4, to_the_end=True)
        self.wait(lambda: self._delays() > begun, self._delays)
        self.kill(service)
        began = time.monotonic()
        self.crew.service()
        self.story.tell(f"    up again after {time.monotonic() - began:.1f} s; the pipeline has waited for it")
        self.wait(lambda: pipeline.exit_code is not None, self._delays)
        self.report = pipeline.report
        problems = list(self.report["problems"])
        self.tell_proof("topic and files hold, row by row, what a batch over the same topics gives", problems)
        return problems

    def _flights(self) -> int:
        return self.client.stats(TOPIC).upcoming_offset

    def _delays(self) -> int:
        return self.client.stats(DELAYS_TOPIC).upcoming_offset

    def show(self) -> None:
        """The numbers of the run."""
        rows = self.report["rows"]
        summary = Table(show_header=False)
        summary.add_column()
        summary.add_column(justify="right")
        for name, value in (
            ("flights", f"{self.rows:,}"),
            ("delays by airport and hour, in the topic", f"{rows['delays']:,}"),
            ("the same, in files", f"{rows['delays-files']:,}"),
            ("flights beside their weather, in files", f"{rows['weather-files']:,}"),
            ("kill -9", f"{self.story.kills}"),
        ):
            summary.add_row(name, value)
        self.story.console.print(summary)
