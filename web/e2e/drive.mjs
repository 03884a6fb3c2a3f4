// The queue, the pages and the browser of a file of tests, and a page of each kind.
import { strict as assert } from "node:assert";
import { after, before, test } from "node:test";
import { launch, link, start } from "./browser.mjs";

// at has the addresses of the pages.
export const at = {};
let browser, stop;

before(async () => {
  const world = await start("./world");
  Object.assign(at, world.said);
  stop = world.stop;
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await stop?.();
});

// evil would run in a browser, in each of several places, if a page let it.
export const evil = `</pre></script><script>pwned=1</script>"'><img src=x onerror=pwned=1><b onclick=pwned=1>bold</b>`;

// drive runs a test in a browser without a past. expected are messages of the console that do not
// fail it.
export const drive = (name, options, act) => test(name, { timeout: 120_000 }, async () => {
  const { expected, ...context } = options;
  const messages = [];
  const window = await browser.newContext({ viewport: { width: 1000, height: 700 }, locale: "en", timezoneId: "Europe/Berlin", ...context });
  window.setDefaultTimeout(15_000);
  try {
    const page = await window.newPage();
    page.on("console", (m) => {
      if (["error", "warning"].includes(m.type()) && !expected?.test(m.text())) messages.push(`${page.url()}: ${m.text()}`);
    });
    page.on("pageerror", (e) => messages.push(`${page.url()}: ${e}`));
    page.on("dialog", (d) => { messages.push(`${page.url()}: dialog ${d.message()}`); void d.dismiss(); });
    page.on("requestfailed", (r) => {
      if (r.failure().errorText !== "net::ERR_ABORTED") messages.push(`${r.url()}: ${r.failure().errorText}`);
    });
    await act(page);
    assert.deepEqual(messages, [], "messages in the console");
  } finally {
    await window.close();
  }
});

// text returns what people see of an element.
export const text = (page, selector) => page.locator(selector).first().innerText();

// every lists a page of each kind.
export const every = {
  topics: "topics", "topics in groups": link("topics", { group: 1, sort: "dead" }), "no topic": link("topics", { q: "nothing" }),
  "new topic": link("topic", { topic: "not:yet" }), "pause a new topic": link("pause", { topic: "not:yet" }),
  "limits of a topic": link("edit-topic", { topic: "invoice:print", do: "limits" }), "hold of a topic": link("edit-topic", { topic: "invoice:print", do: "hold" }),
  copy: link("enqueue", { topic: "mail:welcome", copy: "u-41000" }), columns: link("jobs", { topic: "mail:welcome", state: "dead", columns: "payload,tenant", rows: 25 }),
  topic: link("topic", { topic: "order:cancel" }), "topic in trouble": link("topic", { topic: "refund:poll" }),
  keys: link("keys", { topic: "invoice:print" }), "jobs of a key": link("jobs", { topic: "invoice:print", state: "ready", key: "tenant-0" }),
  "key": link("key", { topic: "invoice:print", key: "tenant-0" }), "evil key": link("key", { topic: "invoice:print", key: evil }),
  "hold of a key": link("edit-key", { topic: "invoice:print", key: evil, do: "hold" }),
  "limits of a key": link("edit-key", { topic: "invoice:print", key: "tenant-0", do: "limits" }),
  "job with a key": link("job", { topic: "invoice:print", id: "invoice-1-2" }),
  "topic with done jobs": link("topic", { topic: "report:daily" }), "topic with a past": link("topic", { topic: "order:remind" }),
  "paused topic": link("topic", { topic: "sms:promo" }),
  jobs: link("jobs", { topic: "order:cancel", state: "scheduled", rows: 25 }),
  dead: link("jobs", { topic: "mail:welcome", state: "dead", error: "421" }), empty: link("jobs", { topic: "order:cancel", state: "running" }),
  done: link("jobs", { topic: "report:daily", state: "done" }), job: link("job", { topic: "order:cancel", id: "order-1003" }),
  "dead job": link("job", { topic: "mail:welcome", id: "u-41000" }), "evil job": link("job", { topic: `evil:${evil}`, id: evil }),
  "evil topic": link("topic", { topic: `evil:${evil}` }), failures: "failures", servers: "servers", schedules: "schedules",
  schedule: link("schedule", { topic: "report:daily", name: `nightly ${evil}` }), audit: "audit", redis: "redis", help: "help",
  find: "find", found: link("find", { id: evil }), bulks: "bulks", enqueue: "enqueue", "new schedule": "new-schedule",
  pause: link("pause", { topic: "order:cancel" }), confirm: link("confirm", { do: "purge", topic: "mail:welcome", state: "dead", all: 1 }),
  reschedule: link("confirm", { do: "reschedule", topic: "order:cancel", id: "order-1003" }),
  priority: link("confirm", { do: "priority", topic: "invoice:print", state: "ready", id: "invoice-0-0" }),
};
