// What the page does in a browser. Each test has topics of its own, so each can run alone. They wait
// for events and never for a time. A message in the console that a test does not expect fails it;
// so do what the policy (CSP) refuses, because that is such a message, and a dialog.
import { strict as assert } from "node:assert";
import { at, drive, every, evil, text } from "./drive.mjs";
import { link } from "./browser.mjs";

// json reads a page as a program does.
const json = async (page) => (await fetch(at.root + page)).json();

// send does what another person does meanwhile, with a form.
const send = async (page, form) => {
  const answer = await fetch(at.root + page, { method: "POST", body: new URLSearchParams(form), redirect: "manual" });
  assert.equal(answer.status, 303, await answer.text());
};

const heading = (page) => page.locator("h1").innerText();
const focused = (page, property) => page.evaluate((p) => document.activeElement[p], property);

for (const mount of ["root", "below", "stripped", "proxied"]) {
  drive(`mounted as ${mount}: links, styles, forms and news work`, {}, async (page) => {
    const home = at[mount];
    if (mount !== "root") {
      await page.goto(home.replace(/\/$/, "")); // without the slash
      assert.equal(page.url(), home);
    }
    await page.goto(home);
    assert.equal(await heading(page), "Topics");
    assert.equal(await page.evaluate(() => getComputedStyle(document.querySelector(".bar")).display), "flex", "the style sheet is there");
    const news = (path) => page.waitForResponse((r) => r.request().headers()["hx-request"] === "true" && r.url().startsWith(home + path) && r.ok());
    await news("topics");
    await page.click("main a:has-text('order:cancel')");
    await page.waitForURL(`${home}topic?**`);
    await news("topic");
    await page.click("a:has-text('Enqueue')");
    await page.fill("main input[name=id]", `of-${mount}`);
    await page.fill("main input[name=in]", "3d");
    await page.click("main form button");
    await page.waitForURL(`${home}job?**`);
    assert.equal(await text(page, ".banner.good"), "The job is enqueued.");
    await page.fill("#find", `of-${mount}`);
    await page.press("#find", "Enter");
    await page.waitForURL(`${home}job?**`);
    assert.equal(await heading(page), `of-${mount}`);
    await page.click("nav a:has-text('Failures')");
    await page.waitForURL(`${home}failures`);
    const body = await (await page.request.get(`${home}${link("jobs.json", { topic: "order:cancel", rows: 1 })}`)).json();
    assert.equal(body.schema, "delayq.web.jobs/1");
  });
}

drive("news come into a list, and box, focus, typing and place stay", { viewport: { width: 900, height: 500 } }, async (page) => {
  for (let i = 0; i < 60; i++) {
    await send("enqueue", { topic: "live", id: `live-${100 + i}`, in: `${100 + i}m` });
  }
  await page.goto(at.root + link("jobs", { topic: "live", state: "scheduled" }));
  const box = page.locator("#c-live-140");
  await box.check();
  await page.click("#filters summary");
  await page.fill('#filter input[name="prefix"]', "half-typ");
  await box.focus();
  await box.scrollIntoViewIfNeeded();
  const place = await page.evaluate(() => scrollY);
  assert.ok(place > 0, "the list is longer than the window");
  await page.evaluate(() => { document.getElementById("c-live-140").sameNode = true; });

  await send(link("act", { do: "cancel", topic: "live", id: "live-159" }), {});
  await send("enqueue", { topic: "live", id: "live-new", in: "3h" });
  await send(link("act", { do: "reschedule", topic: "live", id: "live-158" }), { in: "9d" });
  await page.waitForSelector("#j-live-new");
  await page.waitForSelector("#j-live-159", { state: "detached" });
  await page.waitForFunction(() => /in 8d|in 9d/.test(document.getElementById("j-live-158").textContent));

  assert.ok(await box.isChecked(), "the box is checked");
  assert.equal(await focused(page, "id"), "c-live-140", "the focus is where it was");
  assert.equal(await page.inputValue('#filter input[name="prefix"]'), "half-typ", "what was typed is there");
  assert.ok(await page.isVisible("#filter"), "the filter is open");
  assert.equal(await page.evaluate(() => scrollY), place, "the page has not scrolled");
  assert.ok(await page.evaluate(() => document.getElementById("c-live-140").sameNode), "it is the same element");
  assert.match(await text(page, "#j-live-140 time"), /GMT|CET|CEST/, "new times are local too");

  await page.keyboard.press(".");
  assert.equal(await page.getAttribute("#pause", "aria-pressed"), "true");
  assert.equal(await text(page, "#pause"), "resume updates");
  await page.keyboard.press(".");
  await send(link("act", { do: "cancel", topic: "live", id: "live-100" }), {});
  await page.waitForSelector("#j-live-100", { state: "detached" });
});

