// The page of the binary in a browser: that of "delayqd demo", and that of "delayqd web" on the Redis of
// the demo, with and without a login.
import { strict as assert } from "node:assert";
import { execFileSync } from "node:child_process";
import { writeFile } from "node:fs/promises";
import { after, before } from "node:test";
import { drive, text } from "./drive.mjs";
import { link, run } from "./browser.mjs";

let demo;
before(async () => { demo = await run(/--redis (\S+)[^]*open its page\s+(http:\S+)/, "./delayqd", "demo", "--web", "127.0.0.1:0"); });
after(() => demo?.stop());

const serve = async (...args) => {
  const { match, stop } = await run(/page of prefix "delayq" on (http:\S+)/, "./delayqd",
    "web", "--redis", demo.match[1], "--listen", "127.0.0.1:0", "--every", "500ms", ...args);
  return { home: match[1], stop };
};

// post sends a form, as a person with another browser does.
const post = async (address, form) => {
  const answer = await fetch(address, { method: "POST", body: new URLSearchParams(form), redirect: "manual" });
  assert.equal(answer.status, 303, await answer.text());
};

const heading = (page) => page.locator("h1").innerText();

drive("delayqd web shows the queue, acts and keeps up", { expected: /status of 404/ }, async (page) => {
  const { home, stop } = await serve("--actor", "carol", "--badge", "staging");
  try {
    await page.goto(home);
    assert.equal(await heading(page), "Topics");
    assert.match(await text(page, "header"), /staging/);
    await page.click("main a:has-text('order:cancel')");
    await page.waitForURL(/topic\?/);
    await page.click("a:has-text('Enqueue')");
    await page.fill("main input[name=id]", "of-the-binary");
    await page.fill("main input[name=in]", "3d");
    await page.click("main form button");
    assert.equal(await text(page, ".banner.good"), "The job is enqueued.");
    await page.click(".acts a:has-text('cancel')");
    await page.click(".ask button.danger");
    await page.waitForSelector(".banner.good");
    await page.goto(`${home}audit`);
    assert.match(await text(page, "tbody tr"), /carol/);
    await post(`${demo.match[2]}enqueue`, { topic: "news", id: "n-0", in: "1h" });
    await page.goto(home + link("jobs", { topic: "news", state: "scheduled" }));
    await post(`${demo.match[2]}enqueue`, { topic: "news", id: "n-1", in: "1h" }); // by another program
    await page.waitForSelector("#j-n-1");
  } finally {
    await page.goto("about:blank");
    assert.equal(await stop(), 0);
  }
});

drive("delayqd web --read-only has nothing to act with", {}, async (page) => {
  const { home, stop } = await serve("--read-only", "--language", "zh-CN");
  try {
    await post(`${demo.match[2]}enqueue`, { topic: "quiet", id: "q-1", in: "1h" });
    await page.goto(home + link("job", { topic: "quiet", id: "q-1" }));
    assert.equal(await heading(page), "q-1");
    assert.equal(await page.locator("form[method=post], a[href^=confirm]").count(), 0);
    assert.equal(await page.getAttribute("html", "lang"), "zh-CN");
    const act = home + link("act", { do: "cancel", topic: "quiet", id: "q-1" });
    assert.equal((await page.request.post(act, { headers: { Origin: home.replace(/\/$/, "") } })).status(), 405);
  } finally {
    await page.goto("about:blank");
    assert.equal(await stop(), 0);
  }
});

drive("delayqd web asks for a password", { httpCredentials: { username: "dave", password: "correct horse" }, expected: /status of 401/ }, async (page) => {
  await writeFile("users", execFileSync("./delayqd", ["web", "--add-user", "dave"], { input: "correct horse\n" }), { mode: 0o600 });
  const { home, stop } = await serve("--auth-file", "users");
  try {
    assert.equal((await fetch(home)).status, 401);
    const wrong = `Basic ${Buffer.from("dave:battery staple").toString("base64")}`;
    assert.equal((await fetch(home, { headers: { Authorization: wrong } })).status, 401);
    await post(`${demo.match[2]}enqueue`, { topic: "guarded", id: "g-1", in: "1h" });
    await page.goto(home + link("job", { topic: "guarded", id: "g-1" }));
    assert.equal(await heading(page), "g-1");
    await page.click(".acts a:has-text('reschedule')");
    await page.fill('input[name="in"]', "6h");
    await page.click(".ask button.primary");
    assert.equal(await text(page, ".banner.good"), "1 rescheduled.");
    await page.goto(`${home}audit`);
    assert.match(await text(page, "tbody tr"), /dave/, "the actor is the user");
  } finally {
    await page.goto("about:blank");
    assert.equal(await stop(), 0);
  }
});

drive("delayqd demo shows its page", {}, async (page) => {
  await page.goto(demo.match[2]);
  assert.equal(await heading(page), "Topics");
  assert.match(await text(page, "main"), /order:cancel/);
  assert.match(await text(page, "main"), /no server/i, "trouble is shown");
  // The demo has been working on its invoices for as long as the tests before took. From here on two
  // tenants wait.
  await post(demo.match[2] + link("pause", { topic: "invoice:print" }), {});
  for (const key of ["tenant-1", "tenant-2"]) await post(`${demo.match[2]}enqueue`, { topic: "invoice:print", id: `waits-of-${key}`, key });
  await page.click("main table a:has-text('invoice:print')");
  await page.waitForURL(/topic\?/);
  await page.click(".tabs a:has-text('Keys')");
  await page.waitForURL(/keys\?/);
  assert.ok(await page.locator("tbody tr").count() > 1, "tenants wait");
  assert.match(await text(page, "#k-tenant-1"), /tenant-1\s+\d+\s+3\s/, "one of them has more turns");
});
