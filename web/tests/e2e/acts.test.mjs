// What a person can do about a run, from the page.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { dirname } from "node:path";
import { after, before, test } from "node:test";
import { copied, counts, launch, open, Place, reaches, shown, status, stopAll } from "./harness.mjs";
import { ACTS, AGENT, HELD, letGo, writeAll } from "./specs.mjs";

let browser;
let place;

before(async () => {
  browser = await launch();
  place = new Place();
  writeAll(place, AGENT, HELD, ACTS);
  await place.serve();
});

after(async () => {
  await browser?.close();
  await stopAll();
});

const opened = async (run, tab = "") => open(browser, place, `#/run/${run}${tab}`);
const dialog = (page) => page.locator("dialog[open]");
const closed = async (page) => {
  assert.deepEqual(page.problems, []);
  await page.context().close();
};

test("pause and resume", async () => {
  const run = await place.start("held");
  const page = await opened(run);
  await status(page, "executing");
  await page.getByRole("button", { name: "Pause" }).click();
  await status(page, "paused");
  await page.keyboard.press("p");
  letGo(place, run);
  await status(page, "completed");
  assert.deepEqual(
    place.log(run).filter((event) => event.kind.startsWith("wait.")).map((event) => event.kind),
    ["wait.started", "wait.ended"],
  );
  await closed(page);
});

test("raise a budget from the inbox, and say something to the agent", async () => {
  const run = await place.start("poor", { input: "spend" });
  const page = await open(browser, place, "#/inbox");
  const item = page.locator(`.inbox-item[data-run="${run}"]`);
  await item.getByRole("button", { name: "Raise the budget…" }).click();
  await dialog(page).getByLabel("Tokens").fill("200000");
  await dialog(page).getByRole("button", { name: "Add" }).click();
  await item.filter({ hasText: "fs.write" }).waitFor();
  assert.equal(place.show(run).budget.tokens, 200_500);
  await page.goto(`${place.url}#/run/${run}/transcript`);
  await page.getByRole("button", { name: "Say" }).click();
  await dialog(page).locator("textarea").fill("and be brief");
  await dialog(page).getByRole("button", { name: "Say it" }).click();
  await page.locator(".said.user", { hasText: "and be brief" }).filter({ hasText: "not taken yet" }).waitFor();
  await page.locator(".wait-card").getByRole("button", { name: "Deny" }).click();
  await dialog(page).getByRole("button", { name: "Deny" }).click();
  await page.locator(".said.user", { hasText: "and be brief" }).filter({ hasText: "said to the agent" }).waitFor();
  await page.locator(".folding.denied", { hasText: "fs.write" }).waitFor();
  await closed(page);
});

test("whoever is about to raise a budget is told that someone else did", async () => {
  const run = await place.start("poor", { input: "spend" });
  const page = await open(browser, place, "#/inbox");
  await page.locator(`.inbox-item[data-run="${run}"]`).getByRole("button", { name: "Raise the budget…" }).click();
  await dialog(page).getByLabel("Tokens").waitFor();
  assert.equal(await dialog(page).getByRole("alert").count(), 0);
  const raised = await place.api(`runs/${run}/resume`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ add_budget: { tokens: 200_000 } }),
  });
  assert.equal(raised.status, 200);
  await dialog(page).getByText("Someone else raised the budget").waitFor();
  await closed(page);
});

test("answer a question with a value", async () => {
  const run = await place.start("signal");
  const page = await opened(run);
  await page.locator(".wait-card").getByRole("button", { name: "Answer…" }).click();
  await dialog(page).getByLabel("Answer as JSON").fill("{not json");
  assert.ok(await dialog(page).getByRole("button", { name: "Answer" }).isDisabled());
  await dialog(page).getByLabel("Answer as JSON").fill('{"go": true}');
  await dialog(page).getByText("This cannot be undone").waitFor();
  await dialog(page).getByRole("button", { name: "Answer" }).click();
  await status(page, "completed");
  assert.deepEqual(place.show(run).output, { go: true });
  await closed(page);
});

