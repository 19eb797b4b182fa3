// The frame of the page: where to go, how the connection is, and what the keys do.

import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { setToken, token, tokenWanted } from "../api";
import type { Link } from "../live";
import { go, route } from "../route";
import { inbox, listLink } from "../runs-store";
import { isDark, theme, toggleTheme } from "../theme";
import { Dialog } from "./dialog";
import { useKeys } from "./keys";
import { starting } from "./start";

export const helping = signal(false);
/** The link of the run that is open, which matters more than that of the list. */
export const runLink = signal<Link | null>(null);

export function TopBar() {
  const page = route.value.page;
  const count = inbox.value.length;
  useKeys({
    "g r": () => go("#/runs"),
    "g i": () => go("#/inbox"),
    "?": () => {
      helping.value = true;
    },
    n: () => {
      starting.value = true;
    },
    t: toggleTheme,
  });
  return (
    <header class="top">
      <a class="brand" href="#/runs" aria-label="Logreel">
        <svg viewBox="0 0 32 32" width="20" height="20" aria-hidden="true">
          <rect width="32" height="32" rx="8" class="brand-box" />
          <path d="M8 10h10M12 16h12M10 22h7" class="brand-lines" />
        </svg>
        <span>Logreel</span>
      </a>
      <nav aria-label="Pages">
        <a href="#/runs" aria-current={page === "runs" || page === "run" ? "page" : undefined}>
          Runs
        </a>
        <a href="#/inbox" aria-current={page === "inbox" ? "page" : undefined}>
          Inbox
          {count > 0 && <span class="badge" aria-label={`${count} waiting`}>{count}</span>}
        </a>
      </nav>
      <span class="grow" />
      <Connection />
      <button
        type="button"
        class="small"
        onClick={() => {
          starting.value = true;
        }}
      >
        New run
      </button>
      <button type="button" class="icon" onClick={toggleTheme} aria-label="Switch between dark and light" title="Dark or light (t)">
        {theme.value !== null && isDark() ? "☾" : "☀"}
      </button>
      <button
        type="button"
        class="icon wide-only"
        aria-label="Keys"
        title="Keys (?)"
        onClick={() => {
          helping.value = true;
        }}
      >
        ?
      </button>
    </header>
  );
}

function Connection() {
  const list = listLink.value;
  const run = runLink.value;
  const link = run !== null && run.is !== "ended" && run.is !== "gone" ? run : list;
  const lost = [list, run].find((it) => it?.is === "lost");
  if (lost !== undefined && lost !== null && lost.is === "lost") {
    return (
      <span class="link-state lost" role="status" title={lost.why}>
        <span class="dot" aria-hidden="true" /> reconnecting…
      </span>
    );
  }
  const words: { [is in Link["is"]]: string } = {
    reading: "reading…",
    live: "live",
    lost: "reconnecting…",
    asleep: "asleep",
    ended: "live",
    gone: "live",
    locked: "locked",
  };
  return (
    <span class={`link-state ${link.is}`} role="status">
      <span class="dot" aria-hidden="true" /> {words[link.is]}
    </span>
  );
}

const KEYS: [string, string][] = [
  ["j k", "next, previous"],
  ["Enter", "open what is selected"],
  ["Esc", "back, close"],
  ["/", "search"],
  ["g r", "runs"],
  ["g i", "inbox"],
  ["n", "new run"],
  ["1 … 6", "timeline, transcript, events, state, steps, details"],
  ["+ − 0", "zoom the timeline, fit it"],
  ["a d", "approve, deny; asks first"],
  ["c", "cancel the run"],
  ["p", "pause or resume the run"],
  ["s", "say something to the agent"],
  ["f", "fork from the selected event"],
  ["t", "dark or light"],
  ["?", "this help"],
];

export function Help() {
  if (!helping.value) return null;
  return (
    <Dialog
      title="Keys"
      onClose={() => {
        helping.value = false;
      }}
    >
      <dl class="keys">
        {KEYS.map(([keys, what]) => (
          <div key={keys}>
            <dt>
              {keys.split(" ").map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}

/** Asked for when the server wants one; kept for this tab only. */
export function TokenAsk() {
  const [text, setText] = useState("");
  if (!tokenWanted.value) return null;
  return (
    <Dialog title="A token is needed" onClose={() => undefined} stays>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (text.trim() !== "") setToken(text.trim());
        }}
      >
        <p>
          {token.value === null ? "This server asks who you are." : "The server does not take this token."} One is made with{" "}
          <code>logreel token create</code>. It is kept until this tab is closed, and never in an address.
        </p>
        <label>
          Token
          <input type="password" autocomplete="off" autoFocus value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        <footer>
          <span class="grow" />
          <button type="submit" class="primary" disabled={text.trim() === ""}>
            Use it
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
