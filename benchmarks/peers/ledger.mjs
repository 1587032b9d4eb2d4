// The writing side of benchmarks/chaos/ledger.py, and the work of its task, for peers that run in Node.

import fs from "node:fs";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import readline from "node:readline";

const folder = process.env.BENCHMARK_TALLY;
const workMs = 1000 * Number(process.env.BENCHMARK_WORK);
export const patienceMs = 1000 * Number(process.env.BENCHMARK_PATIENCE);
let file;

function write(word, payload) {
  file ??= fs.openSync(path.join(folder, `ledger.${process.pid}`), "a");
  // Node's clock is the monotonic one of the machine, as Python's.
  fs.writeSync(file, `${word} ${payload.t} ${payload.n} ${process.hrtime.bigint()}\n`);
}

/** Takes its time, and leaves its number. */
export async function work(redis, payload) {
  write("s", payload);
  await sleep(workMs);
  await redis.rpush(`effects:${payload.t}`, payload.n);
  write("e", payload);
}

/** Says that this worker is ready to receive. */
export const ready = () => fs.closeSync(fs.openSync(path.join(folder, `ready.${process.pid}`), "w"));

/**
 * Reads a line of messages, adds each, and answers when the server has all of them. `open` makes a queue on a connection
 * of its own and returns what adds a message; where that fails, it is made again, as a supervisor would restart it.
 */
export async function produce(open) {
  let add = open();
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let left = JSON.parse(line);
    for (;;) {
      // Sent in this order on one connection, without waiting for each reply.
      const results = await Promise.allSettled(left.map(([ticket, payload]) => add(ticket, payload)));
      left = left.filter((_, i) => results[i].status === "rejected");
      if (!left.length) break;
      console.error(results.find((one) => one.status === "rejected").reason.message);
      await sleep(200);
      add = open();
    }
    process.stdout.write("added\n");
  }
}
