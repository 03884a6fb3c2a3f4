// Drives the page of a demo in Chromium:
//
//	npm ci && node run.mjs http://127.0.0.1:9465/ [directory for pictures]
//
// It fails at the first thing that does not hold, at any error in the console, at a violation that
// axe finds, and at a page that is wider than its window.
import { strict as assert } from "node:assert";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const [base, pictures] = process.argv.slice(2);
const axe = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox"],
});
const get = async (page) => (await fetch(base + page)).json();
const until = async (what, check) => {
  for (let n = 0; n < 120; n++) {
    const found = await check();
    if (found) {
      return found;
    }
    await new Promise((done) => setTimeout(done, 500));
  }
  throw new Error(`${what} did not happen within a minute`);
};
const group = await until("a failure", async () => (await get("failures.json")).groups[0]);
const schedule = (await get("schedules.json")).schedules[0];
const q = encodeURIComponent;
const dead = `jobs?topic=${q(group.topic)}&state=dead`;
const pages = {
  topics: "topics", topic: `topic?topic=${q(group.topic)}`, jobs: "jobs?topic=order:cancel&state=scheduled&rows=25", dead,
  job: `job?topic=${q(group.topic)}&id=${q(group.ids[0])}`, failures: "failures", servers: "servers", schedules: "schedules",
  schedule: `schedule?topic=${q(schedule.topic)}&name=${q(schedule.name)}`, audit: "audit", redis: "redis", help: "help",
  find: "find", confirm: `confirm?do=purge&topic=${q(group.topic)}&state=dead&all=1`, pause: `pause?topic=${q(group.topic)}`,
  enqueue: "enqueue", "new-schedule": "new-schedule", bulks: "bulks",
};
const errors = [];
const open = async (options) => {
  const context = await browser.newContext({ bypassCSP: false, ...options });
  const page = await context.newPage();
  page.on("console", (m) => { if (m.type() === "error") errors.push(`${page.url()}: ${m.text()}`); });
  page.on("pageerror", (e) => errors.push(`${page.url()}: ${e}`));
  return page;
};

// Every page at three widths, light and dark, and in Chinese.
for (const [width, height] of [[1440, 900], [768, 1000], [320, 800]]) {
  for (const colorScheme of ["light", "dark"]) {
    for (const locale of width === 1440 ? ["en", "zh-CN"] : ["en"]) {
      const page = await open({ viewport: { width, height }, colorScheme, locale });
      for (const [name, at] of Object.entries(pages)) {
        await page.goto(base + at);
        const where = `${name}, ${width} px, ${colorScheme}, ${locale}`;
        const more = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(more <= 0, `${where}: ${more} px wider than the window`);
        if (locale === "zh-CN") {
          assert.match(await page.textContent("nav"), /主题/);
        }
        if (pictures) {
          await page.screenshot({ path: `${pictures}/${name}-${width}-${colorScheme}-${locale}.png` });
        }
      }
      await page.context().close();
    }
  }
}

// axe needs a script of its own, which the policy rightly refuses, so it is bypassed here alone.
for (const colorScheme of ["light", "dark"]) {
  const page = await open({ bypassCSP: true, colorScheme });
  for (const [name, at] of Object.entries(pages)) {
    await page.goto(base + at);
    await page.addScriptTag({ path: axe });
    const { violations } = await page.evaluate(() => window.axe.run({
      runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"],
    }));
    assert.deepEqual(violations.map((v) => `${v.id}: ${v.nodes[0].html} ${v.nodes[0].failureSummary}`), [], `axe, ${name}, ${colorScheme}`);
  }
  await page.context().close();
}

// Live updates keep the checked box, the focus, what is being typed, and the place.
{
  const page = await open({ viewport: { width: 900, height: 500 } });
  await page.goto(base + "jobs?topic=order:cancel&state=scheduled&rows=500&order=latest");
  const boxes = page.locator('input[name="ids"]');
  const box = boxes.nth(40);
  await box.check();
  const id = await box.getAttribute("id");
  await page.fill('#filter input[name="prefix"]', "half-typ");
  await box.scrollIntoViewIfNeeded();
  const place = await page.evaluate(() => scrollY);
  await page.locator(`[id="${id}"]`).focus();
  const refreshes = () => page.evaluate(() => performance.getEntriesByType("resource").filter((e) => e.name.includes("/jobs?")).length);
  const before = await refreshes();
  await until("three refreshes", async () => (await refreshes()) >= before + 3);
  assert.equal(await page.locator(`[id="${id}"]`).isChecked(), true, "the box is still checked");
  assert.equal(await page.evaluate(() => document.activeElement.id), id, "the focus is where it was");
  assert.equal(await page.inputValue('#filter input[name="prefix"]'), "half-typ", "what was typed is still there");
  assert.ok(place > 0 && Math.abs(await page.evaluate(() => scrollY) - place) < 40, "the page has not scrolled");
  await page.keyboard.press(".");
  assert.equal(await page.getAttribute("#pause", "aria-pressed"), "true", "a key pauses the updates");
  await page.context().close();
}

// Filter, all that match, revive with spread, progress, audit: with the keyboard and without JavaScript too.
for (const javaScriptEnabled of [true, false]) {
  const topic = group.topic;
  await until("two dead jobs", async () => (await get(dead.replace("jobs", "jobs.json"))).total >= 2);
  const page = await open({ javaScriptEnabled });
  await page.goto(base + dead);
  await page.fill('#filter input[name="error"]', "550");
  await page.press('#filter input[name="error"]', "Enter");
  await page.check("#match-all");
  await page.click('button[value="revive"]');
  assert.match(await page.textContent("h1"), /revive \d+ jobs of /i);
  await page.fill('input[name="spread"]', "10m");
  await page.press('input[name="spread"]', "Tab");
  await page.click(".ask button.primary");
  assert.match(page.url(), /\/bulk\?run=\d+$/);
  const run = new URL(page.url()).searchParams.get("run");
  const done = await until("the end of the run", async () => {
    const { run: r } = await get(`bulk.json?run=${run}`);
    return r.ended_at && r;
  });
  assert.equal(done.error, undefined);
  await page.goto(base + "audit");
  assert.match(await page.textContent("tbody"), /apply revive/);
  assert.ok(topic.length > 0);
  await page.context().close();
}

// Another due time for one job.
{
  const { jobs: [, job] } = await get("jobs.json?topic=order:cancel&state=scheduled&order=latest");
  const page = await open({});
  await page.goto(`${base}job?topic=order:cancel&id=${q(job.id)}`);
  await page.click(".acts a:has-text('reschedule')");
  await page.fill('input[name="in"]', "5h");
  await page.click(".ask button.primary");
  await page.waitForSelector(".banner.good");
  const { job: moved } = await get(`job.json?topic=order:cancel&id=${q(job.id)}`);
  assert.ok(new Date(moved.due) - Date.now() > 4.9 * 3600e3, "it is due in five hours");
  await page.context().close();
}

assert.deepEqual(errors, [], "errors in the console");
await browser.close();
console.log(`${Object.keys(pages).length} pages are good`);
