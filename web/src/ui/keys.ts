// Keys: the topmost layer that knows a key gets it. Nothing is taken from someone who types.

import { useLayoutEffect } from "preact/hooks";

export type Keys = { [keys: string]: () => void };

const layers: { current: Keys }[] = [];
let prefix = "";
let prefixTimer: ReturnType<typeof setTimeout> | undefined;

function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLInputElement) return !["checkbox", "radio", "button", "range"].includes(target.type);
  return target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement || target.isContentEditable;
}

function find(keys: string): (() => void) | undefined {
  for (let i = layers.length - 1; i >= 0; i -= 1) {
    const handler = layers[i]?.current[keys];
    if (handler !== undefined) return handler;
  }
  return undefined;
}

export function startKeys(): void {
  window.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]") !== null) return;
    if (isTyping(event.target)) {
      if (event.key === "Escape") (event.target as HTMLElement).blur();
      return;
    }
    // A button or link with the focus keeps its own Enter and Space.
    const onControl = event.target instanceof HTMLElement && event.target.closest("button, a, summary") !== null;
    if (onControl && (event.key === "Enter" || event.key === " ")) return;
    clearTimeout(prefixTimer);
    const handler = find(prefix === "" ? event.key : `${prefix} ${event.key}`);
    prefix = "";
    if (handler !== undefined) {
      event.preventDefault();
      handler();
    } else if (event.key === "g") {
      prefix = "g";
      prefixTimer = setTimeout(() => {
        prefix = "";
      }, 1200);
    }
  });
}

export function useKeys(keys: Keys): void {
  useLayoutEffect(() => {
    const layer = { current: keys };
    layers.push(layer);
    return () => {
      layers.splice(layers.indexOf(layer), 1);
    };
  });
}
