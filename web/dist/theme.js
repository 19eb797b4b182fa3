// Before the first paint, so that the page never flashes in the other theme.
try {
  var theme = localStorage.getItem("logreel.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch (error) {
  // Storage may be switched off; the system's theme is used then.
}