for (const javaScriptEnabled of [true, false]) {
  drive(`filter, all that match, revive with spread, audit ${javaScriptEnabled ? "with" : "without"} JavaScript`, { javaScriptEnabled }, async (page) => {
    const error = javaScriptEnabled ? "550" : "421";
    const number = javaScriptEnabled ? 96 : 24;
    await page.goto(at.root + link("topic", { topic: "mail:welcome" }));
    await page.click(".tabs a:has-text('dead')");
    assert.equal(await page.isVisible("#filter"), false, "the filter is folded until it is used");
    await page.click("#filters summary");
    await page.fill('#filter input[name="error"]', error);
    await page.press('#filter input[name="error"]', "Enter");
    await page.waitForURL(new RegExp(`error=${error}`));
    assert.ok(await page.isVisible("#filter"));
    await page.check("#match-all");
    await page.click('button[value="revive"]');
    assert.equal(await heading(page), `Revive ${number} jobs of mail:welcome?`);
    await page.fill('input[name="spread"]', "10m");
    await page.click("button[value='1']");
    assert.equal(await text(page, ".banner.good"), `${number} jobs match. Nothing was changed.`);
    await page.fill('input[name="spread"]', "10m");
    await page.click(".ask button.primary");
    await page.waitForURL(/\/bulk\?run=\d+$/);
    const run = new URL(page.url()).searchParams.get("run");
    while (!(await json(link("bulk.json", { run }))).run.ended_at); // each answer is an event
    if (javaScriptEnabled) {
      await page.waitForSelector("progress[value='100']"); // by itself
    } else {
      await page.reload();
    }
    assert.match(await text(page, "main [role=status]"), /ended/i);
    assert.match(await text(page, ".figures"), new RegExp(`${number}/${number}`));
    await page.click("nav a:has-text('Audit')");
    await page.waitForURL(/audit$/);
    assert.match(await text(page, "tbody tr"), new RegExp(`alice\\s+apply revive\\s+mail:welcome\\s+.*${error}.*\\s+${number}`, "s"));
    const list = await json(link("jobs.json", { topic: "mail:welcome", state: "scheduled", from: "now", to: "11m", rows: 1000 }));
    const due = list.jobs.map((j) => Date.parse(j.due)).sort((a, b) => a - b);
    assert.ok(due.at(-1) - due[0] > 8 * 60_000, "the due times are spread over ten minutes");
  });
}

drive("a bulk run shows its progress and can be stopped", { expected: /status of 400/ }, async (page) => {
  await page.goto(at.root + link("confirm", { do: "revive", topic: "letter:print", state: "dead", all: 1 }));
  assert.equal(await heading(page), "Revive 1,200 jobs of letter:print?");
  await page.fill('input[name="pace"]', "100");
  await page.click(".ask button.primary");
  assert.match(await text(page, "#m-typed"), /type.*letter:print/i); // so many need that
  assert.equal(await focused(page, "name"), "typed", "the field with the mistake has the focus");
  assert.equal(await page.inputValue('input[name="pace"]'), "100", "what was typed is there");
  await page.fill('input[name="typed"]', "letter:print");
  await page.click(".ask button.primary");
  await page.waitForURL(/\/bulk\?run=\d+$/);
  await page.waitForFunction(() => document.querySelector("progress").value > 0); // it moves by itself
  assert.match(await text(page, "main [role=status]"), /under way/i);
  await page.click("button:has-text('Stop')");
  await page.waitForFunction(() => /stopped/i.test(document.querySelector("main [role=status]").textContent));
  await page.waitForSelector("a:has-text('Go on with the rest')");
  const left = (await json(link("jobs.json", { topic: "letter:print", state: "dead", rows: 1 }))).total;
  assert.ok(left > 0 && left < 1200, `${left} of 1200 are left`);
});

drive("another due time for a job", { expected: /status of 400/ }, async (page) => {
  await page.goto(at.root + link("job", { topic: "order:cancel", id: "order-1007" }));
  await page.click(".acts a:has-text('reschedule')");
  await page.fill('input[name="in"]', "soon");
  await page.click(".ask button.primary");
  assert.match(await text(page, "#m-in"), /"soon" is not a duration/);
  assert.equal(await page.inputValue('input[name="in"]'), "soon");
  await page.fill('input[name="in"]', "5h");
  await page.click(".ask button.primary");
  assert.equal(await text(page, ".banner.good"), "1 rescheduled.");
  assert.match(await text(page, ".facts"), /rescheduled/);
  const { job } = await json(link("job.json", { topic: "order:cancel", id: "order-1007" }));
  assert.ok(Date.parse(job.due) - Date.now() > 4.9 * 3600e3, "it is due in five hours");
});

