// Dark or light: the system's choice, unless someone made another one here.

import { signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const KEY = "logreel.theme";

const set = document.documentElement.dataset.theme;
export const theme = signal<Theme>(set === "light" || set === "dark" ? set : "system");

export function isDark(): boolean {
  if (theme.value !== "system") return theme.value === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

export function toggleTheme(): void {
  const next: Theme = isDark() ? "light" : "dark";
  theme.value = next;
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // Then it lasts until the page is left.
  }
}
