// Looks at the built site (SITE) in Chromium: a stranger searches, chooses a version and the dark, and
// reads on a phone. No request leaves the site.
import { strict as assert } from "node:assert";
import { createServer } from "node:http";
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync } from "node:fs";
import { extname, join, normalize } from "node:path";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";

const out = process.env.SITE;
const root = "/delayq/";
const types = {
  ".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".json": "application/json", ".md": "text/markdown",
  ".svg": "image/svg+xml", ".txt": "text/plain", ".webp": "image/webp", ".woff2": "font/woff2",
};

let server, browser, home;
before(async () => {
  server = createServer((request, answer) => {
    const { pathname } = new URL(request.url, "http://site");
    let file = join(out, normalize(decodeURI(pathname)).slice(root.length));
    if (existsSync(file) && statSync(file).isDirectory()) file = join(file, "index.html");
    const found = pathname.startsWith(root) && existsSync(file);
    answer.writeHead(found ? 200 : 404, { "content-type": types[extname(file)] ?? "application/octet-stream" });
    answer.end(found && request.method !== "HEAD" ? readFileSync(file) : undefined);
  });
  await new Promise((resolve) => { server.listen(0, "127.0.0.1", resolve); });
  home = `http://127.0.0.1:${server.address().port}${root}`;
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: [
      "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync",
    ],
  });
});
after(async () => {
  await browser?.close();
  server?.close();
});

const desktop = { width: 1440, height: 900 };
const phone = { width: 360, height: 740 };

// look runs a test in a browser without a past. Nothing is loaded from elsewhere, and nothing is
// written to the console.
const look = (name, options, act) => test(name, { timeout: 600_000 }, async () => {
  const messages = [];
  const window = await browser.newContext({ viewport: desktop, locale: "en", ...options });
  window.setDefaultTimeout(15_000);
  try {
    const page = await window.newPage();
    await page.route((url) => url.origin !== new URL(home).origin, (route) => {
      messages.push(`asks for ${route.request().url()}`);
      return route.abort();
    });
    page.on("console", (m) => { if (["error", "warning"].includes(m.type())) messages.push(`${page.url()}: ${m.text()}`); });
    page.on("pageerror", (e) => messages.push(`${page.url()}: ${e}`));
    await act(page, window);
    assert.deepEqual(messages, []);
  } finally {
    await window.close();
  }
});

const heading = (page) => page.locator("h1").innerText().then((text) => text.replace(/[\s\u200b]+$/, ""));
const picture = async (page, name) => {
  if (!process.env.PICTURES) return;
  mkdirSync(process.env.PICTURES, { recursive: true });
  await page.screenshot({ path: join(process.env.PICTURES, `${name}.png`) });
};

// search types into the box, and waits until one of the first results leads to a page. It returns
// where these lead.
const search = async (page, text, where) => {
  const first = () => page.$$eval(".VPLocalSearchBox .result", (all) => all.slice(0, 8).map((a) => a.getAttribute("href")));
  await page.fill(".VPLocalSearchBox input", text);
  try {
    await page.waitForFunction((part) => [...document.querySelectorAll(".VPLocalSearchBox .result")].slice(0, 8)
      .some((a) => a.getAttribute("href").includes(part)), where);
  } catch {
    assert.fail(`${text}: no ${where} among the first results: ${await first()}`);
  }
  return first();
};

look("the home says what it is, and its links lead on", {}, async (page) => {
  await page.goto(home);
  assert.equal(await heading(page), "delayq");
  await page.waitForLoadState("networkidle");
  await picture(page, "home-light");
  await page.click(".VPSidebar a:has-text('Unique')");
  await page.waitForURL(/howto\/unique\.html$/);
  await page.waitForSelector("h1:has-text('Unique jobs')");
  await picture(page, "page-light");
});

look("the search finds words without a network", {}, async (page, window) => {
  await page.goto(home);
  await page.click("#local-search button");
  await search(page, "lease", "delivery");
  await window.setOffline(true);
  for (const [word, where] of Object.entries({
    unique: "howto/unique", debounce: "howto/debounce", result: "howto/results", chain: "howto/", "fan-out": "words", progress: "howto/progress",
    cron: "howto/cron", backoff: "howto/retries", "dead letter": "howto/dead-jobs", heartbeat: "delivery", outbox: "outbox", throttle: "howto/debounce",
  })) {
    await search(page, word, where);
  }
  await picture(page, "search");
  await window.setOffline(false);
});