for (const javaScriptEnabled of [true, false]) {
  drive(`chosen jobs become due later by the same, and go ahead of others ${javaScriptEnabled ? "with" : "without"} JavaScript`,
    { javaScriptEnabled, expected: /status of 400/ }, async (page) => {
      const topic = `chosen:${javaScriptEnabled}`;
      for (const [id, delay] of [["one", "1h"], ["two", "2h"], ["three", "3h"]]) await send("enqueue", { topic, id, in: delay, key: "k" });
      const due = async () => Object.fromEntries((await json(link("jobs.json", { topic, state: "scheduled" }))).jobs.map((j) => [j.id, Date.parse(j.due)]));
      const before = await due();
      const choose = async (act) => {
        await page.goto(at.root + link("jobs", { topic, state: "scheduled" }));
        await page.check("#c-one");
        await page.check("#c-three");
        await page.click(`button[value="${act}"]`);
      };

      await choose("reschedule");
      assert.equal(await heading(page), `Reschedule 2 jobs of ${topic}?`);
      await page.fill('input[name="by"]', "later");
      await page.click(".ask button.primary");
      assert.match(await text(page, "#m-by"), /^"later" is not a duration/);
      await page.fill('input[name="by"]', "+24h");
      await page.click(".ask button.primary");
      assert.equal(await text(page, ".banner.good"), "2 rescheduled.");
      assert.deepEqual(await due(), { two: before.two, one: before.one + 24 * 3600e3, three: before.three + 24 * 3600e3 });

      await choose("priority");
      await page.fill('input[name="ahead"]', "25h");
      await page.click(".ask button.primary");
      assert.match(await text(page, "#m-ahead"), /at most 24h/);
      await page.fill('input[name="ahead"]', "10m");
      await page.click(".ask button.primary");
      assert.equal(await text(page, ".banner.good"), "2 prioritized.");
      await page.goto(`${at.root}audit`);
      const rows = await page.locator("tbody tr").allInnerTexts();
      assert.match(rows[0], /set priority\s.*\s(one|three) priority 10m0s\s+priority 0s\s/, "what it was is beside what it is");
      assert.match(rows[2], /reschedule\s.*\s(one|three) due 20\S+\s+scheduled, due 20\S+\s/);
    });
}

drive("a topic is paused and resumed", {}, async (page) => {
  await send("enqueue", { topic: "halt", id: "h", in: "1h" });
  await page.goto(at.root + link("topic", { topic: "halt" }));
  await page.click("a:has-text('Pause')");
  await page.fill('input[name="because"]', "<b>bank</b>");
  await page.click("main form button");
  assert.match(await text(page, ".banner.warn"), /alice.*<b>bank<\/b>/);
  await page.click("button:has-text('Resume')");
  assert.equal(await text(page, ".banner.good"), "The topic is resumed.");
  assert.equal(await page.locator(".banner.warn").count(), 0);
});

drive("topics are filtered, sorted and grouped, and the link keeps that", {}, async (page) => {
  const rows = () => page.locator("main tbody th a").allInnerTexts();
  await page.goto(at.root);
  await page.click("thead a:has-text('Dead')");
  await page.waitForURL(/sort=dead/);
  assert.equal((await rows())[0], "letter:print");
  assert.equal(await page.locator("thead th[aria-sort]").getAttribute("aria-sort"), "descending");
  await page.click("thead a:has-text('Dead')");
  await page.waitForURL(/sort=-dead/);
  assert.notEqual((await rows())[0], "letter:print");
  await page.fill("main input[name=q]", "ORDER");
  await page.press("main input[name=q]", "Enter");
  await page.waitForURL(/q=ORDER/);
  assert.deepEqual((await rows()).sort(), ["order:cancel", "order:remind"]);
  await page.reload();
  assert.equal((await rows()).length, 2, "the link has it");
  await page.click("a:has-text('group by prefix')");
  await page.waitForURL(/group=1/);
  assert.match(await text(page, "main tbody th"), /^order:…\s+2 topics$/);
  await page.click("main tbody th a");
  await page.waitForURL(/in=order/);
  assert.deepEqual((await rows()).sort(), ["order:cancel", "order:remind"]);
});

