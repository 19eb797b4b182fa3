// Pictures of the page for whoever works on it: both themes, wide and narrow, of real runs.
//   LOGREEL=target/debug/logreel node tests/e2e/shots.mjs FOLDER

import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { launch, open, Place, status, stopAll } from "./harness.mjs";
import { ACTS, AGENT, APPROVAL, HELD, HOSTILE, LONG, writeAll } from "./specs.mjs";

const folder = process.argv[2] ?? "shots";
mkdirSync(folder, { recursive: true });
const browser = await launch();
const place = new Place();
writeAll(place, ACTS, AGENT, APPROVAL, HOSTILE, LONG, HELD);
place.write(
  "specs/audit.toml",
  `name = "audit"
[budget]
children = 10
tokens = 100_000
[[step]]
id = "files"
effect = "read"
run = "printf '[\\"a.py\\",\\"b.py\\",\\"c.py\\",\\"d.py\\"]'"
[[step]]
id = "lint"
needs = ["files"]
map = "{{ steps.files.output }}"
map_key = "{{ item }}"
input = "{{ item }}"
run = "sleep 0.$((RANDOM % 3 + 1)); cat; echo ': fine'"
[[step]]
id = "flaky"
run = "test -e flaky || { touch flaky; sleep 0.2; echo 'connection reset by peer' >&2; exit 3; }; sleep 0.1; echo up"
retry = { attempts = 3, backoff = "200ms..1s" }
[[step]]
id = "write"
needs = ["lint", "flaky"]
agent = "writer.toml"
input = "Sum up what the linter said about {{ steps.files.output | length }} files"
`,
);
place.write("specs/broken.toml", 'name = "nightly"\n[[step]]\nid = "fetch"\nrun = "echo 1"\n[[step]]\nid = "load"\nneeds = ["fetch"]\nrun = "echo \'disk quota exceeded\' >&2; exit 7"\n');
await place.serve();
const done = await place.start("writer", { input: "Write the note that we talked about", session: "repo-42", labels: { team: "blue" } });
const failed = await place.start("broken", { labels: { team: "red", env: "prod" } });
const wrote = await place.start("writes");
await place.start("audit", { session: "audits" });
const asks = await place.start("release", { input: "1.4.0", labels: { team: "blue" } });
await place.start("hostile");
const page = await open(browser, place, `#/run/${done}`);
await page.locator(".wait-card").getByRole("button", { name: "Approve" }).click();
await page.locator("dialog[open]").getByRole("button", { name: "Approve" }).click();
await status(page, "completed");
await page.context().close();
const audit = JSON.parse(place.cli("ls", "--json", "--agent", "audit")).items[0].id;
const waiting = await open(browser, place, "#/inbox");
await waiting.locator(".inbox-item", { hasText: "fs.write" }).waitFor();
await waiting.context().close();
const live = await place.start("writer", { input: "Tell me what you see" });
await place.start("long");

async function copies(page) {
  await page.getByRole("button", { name: "More" }).click();
  await page.getByRole("menuitem", { name: "Copy as CLI or curl…" }).click();
}

const views = [
  ["list", "#/runs"],
  ["inbox", "#/inbox"],
  ["timeline", `#/run/${done}/timeline`],
  ["workflow", `#/run/${audit}/timeline`],
  ["transcript", `#/run/${done}/transcript`],
  ["live", `#/run/${live}/transcript`],
  ["events", `#/run/${done}/events?seq=12`],
  ["steps", `#/run/${audit}/steps`],
  ["details", `#/run/${done}/details`],
  ["state", `#/run/${done}/state`],
  ["failed", `#/run/${failed}/timeline`],
  ["failed-said", `#/run/${failed}/transcript`],
  ["approval", `#/run/${asks}`],
  ["ask", `#/run/${asks}`, (page) => page.keyboard.press("a")],
  ["fork", `#/run/${done}/timeline?seq=4`, (page) => page.keyboard.press("f")],
  ["again", `#/run/${wrote}/events?seq=2`, (page) => page.keyboard.press("f")],
  ["copies", `#/run/${wrote}`, copies],
  ["cancel", `#/run/${asks}`, (page) => page.keyboard.press("c")],
  ["new", "#/runs", (page) => page.keyboard.press("n")],
  ["keys", "#/runs", (page) => page.keyboard.press("?")],
  ["nothing", "#/runs?search=nothing"],
];
for (const colorScheme of ["light", "dark"]) {
  for (const width of [1280, 390]) {
    for (const [name, hash, then] of views) {
      const page = await open(browser, place, hash, { colorScheme, viewport: { width, height: width === 390 ? 844 : 800 } });
      await page.waitForTimeout(700);
      await then?.(page);
      if (then !== undefined) await page.waitForTimeout(300);
      await page.screenshot({ path: join(folder, `${name}-${colorScheme}-${width}.png`) });
      if (page.problems.length > 0) console.log(name, page.problems);
      await page.context().close();
    }
  }
}
await browser.close();
await stopAll();
