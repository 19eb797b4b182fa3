// Many runs and a long one: measured in the browser and printed. `RUNS` says how many runs there are, all but
// two of them children of one, and `LARGE` how many events the long one has.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch, open, Place, stopAll } from "./harness.mjs";

const LARGE = Number(process.env.LARGE ?? 20_000);
const RUNS = Number(process.env.RUNS ?? 4000);
const READY_MS = Number(process.env.READY_MS ?? 1000);
const APPEND = 1000;

let browser;
let place;
let parent;
let long;

before(async () => {
  browser = await launch();
  // A folder that was made before saves the minute.
  place = new Place(process.env.LARGE_FOLDER);
  const isThere = process.env.LARGE_FOLDER !== undefined && existsSync(join(place.folder, ".logreel/runs.db"));
  if (!isThere) {
    place.write(".logreel/config.toml", 'durability = "relaxed"\n');
    place.write("one.toml", 'name = "one"\n[[step]]\nid = "skip"\nwhen = "{{ false }}"\nrun = "true"\n');
    place.write(
      "many.toml",
      `name = "many"\n[[step]]\nid = "each"\nmap = "{{ range(${RUNS - 2}) | list }}"\nmap_key = "{{ item }}"\n` +
        'concurrency = 64\nworkflow = "one.toml"\ninput = "{{ item }}"\n',
    );
    place.cli("run", "-q", "many.toml");
  }
  await place.serve();
  if (!isThere) await record();
  parent = JSON.parse(place.cli("ls", "--json", "--agent", "many")).items[0];
  long = JSON.parse(place.cli("ls", "--json", "--agent", "long")).items[0];
});

/** A run of many events, as a program records its own over HTTP. */
async function record() {
  const post = (path, body, more = {}) =>
    place.api(path, { method: "POST", headers: { "Content-Type": "application/json", ...more }, body: JSON.stringify(body) });
  const { body: begun } = await post("runs", { spec: { name: "long" }, input: "a long day", driver: "external" });
  let { head } = begun;
  let events = [{ kind: "phase.entered", body: { phase: "executing" } }];
  for (let n = 3; n < LARGE; n += 1) {
    // The five events of a round speak of the same file.
    const i = Math.floor((n - 3) / 5);
    const call = `call_${i}`;
    const words = `file ${i} was looked at, and there is something to say about it in a line of usual length`;
    events.push(
      [
        { kind: "step.started", body: { step: `look ${i}`, attempt: 1, effect: "read" } },
        { kind: "tool.called", body: { call, name: "fs.read", arguments: { path: `src/${i}.rs` }, attempt: 1, effect: "read" } },
        { kind: "tool.returned", body: { call, output: words } },
        { kind: "step.finished", body: { step: `look ${i}`, attempt: 1, effect: "read", output: { words, lines: i } } },
        { kind: "custom", body: { name: "progress", data: { done: i } } },
      ][(n - 3) % 5],
    );
    if (events.length < APPEND && n + 1 < LARGE) continue;
    if (n + 1 === LARGE) events.push({ kind: "run.completed", body: { output: "done" } });
    const append = { epoch: begun.lease.epoch, expect: head, append_id: String(head.seq), events };
    const { status, body } = await post(`runs/${begun.run.id}/events`, append, { "Logreel-Lease": begun.lease.secret });
    assert.ok(status < 300, JSON.stringify(body).slice(0, 500));
    head = body.head;
    events = [];
  }
}

after(async () => {
  await browser?.close();
  await stopAll();
});

const heapMb = async (page) =>
  page.evaluate(() => {
    globalThis.gc?.();
    return performance.memory.usedJSHeapSize / 1e6;
  });