drive("a job is copied and edited, with what it holds in columns", { expected: /status of 400/ }, async (page) => {
  await send("enqueue", { topic: "letters", id: "first", in: "1h", payload: '{"to": "ann"}', format: "json", headers: "tenant=7" });
  await page.goto(at.root + link("jobs", { topic: "letters", state: "scheduled" }));
  await page.click("#filters summary");
  await page.fill("#filter input[name=columns]", "payload, tenant");
  await page.press("#filter input[name=columns]", "Enter");
  await page.waitForURL(/columns=/);
  assert.match(await text(page, "#j-first"), /first\s+\{"to": "ann"\}\s+7\s.*not started yet/s);
  await page.click("#j-first th a");
  assert.match(await text(page, ".facts"), /Attempt\s+not started yet/);
  await page.click(".acts a:has-text('copy')");
  assert.equal(await heading(page), "Enqueue a copy of first");
  assert.equal(await page.inputValue("main textarea[name=payload]"), '{"to": "ann"}');
  assert.equal(await page.inputValue("main textarea[name=headers]"), "tenant=7\n");
  await page.fill("main textarea[name=payload]", '{"to": "bob"');
  await page.fill("main input[name=id]", "second");
  await page.fill("main input[name=in]", "2h");
  await page.click("main form button");
  assert.match(await text(page, "#m-payload"), /not json/i);
  assert.equal(await page.inputValue("main input[name=id]"), "second");
  await page.fill("main textarea[name=payload]", '{"to": "bob"}');
  await page.click("main form button");
  await page.waitForURL(/job\?.*second/);
  const { job, payload } = await json(link("job.json", { topic: "letters", id: "second" }));
  assert.equal(atob(payload.base64), '{"to": "bob"}');
  assert.deepEqual(job.headers, { tenant: "7" });
});

drive("a topic is held and limited, and a new one is no mistake", { expected: /status of 400/ }, async (page) => {
  await page.goto(at.root + link("topic", { topic: "brand:new" }));
  assert.match(await text(page, "main"), /There is no topic brand:new yet/);
  await page.click("a:has-text('Pause')");
  await page.click("main form button");
  assert.match(await text(page, "#m-new"), /Nothing was changed/);
  await page.goto(at.root + link("enqueue", { topic: "brand:new" }));
  await page.fill("main input[name=id]", "one");
  await page.click("main form button");
  await page.goto(at.root + link("topic", { topic: "brand:new" }));
  await page.click(".acts a:has-text('limits')");
  await page.fill("main input[name=running]", "5");
  await page.fill("main input[name=keyrate]", "3/1m");
  await page.check("main input[name=ordered]");
  await page.click("main form button.primary");
  assert.equal(await text(page, ".banner.good"), "The limits of the topic are set.");
  assert.match(await text(page, ".figures"), /At most running\s+5/);
  await page.click(".acts a:has-text('hold')");
  await page.fill("main input[name=for]", "2h");
  await page.fill("main input[name=because]", "quota");
  await page.click("main form button.primary");
  await page.click("a:has-text('end hold')");
  await page.click("main form button.primary");
  assert.equal(await text(page, ".banner.good"), "The hold is ended.");
});

drive("Explain says why a job is not running", { expected: /status of 404/ }, async (page) => {
  for (const [topic, id, english, chinese] of [
    ["order:cancel", "order-1003", /^Scheduled: it is due at .* UTC, in \d/, /待到期/],
    ["refund:poll", "refund-0", /no live server handles the topic/, /没有/],
    ["sms:promo", "customer-0", /paused/i, /暂停/],
    ["refund:poll", "nobody", /no such job|no job|not found|nothing/i, /没有|不存在/],
  ]) {
    await page.context().clearCookies();
    await page.goto(at.root + link("job", { topic, id }));
    assert.match(await text(page, ".verdict p"), english, `${topic} ${id}`);
    await page.goto(at.root + link("job", { topic, id, lang: "zh-CN" }));
    assert.match(await text(page, ".verdict p"), chinese, `${topic} ${id}`);
  }
});