test("say what became of a write that a crash left in doubt", async () => {
  const run = await place.start("doubt");
  const page = await opened(run);
  await page.locator(".wf-row", { hasText: "pay" }).waitFor();
  await place.kill();
  await place.serve();
  await status(page, "in doubt");
  const card = page.locator(".wait-card");
  await card.getByText("Nobody knows whether this write happened").waitFor();
  await card.getByRole("button", { name: "Do it again…" }).click();
  await dialog(page).getByText("This cannot be undone").waitFor();
  await dialog(page).getByRole("button", { name: "Not now" }).click();
  await card.getByRole("button", { name: "It happened…" }).click();
  await dialog(page).getByLabel("Its result as JSON").fill('"paid by hand"');
  await dialog(page).getByRole("button", { name: "It happened" }).click();
  await status(page, "completed");
  assert.equal(place.show(run).output, "paid by hand");
  await closed(page);
});

test("retry a failed run as a new one", async () => {
  const run = await place.start("mend");
  const page = await opened(run);
  await status(page, "failed");
  place.write("mended", "");
  await page.getByRole("button", { name: "Retry" }).click();
  await dialog(page).getByRole("button", { name: "Retry" }).click();
  await page.locator(".facts", { hasText: "Retry of" }).waitFor();
  await status(page, "completed");
  assert.equal(place.show(run).status, "failed", "the first one stays as it was");
  await closed(page);
});

test("download the log, and it verifies", async () => {
  const run = await place.start("mend");
  const page = await opened(run);
  await page.locator('.status[data-status="completed"]').waitFor();
  await page.getByRole("button", { name: "More" }).click();
  const [download] = await Promise.all([
    page.waitForEvent("download"),
    page.getByRole("menuitem", { name: "Download (JSON Lines)" }).click(),
  ]);
  const text = readFileSync(await download.path(), "utf8");
  assert.equal(JSON.parse(text.split("\n")[0]).run, run);
  place.write("down.jsonl", text);
  place.cli("verify", "down.jsonl");
  await closed(page);
});

test("a network that goes away and comes back is said, and nothing is reloaded", async () => {
  const run = await place.start("held");
  const page = await opened(run, "/events");
  await reaches(page, 6);
  await page.context().setOffline(true);
  await page.getByText("reconnecting…").waitFor();
  await page.context().setOffline(false);
  letGo(place, run);
  await status(page, "completed");
  const log = place.log(run).map((event) => `${event.seq} ${event.kind}`);
  await counts(page, log.length);
  assert.deepEqual(await shown(page), log);
  await closed(page);
});

test("before a run is copied, what it would write again is listed, as the command line lists it", async () => {
  const run = await place.start("writes");
  const page = await opened(run, "/events");
  await status(page, "failed");
  const seqOf = (kind, step) => place.log(run).find((event) => event.kind === kind && event.body.step === step).seq;
  const listed = () => dialog(page).locator("[data-write]").evaluateAll((rows) => rows.map((row) => row.dataset.write));
  for (const at of [2, seqOf("step.started", "pay"), seqOf("step.finished", "pay"), seqOf("step.started", "ship")]) {
    await page.goto(`${place.url}#/run/${run}/events?seq=${at}`);
    await page.locator(".inspector").getByRole("button", { name: "Fork from here" }).click();
    await dialog(page).getByRole("button", { name: "Fork", disabled: false }).waitFor();
    const refused = spawnSync(process.env.LOGREEL, ["fork", run, "--at", String(at), "--json"], { cwd: place.folder, encoding: "utf8" });
    const told = refused.status === 0 ? [] : [...JSON.parse(refused.stderr).error.message.matchAll(/^ {2}(\S+)/gm)].map((it) => it[1]);
    if (at === 2) assert.deepEqual(told, ["pay", "ship"]);
    assert.deepEqual((await listed()).sort(), told.sort(), `at ${at}`);
    await page.keyboard.press("Escape");
  }
  assert.equal(await page.locator("dialog[open]").count(), 0);
  await closed(page);
});

