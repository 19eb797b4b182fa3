// The page in a real browser, against a real server and real runs.

import assert from "node:assert/strict";
import http from "node:http";
import { after, before, test } from "node:test";
import { counts, hiding, launch, Network, open, Place, reaches, shown, status, stopAll, until } from "./harness.mjs";
import { AGENT, APPROVAL, HELD, HOSTILE, letGo, LONG, writeAll } from "./specs.mjs";

let browser;
let place;

before(async () => {
  browser = await launch();
  place = new Place();
  writeAll(place, AGENT, HELD, APPROVAL, LONG, HOSTILE);
  await place.serve();
});

after(async () => {
  await browser?.close();
  await stopAll();
});

const runOf = (page) => page.evaluate(() => decodeURIComponent(location.hash.split("/")[2].split("?")[0]));

/** A run that this program drives itself, over HTTP. */
async function drive(spec, more = {}) {
  const { body: begun } = await place.api("runs", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ spec, driver: "external", ...more }),
  });
  assert.ok(begun.run !== undefined, JSON.stringify(begun));
  const id = begun.run.id;
  const record = async (...events) => {
    const { event_count: seq, head_digest: digest } = (await place.api(`runs/${id}`)).body;
    const { status, body } = await place.api(`runs/${id}/events`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "Logreel-Lease": begun.lease.secret },
      body: JSON.stringify({ epoch: begun.lease.epoch, expect: { seq, digest }, append_id: String(seq), events }),
    });
    assert.ok(status < 300, JSON.stringify(body));
  };
  return { id, record };
}

/** The page has every event of the log once, in order, and had no error. */
async function agrees(page, run, at = place) {
  const log = at.log(run).map((event) => `${event.seq} ${event.kind}`);
  await counts(page, log.length);
  assert.deepEqual(await shown(page), log);
  assert.deepEqual(page.problems, []);
}

test("start from the page, watch it speak, approve, and see its end", async () => {
  const page = await open(browser, place);
  await page.getByRole("button", { name: "New run" }).click();
  await page.locator("dialog select").selectOption("writer");
  await page.locator("dialog textarea").fill("write a note");
  await page.locator("dialog").getByRole("button", { name: "Start" }).click();
  await page.locator(".run-title h1", { hasText: "writer" }).waitFor();
  await page.getByRole("tab", { name: "Transcript" }).click();
  // Provisional text, before the message is sealed.
  const live = page.locator('[data-live="true"]');
  await live.filter({ hasText: "First I will look" }).waitFor();
  assert.ok(!(await live.innerText()).includes("about to do here."), "the words come while they are said");
  await page.locator(".said.assistant:not(.live)", { hasText: "about to do here." }).waitFor();
  await page.locator(".said.user", { hasText: "write a note" }).waitFor();
  await page.locator(".folding.tool", { hasText: "fs.read" }).waitFor();
  await status(page, "approval");
  const card = page.locator(".wait-card");
  assert.match(await card.innerText(), /fs\.write/);
  await card.getByRole("button", { name: "Approve" }).click();
  const question = page.locator("dialog[open]");
  await question.getByText("This cannot be undone").waitFor();
  assert.match(await question.innerText(), /note\.txt/);
  assert.equal(place.show(await runOf(page)).status, "waiting", "it asks first");
  await question.getByRole("button", { name: "Approve" }).click();
  await status(page, "completed");
  await page.locator(".said.assistant", { hasText: "the note says kept" }).waitFor();
  await page.locator(".budget", { hasText: "tokens" }).waitFor();
  const run = await runOf(page);
  assert.equal(await live.count(), 0, "nothing provisional is left");
  await agrees(page, run);
  assert.equal(place.show(run).status, "completed");
  await page.getByRole("tab", { name: "Timeline" }).click();
  for (const name of ["executing", "turn 1", "fs.read", "fs.write"]) await page.locator(".wf-row", { hasText: name }).first().waitFor();
  await page.context().close();
});

