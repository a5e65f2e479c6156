"""Act three's producer: flights and weather, each in the order of their hours, as they would come if they came today.

The file of flights goes by its months as text, 1, 10, 11, 12, 2: of no hour could one say that no flight of it comes any more.
The index in that order is the sequence id.
"""

from __future__ import annotations

import argparse
import json

from flights.data import PRODUCER, TOPIC, WEATHER_TOPIC, HourLine, flights_by_hour, weather_by_hour
from oncelog import Producer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--rows", type=int, required=True)
    args = parser.parse_args()
    flights = flights_by_hour(args.rows)
    publish(args.url, WEATHER_TOPIC, weather_by_hour(flights[-1].hour))
    publish(args.url, TOPIC, flights)


def publish(url: str, topic: str, lines: list[HourLine]) -> None:
    """Send every line that the topic does not have, and say when all are there."""
    with Producer(topic, name=PRODUCER, url=url) as producer:
        for number, line in producer.resume(enumerate(lines), sequence_id=lambda numbered: numbered[0]):
            producer.send_async(line.payload, sequence_id=number, key=line.airport)
    print(json.dumps({topic: len(lines)}), flush=True)


if __name__ == "__main__":
    main()
