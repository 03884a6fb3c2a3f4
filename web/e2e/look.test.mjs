// How all pages look: none is wider than its window, and axe finds nothing.
import { strict as assert } from "node:assert";
import { readFile } from "node:fs/promises";
import { at, drive, every, text } from "./drive.mjs";

for (const locale of ["en", "zh-CN"]) {
  drive(`no page is wider than its window, ${locale}`, { locale }, async (page) => {
    for (const [name, where] of Object.entries(every)) {
      await page.goto(at.root + where);
      for (const width of [1440, 768, 320]) {
        await page.setViewportSize({ width, height: 800 });
        const more = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(more <= 0, `${name}: ${more} px wider than ${width} px`);
      }
      assert.match(await text(page, "nav"), locale === "en" ? /Topics/ : /主题/);
      assert.equal(await page.getAttribute("html", "lang"), locale);
    }
  });
}

// axe needs a script of its own in the page, which the policy refuses, so it is bypassed here alone.
// In the dark only the contrasts differ, and in a narrow window only sizes.
for (const [width, colorScheme, runOnly] of [
  [1440, "light", ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]],
  [320, "light", ["target-size", "scrollable-region-focusable"]],
  [1440, "dark", ["color-contrast"]],
]) {
  const options = { bypassCSP: true, viewport: { width, height: 900 }, colorScheme, reducedMotion: "reduce" };
  for (const half of [0, 1]) { // each test has a limit of time
    drive(`axe finds nothing at ${width} px, ${colorScheme}, half ${half + 1}`, options, async (page) => {
      const axe = await readFile("node_modules/axe-core/axe.min.js", "utf8");
      for (const [name, where] of Object.entries(every).filter((_, i) => i % 2 === half)) {
        await page.goto(at.root + where);
        await page.evaluate(axe);
        const { violations, passes } = await page.evaluate((rules) => window.axe.run({ runOnly: rules }), runOnly);
        assert.deepEqual(violations.map((v) => `${v.id}: ${v.nodes[0].html} ${v.nodes[0].failureSummary}`), [], name);
        assert.ok(passes.length > 0, `${name}: axe has looked`);
      }
    });
  }
}
