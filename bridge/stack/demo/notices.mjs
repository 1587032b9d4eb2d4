// The HTTP consumer of the demo: handles the messages of one subscription, and writes the ledger of the demo.
//
//     node notices.mjs MASTER[,MASTER…] NAME SUBSCRIPTION LEDGER
//
// MASTER: the address of a master's port; when one does not answer, the next one is called. LEDGER: a folder. The token
// is in the environment variable BRIDGE_NOTICES_TOKEN. Node 18 or later, without a dependency.
import { openSync, writeSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const [addresses, name, subscription, folder] = process.argv.slice(2);
const masters = addresses.split(",");
const headers = {
  "Content-Type": "application/json",
  Authorization: `Bearer ${process.env.BRIDGE_NOTICES_TOKEN}`,
};
// Messages of one receive; seconds that a receive waits for the first one.
const MOST = 32, WAIT_S = 0.5;
// For one call, which a frozen master may not answer; and between two calls that nobody answered.
const CALL_MS = 5_000, REGISTER_MS = 60_000, AGAIN_MS = 100;

class LeaseOver extends Error {}

let stopping = false;
process.on("SIGTERM", () => { stopping = true; });

// -- the ledger: as bridge/stack/demo/ledger.py describes it -----------------------------------------------------------

const now = () => Number(process.hrtime.bigint());
const file = openSync(join(folder, `${process.pid}-${now()}.ledger`), "a");
// One write for each record, so that a written record stays when this process is killed at the next instruction.
const note = (record) => writeSync(file, `${JSON.stringify(record)}\n`);
note(["process", process.pid, process.ppid, name]);

function handle({ ticket_id, fence, attempt, payload }) {
  const seq = Number(payload.seq) || 0;
  for (const kind of ["start", "done"]) note([kind, ticket_id, seq, fence, attempt, now(), process.pid, subscription]);
}

// -- calls -------------------------------------------------------------------------------------------------------------

// One call, of the first master. After a call without an answer it is the last one.
async function once(method, path, body, ms) {
  const sent = performance.now();
  try {
    const signal = AbortSignal.timeout(ms);
    const answer = await fetch(masters[0] + path, { method, headers, signal, body: body && JSON.stringify(body) });
    const said = await answer.json();
    if (answer.status === 503) throw new Error(said.detail);
    return { ...said, status: answer.status, sent };
  } catch (error) {
    masters.push(masters.shift());
    throw error;
  }
}

// The same until there is an answer: each call can be repeated as it is. `check` throws when it must not be sent now.
async function call(method, path, body, { check = () => {}, ms = CALL_MS } = {}) {
  for (;;) {
    check();
    try {
      return await once(method, path, body, ms);
    } catch (error) {
      if (stopping) throw error;
      await sleep(AGAIN_MS);
    }
  }
}

// -- an incarnation ----------------------------------------------------------------------------------------------------

async function serve() {
  const asked = { name, subscription, concurrency: MOST };
  const registered = await call("POST", "/api/consumers/register", asked, { ms: REGISTER_MS });
  if (registered.status !== 200) throw new Error(registered.detail);
  const { incarnation, lease_ms } = registered;

  // Self-fencing: after the deadline nothing is handled or acknowledged. It counts from before a heartbeat, so it comes
  // before the lease ends. This clock stands still while the machine is suspended.
  let deadline = 0;
  const check = () => { if (performance.now() > deadline) throw new LeaseOver(); };
  async function renew() {
    const { status, sent } = await once("POST", `/api/consumers/${name}/heartbeat`, { incarnation }, CALL_MS);
    if (status === 200) deadline = Math.max(deadline, sent + 0.95 * lease_ms);
    if (status === 404 || status === 410) deadline = 0;
  }

  // The registration itself gives no deadline: it may have waited for the end of an older lease, for as long as a lease.
  await renew().catch(() => {});
  const beat = setInterval(() => renew().catch(() => {}), lease_ms / 3);
  try {
    const next = `/api/messages/next?consumer=${name}&incarnation=${incarnation}&max=${MOST}&wait=${WAIT_S}`;
    while (!stopping) {
      const { status, messages, detail } = await call("GET", next, undefined, { check });
      if (status === 410) throw new LeaseOver();
      if (status !== 200) throw new Error(detail);
      const outcomes = messages.map((message) => {
        check();
        const { message_id, fence } = message;
        const said = { consumer: name, incarnation, message_id, fence };
        try {
          handle(message);
          return { ...said, outcome: "done" };
        } catch (error) {
          return { ...said, outcome: "failed", error: String(error) };
        }
      });
      if (!outcomes.length) continue;
      const answer = await call("POST", "/api/messages/acknowledge", outcomes, { check });
      if (!answer.results) throw new Error(answer.detail);
      if (answer.results.some((result) => result.status === 410)) throw new LeaseOver();
    }
    await call("POST", `/api/consumers/${name}/leave`, { incarnation });
  } finally {
    clearInterval(beat);
  }
}

while (!stopping) {
  try {
    await serve();
  } catch (error) {
    if (stopping) break;
    if (!(error instanceof LeaseOver)) throw error;
    console.error("the lease is over: registers again");
  }
}
process.exit(0);