test("every act can be copied, and a shell does with it what the page would", async () => {
  const shell = (text) => {
    const path = `${dirname(process.env.LOGREEL)}:${process.env.PATH}`;
    const ran = spawnSync("bash", ["-c", text], { cwd: place.folder, encoding: "utf8", env: { ...process.env, PATH: path } });
    assert.ok(ran.status === 0 || ran.status === 3, `${text}: ${ran.stderr} ${ran.stdout}`);
    return ran.stdout;
  };
  const copyFrom = async (scope, name) => {
    await scope.getByRole("button", { name }).click();
    const text = await copied(page);
    assert.ok(text.includes("logreel ") || text.includes("Idempotency-Key: ") || text.startsWith("curl -f"), text);
    return text;
  };
  const list = async (name, way) => {
    await page.getByRole("button", { name: "More" }).click();
    await page.getByRole("menuitem", { name: "Copy as CLI or curl…" }).click();
    const text = await copyFrom(dialog(page).locator("dl > div", { hasText: name }), way);
    await page.keyboard.press("Escape");
    return text;
  };
  const run = await place.start("held");
  const page = await opened(run);
  await status(page, "executing");
  shell(await list("Pause", "Copy as curl"));
  await status(page, "paused");
  const resume = await list("Resume", "Copy as curl");
  assert.match(await list("Resume", "Copy as CLI"), new RegExp(`^logreel resume ${run}$`));
  assert.match(shell(await list("Show it", "Copy as CLI")), /held/);
  assert.equal(JSON.parse(shell(await list("Show it", "Copy as curl"))).id, run);
  shell(await list("Download (JSON Lines)", "Copy as CLI"));
  place.cli("verify", `${run}.jsonl`);
  shell(resume);
  await status(page, "executing");
  await page.keyboard.press("c");
  await dialog(page).locator("input").fill("it's \u001b[31m$(id) \u202E -v");
  const reason = await copyFrom(dialog(page), "Copy as CLI");
  shell(reason);
  await status(page, "cancelled");
  assert.equal(place.show(run).reason, "it's \u001b[31m$(id) \u202E -v");
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Retry" }).click();
  const again = await copyFrom(dialog(page), "Copy as curl");
  const first = JSON.parse(shell(again)).id;
  assert.equal(JSON.parse(shell(again)).id, first, "the same key makes one run");
  await page.keyboard.press("Escape");
  await page.goto(`${place.url}#/run/${run}?seq=3`);
  await page.locator(".inspector").getByRole("button", { name: "Fork from here" }).click();
  const forked = JSON.parse(shell(await copyFrom(dialog(page), "Copy as curl")));
  assert.deepEqual(forked.parent, { relation: "fork", run, seq: 3 });
  await page.keyboard.press("Escape");
  const asks = await place.start("poor", { input: "spend" });
  await page.goto(`${place.url}#/run/${asks}`);
  await page.getByRole("button", { name: "Raise the budget…" }).click();
  await dialog(page).getByLabel("Tokens").fill("100000");
  shell(await copyFrom(dialog(page), "Copy as curl"));
  await page.keyboard.press("Escape");
  await status(page, "approval");
  await page.getByRole("button", { name: "Say" }).click();
  await dialog(page).locator("textarea").fill("-n is text");
  shell(await copyFrom(dialog(page), "Copy as CLI"));
  await page.keyboard.press("Escape");
  await page.locator(".wait-card").getByRole("button", { name: "Approve" }).click();
  shell(await copyFrom(dialog(page), "Copy as CLI"));
  await page.keyboard.press("Escape");
  await status(page, "completed");
  assert.ok(place.log(asks).some((event) => event.kind === "message.queued" && event.body.text === "-n is text"));
  for (const it of [first, forked.id]) await place.api(`runs/${it}/cancel`, { method: "POST" });
  await closed(page);
});