drive("keys show who waits, and lead to their jobs", {}, async (page) => {
  await page.goto(at.root + link("topic", { topic: "invoice:print" }));
  await page.click(".tabs a:has-text('Keys')");
  await page.waitForURL(/keys\?/);
  assert.equal(await page.locator("tbody tr").count(), 5);
  assert.match(await text(page, "tbody tr"), /tenant-0\s+5\s+3\s+0 of 4 own\s+20 per 1m0s, burst 2\s+–\s+invoice-0-0/);
  await page.click("#k-tenant-1 td a"); // the number of its jobs
  await page.waitForURL(/jobs\?/);
  assert.equal(await page.inputValue("#filter input[name=key]"), "tenant-1");
  assert.equal(await page.locator("tbody tr").count(), 4);
  await page.click("tbody th a");
  await page.waitForURL(/job\?/);
  assert.match(await text(page, ".facts"), /Key\s+tenant-1/i);
  await page.click(".facts a:has-text('tenant-1')");
  await page.waitForURL(/key\?/);
  assert.match(await text(page, ".facts"), /Waiting\s+4/i);
});

for (const javaScriptEnabled of [true, false]) {
  drive(`a key is held, paused, resumed and limited ${javaScriptEnabled ? "with" : "without"} JavaScript`, { javaScriptEnabled, expected: /status of 400/ }, async (page) => {
    const topic = `acting:${javaScriptEnabled}`;
    const key = evil;
    await send("enqueue", { topic, id: "one" }); // so the topic is there
    const state = async () => json(link("key.json", { topic, key }));
    await page.goto(at.root + link("keys", { topic }));
    await page.fill("#find-key input[name=key]", key);
    await page.press("#find-key input[name=key]", "Enter");
    await page.waitForURL(/key\?/);
    assert.equal(await heading(page), key);
    const act = async (name, fields = {}) => {
      await page.click(`.head .acts a:has-text('${name}')`);
      await page.waitForURL(/edit-key\?/);
      for (const [field, value] of Object.entries(fields)) await page.fill(`main input[name=${field}]`, value);
    };
    const sent = async () => {
      await page.click("main form button.primary");
      await page.waitForURL(/key\?.*did=/);
      return text(page, ".banner.good");
    };

    await act("pause");
    assert.equal(await sent(), "The key is paused.");
    assert.equal((await state()).paused, true);
    assert.match(await text(page, ".facts"), /State\s+paused/i);
    await act("resume");
    assert.equal(await sent(), "The key is resumed.");
    assert.equal((await state()).paused, undefined);

    await act("hold", { for: "soon" });
    await page.click("main form button.primary");
    assert.match(await text(page, "#m-for"), /^"soon" is not a duration/);
    await page.fill("main input[name=for]", "2h");
    assert.match(await sent(), /^The key is held\./);
    assert.ok(Date.parse((await state()).held_until) - Date.now() > 1.9 * 3600e3, "it is held for two hours");

    await act("set limits", { running: "-1", rate: "90/1h" });
    await page.click("main form button.primary");
    assert.match(await text(page, "#m-running"), /^"-1" must be a number from 0 to 1000/);
    assert.equal((await state()).limit_rate, undefined, "nothing was changed");
    assert.equal(await page.inputValue("main input[name=rate]"), "90/1h", "what was typed is there");
    await page.fill("main input[name=running]", "3");
    await page.fill("main input[name=burst]", "2");
    await page.check("main input[name=strict]");
    assert.equal(await sent(), "The limits of the key are set.");
    const { limit_running, limit_rate } = await state();
    assert.deepEqual([limit_running, limit_rate], [3, "90 per 1h0m0s, burst 2, strict"]);
    assert.match(await text(page, ".facts"), /0 of 3 own\s+Rate\s+90 per 1h0m0s, burst 2, strict own/i);
    await act("set limits");
    assert.equal(await page.inputValue("main input[name=rate]"), "90/1h", "the form has the limits of the key");
    assert.ok(await page.isChecked("main input[name=strict]"));

    assert.equal(await page.evaluate(() => typeof window.pwned), "undefined");
    await page.click("nav a:has-text('Audit')");
    await page.waitForURL(/audit$/);
    assert.match(await text(page, "tbody tr"), new RegExp(`alice\\s+set key limits\\s+${topic}`));
  });
}

drive("done jobs show how late they started", {}, async (page) => {
  await page.goto(at.root + link("topic", { topic: "report:daily" }));
  assert.match(await text(page, ".figures"), /Late, p50\s+[\d.]+m?s\s+Late, p99\s+[\d.]+m?s/);
  assert.match(await text(page, ".figures + .note"), /done jobs \(40\)/);
});