test("the list is live, and the inbox answers; the second of two people is told of the first", async () => {
  const list = await open(browser, place, "#/runs?agent=release");
  await list.getByText("No run matches").waitFor();
  const run = await place.start("release", { input: "1.2.3", labels: { team: "blue" } });
  const row = list.locator(`[data-run="${run}"]`);
  await row.filter({ hasText: "approval" }).filter({ hasText: "Publish version 1.2.3?" }).waitFor();
  await row.getByRole("button", { name: "team=blue" }).waitFor();
  const [first, second] = [await open(browser, place, "#/inbox"), await open(browser, place, "#/inbox")];
  const item = (page) => page.locator(`.inbox-item[data-run="${run}"]`);
  await item(first).waitFor();
  await item(second).waitFor();
  // The second one does not hear of anything any more, and then says no to what was approved.
  await second.route("**/v1/events", (route) => route.abort());
  await second.route("**/v1/runs?*", (route) => route.abort());
  const third = await open(browser, place, `#/run/${run}`);
  await third.locator(".wait-card").getByRole("button", { name: "Deny" }).click();
  await first.keyboard.press("a");
  await first.locator("dialog[open]").getByText("This cannot be undone").waitFor();
  assert.equal(place.show(run).status, "waiting", "the key alone answers nothing");
  await first.keyboard.type("looks right");
  await first.keyboard.press("Enter");
  await item(first).waitFor({ state: "detached" });
  // Who hears of it while being asked is told so at once; who does not, when the server refuses.
  await third.locator("dialog[open]").getByText("This is not waited for any more").waitFor();
  await third.locator("dialog[open]").getByRole("button", { name: "Deny" }).click();
  await third.locator("dialog[open]").getByRole("alert").filter({ hasText: "Refused (" }).waitFor();
  await item(second).getByRole("button", { name: "Deny" }).click();
  await second.locator("dialog[open]").getByRole("button", { name: "Deny" }).click();
  await second.locator("dialog[open]").getByRole("alert").filter({ hasText: "Refused" }).waitFor();
  await row.filter({ hasText: "completed" }).waitFor();
  const ended = place.log(run).filter((event) => event.kind === "wait.ended");
  assert.deepEqual(ended.map((event) => [event.body.approved, event.body.reason]), [[true, "looks right"]]);
  for (const page of [list, first, second, third]) {
    assert.deepEqual(page.problems, []);
    await page.context().close();
  }
});

test("cancelling asks first, and says why in the log", async () => {
  const run = await place.start("long");
  const page = await open(browser, place, `#/run/${run}`);
  await status(page, "executing");
  await page.keyboard.press("c");
  const dialog = page.locator("dialog");
  await dialog.getByText("This cannot be undone").waitFor();
  await page.keyboard.press("Escape");
  assert.notEqual(place.show(run).status, "cancelled");
  await page.getByRole("button", { name: "Cancel", exact: true }).click();
  await dialog.locator("input").fill("not needed");
  await dialog.getByRole("button", { name: "Cancel the run" }).click();
  await status(page, "cancelled");
  await page.locator(".result", { hasText: "not needed" }).waitFor();
  assert.equal(place.show(run).reason, "not needed");
  await agrees(page, run);
  await page.context().close();
});

test("the server is killed in the middle of a stream: no event is lost or doubled, and nothing is reloaded", async () => {
  const run = await place.start("held");
  const page = await open(browser, place, `#/run/${run}/events`);
  await page.evaluate(() => (window.sameDocument = true));
  await reaches(page, 13);
  for (let kills = 0; kills < 2; kills += 1) {
    await place.kill();
    await page.getByText("reconnecting…").waitFor();
    const before = Number(await page.locator(".event-row").last().getAttribute("data-seq"));
    await place.serve();
    // How far it gets meanwhile depends on the machine; it cannot be over.
    await reaches(page, before + 1);
    await page.getByText("reconnecting…").waitFor({ state: "detached" });
  }
  letGo(place, run);
  await status(page, "completed");
  assert.ok(await page.evaluate(() => window.sameDocument));
  await agrees(page, run);
  assert.ok(place.log(run).some((event) => event.kind === "run.resumed"), "the run itself went on after the crash");
  await page.context().close();
});

test("fork from an event, with the keyboard", async () => {
  const run = await place.start("release", { input: "2.0.0" });
  const page = await open(browser, place, `#/run/${run}/events`);
  await status(page, "approval");
  await page.locator('.event-row[data-seq="2"]').click();
  await page.locator(".inspector", { hasText: "phase.entered" }).waitFor();
  await page.keyboard.press("f");
  await page.locator("dialog").getByRole("button", { name: "Fork" }).click();
  await page.locator(".facts", { hasText: "Fork of" }).waitFor();
  await status(page, "approval");
  const fork = await runOf(page);
  assert.notEqual(fork, run);
  assert.deepEqual(place.show(fork).parent, { relation: "fork", run, seq: 2 });
  await agrees(page, fork);
  await place.api(`runs/${run}/cancel`, { method: "POST" });
  await place.api(`runs/${fork}/cancel`, { method: "POST" });
  await page.context().close();
});

