// A real browser, a real `logreel serve`, real runs in a folder of their own.

import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
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

const freePort = () =>
  new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });

const places = [];

/** Whatever a failed test left behind. */
export async function stopAll() {
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
    const until = Date.now() + PATIENCE_MS;
    for (;;) {
      if (this.process.exitCode !== null) throw new Error(`serve ended: ${said}`);
      const answer = await fetch(`${this.url}health`).catch(() => null);
      if (answer !== null) return;
      if (Date.now() > until) throw new Error(`serve does not answer: ${said}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
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

/** A page of which every error is a failure of the test. */
export async function open(browser, place, hash = "", options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage();
  page.problems = [];
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

/** What the page has taken of the open run's log: seq and kind of every event, in order. */
export const taken = (page) =>
  page.evaluate(() => {
    const { model, follower } = window.logreel;
    const kinds = [];
    for (let seq = 1; seq <= model.seq; seq += 1) kinds.push(model.kindOf(seq));
    return { kinds, doubled: follower.doubled, gaps: follower.gaps };
  });

export const status = (page, word) => page.locator(".run-title .status", { hasText: word }).waitFor();
