// Many runs and a long one: measured in the browser and printed. `LARGE` says how many children the long
// run has, each a run of its own and five events of its parent.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, open, Place, stopAll } from "./harness.mjs";

const LARGE = Number(process.env.LARGE ?? 20_000);
const READY_MS = Number(process.env.READY_MS ?? 1000);

let browser;
let place;
let long;

before(async () => {
  browser = await launch();
  // A folder that was made before saves the minute.
  place = new Place(process.env.LARGE_FOLDER);
  if (process.env.LARGE_FOLDER === undefined) {
    place.write(".logreel/config.toml", 'durability = "relaxed"\n');
    place.write("one.toml", 'name = "one"\n[[step]]\nid = "skip"\nwhen = "{{ false }}"\nrun = "true"\n');
    place.write(
      "many.toml",
      `name = "many"\n[[step]]\nid = "each"\nmap = "{{ range(${LARGE}) | list }}"\nmap_key = "{{ item }}"\n` +
        'concurrency = 64\nworkflow = "one.toml"\ninput = "{{ item }}"\n',
    );
    place.cli("run", "-q", "many.toml");
  }
  long = JSON.parse(place.cli("ls", "--json", "--agent", "many")).items[0];
  await place.serve();
});

after(async () => {
  await browser?.close();
  await stopAll();
});

const heapMb = async (page) =>
  page.evaluate(() => {
    globalThis.gc?.();
    return performance.memory.usedJSHeapSize / 1e6;
  });

/** Scrolls in great jumps and looks, in the frame after each, whether rows are where the eye is. */
const scrollAndLook = (page, selector, row) =>
  page.evaluate(
    async ([selector, row]) => {
      const box = document.querySelector(selector);
      const frame = () => new Promise((resolve) => requestAnimationFrame(() => resolve(performance.now())));
      let blank = 0;
      let slowest = 0;
      let last = await frame();
      const frames = 150;
      for (let i = 0; i < frames; i += 1) {
        box.scrollTop = i % 3 === 2 ? Math.random() * box.scrollHeight : box.scrollTop + 700;
        await frame();
        const now = await frame();
        slowest = Math.max(slowest, now - last);
        last = now;
        const area = box.getBoundingClientRect();
        for (const part of [0.25, 0.5, 0.75]) {
          const on = document.elementFromPoint(area.left + area.width / 3, area.top + area.height * part);
          const found = on?.closest(row);
          if (found === null || found === undefined || found.textContent.trim() === "") blank += 1;
        }
      }
      return { frames, blank, slowest: Math.round(slowest) };
    },
    [selector, row],
  );

test("a list of many runs is there in a second and scrolls without a blank", async () => {
  const page = await open(browser, place, "#/inbox");
  const began = Date.now();
  await page.goto("about:blank");
  const opened = Date.now();
  await page.goto(`${place.url}#/runs`);
  await page.locator(".run-row[data-run]").nth(10).waitFor();
  const ready = Date.now() - opened;
  // To the end, as far as it goes in ten seconds: every page of the list is asked for.
  await page.evaluate(async () => {
    const box = document.querySelector(".run-list");
    const until = performance.now() + 10_000;
    let height = 0;
    while (performance.now() < until) {
      box.scrollTop = box.scrollHeight;
      await new Promise((resolve) => setTimeout(resolve, 30));
      if (box.scrollHeight === height && box.scrollHeight > 0) {
        await new Promise((resolve) => setTimeout(resolve, 300));
        if (box.scrollHeight === height) break;
      }
      height = box.scrollHeight;
    }
  });
  const rows = await page.evaluate(() => Math.round(document.querySelector(".run-list .virtual-body").offsetHeight / 52));
  const looked = await scrollAndLook(page, ".run-list", ".run-row");
  const heap = await heapMb(page);
  console.log(`list: ${ready} ms to its first rows; ${rows} rows scrolled in; ${JSON.stringify(looked)}; heap ${heap.toFixed(0)} MB (${Date.now() - began} ms)`);
  assert.ok(ready < READY_MS, `${ready} ms`);
  assert.ok(rows >= Math.min(LARGE, 5000), `${rows} rows`);
  assert.equal(looked.blank, 0);
  assert.ok(heap < 200, `${heap} MB`);
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

test("a run of many events is there in a second, scrolls without a blank, and its page stays small", async () => {
  const page = await open(browser, place, "#/inbox");
  await page.goto("about:blank");
  const opened = Date.now();
  await page.goto(`${place.url}#/run/${long.id}/events`);
  await page.locator('.event-row[data-seq="5"]', { hasText: "." }).waitFor();
  const ready = Date.now() - opened;
  // Acts on input while the log is still read.
  const tab = Date.now();
  await page.getByRole("tab", { name: "Details" }).click();
  await page.locator(".details").waitFor();
  const answered = Date.now() - tab;
  await page.getByRole("tab", { name: "Events" }).click();
  const early = await scrollAndLook(page, ".event-list", ".event-row");
  await page.waitForFunction((length) => window.logreel.model.seq === length, long.event_count, { timeout: 120_000 });
  const read = Date.now() - opened;
  const looked = await scrollAndLook(page, ".event-list", ".event-row");
  await page.goto(`${place.url}#/run/${long.id}/events?seq=${long.event_count - 3}`);
  await page.locator(`.event-row[data-seq="${long.event_count - 3}"].selected`).waitFor();
  await page.getByRole("tab", { name: "Timeline" }).click();
  await page.locator(".wf-row", { hasText: "each" }).locator(".fold-button").click();
  await page.locator(".wf-row.child").nth(10).waitFor();
  const waterfall = await scrollAndLook(page, ".waterfall-rows", ".wf-row");
  const heap = await heapMb(page);
  console.log(
    `run of ${long.event_count} events: ${ready} ms to its first rows, answers a click in ${answered} ms while it reads, read in ${read} ms; ` +
      `events ${JSON.stringify(early)} then ${JSON.stringify(looked)}; waterfall ${JSON.stringify(waterfall)}; heap ${heap.toFixed(0)} MB`,
  );
  assert.ok(ready < READY_MS, `${ready} ms`);
  assert.ok(answered < READY_MS, `${answered} ms`);
  assert.equal(early.blank + looked.blank + waterfall.blank, 0);
  assert.ok(heap < 250, `${heap} MB`);
  // Finding a text asks for page after page and keeps only places.
  await page.goto(`${place.url}#/run/${long.id}/events?find=each%5B77%5D&kinds=child.finished`);
  await page.goto(`${place.url}#/run/${long.id}/events?find=run.completed`);
  await page.locator(`.event-row[data-seq="${long.event_count}"]`).waitFor({ timeout: 120_000 });
  assert.deepEqual(page.problems, []);
  await page.context().close();
});
