// The shop of ../after on BullMQ.
import { Queue, UnrecoverableError, Worker } from 'bullmq';

const at = new URL(process.env.REDIS_URL);
const connection = { host: at.hostname, port: Number(at.port) };

let open = 4; // what has yet to happen
let finish;
const finished = new Promise((resolve) => (finish = resolve));
function say(text) {
  console.log(text);
  if (--open === 0) finish();
}

const cancels = new Queue('cancel', { connection });
const welcomes = new Queue('welcome', { connection });

/** Adds the end of an order that is not paid in time. */
async function place(order) {
  await cancels.add('cancel', {}, { jobId: order, delay: 2000, attempts: 6, removeOnComplete: true });
}

/** Keeps an order. */
async function pay(order) {
  if ((await cancels.remove(order)) === 0) throw new Error(`order ${order} is cancelled already`);
  say(`${order} is paid`);
}

const workers = [
  new Worker('cancel', async (job) => say(`${job.id} is cancelled`), { connection, concurrency: 10 }),
  new Worker('welcome', async (job) => {
    if (!job.data.to) throw new UnrecoverableError('no address');
    if (job.attemptsMade === 0) {
      say(`the mail to ${job.data.to} failed`);
      throw new Error('smtp: busy');
    }
    say(`welcome, ${job.data.to}`);
  }, { connection, concurrency: 10 }),
];

await welcomes.add('welcome', { to: 'anna' }, { jobId: 'anna', attempts: 4, backoff: { type: 'fixed', delay: 1000 } });
await place('order-1');
await place('order-2');
await pay('order-2');
await finished;
await Promise.all([...workers, cancels, welcomes].map((one) => one.close()));
