// The counting side of benchmarks/tally.py, and what every task does, for peers that run in Node.

import fs from "node:fs";
import path from "node:path";
import Redis from "ioredis";

export const url = process.env.BENCHMARK_URL;
const folder = process.env.BENCHMARK_TALLY;

/** A new connection to the server under test. Blocking commands must not give up while the server is away. */
export const connect = () => new Redis(url, { maxRetriesPerRequest: null });

const numbers = Buffer.alloc(16);
const file = fs.openSync(path.join(folder, `count.${process.pid}`), "w");
fs.writeSync(file, numbers);
let done = 0n;
let unwritten = false;

/** One execution. What was counted in one turn of Node's loop is written in one write. */
export function count() {
  done += 1n;
  if (unwritten) return;
  unwritten = true;
  setImmediate(() => {
    unwritten = false;
    numbers.writeBigInt64LE(done);
    fs.writeSync(file, numbers, 0, 16, 0);
  });
}

/** Task name -> its body, as in benchmarks/apps/work.py and plain.py. */
export function tasks(redis) {
  return {
    noop: async () => count(),
    fold: async (ticket, payload) => {
      const state = await redis.hgetall(`state:${ticket}`);
      await redis.hset(`state:${ticket}`, {
        count: Number(state.count ?? 0) + 1,
        total: Number(state.total ?? 0) + payload.n,
        last: `message ${payload.n} of ticket ${payload.t}`,
      });
      count();
    },
  };
}
