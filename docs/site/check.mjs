// Checks each link of a built site, with its anchor: node check.mjs OUT ROOT.
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";

const [out, root] = process.argv.slice(2);
const pages = readdirSync(out, { recursive: true }).filter((file) => file.endsWith(".html"));
const texts = new Map();
const text = (file) => {
  if (!texts.has(file)) texts.set(file, readFileSync(join(out, file), "utf8"));
  return texts.get(file);
};
const anchors = new Map();
const has = (file, id) => {
  if (!anchors.has(file)) anchors.set(file, new Set([...text(file).matchAll(/\sid="([^"]+)"/g)].map((m) => m[1])));
  return anchors.get(file).has(id);
};

const dead = [];
let links = 0;
for (const page of pages) {
  for (const [, href] of text(page).matchAll(/\s(?:href|src)="([^"]+)"/g)) {
    if (/^[a-z]+:/i.test(href)) continue;
    links++;
    const { pathname, hash } = new URL(href.replaceAll("&amp;", "&"), `http://site${root}${page}`);
    let file = decodeURI(pathname);
    if (!file.startsWith(root)) { dead.push(`${page}: ${href} is outside ${root}`); continue; }
    file = file.slice(root.length);
    const candidates = [file, `${file}.html`, join(file, "index.html")];
    const found = candidates.find((f) => existsSync(join(out, f)) && statSync(join(out, f)).isFile());
    if (!found) dead.push(`${page}: ${href} leads to nothing`);
    else if (hash.length > 1 && found.endsWith(".html") && !has(found, decodeURIComponent(hash.slice(1)))) dead.push(`${page}: ${href} names no heading`);
  }
}
if (pages.length < 30 || links < 1000) dead.push(`only ${pages.length} pages and ${links} links: the site is not whole`);
console.log(`site: ${pages.length} pages, ${links} links, ${dead.length} dead`);
for (const one of dead) console.error(one);
process.exit(dead.length ? 1 : 0);
