// Takes the pictures of the documents: node pictures.mjs directory
import { spawn } from "node:child_process";
import { writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { launch, link } from "./browser.mjs";

const [directory] = process.argv.slice(2);
const demo = spawn("./delayqd", [
  "demo", "--prefix", "shop", "--actor", "alice", "--for", "5m", "--web", "127.0.0.1:0", "--metrics", "127.0.0.1:0",
], { stdio: ["ignore", "pipe", "pipe"] });
// The address is the one after "and open its page", wherever the demo writes it.
const home = await new Promise((resolve, reject) => {
  let next = false;
  for (const stream of [demo.stdout, demo.stderr]) {
    createInterface(stream).on("line", (line) => {
      if (next) resolve(line.trim());
      next = line.includes("open its page");
    });
  }
  demo.on("error", reject);
  demo.on("exit", () => { reject(new Error("the demo has ended")); });
});
const browser = await launch();

// webp returns a picture that is much smaller than the PNG, and in which text stays sharp.
const webp = async (png) => {
  const page = await browser.newPage();
  const url = await page.evaluate(async (source) => {
    const image = new Image();
    image.src = source;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = image.width;
    canvas.height = image.height;
    canvas.getContext("2d").drawImage(image, 0, 0);
    return canvas.toDataURL("image/webp", 0.7);
  }, `data:image/png;base64,${png.toString("base64")}`);
  await page.close();
  return Buffer.from(url.slice(url.indexOf(",") + 1), "base64");
};

try {
  const context = await browser.newContext({ viewport: { width: 1180, height: 720 }, deviceScaleFactor: 1.5, locale: "en", timezoneId: "UTC" });
  const page = await context.newPage();
  page.setDefaultTimeout(240_000); // the first job of the shop is buried after a while
  const take = async (name, height) => {
    await page.setViewportSize({ width: 1180, height });
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await page.evaluate(() => document.activeElement.blur());
      const png = await page.screenshot();
      await writeFile(`${directory}/web-${name}-${colorScheme}.webp`, await webp(png));
    }
  };
  await page.goto(home);
  await page.waitForFunction(() => {
    const troubles = document.querySelector(".trouble")?.textContent ?? "";
    return ["mail:welcome", "invoice:print", "refund:poll", "sms:promo"].every((topic) => troubles.includes(topic));
  });
  await take("topics", 640);

  // A job that has failed some times and waits for its retry.
  await page.goto(home + link("jobs", { topic: "mail:welcome", state: "scheduled", attempt: 4 }));
  await page.waitForSelector("tbody th a");
  await page.click("tbody th a");
  await page.waitForSelector(".timeline .bad");
  await take("job", 760);
} finally {
  await browser.close();
  demo.removeAllListeners("exit");
  demo.kill("SIGTERM");
}
