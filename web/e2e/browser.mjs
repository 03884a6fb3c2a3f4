// The queue, the pages and the browser that tests and pictures share.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

// launch starts Chromium. Nothing but the page is loaded: its background services are off.
export const launch = () => chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
  ],
});

// start runs a program that writes JSON in its first line and ends with its standard input. It
// returns that JSON, and what ends the program.
export const start = async (program, ...args) => {
  const child = spawn(program, args, { stdio: ["pipe", "pipe", "inherit"] });
  const ended = new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("exit", (code) => { code === 0 ? resolve() : reject(new Error(`${program} ended with ${code}`)); });
  });
  const line = new Promise((resolve) => { createInterface(child.stdout).once("line", resolve); });
  const first = await Promise.race([line, ended.then(() => { throw new Error(`${program} has ended`); })]);
  return { said: JSON.parse(first), stop: () => { child.stdin.end(); return ended; } };
};

// run runs a program until it says something on stderr that matches. It returns the match, and what
// asks the program to end and returns its exit code.
export const run = async (pattern, program, ...args) => {
  const child = spawn(program, args, { stdio: ["ignore", "ignore", "pipe"] });
  const ended = new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("exit", (code, signal) => { resolve(code ?? signal); });
  });
  let said = "";
  const match = new Promise((resolve) => {
    child.stderr.setEncoding("utf8").on("data", (text) => {
      said += text;
      const m = pattern.exec(said);
      if (m) resolve(m);
    });
  });
  const m = await Promise.race([match, ended.then((code) => { throw new Error(`${program} ended with ${code}: ${said}`); })]);
  return { match: m, stop: () => { child.kill("SIGTERM"); return ended; } };
};

// link returns a page with parameters, relative to the directory of the pages.
export const link = (page, parameters = {}) => `${page}?${new URLSearchParams(parameters)}`;
