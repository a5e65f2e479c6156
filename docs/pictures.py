"""Takes the pictures of the console that the documentation shows: `make pictures`.

The scene is a bad day (tests/watch/test_scene.py) with some life in it: twenty minutes of a shop, told by a clock that
is set forward.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Page, expect, sync_playwright
from tests.console.browsing import CHROMIUM, FLAGS, PATIENT, Watched
from tests.rest.talk import Topic, done
from tests.watch.test_scene import FLOOR, MINUTE, Day, looked
from tests.world.clock import ManualClock
from tests.world.house import House

from oncelog_service.rest import application
from oncelog_service.watch.watch import Watch

PICTURES = Path(__file__).with_name("pictures")

SAMPLES, SAMPLE_MS = 240, 5_000
GIB = 2**30
PAGES = {
    "overview": ("overview", "light", 1120, 1080),
    "topic": ("topics/default/orders", "light", 1120, 700),
    "messages": ("messages/default/orders", "light", 1120, 620),
    "producers": ("producers/default/events", "light", 1120, 520),
    "subscriptions": ("subscriptions/default/events", "light", 1120, 520),
    "transactions": ("transactions", "light", 1120, 520),
    "narrow": ("overview", "dark", 390, 720),
}
"""Name of the picture → address behind the #, light or dark, width, height."""


class SampledByHand(Watch):
    """Takes a sample when it is told to, and not by the machine's clock."""

    made: ClassVar[list[SampledByHand]] = []

    async def run(self) -> None:
        self.made.append(self)
        await asyncio.Event().wait()


def live(house: House) -> None:
    """Orders come in, are read, and now and then sent twice, while the clock goes from one sample to the next."""
    chance = random.Random(17)
    topics = {name: Topic(house.service.url, name) for name in ("clicks", "payments", "shipments")}
    sent = dict.fromkeys(topics, 0)
    for at in range(SAMPLES):
        busy = 150 if 120 < at < 170 else 0
        for name, topic in topics.items():
            many, again = chance.randint(90, 110) + busy, chance.randint(0, 9)
            busy //= 3
            first = max(0, sent[name] - again)
            topic.send("web", *range(first, sent[name] + many), payload='{{"number": {}, "shop": "Zürich"}}')
            for _ in range(2 if name == "clicks" else 1):  # it has two readers
                topic.read(startOffset=sent[name], limit=many)
            sent[name] += many
        free = round((6 - at / 90) * GIB)
        house.disk.free = lambda free=free: free  # type: ignore[misc]
        house.service.on_loop(looked)
        house.clock.advance(SAMPLE_MS)
        house.service.on_loop(lambda _: SampledByHand.made[-1].sample())


def orders(house: House) -> None:
    """Some messages worth to be seen, behind the one that holds them."""
    topic = Topic(house.service.url, "orders")
    for number, (sku, city) in enumerate([("lamp-7", "Oslo"), ("desk-2", "Porto"), ("lamp-7", "Zürich"), ("chair-4", "Graz")]):
        order = {"order": 1017 + number, "lines": [{"sku": sku, "count": number + 1}], "city": city, "paid": number != 2}
        body = {"keys": [f"customer-{number % 2}"], "properties": [{"source": "web"}], "producer": "web", "sequenceIds": [number]}
        done(topic.publish(json.dumps(order, ensure_ascii=False).encode().decode("latin-1"), **body))


@contextmanager
def shown() -> Iterator[House]:
    """The scene, to be looked at."""
    application.Watch = SampledByHand  # type: ignore[misc]
    begins = round(time.time() * 1000) - 6 * MINUTE - SAMPLES * SAMPLE_MS
    with House(ManualClock(begins), min_free_bytes=FLOOR) as house:
        day = Day(house)
        house.service.service.room.floor = 2 * GIB  # as large as on a machine that one has
        house.disk.free = lambda: 6 * GIB
        house.service.on_loop(looked)
        orders(house)
        live(house)
        day.old_sends()
        house.clock.advance(2_000)
        yield house


class NotTaken(Exception):
    """A picture that cannot be taken; it says which, and why."""


def take(page: Page, house: House, name: str) -> None:
    """One picture, once what it shows is there. Raises NotTaken: it did not come, or the page did what it must not."""
    address, scheme, width, height = PAGES[name]
    watched = Watched(page)
    page.on("requestfailed", lambda request: watched.said.append(f"{request.url}: {request.failure}"))
    page.set_default_timeout(PATIENT)
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": height})
    try:
        page.goto(f"{house.service.url}/console#/{address}")
        watched.check()
        page.locator(".panel").first.wait_for()
        expect(page.locator("[aria-busy=true]")).to_have_count(0)
        expect(page.get_by_text("…")).to_have_count(0)
        watched.check()
        page.screenshot(path=PICTURES / f"console-{name}.png")
    except (PlaywrightError, AssertionError) as error:
        why = "; ".join(watched.said) or str(error).strip().splitlines()[0]
        raise NotTaken(f"the picture {name!r} was not taken: {why}") from error


def main() -> int:
    """Take them all; 1 where one cannot be taken."""
    if CHROMIUM is None:
        print("the pictures are taken with Chromium, and there is none on the PATH")
        return 1
    try:
        with shown() as house, sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
            for name in PAGES:
                page = browser.new_page()
                take(page, house, name)
                page.close()
            browser.close()
    except NotTaken as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
