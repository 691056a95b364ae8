// Light, dark, or as the system wishes; and the colours that drawings take from the style sheet.

const theme = {
  listeners: [],
  colours: new Map(),

  set(mode) {
    document.documentElement.dataset.theme = mode;
    try {
      localStorage.setItem("dapo-theme", mode);
    } catch {
      // A file opened from disk may have no storage: the choice then lasts as long as the page.
    }
    theme.changed();
  },

  start() {
    let stored = "auto";
    try {
      stored = localStorage.getItem("dapo-theme") || "auto";
    } catch {
      stored = "auto";
    }
    document.documentElement.dataset.theme = ["auto", "light", "dark"].includes(stored) ? stored : "auto";
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme.changed);
  },

  changed() {
    theme.colours.clear();
    for (const listener of theme.listeners) listener();
  },

  /** The value of a custom property of the style sheet, such as "--c1". */
  colour(name) {
    if (!theme.colours.has(name)) {
      theme.colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    }
    return theme.colours.get(name);
  },

  /** `name` with `alpha` (0 to 1); colours of the style sheet are #rrggbb. */
  faint(name, alpha) {
    return (
      theme.colour(name) +
      Math.round(alpha * 255)
        .toString(16)
        .padStart(2, "0")
    );
  },

  control() {
    const current = document.documentElement.dataset.theme;
    const modes = [
      ["auto", "Auto"],
      ["light", "Light"],
      ["dark", "Dark"],
    ];
    const buttons = modes.map(([mode, text], i) => {
      const keys = (event) => {
        const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (!move) return;
        event.preventDefault();
        pick((i + move + modes.length) % modes.length, true);
      };
      const on = mode === current;
      return html`
        <button type="button" role="radio" aria-checked=${String(on)} tabindex=${on ? 0 : -1}
          onclick=${() => pick(i, false)} onkeydown=${keys}>${text}</button>`;
    });
    const pick = (chosen, focus) => {
      buttons.forEach((button, i) => {
        button.setAttribute("aria-checked", String(i === chosen));
        button.tabIndex = i === chosen ? 0 : -1;
      });
      if (focus) buttons[chosen].focus();
      theme.set(modes[chosen][0]);
    };
    return html`<div class="themes" role="radiogroup" aria-label="Colours">${buttons}</div>`;
  },
};
