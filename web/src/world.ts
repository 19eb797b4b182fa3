// The real world of the followers: the browser's network, clock and chance, and whether anyone looks.

import { effect, signal } from "@preact/signals";
import { address, headers, skew, token, tokenWanted } from "./api";
import type { World } from "./live";

/** Ticks twice a second while someone looks. */
export const now = signal(Date.now());

export const serverNow = (): number => now.value + skew.value;

/** A page that nobody sees holds no connection: browsers have six for all tabs together. */
const DOZE_AFTER_MS = 20_000;

const dozing = signal(false);
const listeners = new Set<{ nudge(): void; doze(): void }>();

let dozeTimer: ReturnType<typeof setTimeout> | undefined;

export function startWorld(): void {
  setInterval(() => {
    if (!document.hidden) now.value = Date.now();
  }, 500);
  document.addEventListener("visibilitychange", () => {
    clearTimeout(dozeTimer);
    if (document.hidden) {
      dozeTimer = setTimeout(() => {
        dozing.value = true;
        for (const listener of listeners) listener.doze();
      }, DOZE_AFTER_MS);
    } else {
      now.value = Date.now();
      dozing.value = false;
      for (const listener of listeners) listener.nudge();
    }
  });
  window.addEventListener("offline", () => {
    for (const listener of listeners) listener.doze();
  });
  window.addEventListener("online", () => {
    for (const listener of listeners) listener.nudge();
  });
}

export function listen(listener: { nudge(): void; doze(): void }): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Resolves once a condition on signals holds. */
function once(holds: () => boolean, abort: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    let stop: (() => void) | null = null;
    const done = (): void => {
      queueMicrotask(() => stop?.());
      resolve();
    };
    abort.addEventListener("abort", done, { once: true });
    stop = effect(() => {
      if (holds()) done();
    });
  });
}

export const world: World = {
  async fetch(path, more, signal) {
    const response = await fetch(address(path), { headers: headers(more), signal, cache: "no-store" });
    if (response.status === 401) tokenWanted.value = true;
    return response;
  },
  sleep(ms, signal) {
    return new Promise((resolve) => {
      if (signal.aborted) return resolve();
      const timer = setTimeout(done, ms);
      function done(): void {
        clearTimeout(timer);
        signal.removeEventListener("abort", done);
        resolve();
      }
      signal.addEventListener("abort", done);
    });
  },
  random: Math.random,
  now: Date.now,
  unlocked: (signal) => once(() => token.value !== null && !tokenWanted.value, signal),
  awake: (signal) => once(() => !dozing.value, signal),
  hidden: () => dozing.value,
};