test("text of others is text, whatever is in it", async () => {
  const run = await place.start("hostile");
  for (const width of [1280, 390]) {
    const page = await open(browser, place, `#/run/${run}/transcript`, { viewport: { width, height: 800 } });
    await status(page, "approval");
    for (const tab of ["transcript", "timeline", "events", "steps", "details"]) {
      await page.goto(`${place.url}#/run/${run}/${tab}?seq=3`);
      await page.locator(".inspector-body").waitFor();
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(overflow <= 0, `${tab} at ${width}: ${overflow} pixels too wide`);
    }
    await page.goto(`${place.url}#/run/${run}/transcript`);
    for (const summary of await page.locator(".folding > summary").all()) await summary.click();
    await page.getByText(/Show \d+ kB/).first().click();
    await page.getByText(/Show more/).first().waitFor();
    assert.equal(await page.evaluate(() => window.pwned), undefined);
    assert.equal(await page.locator("main img, main b, main script").count(), 0);
    const stands = await page.locator(".stands").allInnerTexts();
    for (const name of ["ESC", "U+202E", "U+200B", "U+2066"]) assert.ok(stands.includes(name), `${name} is shown`);
    assert.ok((await page.locator(".wait-card").innerText()).includes("<script>"));
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(overflow <= 0, `${overflow} pixels too wide`);
    assert.deepEqual(page.problems, []);
    await page.context().close();
  }
  await place.api(`runs/${run}/cancel`, { method: "POST" });
});

test("a run that is erased or pruned while it is open says so", async () => {
  const run = await place.start("release", { input: "3.0.0" });
  const page = await open(browser, place, `#/run/${run}/events`);
  await status(page, "approval");
  await place.api(`runs/${run}/cancel`, { method: "POST" });
  await status(page, "cancelled");
  place.cli("erase", run);
  await page.getByText("This run was erased.").waitFor();
  await page.locator(".event-row", { hasText: "erased" }).first().waitFor();
  place.cli("prune", "--older-than", "0s", "--status", "cancelled");
  await page.getByText("This run is not in the store any more.").waitFor();
  assert.deepEqual(page.problems, []);
  await page.context().close();
});

test("a page of another origin can neither read nor act, nor can a foreign name", async () => {
  const run = await place.start("long");
  await until("it is driven", () => place.show(run).status === "executing");
  const stranger = http.createServer((_, response) => {
    response.writeHead(200, { "Content-Type": "text/html" });
    response.end("<!doctype html><title>stranger</title>");
  });
  await new Promise((resolve) => stranger.listen(0, "127.0.0.1", resolve));
  const page = await browser.newPage();
  await page.goto(`http://127.0.0.1:${stranger.address().port}/`);
  const got = await page.evaluate(
    async ([url, run]) => {
      const attempt = async (path, init) =>
        fetch(url + path, init).then(
          async (response) => `${response.type} ${(await response.text()).length}`,
          () => "refused",
        );
      const form = new URLSearchParams();
      return {
        read: await attempt("v1/runs"),
        blind: await attempt("v1/runs", { mode: "no-cors" }),
        cancel: await attempt(`v1/runs/${run}/cancel`, { method: "POST" }),
        cancelBlind: await attempt(`v1/runs/${run}/cancel`, { method: "POST", mode: "no-cors", body: form }),
        stream: await new Promise((resolve) => {
          const source = new EventSource(`${url}v1/events`);
          source.onopen = () => resolve("open");
          source.onerror = () => resolve("refused");
        }),
      };
    },
    [place.url, run],
  );
  assert.deepEqual(got, { read: "refused", blind: "refused", cancel: "refused", cancelBlind: "refused", stream: "refused" });
  const answered = await new Promise((resolve, reject) => {
    const request = http.request({ port: place.port, host: "127.0.0.1", path: "/v1/runs", headers: { Host: "evil.example" } }, (response) => {
      response.resume();
      resolve(response.statusCode);
    });
    request.on("error", reject);
    request.end();
  });
  assert.equal(answered, 403);
  assert.equal(place.show(run).status, "executing");
  await place.api(`runs/${run}/cancel`, { method: "POST" });
  stranger.close();
  await page.close();
});