look("the search finds Chinese words", { locale: "zh-CN" }, async (page) => {
  await page.goto(`${home}zh-CN/`);
  assert.equal(await page.getAttribute("html", "lang"), "zh-CN");
  await picture(page, "chinese");
  await page.click("#local-search button");
  assert.ok((await search(page, "租约", "zh-CN/tutorial")).every((href) => href.includes("/zh-CN/")));
});

look("the menu of versions opens the same page of another version", {}, async (page) => {
  await page.goto(`${home}howto/cron.html`);
  const menu = page.locator(".VPNavBar select.versions");
  await menu.waitFor();
  assert.deepEqual(await menu.locator("option").allInnerTexts(), ["v9.9.9", "next"]);
  assert.equal(await menu.inputValue(), root);
  await menu.selectOption("next");
  await page.waitForURL(`${home}next/howto/cron.html`);
  await menu.waitFor();
  assert.equal(await menu.inputValue(), `${root}next/`);
  const example = page.locator(".vp-doc a:has-text('example/cron')");
  assert.match(await example.getAttribute("href"), /\/blob\/main\/example\/cron\/main\.go$/);
});

for (const colorScheme of ["light", "dark"]) {
  look(`it begins in the ${colorScheme} of the system, and can be changed`, { colorScheme }, async (page) => {
    await page.goto(home);
    const dark = () => page.evaluate(() => document.documentElement.classList.contains("dark"));
    const shown = async (scheme) => {
      assert.equal(await dark(), scheme === "dark");
      assert.equal(await page.locator("img.in-dark").isVisible(), scheme === "dark");
      assert.equal(await page.locator("img.in-light").isVisible(), scheme === "light");
    };
    await shown(colorScheme);
    await page.waitForLoadState("networkidle");
    await picture(page, `home-${colorScheme}`);
    await page.click(".VPNavBar .VPSwitchAppearance");
    await shown(colorScheme === "dark" ? "light" : "dark");
    await page.reload();
    await shown(colorScheme === "dark" ? "light" : "dark");
  });
}

look("a phone has the menu, the search, the versions and the chapters", { viewport: phone, hasTouch: true, isMobile: true }, async (page) => {
  await page.goto(`${home}howto/unique.html`);
  await picture(page, "phone-page");
  await page.click("#local-search button");
  await search(page, "debounce", "howto/debounce");
  await picture(page, "phone-search");
  await page.keyboard.press("Escape");
  await page.click(".VPNavBarHamburger");
  await page.locator(".VPNavScreen select.versions").waitFor();
  await picture(page, "phone-menu");
  await page.click(".VPNavBarHamburger");
  await page.click(".VPLocalNav .menu");
  await page.locator(".VPSidebar.open").waitFor();
  await picture(page, "phone-chapters");
  await page.click(".VPSidebar a:has-text('Cron')");
  await page.waitForURL(/howto\/cron\.html$/);
});

const pages = readdirSync(out, { recursive: true })
  .filter((file) => file.endsWith(".html") && !file.startsWith("next/") && !file.endsWith("404.html")).sort();

// The pages are rendered when they are built, and lie as they do with their scripts.
look("no page is wider than its window", { javaScriptEnabled: false }, async (page) => {
  assert.ok(pages.length > 50);
  const wide = [];
  for (const where of pages) {
    await page.goto(home + where); // until its styles are there
    for (const width of [1440, 360]) {
      await page.setViewportSize({ width, height: 800 });
      const more = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      if (more > 0) wide.push(`${where}: ${more} px wider than ${width} px`);
    }
  }
  assert.deepEqual(wide, []);
});

for (const colorScheme of ["light", "dark"]) {
  look(`axe finds nothing, ${colorScheme}`, { colorScheme, bypassCSP: true }, async (page) => {
    const axe = readFileSync(new URL("node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
    for (const where of ["index.html", "words.html", "comparison.html", "howto/unique.html", "zh-CN/index.html"]) {
      await page.goto(home + where);
      await page.evaluate(axe);
      const found = await page.evaluate(() => globalThis.axe.run(".VPContent", { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] }));
      assert.deepEqual(found.violations.map((v) => `${where}: ${v.id}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 100)).join(" ")}`), []);
    }
  });
}

test("machines find llms.txt, and the Markdown of each page", () => {
  const text = readFileSync(join(out, "llms.txt"), "utf8");
  assert.match(text, /^# delayq\n\n> /);
  const links = [...text.matchAll(/\]\(([^)]+\.md)\)/g)].map((m) => m[1]);
  assert.ok(links.length > 40);
  for (const link of links) assert.ok(existsSync(join(out, link)), link);
  for (const where of pages) assert.match(readFileSync(join(out, where.replace(/html$/, "md")), "utf8"), /^# /, where);
});