for (const javaScriptEnabled of [true, false]) {
  drive(`a topic shows what happened in it ${javaScriptEnabled ? "with" : "without"} JavaScript`, { javaScriptEnabled }, async (page) => {
    const where = link("topic", { topic: "order:remind" });
    await page.goto(at.root + where);
    const { histories } = await json(where.replace("topic?", "topic.json?"));
    const charts = page.locator(".past figure");
    assert.equal(await charts.count(), 3);
    for (const [i, [name, width]] of [["Last hour", "1m"], ["Last 6 hours", "5m"], ["Last 30 days", "12h"]].entries()) {
      const chart = charts.nth(i);
      const [, runs] = new RegExp(`^${name} ([\\d,]+)\\s+at most [\\d,]+ in ${width}$`).exec(await text(chart, "figcaption"));
      assert.match(await chart.locator("svg.stacks").getAttribute("aria-label"), new RegExp(`^${name}: ${runs} runs ended, [\\d,]+ of them failed$`));
      assert.match(await chart.locator("svg.lines").getAttribute("aria-label"), new RegExp(`^${name}: half of the runs started at most \\d+ms late, 99 % at most \\d+ms$`));
      assert.match(await text(chart, ".legend"), /^Late, p50 \d+ms Late, p99 \d+ms highest \d+ms$/);
      const titles = await chart.locator("svg.stacks g title").allTextContents();
      assert.ok(titles.length > 50 && titles.length < 73, `${name}: ${titles.length} columns`);
      for (const title of titles) assert.match(title, /\d\d:\d\d UTC · completed [\d,]+/, name);
      assert.ok(titles.some((title) => / · retried \d/.test(title)), `${name}: some runs failed`);
      for (const line of ["p50", "p99"]) { // the hours without runs are a gap
        const steps = await chart.locator(`path.${line}`).getAttribute("d");
        assert.equal(steps.split("M").length - 1, name === "Last 6 hours" ? 2 : 1, `${name}: ${line}`);
        assert.ok(steps.split("L").length > 40, `${name}: ${line}`);
      }

      assert.equal(await chart.locator("table").isVisible(), false);
      await chart.locator("summary").click();
      assert.ok(await chart.locator("table").isVisible());
      const rows = await chart.locator("tbody tr").evaluateAll((list) => list.map((row) => [...row.cells].slice(1, 5).map((cell) => Number(cell.textContent.replace(/,/g, "")))));
      assert.equal(rows.length, titles.length, `${name}: a row for each column`);
      assert.equal(rows.flat().reduce((a, b) => a + b), Number(runs.replace(/,/g, "")), `${name}: the rows are the runs`);
      assert.match(await text(chart, "tbody tr"), /\d+m?s\s+\d+m?s\s+\d+m?s\s+\d+m?s$/);
      assert.equal(Object.values(histories[i].outcomes).flat().reduce((a, b) => a + b), histories[i].runs);
    }
    assert.equal(await page.locator(".past .buried").count() > 0, true, "some were buried");
    assert.equal(await charts.nth(2).locator("svg .other").count() > 0, true, "some were cancelled");
    if (javaScriptEnabled) {
      await page.waitForResponse((r) => r.request().headers()["hx-request"] === "true" && r.ok());
      await page.evaluate(() => new Promise(requestAnimationFrame));
      assert.ok(await charts.nth(1).locator("table").isVisible(), "news leave the table open");
    }

    await page.goto(at.root + link("topic", { topic: "report:daily" })); // a server that stopped has sent its numbers
    assert.match(await text(page, ".past figcaption"), /^Last hour 40\s+at most 40 in 1m$/);
    assert.match(await page.locator(".past path.p50").first().getAttribute("d"), /^M[\d.]+ [\d.]+h4\.80$/, "one step is a dash");
    await page.goto(at.root + link("topic", { topic: "sms:promo" }));
    assert.deepEqual(await page.locator("h2").allInnerTexts(), ["Forecast", "Since the first job"], "nothing has run, so there is no chart");
  });
}