test("names, errors and refusals are hostile too: what cannot be seen is named wherever it stands", async () => {
  // Names may hold no control characters; the server sees to that.
  const bidi = "ev\u202Eil\u200B\u2066";
  const evil = `${bidi}\u0007`;
  const long = "w".repeat(50_000);
  const run = await drive({ name: `agent ${evil}` }, { session: `s ${bidi}`, labels: { [`k${bidi}`]: bidi } });
  await run.record({ kind: "phase.entered", body: { phase: "executing" } });
  await run.record({ kind: "step.started", body: { step: `step ${bidi}`, attempt: 1, effect: "read" } });
  await run.record({ kind: "tool.called", body: { call: `call ${bidi}`, name: `tool ${evil}`, arguments: { [evil]: evil }, attempt: 1, effect: "read" } });
  await run.record({ kind: "custom", body: { name: `custom ${evil}`, data: evil } });
  await run.record({ kind: "tool.returned", body: { call: `call ${bidi}`, output: evil } });
  await run.record({ kind: "step.finished", body: { step: `step ${bidi}`, attempt: 1, effect: "read", output: evil } });
  await run.record({ kind: "wait.started", body: { wait: "w1", kind: "approval", prompt: `may I ${evil} ${long}`, name: null, step: null, call: null, tool: null, arguments: null, deadline: null, on_deadline: null } });
  for (const width of [1280, 390]) {
    const page = await open(browser, place, "#/inbox", { viewport: { width, height: 800 } });
    const clean = async (where) => {
      assert.deepEqual(await hiding(page), [], `${where} at ${width}`);
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(overflow <= 0, `${where} at ${width}: ${overflow} pixels too wide`);
    };
    await page.locator(`.inbox-item[data-run="${run.id}"]`).waitFor();
    await clean("the inbox");
    await page.goto(`${place.url}#/runs`);
    await page.locator(`[data-run="${run.id}"]`, { hasText: "U+202E" }).waitFor();
    await clean("the list");
    for (const tab of ["timeline", "transcript", "events", "steps", "details"]) {
      await page.goto(`${place.url}#/run/${run.id}/${tab}?seq=4`);
      await page.locator(".inspector-body").waitFor();
      await clean(tab);
    }
    assert.match(await page.title(), /agent ev/);
    await page.keyboard.press("c");
    await page.locator("dialog[open]").getByText("This cannot be undone").waitFor();
    await clean("a question");
    await page.keyboard.press("Escape");
    await page.context().close();
  }
  await run.record({ kind: "run.failed", body: { error: { kind: `kind ${evil} ${long}`, message: `no ${evil} ${long}`, step: `step ${bidi}`, retryable: false } } });
  for (const width of [1280, 390]) {
    const page = await open(browser, place, `#/run/${run.id}/transcript`, { viewport: { width, height: 800 } });
    await status(page, "failed");
    await page.locator(".result.bad", { hasText: "kind ev" }).waitFor();
    assert.deepEqual(await hiding(page), []);
    const box = await page.locator(".result.bad").boundingBox();
    assert.ok(box.width <= width && box.height < 500, `its error takes ${box.width} by ${box.height} of ${width}`);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), 0);
    assert.deepEqual(page.problems, []);
    await page.context().close();
  }
  // Refusals and toasts: words of the server, with what was asked of it in them.
  const page = await open(browser, place, "#/runs");
  await page.route("**/v1/runs", (route) =>
    route.fulfill({ status: 409, contentType: "application/problem+json", body: JSON.stringify({ status: 409, kind: `conflict${evil}`, detail: `busy ${evil} ${long}`, hint: evil }) }),
  );
  await page.route("**/v1/runs/*/pause", (route) =>
    route.fulfill({ status: 409, contentType: "application/problem+json", body: JSON.stringify({ status: 409, kind: "busy", detail: `toast ${evil} ${long}`, hint: evil }) }),
  );
  await page.getByRole("button", { name: "New run" }).click();
  await page.locator("dialog").getByRole("button", { name: "Start" }).click();
  await page.locator("dialog .refused", { hasText: "busy ev" }).waitFor();
  assert.deepEqual(await hiding(page), []);
  await page.keyboard.press("Escape");
  const other = await place.start("long");
  await page.goto(`${place.url}#/run/${other}`);
  await page.getByRole("button", { name: "Pause" }).click();
  await page.locator(".toast", { hasText: "toast ev" }).waitFor();
  assert.deepEqual(await hiding(page), []);
  const toast = await page.locator(".toast").first().boundingBox();
  assert.ok(toast.height < 400, `a toast of ${toast.height} pixels`);
  await place.api(`runs/${other}/cancel`, { method: "POST" });
  await page.context().close();
});

