// BullMQ as a side of the benchmark, which starts this program as a child. Each line of stdin is a
// request in JSON: what to do, its arguments, and how many milliseconds it may take (within). Each
// is answered by a line of stdout: what it gave, or {"error": text}. Requests are done one by one.
// The program ends with its stdin, and when a request takes longer than it may.
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

const mostJobs = 10_000_000; // of a request
const bulkJobs = 1000; // of a call of addBulk
const bulkCalls = 4; // of addBulk at a time
const mostInFlight = 1000; // calls of the load that have not returned
const keptFor = 60; // seconds, of a job with a result, as long as delayq keeps one
const resultWithin = 60_000; // ms
const lockDuration = 300_000; // of a job in ms, so that a busy machine loses none

/** The time in ms since 1970, with fractions. */
const now = () => performance.timeOrigin + performance.now();

let bullmq; // the package
let connection; // the options of each connection
let queues = new Map(); // by name
let workers = [];
let run; // of the workers
let load;
let events; // of the first topic that is called

function queue(name) {
  if (!queues.has(name)) {
    // Keeps nothing of jobs that are done, as the other sides.
    const q = new bullmq.Queue(name, { connection, defaultJobOptions: { removeOnComplete: true } });
    q.on('error', failed);
    queues.set(name, q);
  }
  return queues.get(name);
}

/** Fails the request that is being done, and those after it. */
let failure;
let fail;
const broken = new Promise((_, reject) => (fail = reject));
broken.catch(() => {});
function failed(error) {
  failure ??= error;
  fail(failure);
}

/** Calls one(i) for each i below n, from that many callers. */
async function parallel(callers, n, one) {
  let next = 0;
  const caller = async () => {
    while (next < n) await one(next++);
  };
  await Promise.all(Array.from({ length: callers }, caller));
}

/** The data of job i: as JSON it has size bytes. */
const filler = 'x'.repeat(1 << 20);
const around = '{"i":,"p":""}'.length;
const data = (i, size) => ({ i, p: filler.slice(0, Math.max(0, size - around - `${i}`.length)) });

/** The options of job i: due after delay, or at a time, or in the span that follows that. */
function options({ delay, at, span, ids }, i) {
  const opts = {};
  if (ids) opts.jobId = `stored-${i}`;
  if (at) opts.delay = Math.max(0, Math.ceil(at + Math.random() * (span ?? 0) - Date.now()));
  else if (delay) opts.delay = delay;
  return opts;
}