drive("a page that only reads has no buttons and refuses forged acts", { expected: /status of 40[34]/ }, async (page) => {
  for (const [name, where] of Object.entries(every)) {
    const answer = await page.goto(at.reading + where);
    const acting = ["bulks", "enqueue", "new schedule", "pause", "confirm", "reschedule", "priority", "hold of a key", "limits of a key", "limits of a topic", "hold of a topic", "copy", "pause a new topic"].includes(name);
    assert.equal(answer.status(), acting ? 404 : 200, name);
    const tools = await page.evaluate(() => [...document.querySelectorAll("main button, main .button, form:not([method=get])")]
      .filter((e) => e.form?.method !== "get" && !e.dataset.copy).map((e) => e.outerHTML));
    assert.deepEqual(tools, [], name);
  }
  const acts = [
    link("act", { do: "cancel", topic: "order:cancel", id: "order-1001" }), link("confirm", { do: "cancel", topic: "order:cancel" }), "enqueue",
    link("pause", { topic: "order:cancel" }), link("resume", { topic: "order:cancel" }), "stop?run=1", "new-schedule", "edit-schedule",
    link("edit-key", { topic: "invoice:print", key: "tenant-1", do: "pause" }), link("edit-topic", { topic: "order:cancel", do: "hold" }), "topics",
  ];
  for (const act of acts) {
    const answer = await page.request.post(at.reading + act, { form: { topic: "order:cancel", id: "forged" } });
    assert.equal(answer.status(), 405, act);
  }
  for (const act of acts) { // as another site would send it
    const answer = await page.request.post(at.root + act, { form: { id: "forged" }, headers: { "Sec-Fetch-Site": "cross-site" } });
    assert.ok([403, 404, 405].includes(answer.status()), `${act}: ${answer.status()}`);
  }
  // A form on a page of another origin, sent by the browser itself.
  await page.goto("about:blank");
  await page.setContent(`<form method="post" action="${at.root}act?do=cancel&topic=order:cancel&id=order-1001"><button>free money</button></form>`);
  const [answer] = await Promise.all([page.waitForResponse((r) => r.request().method() === "POST"), page.click("button")]);
  assert.equal(answer.status(), 403);
  assert.equal((await json(link("job.json", { topic: "order:cancel", id: "order-1001" }))).job.state, "scheduled", "nothing was cancelled");
});

drive("hidden topics are not there", { expected: /status of 404/ }, async (page) => {
  await page.goto(at.hiding);
  assert.doesNotMatch(await text(page, "main"), /hidden/);
  const [all, some] = await Promise.all([at.root, at.hiding].map(async (u) => (await fetch(`${u}topics.json`)).json()));
  assert.equal(all.topics.length - some.topics.length, 1);
  assert.ok(all.totals.scheduled >= some.totals.scheduled + 3, "they are in no sum");
  for (const where of [
    link("topic", { topic: "hidden:salary" }), link("jobs", { topic: "hidden:salary" }), link("job", { topic: "hidden:salary", id: "salary-1" }),
    link("payload", { topic: "hidden:salary", id: "salary-1" }), link("failures", { topic: "hidden:salary" }),
    link("schedules", { topic: "hidden:salary" }), link("confirm", { do: "cancel", topic: "hidden:salary", id: "salary-1" }),
    link("pause", { topic: "hidden:salary" }), link("key", { topic: "hidden:salary", key: "k" }),
    link("edit-key", { topic: "hidden:salary", key: "k", do: "pause" }), link("edit-topic", { topic: "hidden:salary", do: "hold" }),
    link("enqueue", { topic: "hidden:salary", copy: "salary-1" }),
  ]) {
    assert.equal((await page.goto(at.hiding + where)).status(), 404, where);
  }
  const forged = await page.request.post(at.hiding + link("act", { do: "cancel", topic: "hidden:salary", id: "salary-1" }));
  assert.equal(forged.status(), 404);
  await page.goto(at.hiding + link("find", { id: "salary-1" }));
  assert.doesNotMatch(await text(page, "main"), /hidden/);
});

drive("what would be markup is text, and inert", {}, async (page) => {
  const evilJob = link("job", { topic: `evil:${evil}`, id: evil });
  for (const where of [
    ...Object.values(every), `${evilJob}&show=raw`, `${evilJob}&show=hex`, link("jobs", { topic: `evil:${evil}`, state: "dead" }),
    link("confirm", { do: "cancel", topic: "order:cancel", id: evil }), link("jobs", { topic: "order:cancel", prefix: evil, error: evil }),
    link("topics", { did: evil, n: evil }),
  ]) {
    await page.goto(at.root + where);
    assert.equal(await page.evaluate(() => typeof window.pwned), "undefined", where);
    assert.equal(await page.locator("img, b, iframe, main script, [onclick], [onerror], a[href^='javascript:']").count(), 0, where);
  }
  await page.goto(at.root + evilJob);
  assert.equal(await heading(page), evil);
  assert.match(await text(page, ".message"), /<script>pwned=1<\/script>/);
  assert.match(await text(page, "pre.payload"), /<img src=x onerror=pwned=1>/);
  await page.click("a:has-text('evil'):not(.crumbs a)");
  assert.equal(await page.evaluate(() => typeof window.pwned), "undefined", "a link to JavaScript does nothing");
});