test("facts that come after the end are shown, without a reload", async () => {
  const run = await drive({ name: "late" });
  await run.record({ kind: "phase.entered", body: { phase: "executing" } });
  await run.record({ kind: "tool.called", body: { call: "c1", name: "send", arguments: {}, attempt: 1, effect: "write" } });
  const page = await open(browser, place, `#/run/${run.id}/events`);
  await page.evaluate(() => (window.sameDocument = true));
  await status(page, "executing");
  await page.keyboard.press("c");
  await page.locator("dialog[open]").getByRole("button", { name: "Cancel the run" }).click();
  await status(page, "cancelled");
  await page.locator(".event-row", { hasText: "run.cancelled" }).waitFor();
  await run.record({ kind: "tool.returned", body: { call: "c1", output: "sent after all" } });
  await page.locator(".event-row.late", { hasText: "sent after all" }).filter({ hasText: "late" }).waitFor();
  await page.getByText("One fact came after the end.").waitFor();
  await status(page, "cancelled");
  await page.getByRole("tab", { name: "Transcript" }).click();
  await page.locator(".t-line.late", { hasText: "tool.returned" }).waitFor();
  assert.ok(await page.evaluate(() => window.sameDocument));
  await agrees(page, run.id);
  await page.context().close();
});

test("the server comes back with another store, and then with the first: the page says so and goes on", async () => {
  const [one, two] = [new Place(), new Place()];
  for (const it of [one, two]) writeAll(it, APPROVAL);
  await one.serve();
  const list = await open(browser, one, "#/runs");
  await list.getByText("live", { exact: true }).waitFor();
  for (let i = 0; i < 3; i += 1) await one.start("release", { input: `first ${i}` });
  await list.locator(".run-row", { hasText: "first 2" }).filter({ hasText: "approval" }).waitFor();
  const run = (await one.api("runs?limit=1")).body.items[0].id;
  const page = await open(browser, one, `#/run/${run}/events`);
  await status(page, "approval");
  for (const it of [list, page]) await it.evaluate(() => (window.sameDocument = true));
  await one.kill();
  two.port = one.port;
  // The place in the stream is none of this store's; a page that kept it would never hear of anything again.
  const told = list.locator(".toast", { hasText: "another store" }).waitFor();
  await two.serve();
  await two.start("release", { input: "second" });
  await told; // it stays for four seconds only
  await list.locator(".run-row", { hasText: "Publish version second?" }).waitFor();
  assert.equal(await list.locator(".run-row", { hasText: "first" }).count(), 0);
  await two.start("release", { input: "third" });
  await list.locator(".run-row", { hasText: "Publish version third?" }).waitFor();
  await page.getByText("This run is not in the store any more.").waitFor();
  await two.kill();
  await one.serve();
  await page.getByText("This run is not in the store any more.").waitFor({ state: "detached" });
  await page.keyboard.press("a");
  await page.locator("dialog[open]").getByRole("button", { name: "Approve" }).click();
  await status(page, "completed");
  const log = one.log(run).map((event) => `${event.seq} ${event.kind}`);
  await counts(page, log.length);
  assert.deepEqual(await shown(page), log);
  for (const it of [list, page]) {
    assert.ok(await it.evaluate(() => window.sameDocument), "nothing was reloaded");
    assert.deepEqual(it.problems, []);
    await it.context().close();
  }
});

test("the laptop sleeps: what happened meanwhile is there, each event once", async () => {
  const other = new Place();
  writeAll(other, APPROVAL);
  await other.serve();
  const network = new Network(other);
  await network.open();
  const run = await other.start("release", { input: "3.0.0" });
  const page = await open(browser, network, `#/run/${run}/events`, { clock: true });
  await status(page, "approval");
  const followed = () => network.streams().filter((path) => path === `/v1/runs/${run}/events`).length;
  await until("the page follows the run", () => followed() === 1);
  // For the status it looks now and then, but steps are folded from what it follows.
  const steps = page.locator("#tab-steps .tab-count");
  await steps.filter({ hasText: /^2$/ }).waitFor();
  // Whoever closes the lid hears nothing any more, and is not told so.
  network.loseStreams();
  await other.api(`runs/${run}/answer`, { method: "POST", headers: { "Content-Type": "application/json" }, body: '{"approve":true}' });
  await until("the run has ended", async () => (await other.api(`runs/${run}`)).body.status === "completed");
  assert.equal(await steps.innerText(), "2");
  assert.equal(followed(), 1, "the old stream seems to live");
  await page.clock.fastForward(120_000);
  await steps.filter({ hasText: /^3$/ }).waitFor();
  await until("the old stream is given up", () => followed() === 0);
  await status(page, "completed");
  await agrees(page, run, other);
  await page.context().close();
});

