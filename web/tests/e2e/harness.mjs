// A real browser, a real `logreel serve`, real runs in a folder of their own.

import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { chromium } from "playwright-core";

const LOGREEL = process.env.LOGREEL;
if (LOGREEL === undefined) throw new Error("LOGREEL must be the path of the binary");

export const PATIENCE_MS = Number(process.env.PATIENCE_MS ?? 30_000);

export async function launch() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    // Of use for root, in a container and for measuring the heap.
    args: ["--no-sandbox", "--disable-dev-shm-usage", "--enable-precise-memory-info", "--js-flags=--expose-gc"],
  });
}

/** Asks again and again until it is so. */
export async function until(what, holds) {
  const end = Date.now() + PATIENCE_MS;
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`waited in vain until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

const freePort = () =>
  new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });

const places = [];
const networks = [];

/** Whatever a failed test left behind. */
export async function stopAll() {
  for (const network of networks) network.close();
  for (const place of places) await place.stop();
}

/** A folder with a store and specs, and a server on it that can be killed and started again. */
export class Place {
  constructor(folder) {
    this.folder = folder ?? mkdtempSync(join(tmpdir(), "logreel-page-"));
    this.owned = folder === undefined;
    places.push(this);
    mkdirSync(join(this.folder, "specs"), { recursive: true });
  }

  write(path, text) {
    mkdirSync(dirname(join(this.folder, path)), { recursive: true });
    writeFileSync(join(this.folder, path), text);
  }

  /** The command line in this folder: stdout, or a thrown error with stderr. */
  cli(...args) {
    const ran = spawnSync(LOGREEL, args, { cwd: this.folder, encoding: "utf8", maxBuffer: 1 << 30 });
    if (ran.status !== 0 && ran.status !== 3) throw new Error(`logreel ${args.join(" ")}: ${ran.status} ${ran.stderr}`);
    return ran.stdout;
  }

  log(run) {
    const lines = this.cli("log", run, "--json").split("\n").filter(Boolean);
    return lines.map((line) => JSON.parse(line));
  }

  show(run) {
    return JSON.parse(this.cli("show", run, "--json"));
  }

  async serve(...args) {
    this.port ??= await freePort();
    const listen = args.includes("--listen") ? [] : ["--listen", `127.0.0.1:${this.port}`];
    this.process = spawn(LOGREEL, ["serve", "--specs", "specs", ...listen, ...args], {
      cwd: this.folder,
      stdio: ["ignore", "ignore", "pipe"],
    });
    let said = "";
    this.process.stderr.on("data", (data) => (said += data));
    this.url = `http://127.0.0.1:${this.port}/`;
    await until("the server answers", async () => {
      if (this.process.exitCode !== null) throw new Error(`serve ended: ${said}`);
      return (await fetch(`${this.url}health`).catch(() => null)) !== null;
    });
  }

  /** As a crash does it. */
  async kill() {
    const gone = once(this.process, "exit");
    this.process.kill("SIGKILL");
    await gone;
  }

  async stop() {
    if (this.process?.exitCode === null && this.process.signalCode === null) await this.kill();
    if (this.owned) rmSync(this.folder, { recursive: true, force: true });
  }

  async api(path, init) {
    const response = await fetch(`${this.url}v1/${path}`, init);
    const text = await response.text();
    return { status: response.status, body: text === "" ? null : JSON.parse(text) };
  }

  async start(spec, more = {}) {
    const { status, body } = await this.api("runs", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ spec, ...more }),
    });
    if (status !== 201) throw new Error(`start: ${status} ${JSON.stringify(body)}`);
    return body.id;
  }
}

/** What lies between a browser and a server, and can lose streams without a word: both ends go on waiting. */
export class Network {
  /** What was asked for in a stream, and how to lose it. */
  #streams = new Map();

  constructor(place) {
    networks.push(this);
    this.place = place;
    this.server = createServer((near) => {
      const far = connect(place.port, "127.0.0.1");
      near.on("data", (bytes) => {
        const [, path] = /^GET (\S+) [^]*\r\naccept: text\/event-stream\r\n/i.exec(bytes.toString("latin1")) ?? [];
        if (path !== undefined) this.#streams.set(near, { path, lose: () => far.unpipe(near).resume() });
      });
      near.on("close", () => {
        this.#streams.delete(near);
        far.destroy();
      });
      for (const [one, other] of [[near, far], [far, near]]) {
        one.pipe(other);
        one.on("error", () => other.destroy());
      }
    });
  }

  /** Under a name by which the server lets itself be called. */
  async open() {
    this.server.listen(this.place.port, "127.0.0.2");
    await once(this.server, "listening");
    this.url = `http://127.0.0.2:${this.place.port}/`;
  }

