// What the page does beyond HTML: it asks for news, shows local times, and has keys. Without it,
// everything but that works.
"use strict";
(() => {
  const body = document.body;
  const text = body.dataset;
  const every = Number(text.every);
  document.documentElement.classList.add("scripted");

  // Times are UTC in the HTML and local on the screen. A copy of what the server sent is kept, so
  // that a refresh only touches times that have changed.
  const clock = new Intl.DateTimeFormat(text.lang, {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
    hourCycle: "h23", timeZoneName: "short",
  });
  const write = (at) => {
    const part = {};
    for (const { type, value } of clock.formatToParts(at)) {
      part[type] = value;
    }
    return `${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second} ${part.timeZoneName}`;
  };
  const local = (root) => {
    for (const t of root.querySelectorAll("time[datetime]")) {
      const at = new Date(t.dateTime);
      if (!Number.isNaN(at.getTime())) {
        t.textContent = write(at);
        t.title = t.dateTime;
      }
    }
  };

  // Refreshes: one at a time, none while the tab is hidden or paused, and rarer while they fail.
  const live = () => document.getElementById("live");
  const lost = document.getElementById("lost");
  const button = document.getElementById("pause");
  let paused = false;
  let failures = 0;
  let timer = 0;
  let busy = false;
  const plan = () => {
    clearTimeout(timer);
    if (live() && !paused && !document.hidden) {
      timer = setTimeout(ask, Math.min(every * 2 ** failures, 60000));
    }
  };
  const ask = () => {
    if (busy) {
      return;
    }
    busy = true;
    htmx.trigger(live(), "refresh");
    // If nothing came of it, the next one is due all the same.
    clearTimeout(timer);
    timer = setTimeout(() => { busy = false; outcome(false); }, 30000);
  };
  const outcome = (good) => {
    busy = false;
    failures = good ? 0 : Math.min(failures + 1, 5);
    body.classList.toggle("stale", failures > 0);
    lost.hidden = failures === 0;
    lost.textContent = failures === 0 ? "" : text.lost;
    plan();
  };
  const pause = () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    button.querySelector(".word").textContent = paused ? text.resume : text.pause;
    plan();
  };
  if (button) {
    button.addEventListener("click", pause);
  }
  document.addEventListener("visibilitychange", plan);
  document.addEventListener("htmx:before:swap", (e) => {
    const status = e.detail.ctx.response?.raw?.status ?? e.detail.ctx.response?.status;
    if (status !== 200 && status !== 404) { // what is on the screen stays
      e.preventDefault();
      outcome(false);
    }
  });
  document.addEventListener("htmx:after:swap", () => {
    local(live());
    count();
    outcome(true);
  });
  document.addEventListener("htmx:error", () => outcome(false));

  // Choosing jobs. "All that match" and single ones exclude each other.
  const boxes = () => [...document.querySelectorAll('input[name="ids"]')];
  const count = () => {
    const page = document.getElementById("page-all");
    if (page) {
      const all = boxes();
      const chosen = all.filter((box) => box.checked).length;
      page.checked = all.length > 0 && chosen === all.length;
      page.indeterminate = chosen > 0 && chosen < all.length;
    }
  };
  document.addEventListener("change", (e) => {
    const match = document.getElementById("match-all");
    if (e.target.id === "page-all") {
      for (const box of boxes()) {
        box.checked = e.target.checked;
      }
      match.checked = false;
    } else if (e.target.id === "match-all" && e.target.checked) {
      for (const box of boxes()) {
        box.checked = false;
      }
    } else if (e.target.name === "ids") {
      match.checked = false;
    }
    count();
  });

  document.addEventListener("click", async (e) => {
    const copy = e.target.closest("[data-copy]");
    if (copy) {
      const word = copy.textContent;
      try {
        await navigator.clipboard.writeText(document.getElementById(copy.dataset.copy).textContent);
        copy.textContent = text.copied;
        setTimeout(() => { copy.textContent = word; }, 1500);
      } catch {
        getSelection().selectAllChildren(document.getElementById(copy.dataset.copy));
      }
    }
  });

  // Keys, which can be switched off on the help page.
  const off = "delayq-keys-off";
  const stored = () => { try { return localStorage.getItem(off) === "1"; } catch { return false; } };
  const choice = document.getElementById("keys-off");
  if (choice) {
    choice.checked = stored();
    choice.addEventListener("change", () => {
      try { localStorage.setItem(off, choice.checked ? "1" : "0"); } catch { /* then it lasts for this page */ }
    });
  }
  let after = "";
  const move = (step) => {
    const links = [...document.querySelectorAll("tbody th a")];
    const at = links.indexOf(document.activeElement.closest("tr")?.querySelector("th a"));
    links[Math.max(0, Math.min(links.length - 1, at + step))]?.focus();
  };
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || stored() || choice?.checked || e.target.closest("input:not([type=checkbox]), textarea, select")) {
      return;
    }
    const go = after === "g" ? document.querySelector(`nav a[data-key="${CSS.escape(e.key)}"]`) : null;
    after = e.key;
    const box = document.activeElement.closest("tr")?.querySelector('input[name="ids"]');
    if (go) {
      go.click();
    } else if (e.key === "/") {
      document.getElementById("find").focus();
    } else if (e.key === "?") {
      location.href = "help";
    } else if (e.key === ".") {
      button?.click();
    } else if (e.key === "j") {
      move(1);
    } else if (e.key === "k") {
      move(-1);
    } else if (e.key === "x" && box) {
      box.click();
    } else {
      return;
    }
    e.preventDefault();
  });

  local(document);
  count();
  plan();
})();