test("the document of a run that a program drives, at any of its patches", async () => {
  const { id: run, record } = await drive({ name: "indexer" }, { input: "the tree" });
  const patch = (...operations) => ({ kind: "state.patched", body: { patch: operations } });
  await record({ kind: "phase.entered", body: { phase: "executing" } });
  await record(patch({ op: "add", path: "", value: { files: {}, done: 0, note: null } }));
  const page = await open(browser, place, `#/run/${run}/state`);
  await page.locator(".state-tree", { hasText: "done: 0" }).waitFor();
  await record(patch({ op: "add", path: "/files/a~1b.rs", value: { lines: 12 } }, { op: "replace", path: "/done", value: 1 }));
  await record(patch({ op: "remove", path: "/note" }));
  await page.locator(".changes", { hasText: "Changed by patch 3" }).waitFor();
  assert.match(await page.locator(".changes").innerText(), /\/note\s*removed\s*null/);
  await page.keyboard.press("k");
  await page.locator(".changes", { hasText: "Changed by patch 2" }).waitFor();
  const changes = await page.locator(".changes").innerText();
  assert.ok(changes.includes("/files/a~1b.rs") && changes.includes("/done"), changes);
  assert.match(await page.locator(".state-tree").innerText(), /note: null/);
  await record({ kind: "run.completed", body: { output: "indexed" } });
  await status(page, "completed");
  await agrees(page, run);
  await page.context().close();
});

test("where a token is needed the page asks for one, and keeps it out of addresses", async () => {
  const other = new Place();
  writeAll(other, APPROVAL);
  other.cli("run", "-q", "specs/release.toml", "1");
  const created = other.cli("token", "create", "--name", "page").trim();
  const secret = created.split(/\s+/).find((word) => word.length > 20);
  other.port = 20_000 + Math.floor(Math.random() * 20_000);
  await other.serve("--listen", `0.0.0.0:${other.port}`, "--host", `127.0.0.1:${other.port}`);
  const page = await open(browser, other);
  const dialog = page.locator("dialog", { hasText: "A token is needed" });
  await dialog.waitFor();
  await dialog.locator("input").fill("wrong");
  await dialog.getByRole("button", { name: "Use it" }).click();
  await page.getByText("does not take this token").waitFor();
  await dialog.locator("input").fill(secret);
  await dialog.getByRole("button", { name: "Use it" }).click();
  await page.locator(".run-row", { hasText: "release" }).first().waitFor();
  await page.getByText("live", { exact: true }).waitFor();
  assert.ok(!page.url().includes(secret));
  assert.equal(await page.evaluate(() => localStorage.length), 0);
  await page.context().close();
});

test("keys: move, open, go back, search, help, theme", async () => {
  for (const spec of ["writer", "long"]) {
    const run = await place.start(spec);
    await place.api(`runs/${run}/cancel`, { method: "POST" });
  }
  const page = await open(browser, place);
  await page.locator(".run-row[data-run]").first().waitFor();
  await page.keyboard.press("j");
  await page.keyboard.press("j");
  const second = await page.locator(".run-row.selected").getAttribute("data-run");
  await page.keyboard.press("Enter");
  await page.locator(".run-title").waitFor();
  assert.equal(await runOf(page), second);
  await page.keyboard.press("3");
  await page.locator(".event-list").waitFor();
  await page.keyboard.press("j");
  await page.locator(".inspector").waitFor();
  await page.keyboard.press("Escape");
  await page.locator(".inspector").waitFor({ state: "detached" });
  await page.keyboard.press("g");
  await page.keyboard.press("i");
  await page.locator("main.inbox").waitFor();
  await page.keyboard.press("g");
  await page.keyboard.press("r");
  await page.locator("main.runs").waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("writer");
  await page.waitForFunction(() => location.hash.includes("search=writer"));
  await page.locator(".run-row", { hasText: "writer" }).first().waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("?");
  await page.locator("dialog", { hasText: "Keys" }).waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("t");
  const theme = await page.evaluate(() => document.documentElement.dataset.theme);
  await page.reload();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), theme);
  assert.deepEqual(page.problems, []);
  await page.context().close();
});
