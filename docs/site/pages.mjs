// What the site is made of: which files are pages, where each is, and how links between them go.
import { readFileSync } from "node:fs";
import { posix as path } from "node:path";

// The pages outside docs/. All other files outside docs/ are links to the repository.
const outside = {
  "README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md",
  "bench/README.md": "benchmark.md", "faults/README.md": "faults.md",
};

// place returns where a file of the repository is in the site, or undefined if it is no page.
export const place = (file) => {
  if (outside[file]) return outside[file];
  if (file === "docs/README.md") return "all.md"; // the index: README.md is the home
  if (!file.startsWith("docs/") || !file.endsWith(".md") || file.startsWith("docs/site/")) return undefined;
  return file.slice("docs/".length).replace(/(^|\/)README\.md$/, "$1index.md");
};

// A Repository knows the files of one version.
export class Repository {
  constructor(list, ref) {
    this.files = new Set(list);
    this.folders = new Set();
    for (const file of list) {
      for (let dir = path.dirname(file); dir !== "."; dir = path.dirname(dir)) this.folders.add(dir);
    }
    this.address = `https://github.com/delayq/delayq`;
    this.ref = ref;
  }

  rewrites() {
    return Object.fromEntries([...this.files].map((file) => [file, place(file)]).filter(([, to]) => to));
  }

  // link returns a link of a file as the site has it: a page by its place, any other file in the
  // repository. A link to nothing is an error.
  link(file, href) {
    if (/^([a-z]+:|\/\/|#)/i.test(href)) return href;
    const [, to, hash] = /^([^#]*)(#.*)?$/.exec(href);
    const target = path.join(path.dirname(file), decodeURI(to)).replace(/\/$/, "");
    if (this.files.has(target)) {
      const page = place(target);
      return page ? `/${page}${hash ?? ""}` : `${this.address}/blob/${this.ref}/${target}${hash ?? ""}`;
    }
    if (this.folders.has(target)) return `${this.address}/tree/${this.ref}/${target}`;
    throw new Error(`${file} links to ${href}: there is no ${target}`);
  }
}

// slug is the anchor of a heading, as GitHub makes it.
export const slug = (heading) => heading.trim().toLowerCase().replace(/[^\p{L}\p{M}\p{N}\p{Pc}\- ]/gu, "").replace(/ /g, "-");

const upper = (text) => text[0].toUpperCase() + text.slice(1);

// sidebar reads the groups of an index: its headings, the bold rows of its tables, and their links
// to other pages. A page that the index names twice is listed once.
export const sidebar = (text, file, repository) => {
  const groups = [];
  const seen = new Set();
  for (const line of text.split("\n")) {
    const heading = /^## (.+)$/.exec(line) ?? /^\| \*\*(.+)\*\* \|/.exec(line);
    if (heading) groups.push({ text: heading[1], collapsed: false, items: [] });
    if (!groups.length || !/^\s*[-|]/.test(line)) continue;
    const row = line.startsWith("|");
    for (const [, label, href] of line.matchAll(/\[([^\]]+)\]\(([^)\s]+)\)/g)) {
      if (href.includes("://") || href.includes("#")) continue;
      const link = repository.link(file, href);
      if (!link.startsWith("/") || seen.has(link)) continue;
      seen.add(link);
      groups.at(-1).items.push({ text: upper(label), link });
      if (!row) break; // the first link of a point is what it is about
    }
  }
  return groups.filter((group) => group.items.length);
};

// words splits text for the search: words of letters and digits, and Chinese by its words.
export const words = (text) => {
  const list = [];
  for (const part of text.split(/[^\p{L}\p{M}\p{N}_]+/u)) {
    if (!part) continue;
    if (!/\p{Script=Han}/u.test(part)) { list.push(part); continue; }
    for (const { segment } of new Intl.Segmenter("zh", { granularity: "word" }).segment(part)) list.push(segment);
  }
  return list;
};

export const read = (file) => readFileSync(file, "utf8");