drive("the keyboard is enough", {}, async (page) => {
  await page.goto(at.root);
  await page.keyboard.press("Tab");
  assert.equal(await focused(page, "className"), "skip");
  await page.keyboard.press("Enter");
  assert.equal(await focused(page, "id"), "main", "the first link leads to what matters");
  await page.keyboard.press("g");
  await page.keyboard.press("f");
  await page.waitForURL(/failures$/);
  await page.keyboard.press("g");
  await page.keyboard.press("t");
  await page.waitForURL(/topics$/);
  await page.keyboard.press("/");
  assert.equal(await focused(page, "id"), "find");
  await page.keyboard.type("order-1009");
  await page.keyboard.press("Enter");
  await page.waitForURL(/job\?/);
  assert.equal(await heading(page), "order-1009");
  const tabTo = async (word) => {
    for (let n = 0; n < 60; n++) {
      await page.keyboard.press("Tab");
      if ((await focused(page, "textContent")).trim().startsWith(word) || await focused(page, "name") === word) {
        const seen = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle !== "none");
        assert.ok(seen, `${word}: the focus can be seen`);
        return;
      }
    }
    assert.fail(`no ${word} within 60 steps`);
  };
  await tabTo("reschedule");
  await page.keyboard.press("Enter");
  await page.waitForURL(/confirm\?/);
  await tabTo("in");
  await page.keyboard.type("7h");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".banner.good");

  await page.goto(at.root + link("jobs", { topic: "order:cancel", state: "scheduled" }));
  const rows = await page.locator("tbody th a").allInnerTexts();
  for (const [key, row] of [["j", 0], ["j", 1], ["j", 2], ["k", 1]]) {
    await page.keyboard.press(key);
    assert.equal(await focused(page, "textContent"), rows[row]);
  }
  await page.keyboard.press("x");
  assert.deepEqual(await page.locator("input[name=ids]:checked").evaluateAll((list) => list.map((b) => b.value)), [rows[1]]);
  await page.keyboard.press("Enter");
  await page.waitForURL(/job\?/);
  assert.equal(await heading(page), rows[1]);

  await page.keyboard.press("?");
  await page.waitForURL(/help$/);
  await page.check("#keys-off");
  await page.keyboard.press("g");
  await page.keyboard.press("t");
  await page.goto(`${at.root}servers`);
  await page.keyboard.press("/");
  assert.notEqual(await focused(page, "id"), "find", "the keys are off");
});

drive("Redis goes away and comes back", { expected: /status of 503/ }, async (page) => {
  await page.goto(at.root + link("topic", { topic: "order:cancel" }));
  const shown = await text(page, ".tabs");
  try {
    await fetch(`${at.faults}away`, { method: "POST" });
    await page.waitForSelector("#lost:not([hidden])");
    assert.match(await text(page, "#lost"), /No answer/);
    assert.equal(await page.locator("body.stale").count(), 1, "what is old is grey");
    assert.equal(await text(page, ".tabs"), shown, "what was read stays");
    let answer; // which is 200 for as long as what was read before is young enough
    do answer = await page.request.get(`${at.root}topics`); while (answer.status() === 200);
    assert.equal(answer.status(), 503);
    assert.match(await answer.text(), /Redis refuses: LOADING/);
  } finally {
    await fetch(`${at.faults}back`, { method: "POST" });
  }
  await page.waitForSelector("#lost", { state: "hidden" });
  await page.waitForSelector("body:not(.stale)");
});

drive("light, dark and system; the choice is kept", { colorScheme: "dark" }, async (page) => {
  const ground = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  await page.goto(at.root);
  const dark = await ground();
  await page.click("a:has-text('Light'):visible");
  const light = await ground();
  assert.notEqual(dark, light);
  await page.click("nav a:has-text('Servers')");
  assert.equal(await ground(), light, "another page has it too");
  await page.emulateMedia({ colorScheme: "light" });
  assert.equal(await ground(), light);
  await page.click("a:has-text('Dark'):visible");
  assert.equal(await ground(), dark);
});

drive("the other language is one click away", { locale: "zh-CN" }, async (page) => {
  await page.goto(at.root);
  await page.click("a:has-text('English')");
  assert.equal(await heading(page), "Topics");
  await page.click("nav a:has-text('Audit')");
  assert.equal(await heading(page), "Audit", "another page has it too");
  await page.click("a:has-text('中文')");
  assert.match(await heading(page), /审计/);
});
