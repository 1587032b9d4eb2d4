// BullMQ: the best-known queue for Node on Redis; its groups are in its paid edition, so here it keeps no order.
// Under chaos: `produce` adds what it reads; `chaos CONCURRENCY` runs it.

import { Queue, Worker } from "bullmq";
import { patienceMs, produce, ready, work } from "./ledger.mjs";
import { connect } from "./tally.mjs";

const [action, concurrency] = process.argv.slice(2);

if (action === "produce") {
  await produce(() => {
    const queue = new Queue("bench", { connection: connect() });
    queue.on("error", (error) => console.error(error.message));
    return (ticket, payload) => queue.add("work", payload, { removeOnComplete: true });
  });
  process.exit(0);
} else {
  const redis = connect();
  const worker = new Worker("bench", (job) => work(redis, job.data), {
    connection: connect(),
    concurrency: Number(concurrency),
    lockDuration: patienceMs,
    stalledInterval: patienceMs,
    maxStalledCount: 1000,
  });
  worker.on("error", (error) => console.error(error.message));
  ready();
}