  /** The paths of the streams that are open. */
  streams() {
    return [...this.#streams.values()].map((stream) => stream.path);
  }

  loseStreams() {
    for (const stream of this.#streams.values()) stream.lose();
  }

  close() {
    this.server.close();
  }
}

/** What the page put on the clipboard. */
export const copied = (page) => page.evaluate(() => navigator.clipboard.readText());

/** Text that a page must not show as it is. */
export const HIDDEN_SOURCE =
  "[\\u0000-\\u0008\\u000B-\\u001F\\u007F-\\u009F\\u00AD\\u061C\\u200B-\\u200F\\u2028-\\u202E\\u2060-\\u206F\\uFEFF]";

/** Every text, title and label of the page that holds something that cannot be seen. */
export const hiding = (page) =>
  page.evaluate((source) => {
    const hidden = new RegExp(source, "u");
    const found = hidden.test(document.title) ? [`title: ${document.title}`] : [];
    const walker = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      if (node.nodeType === Node.TEXT_NODE) {
        if (hidden.test(node.data)) found.push(`${node.parentElement.className}: ${node.data.slice(0, 80)}`);
      } else
        for (const { name, value } of node.attributes)
          if (!name.startsWith("data-") && name !== "href" && name !== "value" && hidden.test(value)) found.push(`${name}: ${value.slice(0, 80)}`);
    }
    return found;
  }, HIDDEN_SOURCE);

/** A page of which every error is a failure of the test. */
export async function open(browser, place, hash = "", { clock, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, permissions: ["clipboard-read", "clipboard-write"], ...options });
  const page = await context.newPage();
  page.problems = [];
  if (clock) await page.clock.install();
  page.on("pageerror", (error) => page.problems.push(`page error: ${error.message}`));
  page.on("console", (message) => {
    // That the server is away or refuses is part of the tests; the browser says so by itself.
    if (message.type() === "error" && !/Failed to load resource|net::ERR/.test(message.text()))
      page.problems.push(`console: ${message.text()}`);
  });
  page.setDefaultTimeout(PATIENCE_MS);
  if (process.env.PAGE_DIST !== undefined) await fromFolder(page, place, process.env.PAGE_DIST);
  await page.goto(`${place.url}${hash}`);
  return page;
}

/** While working on the page: its files from a folder, under the policy that the server has for them. */
async function fromFolder(page, place, folder) {
  const policy = (await fetch(place.url)).headers.get("content-security-policy");
  const types = { html: "text/html", js: "text/javascript", css: "text/css", svg: "image/svg+xml" };
  await page.route(
    (url) => url.href.startsWith(place.url) && !url.pathname.startsWith("/v1/"),
    (route) => {
      const path = new URL(route.request().url()).pathname;
      const file = path === "/" ? "index.html" : path.slice(1);
      const headers = { "Content-Type": types[file.split(".").pop()], "Content-Security-Policy": policy };
      return route.fulfill({ path: join(folder, file), headers });
    },
  );
}

/** What the page shows of the open run's log, read as a person reads it: the list of events, from its first
 * row to its last. */
export async function shown(page) {
  await page.getByRole("tab", { name: "Events" }).click();
  await page.locator(".event-list .event-row").first().waitFor();
  return page.evaluate(async () => {
    const list = document.querySelector(".event-list");
    const inSight = () => [...list.querySelectorAll(".event-row")];
    const rows = new Map();
    for (let top = 0; ; top += list.clientHeight) {
      list.scrollTop = top;
      const first = 1 + Math.floor(list.scrollTop / list.querySelector(".event-row").offsetHeight);
      for (let waited = 0; waited < 500 && !inSight().some((row) => Number(row.dataset.seq) === first); waited += 1)
        await new Promise((resolve) => setTimeout(resolve, 10));
      for (const row of inSight()) {
        const { seq } = row.dataset;
        const told = `${seq} ${row.querySelector(".kind").textContent}`;
        if (rows.has(seq) && rows.get(seq) !== told) throw new Error(`${seq} is shown as ${rows.get(seq)} and as ${told}`);
        rows.set(seq, told);
      }
      if (inSight().length !== new Set(inSight().map((row) => row.dataset.seq)).size)
        throw new Error("an event is shown twice");
      if (top + list.clientHeight >= list.scrollHeight) break;
    }
    return [...rows.values()];
  });
}

/** Waits until the page says that the log has so many events. */
export const counts = (page, length) => page.locator("#tab-events .tab-count", { hasText: new RegExp(`^${length}$`) }).waitFor();

/** Waits until the page shows this event, or a later one, at the end of its list. */
export const reaches = (page, seq) =>
  page.waitForFunction((seq) => {
    const rows = [...document.querySelectorAll(".event-row")];
    return rows.some((row) => Number(row.dataset.seq) >= seq);
  }, seq);

export const status = (page, word) => page.locator(".run-title .status", { hasText: word }).waitFor();
