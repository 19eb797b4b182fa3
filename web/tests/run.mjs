// Bundles the unit tests and gives them to node's test runner: node does not read TypeScript.
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = fileURLToPath(new URL(".", import.meta.url));
const out = mkdtempSync(join(tmpdir(), "logreel-web-"));
const tests = readdirSync(here).filter((name) => name.endsWith(".test.ts"));
await build({
  entryPoints: tests.map((name) => join(here, name)),
  outdir: out,
  outExtension: { ".js": ".mjs" },
  bundle: true,
  format: "esm",
  platform: "node",
  target: "node18",
  logLevel: "warning",
});
const files = tests.map((name) => join(out, name.replace(/\.ts$/, ".mjs")));
const ran = spawnSync(process.execPath, ["--test", ...files], {
  stdio: "inherit",
  env: { ...process.env, LOGREEL_WEB_TESTS: here },
});
rmSync(out, { recursive: true, force: true });
process.exit(ran.status ?? 1);
