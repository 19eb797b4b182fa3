// What a person can do about a run, from the page.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { launch, open, Place, status, stopAll } from "./harness.mjs";
import { ACTS, AGENT, STEADY, writeAll } from "./specs.mjs";

let browser;
let place;

before(async () => {
  browser = await launch();
  place = new Place();
  writeAll(place, AGENT, STEADY, ACTS);
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
  const run = await place.start("steady");
  const page = await opened(run);
  await status(page, "executing");
  await page.getByRole("button", { name: "Pause" }).click();
  await status(page, "paused");
  await page.keyboard.press("p");
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
  await page.locator(".said.user", { hasText: "and be brief" }).filter({ hasText: "said to the agent" }).waitFor();
  await page.locator(".folding.denied", { hasText: "fs.write" }).waitFor();
  await closed(page);
});

test("answer a question with a value", async () => {
  const run = await place.start("signal");
  const page = await opened(run);
  const card = page.locator(".wait-card");
  await card.getByLabel("Answer as JSON").fill("{not json");
  assert.ok(await card.getByRole("button", { name: "Answer" }).isDisabled());
  await card.getByLabel("Answer as JSON").fill('{"go": true}');
  await card.getByRole("button", { name: "Answer" }).click();
  await status(page, "completed");
  assert.deepEqual(place.show(run).output, { go: true });
  await closed(page);
});

test("say what became of a write that a crash left in doubt", async () => {
  const run = await place.start("doubt");
  const page = await opened(run);
  await page.waitForFunction(() => window.logreel.model.kinds.includes("step.started"));
  await place.kill();
  await place.serve();
  await status(page, "in doubt");
  const card = page.locator(".wait-card");
  await card.getByText("Nobody knows whether this write happened").waitFor();
  await card.getByLabel("Result or failure").fill('"paid by hand"');
  await card.getByRole("button", { name: "It happened" }).click();
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
  const run = await place.start("steady");
  const page = await opened(run, "/events");
  await page.waitForFunction(() => window.logreel.model.seq > 5);
  await page.context().setOffline(true);
  // A browser that is offline keeps open streams: as after a sleep, they are found dead.
  await page.evaluate(() => window.logreel.follower.doze());
  await page.getByText("reconnecting…").waitFor();
  await page.context().setOffline(false);
  await status(page, "completed");
  const log = place.log(run).map((event) => event.seq);
  await page.waitForFunction((length) => window.logreel.model.seq === length, log.length);
  await closed(page);
});