const requests = {
  hello: async () => ({ node: process.versions.node }),

  async open({ connect }) {
    bullmq = await import('bullmq');
    connection = { ...connect, maxRetriesPerRequest: null };
    return {};
  },

  /** Stores n jobs from that many callers, or in bulk if there is none. */
  async add({ topic, callers, n, size, ...when }) {
    const q = queue(topic);
    if (callers) {
      await parallel(callers, n, (i) => q.add('job', data(i, size), options(when, i)));
      return {};
    }
    await parallel(bulkCalls, Math.ceil(n / bulkJobs), (k) => {
      const jobs = [];
      for (let i = k * bulkJobs; i < Math.min(n, (k + 1) * bulkJobs); i++) {
        jobs.push({ name: 'job', data: data(i, size), opts: options(when, i) });
      }
      return q.addBulk(jobs);
    });
    return {};
  },

  /** Starts workers for n jobs of the first topic. Jobs of the other topics are counted only. */
  async work({ topics, workers: count, concurrency, n, takes, limiter, slots }) {
    const r = { n, handled: 0, doubled: 0, strange: 0, others: 0, last: 0, late: [], starts: [] };
    const seen = new Uint8Array(n);
    r.done = new Promise((resolve) => (r.finish = resolve));
    r.begun = new Promise((resolve) => (r.begin = resolve));
    run = r;
    const mine = async (job) => {
      const started = now();
      r.begin();
      r.starts.push(started);
      if (slots) r.late.push(started - Number(job.id.split(':').pop()));
      else r.late.push(started - (job.timestamp + (job.opts.delay ?? 0)));
      if (takes) await sleep(takes);
      const i = slots ? r.handled : job.data.i; // the jobs of a schedule have one number
      if (!(i >= 0 && i < n)) r.strange++;
      else if (seen[i]++) r.doubled++;
      else if (++r.handled === n) {
        r.last = now();
        r.finish();
      }
    };
    const other = async () => void r.others++;
    for (const [k, topic] of topics.entries()) {
      for (let w = 0; w < (count ?? 1); w++) {
        const handle = k === 0 ? mine : other;
        const opts = { connection, concurrency, limiter, lockDuration };
        const worker = new bullmq.Worker(topic, handle, opts);
        worker.on('error', failed);
        worker.on('failed', (_, error) => failed(error));
        workers.push(worker);
      }
    }
    await Promise.all(workers.map((w) => w.waitUntilReady()));
    return {};
  },

  /** Starts a worker that returns the data of each job. */
  async answer({ topic, concurrency }) {
    const opts = { connection, concurrency, lockDuration };
    const worker = new bullmq.Worker(topic, async (job) => job.data, opts);
    worker.on('error', failed);
    worker.on('failed', (_, error) => failed(error));
    workers.push(worker);
    await worker.waitUntilReady();
    return {};
  },

  /** Stores n jobs from that many callers, who wait for the results. Says how many ms each took. */
  async call({ topic, callers, n, size }) {
    const q = queue(topic);
    q.setMaxListeners(0); // each caller has one
    if (!events) {
      events = new bullmq.QueueEvents(topic, { connection });
      events.on('error', failed);
      await events.waitUntilReady();
    }
    const waits = [];
    await parallel(callers, n, async (i) => {
      const began = performance.now();
      const job = await q.add('job', data(i, size), { removeOnComplete: { age: keptFor } });
      const got = await job.waitUntilFinished(events, resultWithin);
      waits.push(performance.now() - began);
      if (got?.i !== i) throw new Error(`the result of job ${i} is ${JSON.stringify(got)}`);
    });
    return { waits };
  },

  /** Starts n flows: a job of the first topic waits for that many steps, which are jobs of the second. */
  async flows({ topics: [last, topic], callers, n, steps, size }) {
    const producer = new bullmq.FlowProducer({ connection });
    producer.on('error', failed);
    const opts = { removeOnComplete: true };
    await parallel(callers, n, (f) => {
      const step = (_, i) => ({ name: 'step', queueName: topic, data: data(f * steps + i, size), opts });
      const children = Array.from({ length: steps }, step);
      return producer.add({ name: 'last', queueName: last, data: data(f, size), opts, children });
    });
    await producer.close();
    return {};
  },

  /** Waits for the first start. */
  async begun() {
    await run.begun;
    return {};
  },

  /** Waits for the last end. */
  async wait() {
    await run.done;
    const { doubled, strange, last } = run;
    return { doubled, strange, last };
  },

  /** What has run so far: when the jobs have started, and how late. */
  async seen() {
    const { others, late, starts } = run;
    return { others, late, starts };
  },

  /** Stops the workers, which finish what they have begun. */
  async stop() {
    await Promise.all(workers.map((w) => w.close()));
    workers = [];
    return {};
  },

  /** Starts to store jobs for now at a steady rate. */
  async load({ topic, rate, size }) {
    const q = queue(topic);
    const l = { began: now(), sent: 0, flying: new Set() };
    l.timer = setInterval(() => {
      const want = Math.floor(((now() - l.began) * rate) / 1000);
      while (l.sent < want && l.flying.size < mostInFlight) {
        const call = q.add('job', data(l.sent++, size));
        l.flying.add(call);
        call.then(() => l.flying.delete(call), failed);
      }
    }, 1);
    load = l;
    return {};
  },

  /** Ends the load. */
  async endload() {
    clearInterval(load.timer);
    await Promise.all(load.flying);
    return { sent: load.sent };
  },

  /** Sets n schedules. Their first slots are at a time, or spread over the span that follows it. */
  async schedule({ topic, callers, n, every, at, span, size }) {
    const q = queue(topic);
    const job = { name: 'job', data: data(0, size) };
    await parallel(callers, n, (i) => {
      const startDate = Math.round(at + ((span ?? 0) * i) / n);
      return q.upsertJobScheduler(`s${i}`, { every, startDate }, job);
    });
    return {};
  },

  /** Removes n jobs by their IDs. */
  async remove({ topic, callers, n }) {
    const q = queue(topic);
    await parallel(callers, n, (i) => q.remove(`stored-${i}`));
    return {};
  },

  /** Removes all jobs that wait, also those that are scheduled. */
  async drain({ topic }) {
    await queue(topic).drain(true);
    return {};
  },

  /** Reads a page of ready jobs that many times, and says how many ms each took. */
  async page({ topic, from = 0, n, times }) {
    const waits = [];
    for (let t = 0; t < times; t++) {
      const began = performance.now();
      const jobs = await queue(topic).getJobs(['waiting'], from, from + n - 1, true);
      waits.push(performance.now() - began);
      if (jobs.length !== n) throw new Error(`a page of ${jobs.length} jobs instead of ${n}`);
    }
    return { waits };
  },
};

async function answer(line) {
  const { do: what, within, ...args } = JSON.parse(line);
  const guard = setTimeout(() => {
    console.error(`bullmq: ${what} took longer than ${within} ms`);
    process.exit(1);
  }, within);
  try {
    if (failure) throw failure;
    if (!Object.hasOwn(requests, what)) throw new Error(`unknown request ${what}`);
    if (args.n > mostJobs) throw new Error(`more than ${mostJobs} jobs`);
    return await Promise.race([requests[what](args), broken]);
  } catch (error) {
    return { error: `${what}: ${error?.stack ?? error}` };
  } finally {
    clearTimeout(guard);
  }
}

let before = Promise.resolve();
const lines = createInterface({ input: process.stdin });
lines.on('line', (line) => {
  before = before.then(async () => process.stdout.write(`${JSON.stringify(await answer(line))}\n`));
});
lines.on('close', () => process.exit(0));