/** Scrolls in great jumps and looks, in the very frame of each, whether rows are where the eye is. */
const scrollAndLook = async (page, selector, row) => {
  // A tab that was clicked shows its list in one of the next frames.
  await page.locator(`${selector} ${row}`).first().waitFor();
  return page.evaluate(
    async ([selector, row]) => {
      const box = document.querySelector(selector);
      const frame = () => new Promise((resolve) => requestAnimationFrame(() => resolve(performance.now())));
      let blank = 0;
      let slowest = 0;
      let last = await frame();
      const frames = 300;
      for (let i = 0; i < frames; i += 1) {
        box.scrollTop = i % 3 === 2 ? Math.random() * box.scrollHeight : box.scrollTop + 700;
        // The scroll is told before the frame is made, and this before it is painted.
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
};

/** Turns the wheel as a person does and looks at what was painted: pictures of the page, a third of whose list is
 * of one colour, are blank. */
async function wheelAndLook(page, selector) {
  const box = await page.locator(selector).boundingBox();
  const session = await page.context().newCDPSession(page);
  const pictures = [];
  session.on("Page.screencastFrame", ({ data, sessionId }) => {
    pictures.push(data);
    session.send("Page.screencastFrameAck", { sessionId }).catch(() => undefined);
  });
  await page.mouse.move(box.x + box.width / 3, box.y + box.height / 2);
  await session.send("Page.startScreencast", { format: "jpeg", quality: 60, everyNthFrame: 1 });
  for (let i = 0; i < 40; i += 1) await page.mouse.wheel(0, i % 8 === 7 ? 20_000 : 1500);
  await session.send("Page.stopScreencast");
  await session.detach();
  const eye = await browser.newPage();
  const blank = await eye.evaluate(
    async ([pictures, box]) => {
      let blank = 0;
      for (const picture of pictures) {
        const image = new Image();
        image.src = `data:image/jpeg;base64,${picture}`;
        await image.decode();
        const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
        canvas.drawImage(image, 0, 0);
        const top = box.y + 40;
        const third = Math.floor((box.height - 50) / 3);
        for (let part = 0; part < 3; part += 1) {
          const { data } = canvas.getImageData(box.x + 8, top + part * third, Math.floor(box.width / 2), third);
          let [low, high] = [255, 0];
          for (let i = 1; i < data.length; i += 4) {
            low = Math.min(low, data[i]);
            high = Math.max(high, data[i]);
          }
          if (high - low < 60) blank += 1;
        }
      }
      return blank;
    },
    [pictures, box],
  );
  await eye.close();
  return { pictures: pictures.length, blank };
}

test("a list of many runs is there in a second and scrolls without a blank", async () => {
  const page = await open(browser, place, "#/inbox");
  const began = Date.now();
  await page.goto("about:blank");
  const opened = Date.now();
  await page.goto(`${place.url}#/runs`);
  await page.locator(".run-row[data-run]").nth(10).waitFor();
  const ready = Date.now() - opened;
  // To the end, or as far as it goes in twenty seconds: every page of the list is asked for.
  await page.evaluate(async (wanted) => {
    const box = document.querySelector(".run-list");
    const until = performance.now() + 20_000;
    while (performance.now() < until && box.scrollHeight < wanted * 52) {
      box.scrollTop = box.scrollHeight;
      await new Promise((resolve) => setTimeout(resolve, 30));
    }
  }, RUNS);
  const rows = await page.evaluate(() => Math.round(document.querySelector(".run-list .virtual-body").offsetHeight / 52));
  const looked = await scrollAndLook(page, ".run-list", ".run-row");
  await page.evaluate(() => (document.querySelector(".run-list").scrollTop = 0));
  const painted = await wheelAndLook(page, ".run-list");
  const heap = await heapMb(page);
  console.log(`list: ${ready} ms to its first rows; ${rows} rows scrolled in; ${JSON.stringify(looked)}, painted ${JSON.stringify(painted)}; heap ${heap.toFixed(0)} MB (${Date.now() - began} ms)`);
  assert.ok(ready < READY_MS, `${ready} ms`);
  assert.ok(rows >= Math.min(RUNS, 5000), `${rows} rows`);
  assert.equal(looked.blank, 0);
  assert.ok(painted.pictures > 5 && painted.blank === 0, JSON.stringify(painted));
  assert.ok(heap < 60, `${heap} MB`);
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
  await page.locator(".tabs .reading").waitFor({ state: "detached", timeout: 120_000 });
  const read = Date.now() - opened;
  const looked = await scrollAndLook(page, ".event-list", ".event-row");
  await page.evaluate(() => (document.querySelector(".event-list").scrollTop = 0));
  const painted = await wheelAndLook(page, ".event-list");
  await page.goto(`${place.url}#/run/${long.id}/events?seq=${long.event_count - 3}`);
  await page.locator(`.event-row[data-seq="${long.event_count - 3}"].selected`).waitFor();
  await page.getByRole("tab", { name: "Timeline" }).click();
  await page.locator(".wf-row.step").nth(10).waitFor();
  const waterfall = await scrollAndLook(page, ".waterfall-rows", ".wf-row");
  const heap = await heapMb(page);
  console.log(
    `run of ${long.event_count} events: ${ready} ms to its first rows, answers a click in ${answered} ms while it reads, read in ${read} ms; ` +
      `events ${JSON.stringify(early)} then ${JSON.stringify(looked)}, painted ${JSON.stringify(painted)}; ` +
      `waterfall ${JSON.stringify(waterfall)}; heap ${heap.toFixed(0)} MB`,
  );
  assert.ok(ready < READY_MS, `${ready} ms`);
  assert.ok(answered < READY_MS, `${answered} ms`);
  assert.equal(early.blank + looked.blank + waterfall.blank, 0);
  assert.ok(painted.pictures > 5 && painted.blank === 0, JSON.stringify(painted));
  assert.ok(heap < 90, `${heap} MB`);
  // Finding a text asks for page after page and keeps only places.
  await page.goto(`${place.url}#/run/${long.id}/events?find=src%2F77.rs&kinds=tool.called`);
  await page.locator(".event-row", { hasText: "src/77.rs" }).waitFor();
  await page.goto(`${place.url}#/run/${long.id}/events?find=run.completed`);
  await page.locator(`.event-row[data-seq="${long.event_count}"]`).waitFor({ timeout: 120_000 });
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

test("a run of many children: its waterfall is there in a second and scrolls without a blank", async () => {
  const page = await open(browser, place, "#/inbox");
  await page.goto("about:blank");
  const opened = Date.now();
  await page.goto(`${place.url}#/run/${parent.id}/timeline`);
  const group = page.locator(".wf-row", { hasText: "each" });
  await group.waitFor();
  const ready = Date.now() - opened;
  await page.locator(".tabs .reading").waitFor({ state: "detached", timeout: 120_000 });
  await group.locator(".fold-button").click();
  await page.locator(".wf-row.child").nth(10).waitFor();
  const waterfall = await scrollAndLook(page, ".waterfall-rows", ".wf-row");
  const heap = await heapMb(page);
  console.log(`run of ${RUNS - 2} children, ${parent.event_count} events: ${ready} ms; waterfall ${JSON.stringify(waterfall)}; heap ${heap.toFixed(0)} MB`);
  assert.ok(ready < READY_MS, `${ready} ms`);
  assert.equal(waterfall.blank, 0);
  assert.ok(heap < 90, `${heap} MB`);
  assert.deepEqual(page.problems, []);
  await page.context().close();
});
