// What was just done, or refused, for a moment at the edge of the page.

import { signal } from "@preact/signals";
import { Problem } from "../api";
import { Text } from "./text";

interface Toast {
  id: number;
  tone: "good" | "bad";
  title: string;
  detail: string | null;
}

const toasts = signal<Toast[]>([]);
let count = 0;

export function toast(tone: Toast["tone"], title: string, detail: string | null = null): void {
  count += 1;
  const id = count;
  toasts.value = [...toasts.value.slice(-3), { id, tone, title, detail }];
  setTimeout(() => dismiss(id), tone === "good" ? 4000 : 9000);
}

const dismiss = (id: number): void => {
  toasts.value = toasts.value.filter((it) => it.id !== id);
};

/** A refusal in the server's words: a conflict says what is, and what to do. */
export function told(error: unknown): { title: string; detail: string | null } {
  if (error instanceof Problem) {
    const title = error.status === 409 ? `Refused (${error.kind.replace(/_/g, " ")}): ${error.message}` : error.message;
    return { title, detail: error.hint };
  }
  return { title: error instanceof Error ? error.message : String(error), detail: null };
}

export function toastError(error: unknown): void {
  const { title, detail } = told(error);
  toast("bad", title, detail);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((it) => (
        <div key={it.id} class={`toast ${it.tone}`}>
          <div>
            <strong>
              <Text value={it.title} lines={4} />
            </strong>
            {it.detail !== null && (
              <div class="dim">
                <Text value={it.detail} lines={6} />
              </div>
            )}
          </div>
          <button type="button" class="icon" aria-label="Dismiss" onClick={() => dismiss(it.id)}>
            ×
          </button>
        </div>
      ))}
    </div>
  );
}

export async function copy(text: string, what: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without permission, or not on a secure origin.
    if (!copyOldWay(text)) return toast("bad", "The browser does not let the page copy", text);
  }
  toast("good", `Copied ${what}`);
}

function copyOldWay(text: string): boolean {
  const box = document.createElement("textarea");
  box.value = text;
  box.className = "sr-only";
  // A dialog that is open lets nothing outside of it have the selection.
  (document.querySelector("dialog[open]") ?? document.body).append(box);
  box.select();
  const copied = document.execCommand("copy");
  box.remove();
  return copied;
}
