// Times and amounts: read, and said in as few characters as will do.

/** Milliseconds since 1970 with microseconds behind the point. */
export function parseTime(text: string): number {
  const whole = Date.parse(text.length === 27 ? text.slice(0, 23) + "Z" : text);
  return text.length === 27 ? whole + Number(text.slice(23, 26)) / 1000 : whole;
}

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** Such as `740 µs`, `174 ms`, `8.1 s`, `2m 04s`, `3h 12m`, `5d 2h`. */
export function duration(ms: number): string {
  if (ms < 0) return "0 ms";
  if (ms < 1) return ms === 0 ? "0 ms" : `${Math.round(ms * 1000)} µs`;
  if (ms < SECOND) return `${Math.round(ms)} ms`;
  if (ms < 10 * SECOND) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  if (ms < MINUTE) return `${Math.floor(ms / SECOND)} s`;
  const two = (n: number): string => String(Math.floor(n)).padStart(2, "0");
  if (ms < HOUR) return `${Math.floor(ms / MINUTE)}m ${two((ms % MINUTE) / SECOND)}s`;
  if (ms < DAY) return `${Math.floor(ms / HOUR)}h ${two((ms % HOUR) / MINUTE)}m`;
  return `${Math.floor(ms / DAY)}d ${Math.floor((ms % DAY) / HOUR)}h`;
}

/** How long ago, in one unit. */
export function age(ms: number): string {
  if (ms < 5 * SECOND) return "now";
  if (ms < MINUTE) return `${Math.floor(ms / SECOND)}s ago`;
  if (ms < HOUR) return `${Math.floor(ms / MINUTE)}m ago`;
  if (ms < DAY) return `${Math.floor(ms / HOUR)}h ago`;
  return `${Math.floor(ms / DAY)}d ago`;
}

/** Since the beginning of the run: `+0.032`, `+1:04.210`. */
export function offset(ms: number): string {
  const seconds = Math.max(0, ms) / SECOND;
  if (seconds < 60) return `+${seconds.toFixed(3)}`;
  const two = (n: number): string => String(n).padStart(2, "0");
  const rest = (seconds % 60).toFixed(seconds < 3600 ? 3 : 0).padStart(seconds < 3600 ? 6 : 2, "0");
  if (seconds < 3600) return `+${Math.floor(seconds / 60)}:${rest}`;
  return `+${Math.floor(seconds / 3600)}:${two(Math.floor((seconds % 3600) / 60))}:${rest}`;
}

/** Such as `9.5k`, `1.2M`. */
export function count(n: number): string {
  if (n < 1000) return String(n);
  if (n < 9950) return `${(n / 1000).toFixed(1)}k`;
  if (n < 999_500) return `${Math.round(n / 1000)}k`;
  if (n < 9_950_000) return `${(n / 1e6).toFixed(1)}M`;
  return `${Math.round(n / 1e6)}M`;
}

/** Dollars; an unknown price is not zero. */
export function money(usd: number | null): string {
  if (usd === null) return "–";
  if (usd === 0) return "$0";
  if (usd < 0.01) return `$${usd.toFixed(4)}`;
  return usd < 100 ? `$${usd.toFixed(2)}` : `$${Math.round(usd)}`;
}

export function bytes(n: number): string {
  if (n < 1024) return `${n} B`;
  if (n < 1024 * 1024) return `${(n / 1024).toFixed(n < 10_240 ? 1 : 0)} kB`;
  return `${(n / 1024 / 1024).toFixed(1)} MB`;
}

/** The last 8 hex digits, as every table prints them. */
export const shortId = (run: string): string => run.slice(-8);

/** A digest as people compare them. */
export const shortDigest = (digest: string): string => digest.replace(/^blake3:/, "").slice(0, 12);
