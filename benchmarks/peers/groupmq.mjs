// GroupMQ: ordered groups for Node on Redis. `fill FILE` adds the messages of a file; `work TASK CONCURRENCY` runs them.

import fs from "node:fs";
import { Queue, Worker } from "groupmq";
import { connect, tasks } from "./tally.mjs";

const [action, ...rest] = process.argv.slice(2);
const queue = new Queue({ redis: connect(), namespace: "bench" });

if (action === "fill") {
  const lines = fs.readFileSync(rest[0], "utf8").trim().split("\n");
  for (let i = 0; i < lines.length; i += 500) {
    // Sent in this order on one connection, without waiting for each reply.
    await Promise.all(
      lines.slice(i, i + 500).map((line) => {
        const [ticket, payload] = JSON.parse(line);
        return queue.add({ groupId: ticket, data: payload });
      }),
    );
  }
  process.exit(0);
}

const run = tasks(connect())[rest[0]];
const worker = new Worker({
  queue,
  concurrency: Number(rest[1]),
  handler: (job) => run(job.groupId, job.data),
});
worker.on("error", (error) => console.error(error.message));
worker.run();
