// GroupMQ: ordered groups for Node on Redis. `fill FILE` adds the messages of a file; `work TASK CONCURRENCY` runs them.
// Under chaos: `produce` adds what it reads; `chaos CONCURRENCY` runs it.

import fs from "node:fs";
import { Queue, Worker } from "groupmq";
import { patienceMs, produce, ready, work } from "./ledger.mjs";
import { connect, tasks } from "./tally.mjs";

const [action, ...rest] = process.argv.slice(2);
const open = () =>
  new Queue({
    redis: connect(),
    namespace: "bench",
    ...(Number.isNaN(patienceMs) ? {} : { jobTimeoutMs: patienceMs }),
  });
const adder = (queue) => (ticket, payload) => queue.add({ groupId: ticket, data: payload });

function start(concurrency, handler) {
  const chaos = Number.isNaN(patienceMs) ? {} : { stalledInterval: patienceMs, maxStalledCount: 1000 };
  const worker = new Worker({ queue: open(), concurrency, handler, ...chaos });
  worker.on("error", (error) => console.error(error.message));
  worker.run();
}

if (action === "fill") {
  const add = adder(open());
  const lines = fs.readFileSync(rest[0], "utf8").trim().split("\n");
  for (let i = 0; i < lines.length; i += 500) {
    // Sent in this order on one connection, without waiting for each reply.
    await Promise.all(
      lines.slice(i, i + 500).map((line) => add(...JSON.parse(line))),
    );
  }
  process.exit(0);
} else if (action === "work") {
  const run = tasks(connect())[rest[0]];
  start(Number(rest[1]), (job) => run(job.groupId, job.data));
} else if (action === "produce") {
  await produce(() => adder(open()));
  process.exit(0);
} else {
  const redis = connect();
  start(Number(rest[0]), (job) => work(redis, job.data));
  ready();
}
