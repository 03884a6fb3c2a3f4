// The configuration of VitePress. docs/site/build stages a version in src/, with the list of its
// files beside it, and sets these variables:
//
//   SITE_BASE     where this version is, such as / or /v0.1/
//   SITE_ROOT     where versions.json is
//   SITE_VERSION  the name of this version
//   SITE_REF      the tag or branch that links to the repository name
import { cpSync, mkdirSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { defineConfig } from "vitepress";
import { place, read, Repository, sidebar, slug, words } from "./pages.mjs";

const work = fileURLToPath(new URL("..", import.meta.url));
const src = join(work, "src");
const base = process.env.SITE_BASE ?? "/";
const repository = new Repository(read(join(work, "files")).trim().split("\n"), process.env.SITE_REF ?? "main");

// links sends links to where the site has them, and shows the picture for the dark in the dark: on
// the site the reader chooses it.
const links = (md) => {
  md.core.ruler.push("links", (state) => {
    const file = relative(src, state.env.realPath ?? state.env.path);
    for (const token of state.tokens.flatMap((t) => [t, ...(t.children ?? [])])) {
      if (token.type === "link_open") token.attrSet("href", repository.link(file, token.attrGet("href")));
      if (token.type === "html_block") {
        token.content = token.content.replace(
          /<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*<img alt="([^"]+)" src="([^"]+)">\s*<\/picture>/g,
          `<p><img class="in-light" alt="$2" src="./$3"><img class="in-dark" alt="$2" src="./$1"></p>`);
      }
    }
  });
};

// verbatim keeps Vue away from the code in a line, whose double braces it would take for its own.
const verbatim = (md) => {
  md.core.ruler.push("verbatim", (state) => {
    for (const token of state.tokens.flatMap((t) => t.children ?? [])) {
      if (token.type === "code_inline") token.attrSet("v-pre", "");
    }
  });
};

const index = (file) => (repository.files.has(file) ? sidebar(read(join(src, file)), file, repository) : []);

// Machines read the Markdown beside each page, and llms.txt at the root.
const markdown = (out) => {
  for (const [file, to] of Object.entries(repository.rewrites())) {
    const text = read(join(src, file)).replace(/\]\(([^)\s]+)\)/g, (all, href) => {
      try {
        const link = repository.link(file, href);
        return `](${link.startsWith("/") ? base + link.slice(1) : link})`;
      } catch {
        return all; // in a block of code, which is no link
      }
    });
    for (const name of new Set([to, file.replace(/^docs\//, "")])) { // beside the page, and where llms.txt names it
      mkdirSync(dirname(join(out, name)), { recursive: true });
      writeFileSync(join(out, name), text);
    }
  }
  if (repository.files.has("docs/llms.txt")) cpSync(join(src, "docs/llms.txt"), join(out, "llms.txt"));
};

const version = { name: process.env.SITE_VERSION ?? "main", all: (process.env.SITE_ROOT ?? "/") + "versions.json" };

export default defineConfig({
  srcDir: "src",
  outDir: "dist",
  base,
  title: "delayq",
  description: "A delay queue for Go on Redis: do this in 30 minutes, unless I cancel it",
  rewrites: repository.rewrites(),
  srcExclude: [...repository.files].filter((file) => file.endsWith(".md") && !place(file)),
  metaChunk: true,
  markdown: {
    anchor: { slugify: slug },
    config: (md) => {
      links(md);
      verbatim(md);
    },
    theme: { light: "github-light-high-contrast", dark: "github-dark-high-contrast" },
  },
  locales: {
    root: { label: "English", lang: "en" },
    "zh-CN": {
      label: "简体中文", lang: "zh-CN",
      description: "基于 Redis 的 Go 延时队列：30 分钟后执行，除非我取消它",
      themeConfig: {
        nav: [{ text: "文档", link: "/zh-CN/" }, { text: "教程", link: "/zh-CN/tutorial" }, { text: "全部文档（英文）", link: "/all" }],
        sidebar: [
          { text: "中文", items: [{ text: "简介", link: "/zh-CN/" }, { text: "教程", link: "/zh-CN/tutorial" }] },
          ...index("docs/README.md"),
        ],
        outline: { level: [2, 3], label: "本页内容" },
        docFooter: { prev: "上一页", next: "下一页" },
        darkModeSwitchLabel: "外观", lightModeSwitchTitle: "切换到浅色模式", darkModeSwitchTitle: "切换到深色模式",
        sidebarMenuLabel: "目录", returnToTopLabel: "返回顶部", langMenuLabel: "切换语言", skipToContentLabel: "跳到正文",
      },
    },
  },
  themeConfig: {
    version,
    i18nRouting: false, // pages in Chinese are few: the menu leads to their first one
    nav: [
      { text: "Documents", link: "/all" }, { text: "Tutorial", link: "/tutorial" }, { text: "Words", link: "/words" },
      { text: "Go API", link: "https://pkg.go.dev/github.com/delayq/delayq" },
    ],
    sidebar: index("docs/README.md"),
    outline: { level: [2, 3] },
    socialLinks: [{ icon: "github", link: repository.address }],
    search: {
      provider: "local",
      options: {
        miniSearch: {
          options: { tokenize: words },
          searchOptions: {
            boost: { title: 6, titles: 2, text: 1 }, prefix: true, fuzzy: 0.1,
            // What a user does comes before what a contributor reads. This runs in the browser alone.
            boostDocument: (id) => (/\/(changelog|contributing|benchmark|faults|protocol|design)(\.|#|$)/.test(id) ? 0.3 : /\/howto\//.test(id) ? 1.5 : 1),
          },
        },
        locales: {
          "zh-CN": {
            translations: {
              button: { buttonText: "搜索", buttonAriaLabel: "搜索" },
              modal: {
                displayDetails: "显示详情", resetButtonTitle: "清除", backButtonTitle: "关闭", noResultsText: "没有结果：",
                footer: { selectText: "打开", navigateText: "选择", closeText: "关闭" },
              },
            },
          },
        },
      },
    },
  },
  buildEnd: ({ outDir }) => markdown(outDir),
});
